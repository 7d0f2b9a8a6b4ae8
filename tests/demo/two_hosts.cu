/*
 * A program over two GPUs that knows nothing of gpupool, nor that they are in two hosts:
 * the first squares a million numbers, the second gets them from it and doubles them.
 */
#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(cudaError_t result, const char *what)
{
    if (result != cudaSuccess) {
        std::printf("%s: %s\n", what, cudaGetErrorString(result));
        std::exit(1);
    }
}

__global__ void square(int n, unsigned *values)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        values[i] *= values[i];
}

__global__ void twice(int n, unsigned *values)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        values[i] *= 2;
}

int main()
{
    const int n = 1 << 20;
    const size_t bytes = n * sizeof(unsigned);
    std::vector<unsigned> numbers(n), result(n);
    for (int i = 0; i < n; i++)
        numbers[i] = i % 10007;

    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    for (int i = 0; i < count; i++) {
        cudaDeviceProp properties;
        char bus[32];
        size_t free = 0, total = 0;
        check(cudaSetDevice(i), "cudaSetDevice");
        check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
        check(cudaDeviceGetPCIBusId(bus, sizeof bus, i), "cudaDeviceGetPCIBusId");
        check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
        std::printf("device %d: %s at %s, %zu MiB\n", i, properties.name, bus, total >> 20);
    }
    if (count != 2) {
        std::printf("%d devices instead of 2\n", count);
        return 1;
    }

    unsigned *first, *second;
    check(cudaSetDevice(0), "cudaSetDevice(0)");
    check(cudaMalloc(&first, bytes), "cudaMalloc on device 0");
    check(cudaMemcpy(first, numbers.data(), bytes, cudaMemcpyHostToDevice), "copy to device 0");
    square<<<64, 256>>>(n, first);
    check(cudaGetLastError(), "launch on device 0");

    check(cudaSetDevice(1), "cudaSetDevice(1)");
    check(cudaMalloc(&second, bytes), "cudaMalloc on device 1");
    check(cudaMemcpyPeer(second, 1, first, 0, bytes), "copy from device 0 to device 1");
    twice<<<64, 256>>>(n, second);
    check(cudaGetLastError(), "launch on device 1");
    check(cudaMemcpy(result.data(), second, bytes, cudaMemcpyDeviceToHost), "copy from device 1");

    int wrong = 0;
    for (int i = 0; i < n; i++)
        wrong += result[i] != 2 * numbers[i] * numbers[i];
    std::printf("%d of %d results are right\n", n - wrong, n);
    check(cudaFree(second), "cudaFree");
    check(cudaSetDevice(0), "cudaSetDevice(0)");
    check(cudaFree(first), "cudaFree");
    return wrong != 0;
}
