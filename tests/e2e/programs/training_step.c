/*
 * A training step as cuDNN and a framework make one, call by call: for every kernel its
 * attributes are asked and set, its occupancy is asked, then it is launched; the batch
 * comes from the host, the loss goes back. Frameworks wait for a copy from pageable memory,
 * and order one from pinned memory by events. From outside (GPUPOOL_STATS) the waits of
 * this process are counted.
 *   training_step STEPS pageable|pinned
 */
#include "driver.h"

enum { BATCH = 4096, LAYERS = 12, WORDS = BATCH / (int)sizeof(int) };

static const char *const names[] = {"increment", "multiply_add", "shared_sum"};
enum { KERNELS = sizeof names / sizeof names[0] };

static CUlibrary library;
static CUdeviceptr device_batch, sums;
static CUstream compute, upload;
static CUevent uploaded, done;
static int opt_in, has_clusters;

/* The framework's own questions around everything that it does. */
static void framework(void)
{
    CUcontext context;
    CUdevice device;
    unsigned flags;
    int active, least, greatest, priority;
    CUstreamCaptureStatus status;
    size_t limit;

    CU(cuCtxGetCurrent(&context));
    CU(cuCtxGetDevice(&device));
    CU(cuDevicePrimaryCtxGetState(device, &flags, &active));
    CU(cuCtxGetStreamPriorityRange(&least, &greatest));
    CU(cuStreamGetPriority(compute, &priority));
    CU(cuStreamIsCapturing(compute, &status));
    CU(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
    CU(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device_batch));
    EXPECT(active && status == CU_STREAM_CAPTURE_STATUS_NONE, "state %d, capture %d", active,
           (int)status);
}

static void ask_kernel(CUkernel kernel)
{
    static const CUfunction_attribute all[] = {
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
        CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        CU_FUNC_ATTRIBUTE_NUM_REGS,
        CU_FUNC_ATTRIBUTE_PTX_VERSION,
        CU_FUNC_ATTRIBUTE_BINARY_VERSION,
        CU_FUNC_ATTRIBUTE_CACHE_MODE_CA,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    };
    int value;

    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        CU(cuKernelGetAttribute(&value, all[i], kernel, driver_device));
}

/* Layers need different shared memory of one kernel, so the value changes all the time. */
static void set_shared(CUkernel kernel, CUfunction function, int layer)
{
    int bytes = layer % 2 ? 32 * 1024 : opt_in, value = -1;

    CU(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes, kernel,
                            driver_device));
    CU(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel,
                            driver_device));
    EXPECT(value == bytes, "the kernel's dynamic shared memory is %d, not %d", value, bytes);
    CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
    EXPECT(value == bytes, "the function's dynamic shared memory is %d, not %d", value, bytes);
    CU(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                          layer % 3 ? 50 : 100));
    CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, function));
    EXPECT(value == (layer % 3 ? 50 : 100), "the carveout is %d", value);
}

static void ask_occupancy(CUfunction function, int layer)
{
    int blocks, clusters;
    size_t dynamic;
    CUlaunchAttribute attribute;
    CUlaunchConfig config = {.gridDimX = 8,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 64,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .attrs = &attribute,
                             .numAttrs = 1};

    CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 256,
                                                            layer % 2 ? 0 : 1024, 0));
    EXPECT(blocks > 0, "%d blocks fit", blocks);
    CU(cuOccupancyAvailableDynamicSMemPerBlock(&dynamic, function, 1, 256));
    if (!has_clusters)
        return;
    /* what an application leaves on its stack behind the members it sets */
    static unsigned char garbage;
    memset(&attribute, ++garbage, sizeof attribute);
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim.x = 2;
    attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
    CU(cuOccupancyMaxActiveClusters(&clusters, function, &config));
    EXPECT(clusters > 0, "%d clusters fit", clusters);
    attribute.value.clusterDim.x = 64; /* more than there can be: refused every time */
    config.gridDimX = 64;
    CUresult result = cuOccupancyMaxActiveClusters(&clusters, function, &config);
    EXPECT(result != CUDA_SUCCESS || clusters == 0, "%d clusters of 64 fit", clusters);
}

static void launch(CUkernel kernel, int which, int layer)
{
    int n = WORDS, factor = 1, term = 0;
    void *increment[] = {&device_batch, &n}, *multiply[] = {&device_batch, &n, &factor, &term};
    void *sum[] = {&sums, &device_batch};
    void **parameters[] = {increment, multiply, sum};
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = 0};
    CUlaunchConfig config = {.gridDimX = WORDS / 256,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 256,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = layer % 2 ? 1024 : (unsigned)opt_in,
                             .hStream = compute,
                             .attrs = &attribute,
                             .numAttrs = 1};

    CU(cuLaunchKernelEx(&config, (CUfunction)kernel, parameters[which], NULL));
}

static void layer(int number)
{
    for (int i = 0; i < KERNELS; i++) {
        CUkernel kernel;
        CUfunction function;

        framework();
        CU(cuLibraryGetKernel(&kernel, library, names[i]));
        CU(cuKernelGetFunction(&function, kernel));
        ask_kernel(kernel);
        set_shared(kernel, function, number);
        ask_occupancy(function, number);
        launch(kernel, i, number);
    }
    CU(cuMemsetD32Async(sums + 64, 0, 16, compute));
}

static void bring(const int *batch, int pinned)
{
    if (pinned) {
        CU(cuMemcpyHtoDAsync(device_batch, batch, BATCH, upload));
        CU(cuEventRecord(uploaded, upload));
        CU(cuStreamWaitEvent(compute, uploaded, 0));
        return;
    }
    CU(cuMemcpyHtoDAsync(device_batch, batch, BATCH, compute)); /* the images */
    CU(cuStreamSynchronize(compute));
    CU(cuMemcpyHtoDAsync(sums + 2048, batch, 256, compute)); /* and the labels */
    CU(cuStreamSynchronize(compute));
}

static int step(const int *batch, int pinned)
{
    int loss = -1;

    bring(batch, pinned);
    for (int i = 0; i < LAYERS; i++)
        layer(i);
    CU(cuEventRecord(done, compute));
    CU(cuStreamWaitEvent(upload, done, 0));
    CU(cuMemcpyDtoHAsync(&loss, sums, sizeof loss, compute));
    CU(cuStreamSynchronize(compute));
    return loss;
}

int main(int argc, char **argv)
{
    int *batch, pinned = argc == 3 && strcmp(argv[2], "pinned") == 0;

    REQUIRE(argc == 3, "usage: training_step STEPS pageable|pinned");
    driver_start();
    CU(cuDeviceGetAttribute(&opt_in, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                            driver_device));
    CU(cuDeviceGetAttribute(&has_clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, driver_device));
    CU(cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuStreamCreate(&compute, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&upload, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&uploaded, CU_EVENT_DISABLE_TIMING));
    CU(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    CU(cuMemAlloc(&device_batch, BATCH));
    CU(cuMemAlloc(&sums, 4096));
    if (pinned)
        CU(cuMemHostAlloc((void **)&batch, BATCH, 0));
    else
        batch = check_alloc(BATCH);
    for (int i = 0, n = atoi(argv[1]); i < n; i++) {
        for (int k = 0; k < WORDS; k++)
            batch[k] = i;
        int loss = step(batch, pinned);
        EXPECT(loss == 256 * (i + LAYERS), "step %d: the loss is %d, not %d", i, loss,
               256 * (i + LAYERS));
    }
    CU(cuLibraryUnload(library));
    driver_stop();
    return finish("training_step");
}
