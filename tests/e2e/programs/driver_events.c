/* Events: timing, states, and the errors of events that hold no time. */
#include "driver.h"

static CUmodule module;
static CUstream stream, other;
static CUevent begin, end, silent;

static void prepare(void)
{
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CU(cuEventCreate(&end, CU_EVENT_BLOCKING_SYNC));
    CU(cuEventCreate(&silent, CU_EVENT_DISABLE_TIMING));
}

static void times(void)
{
    CUfunction spin = driver_function(module, "spin");
    CUdeviceptr out;
    CUevent never;
    float elapsed = -1;
    int rounds = 20000;
    void *parameters[] = {&out, &rounds};
    CU(cuMemAlloc(&out, 1024));
    /* An event that was never recorded is complete, and holds no time. */
    CU_GIVES(CUDA_SUCCESS, cuEventQuery(begin));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&elapsed, begin, end));
    CU(cuEventRecord(begin, stream));
    CU(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
    CU(cuEventRecord(end, stream));
    CU(cuEventSynchronize(end));
    CU_GIVES(CUDA_SUCCESS, cuEventQuery(end));
    CU(cuEventElapsedTime(&elapsed, begin, end));
    EXPECT(elapsed > 0, "the kernel took %g ms", elapsed);
    CU(cuEventElapsedTime(&elapsed, begin, begin));
    EXPECT(elapsed == 0, "an event is %g ms from itself", elapsed);
    CU(cuEventRecord(silent, stream));
    CU(cuEventSynchronize(silent));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&elapsed, begin, silent));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuEventCreate(NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&never, 0x1000));
    CU(cuMemFree(out));
}

/* A stream waits for the other's event, over several rounds. */
static void waits(void)
{
    CUdeviceptr values;
    int n = 256, host[256];
    CU(cuMemAlloc(&values, sizeof host));
    CU(cuMemsetD32Async(values, 0, 256, stream));
    for (int i = 0; i < 10; i++) {
        int factor = 2, term = 1;
        void *step[] = {&values, &n, &factor, &term};
        CUstream now = i % 2 ? other : stream, next = i % 2 ? stream : other;
        CU(cuLaunchKernel(driver_function(module, "multiply_add"), 2, 1, 1, 128, 1, 1, 0, now, step,
                          NULL));
        CU(cuEventRecord(silent, now));
        CU(cuStreamWaitEvent(next, silent, 0));
        CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuStreamWaitEvent(next, silent, 2));
    }
    CU(cuMemcpyDtoHAsync(host, values, sizeof host, stream));
    CU(cuStreamSynchronize(stream));
    for (int i = 0; i < 256; i++)
        EXPECT(host[i] == 1023, "value %d is %d, expected 1023", i, host[i]);
    CU(cuMemFree(values));
}

int main(void)
{
    prepare();
    times();
    waits();
    CU(cuEventDestroy(begin));
    CU(cuEventDestroy(end));
    CU(cuEventDestroy(silent));
    CU(cuStreamDestroy(stream));
    CU(cuStreamDestroy(other));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_events");
}
