/* The processes of this machine that use a device: those of the same tenant. */
#include "nvml_device.h"

#define NO_INSTANCE 0xffffffffu /* MIG is off */

/* How many there are, and whether the caller, who has room for `*room`, can have them. */
static nvmlReturn_t take(nvmlDevice_t device, unsigned int *room, const void *out,
                         struct gpc_nvml_process *p, unsigned int *count)
{
    if (!room)
        return gpc_nvml_bad_argument(device);
    nvmlReturn_t r = gpc_nvml_processes(device, p, count);
    if (r != NVML_SUCCESS)
        return r;
    unsigned int had = *room;
    *room = *count;
    if (had < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return *count && !out ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
                                                                     unsigned int *infoCount,
                                                                     nvmlProcessInfo_v2_t *infos)
{
    struct gpc_nvml_process p[GPC_NVML_PROCESSES];
    unsigned int count;
    nvmlReturn_t r = take(device, infoCount, infos, p, &count);
    for (unsigned int i = 0; r == NVML_SUCCESS && i < count; i++)
        infos[i] = (nvmlProcessInfo_v2_t){.pid = p[i].pid,
                                          .usedGpuMemory = p[i].memory,
                                          .gpuInstanceId = NO_INSTANCE,
                                          .computeInstanceId = NO_INSTANCE};
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                     unsigned int *infoCount,
                                                                     nvmlProcessInfo_t *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v2(device, infoCount, infos);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device,
                                                                  unsigned int *infoCount,
                                                                  nvmlProcessInfo_v1_t *infos)
{
    struct gpc_nvml_process p[GPC_NVML_PROCESSES];
    unsigned int count;
    nvmlReturn_t r = take(device, infoCount, infos, p, &count);
    for (unsigned int i = 0; r == NVML_SUCCESS && i < count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){.pid = p[i].pid, .usedGpuMemory = p[i].memory};
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                                   nvmlProcessDetailList_t *plist)
{
    struct gpc_nvml_process p[GPC_NVML_PROCESSES];
    unsigned int count = 0;
    if (!plist || plist->mode > 2)
        return gpc_nvml_bad_argument(device);
    if (plist->version != nvmlProcessDetailList_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t r = gpc_nvml_known(device);
    if (r == NVML_SUCCESS && plist->mode == 0) /* compute; there are no others */
        r = take(device, &plist->numProcArrayEntries, plist->procArray, p, &count);
    else if (r == NVML_SUCCESS)
        plist->numProcArrayEntries = 0;
    for (unsigned int i = 0; r == NVML_SUCCESS && i < count; i++)
        plist->procArray[i] = (nvmlProcessDetail_v1_t){.pid = p[i].pid,
                                                       .usedGpuMemory = p[i].memory,
                                                       .gpuInstanceId = NO_INSTANCE,
                                                       .computeInstanceId = NO_INSTANCE};
    return r;
}
