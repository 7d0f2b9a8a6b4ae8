/*
 * Every driver function that may be the first behind cuInit, each in a process of its own
 * that has no context, held against what CUDA answers. One line for each: its name and
 * the result.
 *   first_calls [NAME]
 */
#include "driver.h"
#include "first.h"

#define OK CUDA_SUCCESS
#define NO_CONTEXT CUDA_ERROR_INVALID_CONTEXT

static CUdevice device;
static CUcontext context;
static CUmodule module;
static CUlibrary library;
static CUkernel kernel, kernels[32];
static CUfunction function;
static CUstream stream;
static CUevent event;
static CUgraph graph;
static CUmemoryPool pool;
static CUdeviceptr address;
static CUmemGenericAllocationHandle allocation;
static CUstreamCaptureStatus status;
static CUstreamCaptureMode mode;
static CUmoduleLoadingMode loading;
static CUfunc_cache cache;
static CUuuid uuid;
static const char *text;
static void *memory;
static char name[64];
static int value, least;
static unsigned number;
static size_t size, offset;
static unsigned long long id;
static cuuint64_t amount;
static float page[1024];

/* --- what needs something before it ------------------------------------------------ */

static CUresult load_library(void)
{
    return cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0);
}

static CUkernel a_kernel(void)
{
    CU(load_library());
    CU(cuLibraryGetKernel(&kernel, library, "increment"));
    return kernel;
}

static CUlibrary a_library(void)
{
    CU(load_library());
    return library;
}

static CUresult by_bus_id(void)
{
    CU(cuDeviceGetPCIBusId(name, sizeof name, 0));
    return cuDeviceGetByPCIBusId(&device, name);
}

static CUresult launch_without_context(void)
{
    CUdeviceptr nowhere = 0;
    int n = 0;
    void *parameters[] = {&nowhere, &n};
    CUfunction f = (CUfunction)a_kernel();

    return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

/* As the runtime does: the context comes after the kernel, before the launch. */
static CUresult launch_with_context(void)
{
    CUdeviceptr values;
    int n = 4, found[4];
    void *parameters[] = {&values, &n};
    CUfunction f = (CUfunction)a_kernel();

    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuMemAlloc(&values, sizeof found));
    CU(cuMemsetD32(values, 6, 4));
    CU(cuLaunchKernel(f, 1, 1, 1, 4, 1, 1, 0, NULL, parameters, NULL));
    CU(cuMemcpyDtoH(found, values, sizeof found));
    EXPECT(found[0] == 7 && found[3] == 7, "the kernel left %d and %d", found[0], found[3]);
    return OK;
}

/* What was asked and set without a context holds in one. */
static CUresult set_before_context(void)
{
    const CUfunction_attribute most = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    CUkernel k = a_kernel();

    CU(cuKernelGetAttribute(&value, most, k, 0));
    EXPECT(value > 0, "the limit is %d", value);
    CU(cuKernelSetAttribute(most, 1024, k, 0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuKernelGetFunction(&function, k));
    CU(cuFuncGetAttribute(&value, most, function));
    EXPECT(value == 1024, "the limit is %d, not what was set", value);
    return OK;
}

/* A launch that fails on the GPU comes out of the synchronize behind it. */
static CUresult failure_in_synchronize(void)
{
    CUdeviceptr nowhere = 64;
    void *parameters[] = {&nowhere};

    CU(load_library());
    CU(cuLibraryGetKernel(&kernel, library, "write_to"));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    return cuCtxSynchronize();
}

static CUmemAllocationProp on_device(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
}

static CUresult granularity(void)
{
    CUmemAllocationProp prop = on_device();
    return cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

static CUresult create_memory(void)
{
    CUmemAllocationProp prop = on_device();
    CU(granularity());
    return cuMemCreate(&allocation, size, &prop, 0);
}

static CUresult create_pool(void)
{
    CUmemPoolProps prop = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                           .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    return cuMemPoolCreate(&pool, &prop);
}

static CUresult pool_attribute(void)
{
    CU(cuDeviceGetDefaultMemPool(&pool, 0));
    return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &amount);
}

/* With a context no more current. */
static CUresult record_outside(void)
{
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuEventCreate(&event, 0));
    CU(cuCtxSetCurrent(NULL));
    return cuEventRecord(event, NULL);
}

