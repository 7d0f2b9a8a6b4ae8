// Functions on the device (one recursive, one through a pointer), local arrays, printf.
#include "check.h"

__device__ __noinline__ int collatz(unsigned long long n)
{
    int steps = 0;
    while (n != 1) {
        n = n % 2 ? 3 * n + 1 : n / 2;
        steps++;
    }
    return steps;
}

__device__ __noinline__ int fibonacci(int n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }

typedef int (*unary)(int);
__device__ unary operations[2] = {twice, square};

// A local array that is indexed by data, so that it cannot live in registers.
__device__ __noinline__ int median(const int *values, int n)
{
    int sorted[9];
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && sorted[j - 1] > values[i]; j--)
            sorted[j] = sorted[j - 1];
        sorted[j] = values[i];
    }
    return sorted[n / 2];
}

__global__ void compute(int *out, const int *in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    out[4 * i] = collatz(i + 1);
    out[4 * i + 1] = fibonacci(i % 10);
    out[4 * i + 2] = operations[i % 2](i);
    out[4 * i + 3] = median(in + i, 9);
}

__global__ void speak(int n, double x, const char *word)
{
    if (threadIdx.x < n)
        printf("thread %d: %5.2f %s %c 0x%llx %%\n", threadIdx.x, x * threadIdx.x, "text", 'c',
               0x123456789abcull);
}

static int collatz_here(unsigned long long n)
{
    int steps = 0;
    for (; n != 1; steps++)
        n = n % 2 ? 3 * n + 1 : n / 2;
    return steps;
}

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(void)
{
    const int n = 200, fib[10] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34};
    int in[n + 9], out[4 * n], *din, *dout;
    unsigned seed = 11;

    for (int i = 0; i < n + 9; i++)
        in[i] = (int)(check_random(&seed) % 1000);
    CUDA(cudaMalloc(&din, sizeof in));
    CUDA(cudaMalloc(&dout, sizeof out));
    CUDA(cudaMemcpy(din, in, sizeof in, cudaMemcpyHostToDevice));
    compute<<<(n + 63) / 64, 64>>>(dout, din, n);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(out, dout, sizeof out, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) {
        int sorted[9];
        memcpy(sorted, in + i, sizeof sorted);
        qsort(sorted, 9, sizeof *sorted, compare);
        EXPECT(out[4 * i] == collatz_here(i + 1), "collatz(%d) is %d", i + 1, out[4 * i]);
        EXPECT(out[4 * i + 1] == fib[i % 10], "fibonacci(%d) is %d", i % 10, out[4 * i + 1]);
        EXPECT(out[4 * i + 2] == (i % 2 ? i * i : 2 * i), "operation %d is %d", i, out[4 * i + 2]);
        EXPECT(out[4 * i + 3] == sorted[4], "median %d is %d, expected %d", i, out[4 * i + 3],
               sorted[4]);
    }
    fflush(stdout);
    speak<<<1, 32>>>(3, 1.5, NULL);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(din));
    CUDA(cudaFree(dout));
    return finish("device_functions");
}
