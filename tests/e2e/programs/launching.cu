/*
 * Kernels that launch kernels (dynamic parallelism): children in the parent's stream, without order,
 * and behind the parent. One of them is in launching_part.cu.
 */
#include "check.h"

#define COUNT 256

extern __global__ void doubled(int *values, int count);

__global__ void fill(int *values, int base)
{
    values[threadIdx.x] = base + (int)threadIdx.x;
}

__global__ void behind(int *sum, const int *values)
{
    int total = 0;
    for (int i = 0; i < 2 * COUNT; i++)
        total += values[i];
    *sum = total;
}

__global__ void parent(int *values, int *sum)
{
    if (threadIdx.x == 0) {
        fill<<<1, COUNT>>>(values, 1000);
        doubled<<<COUNT / 64, 64>>>(values, COUNT);
        fill<<<1, COUNT, 0, cudaStreamFireAndForget>>>(values + COUNT, 5);
        behind<<<1, 1, 0, cudaStreamTailLaunch>>>(sum, values);
    }
}

int main(void)
{
    int *values, *sum, host[2 * COUNT], total = 0, given = 0;
    CUDA(cudaMalloc(&values, sizeof host));
    CUDA(cudaMalloc(&sum, sizeof *sum));
    CUDA(cudaMemset(values, 0, sizeof host));
    parent<<<1, 32>>>(values, sum);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(&given, sum, sizeof given, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2 * COUNT; i++) {
        int expected = i < COUNT ? 2 * (1000 + i) : 5 + i - COUNT;
        EXPECT(host[i] == expected, "value %d is %d, expected %d", i, host[i], expected);
        total += expected;
    }
    EXPECT(given == total, "the sum is %d, expected %d", given, total);
    CUDA(cudaFree(sum));
    CUDA(cudaFree(values));
    return finish("launching");
}
