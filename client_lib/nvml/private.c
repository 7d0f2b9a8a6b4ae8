/*
 * The table of unnamed functions that nvidia-smi asks NVML for. Two things of it are
 * needed for its table: a device by its number (slot 81) and the processes of a device
 * (slots 213 to 215: compute, graphics, MPS), whose names come with them. Facts observed
 * in public by the project NVIDIA/k8s-test-infra with nvidia-smi 580.65, and here with
 * 535.261 and 550.163; docs/nvml.md. For dmon and pmon it asks whether it can watch a
 * device (slot 72), for topo -m how two lie to each other (slot 23); seen with 535.261.
 * Every other slot refuses, and says its number in the log.
 */
#include "private.h"

#include <stdio.h>
#include <string.h>

#include "call.h"
#include "gpc_nvml_private.h"
#include "nvml_device.h"

#if GPUPOOL_PRIVATE_TABLES

#define SLOT_LEVEL 23
#define SLOT_WATCHED 72
#define SLOT_HANDLE 81
#define SLOT_COMPUTE 213
#define SLOT_GRAPHICS 214
#define SLOT_MPS 215

/* One process as those slots give it. */
struct named_process {
    nvmlProcessDetail_v1_t numbers;
    char name[4096];
};
_Static_assert(sizeof(struct named_process) == 4128, "the caller steps by this much");

static const unsigned char wanted_table[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                               0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

static nvmlReturn_t handle_by_index(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t named_processes(nvmlDevice_t device, unsigned int *count,
                                    struct named_process *out)
{
    struct gpc_nvml_process p[GPC_NVML_PROCESSES];
    unsigned int found;
    if (!count)
        return gpc_nvml_bad_argument(device);
    nvmlReturn_t r = gpc_nvml_processes(device, p, &found);
    if (r != NVML_SUCCESS)
        return r;
    unsigned int room = *count;
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (found && !out)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < found; i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].numbers = (nvmlProcessDetail_v1_t){.pid = p[i].pid,
                                                  .usedGpuMemory = p[i].memory,
                                                  .gpuInstanceId = 0xffffffffu,
                                                  .computeInstanceId = 0xffffffffu};
        /* a row without a name is not shown */
        if (nvmlSystemGetProcessName(p[i].pid, out[i].name, sizeof out[i].name) != NVML_SUCCESS)
            snprintf(out[i].name, sizeof out[i].name, "[%u]", p[i].pid);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int *count)
{
    nvmlReturn_t r = gpc_nvml_known(device);
    if (r != NVML_SUCCESS)
        return r;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t is_watched(nvmlDevice_t device, unsigned int *watched)
{
    if (!watched)
        return gpc_nvml_bad_argument(device);
    nvmlReturn_t r = gpc_nvml_known(device);
    if (r == NVML_SUCCESS)
        *watched = 1;
    return r;
}

/* From 0, one switch (PIX), to 4, the system (SYS): NVML's levels without the one for GPUs
 * of one board. */
static nvmlReturn_t level_between(const char *one, const char *other, unsigned int *level)
{
    nvmlDevice_t devices[2];
    nvmlGpuTopologyLevel_t found;
    if (!level)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t r = nvmlDeviceGetHandleByPciBusId_v2(one, &devices[0]);
    if (r == NVML_SUCCESS)
        r = nvmlDeviceGetHandleByPciBusId_v2(other, &devices[1]);
    if (r == NVML_SUCCESS)
        r = nvmlDeviceGetTopologyCommonAncestor(devices[0], devices[1], &found);
    if (r != NVML_SUCCESS)
        return r;
    unsigned int step = NVML_TOPOLOGY_SINGLE - NVML_TOPOLOGY_INTERNAL;
    *level = found < NVML_TOPOLOGY_SINGLE ? 0 : (found - NVML_TOPOLOGY_SINGLE) / step;
    return NVML_SUCCESS;
}

static nvmlReturn_t refuse_slot(int slot)
{
    gpc_log(GPC_LOG_DEBUG, "NVML's private function %d is not supported", slot);
    return NVML_ERROR_NOT_SUPPORTED;
}

#define X(n)                                                                                       \
    static nvmlReturn_t slot_##n(void)                                                             \
    {                                                                                              \
        return refuse_slot(n);                                                                     \
    }
GPC_NVML_PRIVATE(X)
#undef X

static const void *table[GPC_NVML_PRIVATE_SLOTS] = {
    (const void *)sizeof table, /* its size in bytes */
#define X(n) [n] = (const void *)(uintptr_t)slot_##n,
    GPC_NVML_PRIVATE(X)
#undef X
};

static void __attribute__((constructor)) fill(void)
{
    table[SLOT_LEVEL] = (const void *)(uintptr_t)level_between;
    table[SLOT_WATCHED] = (const void *)(uintptr_t)is_watched;
    table[SLOT_HANDLE] = (const void *)(uintptr_t)handle_by_index;
    table[SLOT_COMPUTE] = (const void *)(uintptr_t)named_processes;
    table[SLOT_GRAPHICS] = table[SLOT_MPS] = (const void *)(uintptr_t)no_processes;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **out, const void *id)
{
    if (!out || !id)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = NULL;
    if (memcmp(id, wanted_table, sizeof wanted_table) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = table;
    return NVML_SUCCESS;
}

#else

GPC_NVML_EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **out, const void *id)
{
    if (!out || !id)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = NULL;
    return NVML_ERROR_NOT_SUPPORTED;
}

#endif
