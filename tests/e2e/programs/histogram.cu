// Histograms with atomics in shared and in global memory, of several widths.
#include "check.h"

enum { BINS = 64 };

__global__ void count(unsigned *bins, const unsigned char *in, int n)
{
    __shared__ unsigned local[BINS];
    for (int i = threadIdx.x; i < BINS; i += blockDim.x)
        local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[in[i] % BINS], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += blockDim.x)
        atomicAdd(&bins[i], local[i]);
}

struct totals {
    unsigned long long sum;
    int smallest, largest;
    unsigned all_or, all_and, all_xor, turns;
    float real;
    unsigned swapped;
};

__global__ void fold(struct totals *t, const unsigned char *in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    atomicAdd(&t->sum, (unsigned long long)in[i]);
    atomicMin(&t->smallest, (int)in[i]);
    atomicMax(&t->largest, (int)in[i]);
    atomicOr(&t->all_or, 1u << (in[i] % 32));
    atomicAnd(&t->all_and, ~(1u << (in[i] % 4)));
    atomicXor(&t->all_xor, (unsigned)in[i]);
    atomicInc(&t->turns, 6u);
    atomicAdd(&t->real, 1.0f);
    unsigned seen = t->swapped, was;
    do {
        was = seen;
        seen = atomicCAS(&t->swapped, was, was + in[i]);
    } while (seen != was);
}

int main(void)
{
    const int n = 40000, folded = 2048;
    unsigned char *in = (unsigned char *)check_alloc(n), *din;
    unsigned bins[BINS], expected[BINS] = {0}, *dbins, seed = 9;
    struct totals t = {0, 1000, -1, 0, ~0u, 0, 0, 0, 0}, e = t, *dt;

    for (int i = 0; i < n; i++) {
        in[i] = (unsigned char)check_random(&seed);
        expected[in[i] % BINS]++;
    }
    for (int i = 0; i < folded; i++) {
        e.sum += in[i];
        e.smallest = in[i] < e.smallest ? in[i] : e.smallest;
        e.largest = in[i] > e.largest ? in[i] : e.largest;
        e.all_or |= 1u << (in[i] % 32);
        e.all_and &= ~(1u << (in[i] % 4));
        e.all_xor ^= in[i];
    }
    CUDA(cudaMalloc(&din, n));
    CUDA(cudaMalloc(&dbins, sizeof bins));
    CUDA(cudaMalloc(&dt, sizeof t));
    CUDA(cudaMemcpy(din, in, n, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(dbins, 0, sizeof bins));
    CUDA(cudaMemcpy(dt, &t, sizeof t, cudaMemcpyHostToDevice));
    count<<<8, 128>>>(dbins, din, n);
    fold<<<folded / 128, 128>>>(dt, din, folded);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(bins, dbins, sizeof bins, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(&t, dt, sizeof t, cudaMemcpyDeviceToHost));
    for (int i = 0; i < BINS; i++)
        EXPECT(bins[i] == expected[i], "bin %d holds %u, expected %u", i, bins[i], expected[i]);
    EXPECT(t.sum == e.sum, "the sum is %llu, expected %llu", t.sum, e.sum);
    EXPECT(t.smallest == e.smallest && t.largest == e.largest, "the range is %d..%d, expected %d..%d",
           t.smallest, t.largest, e.smallest, e.largest);
    EXPECT(t.all_or == e.all_or && t.all_and == e.all_and && t.all_xor == e.all_xor,
           "or, and, xor are %x %x %x, expected %x %x %x", t.all_or, t.all_and, t.all_xor, e.all_or,
           e.all_and, e.all_xor);
    EXPECT(t.turns == folded % 7, "the wrapping count is %u, expected %d", t.turns, folded % 7);
    EXPECT(t.real == (float)folded, "the float sum is %g, expected %d", t.real, folded);
    EXPECT(t.swapped == e.sum, "compare-and-swap summed %u, expected %llu", t.swapped, e.sum);
    CUDA(cudaFree(din));
    CUDA(cudaFree(dbins));
    CUDA(cudaFree(dt));
    free(in);
    return finish("histogram");
}
