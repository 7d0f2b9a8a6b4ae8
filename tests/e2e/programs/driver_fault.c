/* A kernel that faults, by the driver's own names: the error is sticky, in this process only.
 *   driver_fault copied      the first that hears of it is a copy
 *   driver_fault function    a host function is behind it, which nobody runs or waits for
 *   driver_fault unseen      likewise, and the first that hears of it is an allocation
 */
#include "driver.h"

#include <unistd.h>

static int may_go_on, has_run;

static void CUDA_CB hold(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&may_go_on, __ATOMIC_ACQUIRE))
        usleep(1000);
}

static void CUDA_CB behind(void *unused)
{
    (void)unused;
    __atomic_store_n(&has_run, 1, __ATOMIC_RELEASE);
}

int main(int argc, char **argv)
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr bad, p = 0x10, q, good, ordered;
    CUstream stream;
    CUevent event;
    int host, value = 0;
    void *parameters[] = {&p};
    bool copied = argc > 1 && strcmp(argv[1], "copied") == 0;
    bool with_function = argc > 1 && !copied;

    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    function = driver_function(module, "write_to");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, 0));
    CU(cuMemAlloc(&good, 16));
    CU(cuMemAllocAsync(&ordered, 16, stream));
    CU(cuStreamSynchronize(stream));
    if (with_function)
        CU(cuLaunchHostFunc(stream, hold, NULL));
    CU_GIVES(CUDA_SUCCESS, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, copied ? NULL : stream,
                                          parameters, NULL));
    if (with_function)
        CU(cuLaunchHostFunc(stream, behind, NULL));
    __atomic_store_n(&may_go_on, 1, __ATOMIC_RELEASE);
    if (argc > 1 && strcmp(argv[1], "unseen") == 0)
        cuMemAlloc(&bad, 16 << 20); /* whatever it says, it comes back */
    if (copied)
        CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoH(&host, ordered, 4));
    else
        CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(stream));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&q, 16));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoH(&host, good, 4));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventRecord(event, stream));
    CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS,
             cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    /* Not of the context: */
    CU_GIVES(CUDA_SUCCESS, cuDeviceGetCount(&value));
    CU_GIVES(CUDA_SUCCESS, cuDriverGetVersion(&value));
    if (with_function)
        cuDevicePrimaryCtxRelease(driver_device); /* whatever it says, it comes back */
    EXPECT(!has_run, "a host function ran behind a fault");
    return finish("driver_fault");
}
