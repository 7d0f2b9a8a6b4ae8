/* The library itself: begin and end, versions, error texts, names of processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpc_nvml_errors.h"
#include "nvml_device.h"
#include "nvml_state.h"

GPC_NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    return gpc_nvml_open(flags);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return gpc_nvml_open(0);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlShutdown(void)
{
    return gpc_nvml_close();
}

GPC_NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
#define CASE(name, text)                                                                           \
    case name:                                                                                     \
        return text;
        GPC_NVML_ERRORS(CASE)
#undef CASE
    }
    return "Unknown Error";
}

static nvmlReturn_t give_version(const char *known, char *version, unsigned int length)
{
    return *known ? gpc_nvml_give_text(known, version, length) : NVML_ERROR_NOT_SUPPORTED;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    const struct gpc_nvml_state *s;
    nvmlReturn_t r = gpc_nvml_borrow(false, &s);
    if (r != NVML_SUCCESS)
        return r;
    r = give_version(s->driver_version, version, length);
    gpc_nvml_give_back();
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    const struct gpc_nvml_state *s;
    nvmlReturn_t r = gpc_nvml_borrow(false, &s);
    if (r != NVML_SUCCESS)
        return r;
    r = give_version(s->nvml_version, version, length);
    gpc_nvml_give_back();
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
    const struct gpc_nvml_state *s;
    nvmlReturn_t r = gpc_nvml_borrow(false, &s);
    if (r != NVML_SUCCESS)
        return r;
    if (!cudaDriverVersion)
        r = NVML_ERROR_INVALID_ARGUMENT;
    else if (s->cuda_version == 0)
        r = NVML_ERROR_NOT_SUPPORTED;
    else
        *cudaDriverVersion = (int)s->cuda_version;
    gpc_nvml_give_back();
    return r;
}

/* "r580": what stands before the first dot of the driver's version. */
GPC_NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *branchInfo,
                                                       unsigned int length)
{
    char version[80];
    nvmlReturn_t r = nvmlSystemGetDriverVersion(version, sizeof version);
    if (r != NVML_SUCCESS)
        return r;
    if (!branchInfo || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (branchInfo->version != nvmlSystemDriverBranchInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    version[strcspn(version, ".")] = '\0';
    size_t room = length < sizeof branchInfo->branch ? length : sizeof branchInfo->branch;
    int n = snprintf(branchInfo->branch, room, "r%s", version);
    return n > 0 && (size_t)n < room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* Processes are those of this machine, so /proc knows. */
GPC_NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name,
                                                      unsigned int length)
{
    nvmlReturn_t r = gpc_nvml_ready();
    if (r != NVML_SUCCESS)
        return r;
    if (!name || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    size_t got = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[got] = '\0'; /* the program's name ends at the first NUL */
    if (line[0] == '\0')
        return NVML_ERROR_NOT_FOUND;
    snprintf(name, length, "%s", line);
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device,
                                                         nvmlDeviceAddressingMode_t *mode)
{
    unsigned long long got;
    if (!mode)
        return gpc_nvml_bad_argument(device);
    if (mode->version != nvmlDeviceAddressingMode_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t r = gpc_nvml_fact(device, GP_NVML_ADDRESSING, &got);
    if (r == NVML_SUCCESS)
        mode->value = (unsigned int)got;
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device,
                                                         nvmlInforomObject_t object, char *version,
                                                         unsigned int length)
{
    static const enum gpc_nvml_text parts[] = {
        [NVML_INFOROM_OEM] = GP_NVML_TEXT_INFOROM_OEM,
        [NVML_INFOROM_ECC] = GP_NVML_TEXT_INFOROM_ECC,
        [NVML_INFOROM_POWER] = GP_NVML_TEXT_INFOROM_POWER,
    };
    if (!version || (unsigned)object >= NVML_INFOROM_COUNT)
        return gpc_nvml_bad_argument(device);
    if ((unsigned)object >= sizeof parts / sizeof parts[0])
        return gpc_nvml_refuse_device(__func__, device);
    return gpc_nvml_text(device, parts[object], version, length);
}
