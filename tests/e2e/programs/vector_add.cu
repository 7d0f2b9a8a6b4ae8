// Vector addition: the smallest whole program. Its round trips are counted.
#include "check.h"

__global__ void add(float *out, const float *a, const float *b, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = a[i] + b[i];
}

int main(void)
{
    const int n = 50000;
    const size_t size = n * sizeof(float);
    float *a = (float *)check_alloc(size), *b = (float *)check_alloc(size);
    float *out = (float *)check_alloc(size);
    float *da, *db, *dout;

    for (int i = 0; i < n; i++) {
        a[i] = 0.5f * i;
        b[i] = 1.0f / (i + 1);
    }
    CUDA(cudaMalloc(&da, size));
    CUDA(cudaMalloc(&db, size));
    CUDA(cudaMalloc(&dout, size));
    CUDA(cudaMemcpy(da, a, size, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(db, b, size, cudaMemcpyHostToDevice));
    add<<<(n + 255) / 256, 256>>>(dout, da, db, n);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(out, dout, size, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++)
        EXPECT(out[i] == a[i] + b[i], "out[%d] is %g, expected %g", i, out[i], a[i] + b[i]);
    CUDA(cudaFree(da));
    CUDA(cudaFree(db));
    CUDA(cudaFree(dout));
    free(a);
    free(b);
    free(out);
    return finish("vector_add");
}
