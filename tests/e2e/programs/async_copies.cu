// What CUDA 13's headers make of asynchronous copies, barriers, pipelines and clusters (sm_90).
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda/pipeline>

#include "check.h"

namespace cg = cooperative_groups;
using block_barrier = cuda::barrier<cuda::thread_scope_block>;

#define THREADS 128
#define BLOCKS 4
#define CLUSTER 2
#define N (THREADS * BLOCKS)

__global__ void by_group(int *out, const int *in)
{
    __shared__ int part[THREADS];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, part, in + blockIdx.x * THREADS, sizeof part);
    cg::wait(block);
    out[blockIdx.x * THREADS + threadIdx.x] = part[THREADS - 1 - threadIdx.x];
}

__global__ void by_barrier(int *out, const int *in)
{
    __shared__ int part[THREADS];
    __shared__ block_barrier barrier;
    auto block = cg::this_thread_block();
    if (threadIdx.x == 0)
        init(&barrier, blockDim.x);
    block.sync();
    cuda::memcpy_async(block, part, in + blockIdx.x * THREADS,
                       cuda::aligned_size_t<16>(sizeof part), barrier);
    barrier.arrive_and_wait();
    part[threadIdx.x] *= 2;
    auto token = barrier.arrive();
    barrier.wait(std::move(token));
    out[blockIdx.x * THREADS + threadIdx.x] = part[THREADS - 1 - threadIdx.x];
}

// Two stages: one is read while the next is copied.
__global__ void by_pipeline(int *out, const int *in)
{
    __shared__ int stages[2][THREADS];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int next = 0, now = 0; now < BLOCKS; now++) {
        for (; next < BLOCKS && next < now + 2; next++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, stages[next % 2], in + next * THREADS,
                               cuda::aligned_size_t<16>(sizeof stages[0]), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += stages[now % 2][THREADS - 1 - threadIdx.x];
        pipe.consumer_release();
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define IN_CLUSTERS
#else
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#endif

// Blocks of a cluster read each other's shared memory.
__global__ void IN_CLUSTERS by_cluster(int *out, const int *in)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ int part[THREADS];
    auto cluster = cg::this_cluster();
    part[threadIdx.x] = in[blockIdx.x * THREADS + threadIdx.x];
    cluster.sync();
    const int *other = cluster.map_shared_rank(part, (cluster.block_rank() + 1) % CLUSTER);
    int value = other[threadIdx.x];
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int sum = cg::reduce(warp, value, cg::plus<int>());
    cluster.sync();
    out[blockIdx.x * THREADS + threadIdx.x] = value + sum;
#endif
}

static int expected(int kernel, int i)
{
    int block = i / THREADS, thread = i % THREADS, sum = 0, other;
    switch (kernel) {
    case 0:
    case 1:
        return (kernel + 1) * (block * THREADS + THREADS - 1 - thread);
    case 2:
        for (int k = 0; k < BLOCKS; k++)
            sum += k * THREADS + THREADS - 1 - thread;
        return sum;
    default:
        other = block / CLUSTER * CLUSTER + (block + 1) % CLUSTER;
        for (int k = 0; k < 32; k++)
            sum += other * THREADS + thread / 32 * 32 + k;
        return other * THREADS + thread + sum;
    }
}

int main(void)
{
    typedef void (*kernel)(int *, const int *);
    const kernel kernels[] = {by_group, by_barrier, by_pipeline, by_cluster};
    int values[N], *in, *out;
    CUDA(cudaMalloc(&in, sizeof values));
    CUDA(cudaMalloc(&out, sizeof values));
    for (int i = 0; i < N; i++)
        values[i] = i;
    CUDA(cudaMemcpy(in, values, sizeof values, cudaMemcpyHostToDevice));
    for (int k = 0; k < 4; k++) {
        CUDA(cudaMemset(out, 0xff, sizeof values));
        kernels[k]<<<BLOCKS, THREADS>>>(out, in);
        CUDA(cudaGetLastError());
        CUDA(cudaMemcpy(values, out, sizeof values, cudaMemcpyDeviceToHost));
        for (int i = 0; i < N; i++)
            EXPECT(values[i] == expected(k, i), "kernel %d: value %d is %d, expected %d", k, i,
                   values[i], expected(k, i));
    }
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
    return finish("async_copies");
}
