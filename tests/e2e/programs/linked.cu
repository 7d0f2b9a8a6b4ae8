/* Two files that only the driver links: nvcc -rdc=true, and PTX alone (linked_part.cu). */
#include "check.h"

extern __device__ int factor;
__device__ int shifted(int value);

__global__ void scale(int *values)
{
    values[threadIdx.x] = shifted(threadIdx.x) * factor;
}

int main(void)
{
    enum { COUNT = 32 };
    int *device, host[COUNT];
    CUDA(cudaMalloc(&device, sizeof host));
    scale<<<1, COUNT>>>(device);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        EXPECT(host[i] == (i + 3) * 7, "value %d is %d, expected %d", i, host[i], (i + 3) * 7);
    CUDA(cudaFree(device));
    return finish("linked");
}
