/* A primary context is given back while the host is still to run a function of its streams. */
#include <time.h>

#include "driver.h"

static int called;

static void CUDA_CB slowly(void *argument)
{
    (void)argument;
    struct timespec pause = {0, 50000000};
    nanosleep(&pause, NULL);
    __sync_fetch_and_add(&called, 1);
}

/* With memory that is freed while the stream is blocked. */
static void work(CUcontext context)
{
    CUstream stream;
    CUdeviceptr memory;
    CU(cuCtxSetCurrent(context));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&memory, 1 << 20));
    CU(cuMemsetD8Async(memory, 1, 1 << 20, stream));
    CU(cuLaunchHostFunc(stream, slowly, NULL));
    CU(cuMemFree(memory));
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    work(context);
    CU(cuDevicePrimaryCtxRelease(device));
    EXPECT(called == 1, "%d functions ran before the release was over, expected 1", called);
    CU(cuDevicePrimaryCtxRetain(&context, device));
    work(context);
    CU(cuDevicePrimaryCtxReset(device));
    EXPECT(called == 2, "%d functions ran before the reset was over, expected 2", called);
    return finish("driver_reset");
}
