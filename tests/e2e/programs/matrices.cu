// Products of matrices with the tensor cores' C++ interface (mma.h).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "check.h"

using namespace nvcuda;

#define SIDE 48 // three tiles each way
#define TILE 16

// One warp makes one tile of d = a * b + c; b lies column by column.
template <typename T, typename S>
__global__ void multiply(const T *a, const T *b, const S *c, S *d)
{
    wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, T, wmma::row_major> one;
    wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, T, wmma::col_major> two;
    wmma::fragment<wmma::accumulator, TILE, TILE, TILE, S> sum;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    wmma::load_matrix_sync(sum, c + row * SIDE + column, SIDE, wmma::mem_row_major);
    for (int k = 0; k < SIDE; k += TILE) {
        wmma::load_matrix_sync(one, a + row * SIDE + k, SIDE);
        wmma::load_matrix_sync(two, b + column * SIDE + k, SIDE);
        wmma::mma_sync(sum, one, two, sum);
    }
    for (int i = 0; i < sum.num_elements; i++)
        sum.x[i] = sum.x[i] + sum.x[i];
    wmma::store_matrix_sync(d + row * SIDE + column, sum, SIDE, wmma::mem_row_major);
}

template <typename T, typename S> static void check(const char *name)
{
    static T a[SIDE * SIDE], b[SIDE * SIDE];
    static S c[SIDE * SIDE], d[SIDE * SIDE];
    int whole_a[SIDE * SIDE], whole_b[SIDE * SIDE];
    unsigned seed = 7;
    T *da, *db;
    S *dc, *dd;
    for (int i = 0; i < SIDE * SIDE; i++) {
        whole_a[i] = (int)(check_random(&seed) % 7) - 3;
        whole_b[i] = (int)(check_random(&seed) % 7) - 3;
        a[i] = (T)(float)whole_a[i];
        b[i] = (T)(float)whole_b[i];
        c[i] = (S)(float)(i % 5);
    }
    CUDA(cudaMalloc(&da, sizeof a));
    CUDA(cudaMalloc(&db, sizeof b));
    CUDA(cudaMalloc(&dc, sizeof c));
    CUDA(cudaMalloc(&dd, sizeof d));
    CUDA(cudaMemcpy(da, a, sizeof a, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(db, b, sizeof b, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(dc, c, sizeof c, cudaMemcpyHostToDevice));
    multiply<T, S><<<dim3(SIDE / TILE, SIDE / TILE), 32>>>(da, db, dc, dd);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(d, dd, sizeof d, cudaMemcpyDeviceToHost));
    for (int row = 0; row < SIDE; row++)
        for (int column = 0; column < SIDE; column++) {
            int i = row * SIDE + column, sum = i % 5;
            for (int k = 0; k < SIDE; k++)
                sum += whole_a[row * SIDE + k] * whole_b[column * SIDE + k];
            EXPECT((float)d[i] == 2.0f * (float)sum, "%s: element %d is %g, expected %d", name, i,
                   (double)(float)d[i], 2 * sum);
        }
    CUDA(cudaFree(da));
    CUDA(cudaFree(db));
    CUDA(cudaFree(dc));
    CUDA(cudaFree(dd));
}

int main(void)
{
    check<half, float>("half, float");
    check<half, half>("half, half");
    check<signed char, int>("signed char, int");
    return finish("matrices");
}
