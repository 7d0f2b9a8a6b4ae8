/* What CUDA refuses at once: before cuInit, null pointers, bad handles, bad launches. */
#include "driver.h"

static void before_init(void)
{
    int value = -1;
    CUdevice device = 0;
    CUdeviceptr p = 0;
    CUcontext context = NULL;
    const char *text = NULL;

    CU_GIVES(CUDA_SUCCESS, cuDriverGetVersion(&value));
    CU_GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&value));
    CU_GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&device, 0));
    CU_GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&p, 16));
    CU_GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&context));
    CU_GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxSynchronize());
    CU_GIVES(CUDA_SUCCESS, cuGetErrorString(CUDA_ERROR_NOT_INITIALIZED, &text));
    EXPECT(text && strcmp(text, "initialization error") == 0, "the text is '%s'", text ? text : "");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
    EXPECT(text == NULL, "error 12345 has the name '%s'", text);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(1));
}

static void without_context(void)
{
    CUdeviceptr p = 0;
    CUcontext context = (CUcontext)1;
    CUstream stream;

    CU(cuCtxGetCurrent(&context));
    EXPECT(context == NULL, "a context is current before any was set");
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 16));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuStreamCreate(&stream, 0));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
}

static void null_pointers(void)
{
    CUdeviceptr p = 0;
    int value = 0;

    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 16));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDriverGetVersion(NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuDeviceGetAttribute(NULL, CU_DEVICE_ATTRIBUTE_WARP_SIZE, driver_device));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE,
             cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 77));
    CU_GIVES(CUDA_SUCCESS, cuMemFree(0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(0x1234));
    CU_GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, (size_t)1 << 46));
    EXPECT(p == 0, "a failed allocation set its output to %#llx", p);
}

static void bad_launches(CUmodule module)
{
    CUfunction add = driver_function(module, "add"), bounded = driver_function(module, "bounded");
    CUdeviceptr device;
    int n = 4;
    void *parameters[] = {&device, &device, &device, &n};
    CUlaunchConfig config = {.gridDimX = 0,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1};

    CU(cuMemAlloc(&device, 1024));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuLaunchKernel(add, 0, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuLaunchKernel(add, 1, 1, 1, 0, 1, 1, 0, NULL, parameters, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuLaunchKernel(add, 1, 1, 1, 1025, 1, 1, 0, NULL, parameters, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuLaunchKernel(add, 1, 1, 1, 64, 64, 1, 0, NULL, parameters, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuLaunchKernel(add, 1, 70000, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 1 << 24, NULL, parameters, NULL));
    CUresult over = cuLaunchKernel(bounded, 1, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL);
    EXPECT(over == CUDA_ERROR_INVALID_VALUE || over == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
           "more threads than the kernel's bound gave %s", driver_name(over));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&config, add, parameters, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE,
             cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    /* None of these harmed the context. */
    CU(cuMemsetD32(device, 0x3f800000, 256));
    CU(cuLaunchKernel(add, 1, 1, 1, 4, 1, 1, 0, NULL, parameters, NULL));
    float host[5];
    CU(cuMemcpyDtoH(host, device, sizeof host));
    EXPECT(host[0] == 2 && host[3] == 2 && host[4] == 1, "the sums are %g, %g, %g", host[0],
           host[3], host[4]);
    CU(cuMemFree(device));
}

static CUresult launch_with(CUfunction add, CUlaunchAttribute attribute, unsigned blocks)
{
    CUdeviceptr none = 0;
    int n = 0;
    void *parameters[] = {&none, &none, &none, &n};
    CUlaunchConfig config = {.gridDimX = blocks,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 64,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .attrs = &attribute,
                             .numAttrs = 1};
    return cuLaunchKernelEx(&config, add, parameters, NULL);
}

static CUlaunchAttribute cluster(unsigned x, unsigned y, unsigned z)
{
    CUlaunchAttribute a = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    a.value.clusterDim.x = x;
    a.value.clusterDim.y = y;
    a.value.clusterDim.z = z;
    return a;
}

/* What is asked of a kernel for a cooperative launch disturbs no capture. */
static void captured_together(CUmodule module)
{
    CUdeviceptr none = 0;
    int n = 0;
    void *parameters[] = {&none, &none, &none, &n};
    CUstream stream;
    CUgraph graph;
    size_t count = 0;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuLaunchCooperativeKernel(driver_function(module, "add"), 2, 1, 1, 32, 1, 1, 0, stream,
                                 parameters));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphGetNodes(graph, NULL, &count));
    EXPECT(count == 1, "%zu nodes were captured", count);
    CU(cuGraphDestroy(graph));
    CU(cuStreamDestroy(stream));
}

/* Refused by the launch itself; which of two errors it is may depend on the driver. */
static void refused_at_once(CUresult r, CUresult expected, const char *what)
{
    bool other = driver_is_native() &&
                 (r == CUDA_ERROR_INVALID_CLUSTER_SIZE || r == CUDA_ERROR_INVALID_VALUE);
    printf("%s: %s\n", what, driver_name(r));
    EXPECT(r == expected || other, "%s gave %s", what, driver_name(r));
    CU(cuCtxSynchronize());
}

static void bad_attributes(CUmodule module)
{
    CUfunction add = driver_function(module, "add");
    CUlaunchAttribute together = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                                  .value = {.cooperative = 1}};
    CUlaunchAttribute unknown = {.id = (CUlaunchAttributeID)9999};
    int has = 0;

    refused_at_once(launch_with(add, unknown, 4), CUDA_ERROR_INVALID_VALUE, "an unknown attribute");
    CU(launch_with(add, together, 2));
    CU_GIVES(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, launch_with(add, together, 1u << 20));
    CU(cuCtxSynchronize());
    CU(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, driver_device));
    if (!has)
        return;
    CU(launch_with(add, cluster(2, 1, 1), 4));
    CU(launch_with(add, cluster(8, 1, 1), 8));
    refused_at_once(launch_with(add, cluster(3, 1, 1), 4), CUDA_ERROR_INVALID_CLUSTER_SIZE,
                    "a grid that is no multiple of its clusters");
    refused_at_once(launch_with(add, cluster(1, 2, 1), 4), CUDA_ERROR_INVALID_CLUSTER_SIZE,
                    "clusters of more rows than the grid has");
    refused_at_once(launch_with(add, cluster(0, 1, 1), 4), CUDA_ERROR_INVALID_CLUSTER_SIZE,
                    "clusters of no blocks");
    refused_at_once(launch_with(add, cluster(16, 1, 1), 16), CUDA_ERROR_INVALID_CLUSTER_SIZE,
                    "clusters that are not portable");
    refused_at_once(launch_with(add, cluster(1u << 31, 1u << 31, 4), 4),
                    CUDA_ERROR_INVALID_CLUSTER_SIZE, "clusters of 2^64 blocks");
    CU(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    CU(launch_with(add, cluster(16, 1, 1), 16));
    CU(cuCtxSynchronize());
    for (int i = 0; i < 3; i++)
        CU(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + i, i == 0 ? 2 : 1));
    CU(launch_with(add, (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_IGNORE}, 4));
    CU(cuCtxSynchronize());
}

