// Work whose waits are counted from outside (GPUPOOL_STATS).
//   round_trips iterations N: N times (2 asynchronous copies, 10 launches, 1 synchronize)
//   round_trips launches N:   N launches, then 1 synchronize
#include "check.h"

enum { COUNT = 512 };

__global__ void increment(int *values)
{
    values[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

static void iterate(int *device, int *pinned, cudaStream_t stream, int n)
{
    for (int k = 0; k < n; k++) {
        CUDA(cudaMemcpyAsync(device, pinned, COUNT * sizeof(int), cudaMemcpyHostToDevice, stream));
        for (int i = 0; i < 10; i++)
            increment<<<COUNT / 128, 128, 0, stream>>>(device);
        CUDA(cudaMemcpyAsync(pinned, device, COUNT * sizeof(int), cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
    }
}

int main(int argc, char **argv)
{
    int *device, *pinned;
    int n = argc > 2 ? atoi(argv[2]) : 1, each;
    cudaStream_t stream;

    REQUIRE(argc == 3, "usage: round_trips iterations|launches N");
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc(&device, COUNT * sizeof(int)));
    CUDA(cudaMallocHost(&pinned, COUNT * sizeof(int)));
    memset(pinned, 0, COUNT * sizeof(int));
    CUDA(cudaMemset(device, 0, COUNT * sizeof(int)));
    if (strcmp(argv[1], "iterations") == 0) {
        iterate(device, pinned, stream, n);
        each = 10 * n;
    } else {
        for (int i = 0; i < n; i++)
            increment<<<COUNT / 128, 128, 0, stream>>>(device);
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(pinned, device, COUNT * sizeof(int), cudaMemcpyDeviceToHost));
        each = n;
    }
    CUDA(cudaGetLastError());
    for (int i = 0; i < COUNT; i++)
        EXPECT(pinned[i] == each, "value %d is %d, expected %d", i, pinned[i], each);
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFree(device));
    CUDA(cudaStreamDestroy(stream));
    return finish("round_trips");
}
