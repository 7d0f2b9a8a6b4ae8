/* The start, functions by name, errors by number. */
#include "defaults.h"

#include <stdio.h>
#include <stdlib.h>

_Thread_local int sg_per_thread;

CUresult cuInit(unsigned int flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    SG_LOCKED;
    if (sg.ready)
        return CUDA_SUCCESS;
    SG_TRY(sg_devices_open());
    __atomic_store_n(&sg.ready, true, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

int sg_driver_version(void)
{
    const char *asked = getenv("GPUPOOL_SOFT_DRIVER");
    unsigned major = 0, minor = 0;
    if (!asked || !*asked)
        return SG_DRIVER_VERSION;
    bool read = sscanf(asked, "%2u.%2u", &major, &minor) == 2;
    int version = (int)(major * 1000 + minor * 10);
    return read && version < SG_DRIVER_VERSION ? version : SG_DRIVER_VERSION;
}

CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = sg_driver_version();
    return CUDA_SUCCESS;
}

/* The newest variant that is not newer than the version asked for. */
static void *find(const char *name, int version, bool per_thread, bool *newer)
{
    void *best = NULL, *plain = NULL;
    const int driver = sg_driver_version();
    *newer = false;
    for (size_t i = 0; i < sg_symbol_count; i++) {
        const struct sg_symbol *symbol = &sg_symbols[i];
        if (strcmp(symbol->name, name) != 0 || symbol->since > driver)
            continue;
        if (symbol->since > version)
            *newer = true;
        else if (symbol->per_thread && per_thread)
            best = symbol->function;
        else if (!symbol->per_thread)
            plain = symbol->function;
    }
    return best ? best : plain;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    bool newer;
    if (!symbol || !pfn ||
        flags & ~(cuuint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                              CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
        return CUDA_ERROR_INVALID_VALUE;
    *pfn = find(symbol, cudaVersion, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &newer);
    if (symbolStatus)
        *symbolStatus = *pfn    ? CU_GET_PROC_ADDRESS_SUCCESS
                        : newer ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (*pfn || !*symbol || symbolStatus) /* an empty name asks nothing */
        return CUDA_SUCCESS;
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

static const struct sg_error *error_of(CUresult error)
{
    for (size_t i = 0; i < sg_error_count; i++)
        if (sg_errors[i].value == (int)error)
            return &sg_errors[i];
    return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_error *found = error_of(error);
    *pStr = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    if (!pStr)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_error *found = error_of(error);
    *pStr = found ? found->text : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
