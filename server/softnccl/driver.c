/* The soft GPU's calls, from the library that this process has loaded already. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "softnccl.h"

/* Its soname. Another driver's memory is no memory of this process, so none is looked for. */
#define SOFT_GPU "libgpupool_softgpu.so"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sn_driver found;
static bool complete;

static void find(void)
{
    void *library = dlopen(SOFT_GPU, RTLD_NOW | RTLD_NOLOAD);
    const char *missing = library ? NULL : SOFT_GPU;
#define SN_FIND(name)                                                                              \
    if (library) {                                                                                 \
        void *symbol = dlsym(library, #name);                                                      \
        memcpy(&found.name, &symbol, sizeof symbol);                                               \
        if (!symbol)                                                                               \
            missing = #name;                                                                       \
    }
    SN_DRIVER_CALLS(SN_FIND)
#undef SN_FIND
    complete = !missing;
    if (missing)
        sn_fail(ncclSystemError,
                "%s is not in this process: this NCCL works on the soft GPU alone, so load that "
                "first",
                missing);
}

const struct sn_driver *sn_driver(void)
{
    pthread_once(&once, find);
    return complete ? &found : NULL;
}

ncclResult_t sn_cuda(CUresult result, const char *what)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return ncclSuccess;
    found.cuGetErrorName(result, &name);
    return sn_fail(ncclUnhandledCudaError, "%s failed: %s", what, name ? name : "unknown error");
}

/* Memory may lie in several allocations that are mapped one behind the other. */
ncclResult_t sn_memory_check(const void *address, uint64_t bytes, const char *what)
{
    CUdeviceptr at = (uintptr_t)address, end;
    if (!address || __builtin_add_overflow(at, bytes, &end))
        return sn_fail(ncclInvalidArgument, "%s is %p: give memory of the GPU", what, address);
    while (at < end) {
        CUdeviceptr begin = 0;
        size_t size = 0;
        if (sn_driver()->cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) ||
            sn_driver()->cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at))
            return sn_fail(ncclInvalidArgument,
                           "%s is %p with %llu bytes, and not all of that is memory of the GPU",
                           what, address, (unsigned long long)bytes);
        at = begin + size;
    }
    return ncclSuccess;
}
