/*
 * What the driver-API programs share: checks of CUresult, a device and a
 * context, and the module of kernels.cu, embedded as PTX text by the linker.
 */
#ifndef E2E_DRIVER_H
#define E2E_DRIVER_H

#include "check.h"

#include <cuda.h>
#include <stdbool.h>
#include <sys/mman.h>

static inline const char *driver_name(CUresult result)
{
    const char *name = NULL;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        return "an unknown error";
    return name;
}

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_result = (call);                                                               \
        REQUIRE(cu_result == CUDA_SUCCESS, "%s: %s", #call, driver_name(cu_result));               \
    } while (0)
#define CU_GIVES(expected, call)                                                                   \
    do {                                                                                           \
        CUresult cu_result = (call);                                                               \
        EXPECT(cu_result == (expected), "%s gave %s (%d), expected %s", #call,                     \
               driver_name(cu_result), (int)cu_result, #expected);                                 \
    } while (0)
/* Whether this is a local driver: it does not say what gpupool says, or dies of a question. */
static inline bool driver_is_native(void)
{
    return getenv("E2E_NATIVE") != NULL;
}

/* As CU_GIVES, for a call that a local driver takes, or dies of: asked only through gpupool. */
#define CU_REFUSED(expected, call)                                                                 \
    do {                                                                                           \
        if (!driver_is_native())                                                                   \
            CU_GIVES(expected, call);                                                              \
    } while (0)

/* kernels.cu as PTX, ending in a zero byte; the build puts it there. */
extern const char kernels_ptx[];

static CUdevice driver_device;
static CUcontext driver_context;

/* On the first device, or the one that E2E_DEVICE says. */
static inline void driver_start(void)
{
    const char *device = getenv("E2E_DEVICE");

    CU(cuInit(0));
    CU(cuDeviceGet(&driver_device, device ? atoi(device) : 0));
    CU(cuDevicePrimaryCtxRetain(&driver_context, driver_device));
    CU(cuCtxSetCurrent(driver_context));
}

static inline void driver_stop(void)
{
    CU(cuDevicePrimaryCtxRelease(driver_device));
}

/* Memory of the program's own, of whole pages, that it registers for kernels. These reach it at its
 * address, which must be free on the GPU's host as well: where systems put memory that may be the
 * worker's, in one of a hundred runs. Below that nobody has any. */
static inline void *driver_own_memory(size_t bytes)
{
    static uintptr_t next = 0x7ec000000000;
    void *p = mmap((void *)next, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    REQUIRE(p == (void *)next, "no memory at %p", (void *)next);
    next += (bytes + (1 << 21)) >> 21 << 21;
    return p;
}

static inline CUfunction driver_function(CUmodule module, const char *name)
{
    CUfunction function = NULL;
    CUresult result = cuModuleGetFunction(&function, module, name);
    REQUIRE(result == CUDA_SUCCESS, "cuModuleGetFunction(%s): %s", name, driver_name(result));
    return function;
}

#endif
