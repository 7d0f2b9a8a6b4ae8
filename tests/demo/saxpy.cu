/*
 * An ordinary CUDA program that knows nothing of gpupool: y = a * x + y over a
 * million numbers in four streams, checked on the CPU.
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

__global__ void saxpy(int n, float a, const float *x, float *y)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}

int main()
{
    const int n = 1 << 20, streams = 4, part = n / streams;
    const size_t bytes = n * sizeof(float);
    std::vector<float> x(n), y(n);
    for (int i = 0; i < n; i++) {
        x[i] = float(i % 1000);
        y[i] = float(i % 7);
    }

    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    for (int i = 0; i < count; i++) {
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
        std::printf("device %d: %s, %zu MiB\n", i, properties.name,
                    properties.totalGlobalMem >> 20);
    }

    float *dx, *dy;
    check(cudaMalloc(&dx, bytes), "cudaMalloc");
    check(cudaMalloc(&dy, bytes), "cudaMalloc");
    cudaStream_t stream[streams];
    for (int s = 0; s < streams; s++) {
        const int at = s * part;
        check(cudaStreamCreate(&stream[s]), "cudaStreamCreate");
        check(cudaMemcpyAsync(dx + at, &x[at], bytes / streams, cudaMemcpyHostToDevice, stream[s]),
              "copy of x to the device");
        check(cudaMemcpyAsync(dy + at, &y[at], bytes / streams, cudaMemcpyHostToDevice, stream[s]),
              "copy of y to the device");
        saxpy<<<64, 256, 0, stream[s]>>>(part, 3.0f, dx + at, dy + at);
        check(cudaGetLastError(), "launch");
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<float> result(n);
    check(cudaMemcpy(result.data(), dy, bytes, cudaMemcpyDeviceToHost), "copy from the device");

    int wrong = 0;
    for (int i = 0; i < n; i++)
        wrong += result[i] != 3.0f * x[i] + y[i];
    std::printf("%d of %d results are right\n", n - wrong, n);
    for (int s = 0; s < streams; s++)
        check(cudaStreamDestroy(stream[s]), "cudaStreamDestroy");
    check(cudaFree(dx), "cudaFree");
    check(cudaFree(dy), "cudaFree");
    return wrong != 0;
}
