/* A kernel that faults, by the driver's own names: the error is sticky, in this process only. */
#include "driver.h"

int main(int argc, char **argv)
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr p = 0x10, q, good, ordered;
    CUstream stream;
    CUevent event;
    int host, value = 0;
    void *parameters[] = {&p};

    (void)argv;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    function = driver_function(module, "write_to");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, 0));
    CU(cuMemAlloc(&good, 16));
    CU(cuMemAllocAsync(&ordered, 16, stream));
    CU(cuStreamSynchronize(stream));
    CU_GIVES(CUDA_SUCCESS, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, argc > 1 ? NULL : stream,
                                          parameters, NULL));
    if (argc > 1) /* the first that hears of it is a copy */
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
    return finish("driver_fault");
}
