// A tiled matrix product: static shared memory and barriers, ragged edges.
#include "check.h"

enum { TILE = 16 };

__global__ void multiply(float *c, const float *a, const float *b, int m, int n, int k)
{
    __shared__ float ta[TILE][TILE], tb[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;

    for (int t = 0; t < (k + TILE - 1) / TILE; t++) {
        int ka = t * TILE + threadIdx.x, kb = t * TILE + threadIdx.y;
        ta[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0;
        tb[threadIdx.y][threadIdx.x] = kb < k && column < n ? b[kb * n + column] : 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++)
            sum = fmaf(ta[threadIdx.y][i], tb[i][threadIdx.x], sum);
        __syncthreads();
    }
    if (row < m && column < n)
        c[row * n + column] = sum;
}

int main(void)
{
    const int m = 70, n = 65, k = 90;
    float *a = (float *)check_alloc(m * k * sizeof *a), *b = (float *)check_alloc(k * n * sizeof *b);
    float *c = (float *)check_alloc(m * n * sizeof *c), *da, *db, *dc;
    unsigned seed = 1;

    for (int i = 0; i < m * k; i++)
        a[i] = (float)(check_random(&seed) % 2000) / 1000 - 1;
    for (int i = 0; i < k * n; i++)
        b[i] = (float)(check_random(&seed) % 2000) / 1000 - 1;
    CUDA(cudaMalloc(&da, m * k * sizeof *a));
    CUDA(cudaMalloc(&db, k * n * sizeof *b));
    CUDA(cudaMalloc(&dc, m * n * sizeof *c));
    CUDA(cudaMemcpy(da, a, m * k * sizeof *a, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(db, b, k * n * sizeof *b, cudaMemcpyHostToDevice));
    multiply<<<dim3((n + TILE - 1) / TILE, (m + TILE - 1) / TILE), dim3(TILE, TILE)>>>(dc, da, db, m,
                                                                                      n, k);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(c, dc, m * n * sizeof *c, cudaMemcpyDeviceToHost));
    // The kernel adds in the order of i with fused steps; so does this: bits agree.
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            float sum = 0;
            for (int i = 0; i < k; i++)
                sum = fmaf(a[row * k + i], b[i * n + column], sum);
            EXPECT(c[row * n + column] == sum, "c[%d][%d] is %.9g, expected %.9g", row, column,
                   c[row * n + column], sum);
        }
    CUDA(cudaFree(da));
    CUDA(cudaFree(db));
    CUDA(cudaFree(dc));
    free(a);
    free(b);
    free(c);
    return finish("matmul");
}
