// The runtime with devices of two hosts: one fat binary, one symbol, one kernel for all.
#include "check.h"

__device__ int scale;

__global__ void multiply(int *values, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] *= scale;
}

int main(void)
{
    enum { MOST = 8, N = 10000 };
    static int host[N];
    int devices, *memory[MOST];
    cudaStream_t streams[MOST];

    CUDA(cudaGetDeviceCount(&devices));
    REQUIRE(devices > 1 && devices <= MOST, "%d devices", devices);
    for (int i = 0; i < devices; i++) {
        int factor = i + 2;
        cudaDeviceProp properties;
        CUDA(cudaGetDeviceProperties(&properties, i));
        CUDA(cudaSetDevice(i));
        CUDA(cudaMalloc(&memory[i], sizeof host));
        CUDA(cudaStreamCreate(&streams[i]));
        CUDA(cudaMemcpyToSymbol(scale, &factor, sizeof factor));
    }
    for (int i = 0; i < N; i++)
        host[i] = i % 10 + 1;
    CUDA(cudaSetDevice(0));
    CUDA(cudaMemcpy(memory[0], host, sizeof host, cudaMemcpyHostToDevice));
    int expected = 1;
    for (int i = 0; i < devices; i++) {
        CUDA(cudaSetDevice(i));
        multiply<<<(N + 127) / 128, 128, 0, streams[i]>>>(memory[i], N);
        CUDA(cudaGetLastError());
        expected *= i + 2;
        if (i + 1 < devices)
            CUDA(cudaMemcpyAsync(memory[i + 1], memory[i], sizeof host, cudaMemcpyDefault,
                                 streams[i]));
        CUDA(cudaStreamSynchronize(streams[i]));
    }
    // whatever device is current
    CUDA(cudaSetDevice(0));
    CUDA(cudaMemcpy(host, memory[devices - 1], sizeof host, cudaMemcpyDefault));
    for (int i = 0; i < N; i++)
        EXPECT(host[i] == (i % 10 + 1) * expected, "[%d] is %d", i, host[i]);
    CUDA(cudaMemcpyPeer(memory[0], 0, memory[devices - 1], devices - 1, sizeof host));
    CUDA(cudaMemset(memory[devices - 1], 0, sizeof host));
    CUDA(cudaMemcpy(host, memory[0], sizeof host, cudaMemcpyDeviceToHost));
    EXPECT(host[3] == 4 * expected, "back at the first: %d", host[3]);
    for (int i = 0; i < devices; i++) {
        int factor = 0, reaches = -1;
        cudaPointerAttributes attributes;
        CUDA(cudaSetDevice(i));
        CUDA(cudaMemcpyFromSymbol(&factor, scale, sizeof factor));
        EXPECT(factor == i + 2, "device %d has %d", i, factor);
        CUDA(cudaPointerGetAttributes(&attributes, memory[i]));
        EXPECT(attributes.device == i, "device %d, expected %d", attributes.device, i);
        CUDA(cudaDeviceCanAccessPeer(&reaches, i, (i + 1) % devices));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaFree(memory[i]));
    }
    return finish("hosts");
}