/* What is asked of a kernel where a context is current. */
static CUkernel kernel_here(void)
{
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    return a_kernel();
}

static CUresult free_nothing(void)
{
    CUkernel k = kernel_here();

    CU(cuKernelGetParamInfo(k, 0, &offset, &size));
    CU(cuMemFree(0));
    return cuMemFreeHost(NULL);
}

/* --- the table ---------------------------------------------------------------------- */

#define CASES(X)                                                                                   \
    X(cuInit, OK, cuInit(0))                                                                       \
    X(cuDriverGetVersion, OK, cuDriverGetVersion(&value))                                          \
    X(cuGetErrorName, OK, cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &text))                         \
    X(cuGetErrorString, OK, cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &text))                     \
    X(cuGetProcAddress, OK, cuGetProcAddress("cuCtxSynchronize", &memory, 12000, 0, NULL))         \
    X(cuDeviceGet, OK, cuDeviceGet(&device, 0))                                                    \
    X(cuDeviceGet_missing, CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 4711))                  \
    X(cuDeviceGetCount, OK, cuDeviceGetCount(&value))                                              \
    X(cuDeviceGetName, OK, cuDeviceGetName(name, sizeof name, 0))                                  \
    X(cuDeviceGetUuid, OK, cuDeviceGetUuid(&uuid, 0))                                              \
    X(cuDeviceTotalMem, OK, cuDeviceTotalMem(&size, 0))                                            \
    X(cuDeviceGetAttribute, OK, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0))    \
    X(cuDeviceGetPCIBusId, OK, cuDeviceGetPCIBusId(name, sizeof name, 0))                          \
    X(cuDeviceGetByPCIBusId, OK, by_bus_id())                                                      \
    X(cuDeviceCanAccessPeer, OK, cuDeviceCanAccessPeer(&value, 0, 0))                              \
    X(cuDeviceGetDefaultMemPool, OK, cuDeviceGetDefaultMemPool(&pool, 0))                          \
    X(cuDeviceGetMemPool, OK, cuDeviceGetMemPool(&pool, 0))                                        \
    X(cuDeviceGetTexture1DLinearMaxWidth, OK,                                                      \
      cuDeviceGetTexture1DLinearMaxWidth(&size, CU_AD_FORMAT_FLOAT, 1, 0))                         \
    X(cuDevicePrimaryCtxGetState, OK, cuDevicePrimaryCtxGetState(0, &number, &value))              \
    X(cuDevicePrimaryCtxSetFlags, OK, cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_YIELD))           \
    X(cuDevicePrimaryCtxRetain, OK, cuDevicePrimaryCtxRetain(&context, 0))                         \
    X(cuDevicePrimaryCtxRelease, NO_CONTEXT, cuDevicePrimaryCtxRelease(0))                         \
    X(cuDevicePrimaryCtxReset, OK, cuDevicePrimaryCtxReset(0))                                     \
    X(cuCtxCreate, OK, cuCtxCreate(&context, NULL, 0, 0))                                          \
    X(cuCtxDestroy, CUDA_ERROR_INVALID_VALUE, cuCtxDestroy(NULL))                                  \
    X(cuCtxGetCurrent, OK, cuCtxGetCurrent(&context))                                              \
    X(cuCtxSetCurrent, OK, cuCtxSetCurrent(NULL))                                                  \
    X(cuCtxPopCurrent, NO_CONTEXT, cuCtxPopCurrent(&context))                                      \
    X(cuCtxGetDevice, NO_CONTEXT, cuCtxGetDevice(&device))                                         \
    X(cuCtxGetFlags, NO_CONTEXT, cuCtxGetFlags(&number))                                           \
    X(cuCtxGetId, NO_CONTEXT, cuCtxGetId(NULL, &id))                                               \
    X(cuCtxGetApiVersion, NO_CONTEXT, cuCtxGetApiVersion(NULL, &number))                           \
    X(cuCtxGetLimit, NO_CONTEXT, cuCtxGetLimit(&size, CU_LIMIT_STACK_SIZE))                        \
    X(cuCtxSetLimit, NO_CONTEXT, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048))                         \
    X(cuCtxGetCacheConfig, NO_CONTEXT, cuCtxGetCacheConfig(&cache))                                \
    X(cuCtxSetCacheConfig, NO_CONTEXT, cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1))               \
    X(cuCtxGetStreamPriorityRange, NO_CONTEXT, cuCtxGetStreamPriorityRange(&least, &value))        \
    X(cuCtxSynchronize, NO_CONTEXT, cuCtxSynchronize())                                            \
    X(cuModuleGetLoadingMode, OK, cuModuleGetLoadingMode(&loading))                                \
    X(cuModuleLoadData, NO_CONTEXT, cuModuleLoadData(&module, kernels_ptx))                        \
    X(cuLibraryLoadData, OK, load_library())                                                       \
    X(cuLibraryLoadFromFile, CUDA_ERROR_FILE_NOT_FOUND,                                            \
      cuLibraryLoadFromFile(&library, "/nowhere/at.all", NULL, NULL, 0, NULL, NULL, 0))            \
    X(cuLibraryUnload, OK, cuLibraryUnload(a_library()))                                           \
    X(cuLibraryGetKernel, OK, cuLibraryGetKernel(&kernel, a_library(), "add"))                     \
    X(cuLibraryGetKernel_missing, CUDA_ERROR_NOT_FOUND,                                            \
      cuLibraryGetKernel(&kernel, a_library(), "no such kernel"))                                  \
    X(cuLibraryGetKernelCount, OK, cuLibraryGetKernelCount(&number, a_library()))                  \
    X(cuLibraryEnumerateKernels, OK, cuLibraryEnumerateKernels(kernels, 32, a_library()))          \
    X(cuLibraryGetModule, NO_CONTEXT, cuLibraryGetModule(&module, a_library()))                    \
    X(cuLibraryGetGlobal, NO_CONTEXT, cuLibraryGetGlobal(&address, &size, a_library(), "table"))   \
    X(cuKernelGetFunction, NO_CONTEXT, cuKernelGetFunction(&function, a_kernel()))                 \
    X(cuKernelGetLibrary, OK, cuKernelGetLibrary(&library, a_kernel()))                            \
    X(cuKernelGetName, OK, cuKernelGetName(&text, a_kernel()))                                     \
    X(cuKernelGetParamInfo, NO_CONTEXT, cuKernelGetParamInfo(a_kernel(), 0, &offset, &size))       \
    X(cuKernelGetParamInfo_missing, NO_CONTEXT,                                                    \
      cuKernelGetParamInfo(a_kernel(), 99, &offset, &size))                                        \
    X(cuKernelGetParamInfo_missing_in_a_context, CUDA_ERROR_INVALID_VALUE,                         \
      cuKernelGetParamInfo(kernel_here(), 99, &offset, &size))                                     \
    X(cuKernelGetAttribute, OK,                                                                    \
      cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, a_kernel(), 0))                     \
    X(cuKernelSetAttribute, OK,                                                                    \
      cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 512, a_kernel(), 0))   \
    X(cuKernelSetAttribute_read_only, CUDA_ERROR_INVALID_VALUE,                                    \
      cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NUM_REGS, 8, a_kernel(), 0))                          \
    X(cuKernelSetCacheConfig, OK, cuKernelSetCacheConfig(a_kernel(), CU_FUNC_CACHE_PREFER_L1, 0))  \
    X(cuLaunchKernel, NO_CONTEXT, launch_without_context())                                        \
    X(cuLaunchKernel_of_an_earlier_kernel, OK, launch_with_context())                              \
    X(cuKernelSetAttribute_before_a_context, OK, set_before_context())                             \
    X(cuCtxSynchronize_behind_a_failure, CUDA_ERROR_ILLEGAL_ADDRESS, failure_in_synchronize())     \
    X(cuMemGetInfo, NO_CONTEXT, cuMemGetInfo(&size, &offset))                                      \
    X(cuMemAlloc, NO_CONTEXT, cuMemAlloc(&address, 4096))                                          \
    X(cuMemAllocPitch, NO_CONTEXT, cuMemAllocPitch(&address, &size, 64, 64, 4))                    \
    X(cuMemHostAlloc, NO_CONTEXT, cuMemHostAlloc(&memory, 4096, 0))                                \
    X(cuMemAllocHost, NO_CONTEXT, cuMemAllocHost(&memory, 4096))                                   \
    X(cuMemHostRegister, NO_CONTEXT, cuMemHostRegister(page, sizeof page, 0))                      \
    X(cuMemcpyHtoD, NO_CONTEXT, cuMemcpyHtoD(4096, page, 64))                                      \
    X(cuMemcpyDtoH, NO_CONTEXT, cuMemcpyDtoH(page, 4096, 64))                                      \
    X(cuMemsetD8, NO_CONTEXT, cuMemsetD8(4096, 0, 64))                                             \
    X(cuMemFree, OK, cuMemFree(0))                                                                 \
    X(cuMemFreeHost, OK, cuMemFreeHost(NULL))                                                      \
    X(cuMemFreeHost_in_a_context, OK, free_nothing())                                              \
    X(cuMemAllocAsync, NO_CONTEXT, cuMemAllocAsync(&address, 4096, NULL))                          \
    X(cuMemGetAllocationGranularity, OK, granularity())                                            \
    X(cuMemAddressReserve, OK, cuMemAddressReserve(&address, 2u << 20, 0, 0, 0))                   \
    X(cuMemCreate, OK, create_memory())                                                            \
    X(cuMemPoolCreate, OK, create_pool())                                                          \
    X(cuMemPoolGetAttribute, OK, pool_attribute())                                                 \
    X(cuStreamCreate, NO_CONTEXT, cuStreamCreate(&stream, 0))                                      \
    X(cuStreamCreateWithPriority, NO_CONTEXT, cuStreamCreateWithPriority(&stream, 0, 0))           \
    X(cuStreamQuery, NO_CONTEXT, cuStreamQuery(NULL))                                              \
    X(cuStreamSynchronize, NO_CONTEXT, cuStreamSynchronize(NULL))                                  \
    X(cuStreamIsCapturing, NO_CONTEXT, cuStreamIsCapturing(NULL, &status))                         \
    X(cuEventCreate, NO_CONTEXT, cuEventCreate(&event, 0))                                         \
    X(cuEventRecord, NO_CONTEXT, cuEventRecord(NULL, NULL))                                        \
    X(cuEventRecord_behind_a_context, NO_CONTEXT, record_outside())                                \
    X(cuEventQuery, CUDA_ERROR_INVALID_HANDLE, cuEventQuery(NULL))                                 \
    X(cuGraphCreate, OK, cuGraphCreate(&graph, 0))                                                 \
    X(cuThreadExchangeStreamCaptureMode, OK, cuThreadExchangeStreamCaptureMode(&mode))

CASES(FIRST_RUN)
static const struct first_call cases[] = {CASES(FIRST_ROW)};

static void begin(void)
{
    CU(cuInit(0));
}

static const char *name_of(int result)
{
    return driver_name((CUresult)result);
}

int main(int argc, char **argv)
{
    return first_main(argc, argv, "first_calls", cases, sizeof cases / sizeof cases[0], begin,
                      name_of);
}
