// A kernel writes far outside any allocation: the error appears, and stays.
#include "check.h"

__global__ void overrun(int *p, size_t step)
{
    p[threadIdx.x * step] = 1;
}

int main(void)
{
    int *p, *other, host = 0;
    cudaStream_t stream;
    cudaEvent_t event;

    CUDA(cudaMalloc(&p, 1024));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaEventCreate(&event));
    CUDA(cudaDeviceSynchronize());
    // 1 TiB beyond: no allocator has put anything there.
    overrun<<<1, 2>>>(p, (size_t)1 << 38);
    CUDA_GIVES(cudaSuccess, cudaGetLastError());
    CUDA_GIVES(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    // Sticky: every later call that reaches the context says so again.
    CUDA_GIVES(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    CUDA_GIVES(cudaErrorIllegalAddress, cudaMalloc(&other, 16));
    CUDA_GIVES(cudaErrorIllegalAddress, cudaMemcpy(&host, p, 4, cudaMemcpyDeviceToHost));
    CUDA_GIVES(cudaErrorIllegalAddress, cudaStreamSynchronize(stream));
    CUDA_GIVES(cudaErrorIllegalAddress, cudaEventRecord(event, stream));
    overrun<<<1, 1>>>(p, 0);
    CUDA_GIVES(cudaErrorIllegalAddress, cudaGetLastError());
    CUDA_GIVES(cudaErrorIllegalAddress, cudaFree(p));
    // What needs no context still answers.
    int count = 0, driver = 0;
    CUDA_GIVES(cudaSuccess, cudaGetDeviceCount(&count));
    CUDA_GIVES(cudaSuccess, cudaDriverGetVersion(&driver));
    EXPECT(count >= 1 && driver >= 12000, "%d devices, driver %d", count, driver);
    EXPECT(strcmp(cudaGetErrorString(cudaErrorIllegalAddress),
                  "an illegal memory access was encountered") == 0,
           "the text of the error is '%s'", cudaGetErrorString(cudaErrorIllegalAddress));
    return finish("overrun");
}
