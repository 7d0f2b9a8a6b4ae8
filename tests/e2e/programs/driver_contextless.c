/*
 * Calls of a thread that has no current context, and of one that has another: an explicit
 * stream, or an event, says where they go. What names nothing is refused. The answers are
 * those of a real driver (580, H200).
 */
#include "driver.h"

#include <unistd.h>

#define N 256
#define BYTES (N * sizeof(int))

static CUfunction increment;
static int called;

static void CUDA_CB on_host(void *arg)
{
    *(int *)arg = 1;
}

static void expect_none(void)
{
    CUcontext current = driver_context;
    CU(cuCtxGetCurrent(&current));
    EXPECT(current == NULL, "a call left a context current");
}

static CUresult launch(CUdeviceptr at, CUstream stream)
{
    int n = N;
    void *parameters[] = {&at, &n};
    return cuLaunchKernel(increment, 1, 1, 1, N, 1, 1, 0, stream, parameters, NULL);
}

static void with_a_stream(CUdeviceptr a, CUstream stream)
{
    int host[N];
    CUdeviceptr b = 0;
    CU(cuMemsetD8Async(a, 0, BYTES, stream));
    CU(launch(a, stream));
    CU(cuMemAllocAsync(&b, BYTES, stream));
    CU(cuMemcpyDtoDAsync(b, a, BYTES, stream));
    CU(launch(b, stream));
    CU(cuMemcpyDtoHAsync(host, b, BYTES, stream));
    CU(cuLaunchHostFunc(stream, on_host, &called));
    CUresult state = cuStreamQuery(stream);
    EXPECT(state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_READY, "cuStreamQuery: %s",
           driver_name(state));
    CU(cuStreamSynchronize(stream));
    CU(cuStreamQuery(stream));
    EXPECT(called == 1, "the host function has not run");
    for (int i = 0; i < N; i++)
        EXPECT(host[i] == 2, "value %d is %d", i, host[i]);
    CU(cuMemFreeAsync(b, stream));
    CU(cuStreamSynchronize(stream));
    expect_none();
}

static void of_a_stream(CUstream stream)
{
    CUcontext own = NULL;
    unsigned flags = 99;
    CUstreamCaptureStatus status;
    CU(cuStreamGetCtx(stream, &own));
    EXPECT(own == driver_context, "the stream's context is %p", (void *)own);
    CU(cuStreamGetFlags(stream, &flags));
    EXPECT(flags == CU_STREAM_NON_BLOCKING, "the stream's flags are %u", flags);
    CU(cuStreamIsCapturing(stream, &status));
    expect_none();
}

static void with_events(CUevent before, CUevent after, CUstream stream, CUstream other)
{
    float ms = -1;
    CU(cuEventRecord(before, stream));
    CU(cuEventRecord(after, stream));
    CU(cuStreamWaitEvent(other, after, 0));
    CU(cuStreamSynchronize(other));
    CU(cuEventSynchronize(after));
    CU(cuEventQuery(after));
    CU(cuEventElapsedTime(&ms, before, after));
    EXPECT(ms >= 0, "%f ms passed", (double)ms);
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(NULL));
    expect_none();
}

/* A context that is named needs not be current. */
static void of_a_context(void)
{
    CUdevice device = -1;
    CU(cuCtxSynchronize_v2(driver_context));
    CU(cuCtxGetDevice_v2(&device, driver_context));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize_v2(NULL));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
    expect_none();
}

static void CUDA_CB until_let_go(void *go)
{
    while (!__atomic_load_n((int *)go, __ATOMIC_ACQUIRE))
        usleep(1000);
}

static int let_go;

/* An event of all that a context has to do, and a context whose streams wait for one. */
static void with_a_contexts_event(CUevent before, CUevent after, CUstream stream, CUstream other)
{
    CU(cuLaunchHostFunc(other, until_let_go, &let_go));
    CU(cuCtxRecordEvent(driver_context, before));
    CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(before));
    CU(cuEventRecord(after, stream));
    CU(cuStreamSynchronize(stream)); /* nothing holds it yet */
    CU(cuCtxWaitEvent(driver_context, before));
    CU(cuEventRecord(after, stream));
    CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(after));
    __atomic_store_n(&let_go, 1, __ATOMIC_RELEASE);
    CU(cuEventSynchronize(after));
    CU(cuEventQuery(before));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxRecordEvent(NULL, before));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxWaitEvent(NULL, before));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(driver_context, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuCtxWaitEvent(driver_context, NULL));
    expect_none();
}

static void with_nothing(CUdeviceptr a, CUevent event)
{
    CUdeviceptr b = 0;
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, launch(a, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&b, BYTES));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAllocAsync(&b, BYTES, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemsetD8Async(a, 0, BYTES, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemsetD8Async(a, 0, BYTES, CU_STREAM_PER_THREAD));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuStreamSynchronize(CU_STREAM_LEGACY));
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT, cuEventRecord(event, NULL));
    expect_none();
}

/* Memory comes from the device of the stream, whatever is current. */
static void on_another_device(void)
{
    CUdevice second;
    CUcontext its;
    CUstream stream;
    CUdeviceptr at;
    int count = 0, device = -1;
    CU(cuDeviceGetCount(&count));
    if (count < 2)
        return;
    CU(cuDeviceGet(&second, 1));
    CU(cuDevicePrimaryCtxRetain(&its, second));
    CU(cuCtxSetCurrent(its));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuCtxSetCurrent(driver_context));
    CU(cuMemAllocAsync(&at, BYTES, stream));
    CU(cuMemsetD8Async(at, 1, BYTES, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
    EXPECT(device == 1, "memory of a stream of device 1 is device %d's", device);
    CU(cuMemFreeAsync(at, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuStreamDestroy(stream));
    CU(cuDevicePrimaryCtxRelease(second));
}

int main(void)
{
    CUmodule module;
    CUstream stream, other;
    CUevent before, after;
    CUdeviceptr a;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    CU(cuMemAlloc(&a, BYTES));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&before, 0));
    CU(cuEventCreate(&after, 0));
    CU(cuCtxSetCurrent(NULL));
    expect_none();
    with_a_stream(a, stream);
    of_a_stream(stream);
    with_events(before, after, stream, other);
    of_a_context();
    with_a_contexts_event(before, after, stream, other);
    with_nothing(a, before);
    CU(cuEventDestroy(before));
    CU(cuEventDestroy(after));
    CU(cuStreamDestroy(other));
    CU(cuStreamDestroy(stream));
    expect_none();
    CU(cuCtxSetCurrent(driver_context));
    on_another_device();
    CU(cuMemFree(a));
    driver_stop();
    return finish("driver_contextless");
}