/* What nobody waits for: each is refused by the call itself, not by a later one. */
static void bad_values(CUmodule module)
{
    CUfunction add = driver_function(module, "add");
    CUevent event;

    CU(cuEventCreate(&event, CU_EVENT_DEFAULT));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuEventRecordWithFlags(event, NULL, 1u << 9));
    CU(cuEventRecordWithFlags(event, NULL, CU_EVENT_RECORD_DEFAULT));
    CU(cuEventSynchronize(event));
    CU(cuEventDestroy(event));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetCacheConfig(add, (CUfunc_cache)77));
    CU(cuFuncSetCacheConfig(add, CU_FUNC_CACHE_PREFER_SHARED));
    CU(cuCtxSynchronize());
}

static void proc_addresses(void)
{
    void *p = (void *)1;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;

    CU(cuGetProcAddress("cuMemAlloc", &p, 3020, CU_GET_PROC_ADDRESS_DEFAULT, &found));
    REQUIRE(found == CU_GET_PROC_ADDRESS_SUCCESS && p != NULL, "cuMemAlloc is at %p (%d)", p,
            (int)found);
    /* That of CUDA 3.2 is cuMemAlloc_v2: sizes and addresses of 64 bits. */
    CUdeviceptr device = 0;
    CU(((CUresult (*)(CUdeviceptr *, size_t))p)(&device, 4096));
    EXPECT(device >> 32 != 0, "the address is %#llx", device);
    CU(cuMemFree(device));
    /* With a place for the status, only the status says so. */
    CU(cuGetProcAddress("cuNoSuchFunction", &p, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
    EXPECT(p == NULL && found == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "it is at %p (%d)", p,
           (int)found);
    /* Younger than the version asked for. */
    p = (void *)1;
    (void)cuGetProcAddress("cuLaunchKernelEx", &p, 11000, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    EXPECT(p == NULL && found == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
           "cuLaunchKernelEx of 11.0 is at %p (%d)", p, (int)found);
}

/* The context stack of a thread, and contexts that are no longer there. */
static void contexts(void)
{
    CUcontext popped = NULL, current = NULL;
    unsigned flags = 0;
    int active = -1;

    CU(cuCtxPushCurrent(driver_context));
    CU(cuCtxPopCurrent(&popped));
    EXPECT(popped == driver_context, "another context was popped");
    CU(cuCtxGetCurrent(&current));
    EXPECT(current == driver_context, "after push and pop another context is current");
    CU(cuDevicePrimaryCtxGetState(driver_device, &flags, &active));
    EXPECT(active == 1, "the primary context has state %d", active);
    CU(cuCtxSetCurrent(NULL));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&popped));
    CU(cuCtxSetCurrent(driver_context));
}

int main(void)
{
    CUmodule module;

    before_init();
    CU(cuInit(0));
    CU(cuInit(0));
    without_context();
    driver_start();
    null_pointers();
    CU(cuModuleLoadData(&module, kernels_ptx));
    bad_launches(module);
    captured_together(module);
    bad_attributes(module);
    bad_values(module);
    proc_addresses();
    contexts();
    CU(cuModuleUnload(module));
    driver_stop();
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(driver_device));
    return finish("driver_errors");
}
