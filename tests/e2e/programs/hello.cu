// The first CUDA program anybody writes: the launch is the process's first CUDA call.
#include <cstdio>

__global__ void hello()
{
    printf("hello from thread %u\n", threadIdx.x);
}

int main()
{
    hello<<<1, 2>>>();
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
