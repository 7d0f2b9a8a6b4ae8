// Cooperative launches: all blocks wait for each other, and as many fit as the occupancy says.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

#define THREADS 64
#define ROUNDS 5

// Each round reads what other blocks have written in the round before.
__global__ void rotate(int *values, int *scratch, int rounds)
{
    cg::grid_group grid = cg::this_grid();
    unsigned me = (unsigned)grid.thread_rank(), all = (unsigned)grid.size();
    for (int i = 0; i < rounds; i++) {
        scratch[me] = values[(me + THREADS + 1) % all] + 1;
        grid.sync();
        values[me] = scratch[me];
        grid.sync();
    }
}

// The last to come sees what all have brought; no block leaves before.
__global__ void gather(unsigned *counter, unsigned *seen)
{
    if (threadIdx.x == 0) {
        atomicAdd(counter, 1);
        while (*(volatile unsigned *)counter < gridDim.x)
            ;
        seen[blockIdx.x] = *(volatile unsigned *)counter;
    }
}

__global__ void ask(int *valid)
{
    *valid = cg::this_grid().is_valid() ? 1 : 2;
}

static unsigned blocks_that_fit(const void *kernel)
{
    int each = 0, count = 0;
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, THREADS, 0));
    CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    return (unsigned)(each * count);
}

static void check_rotation(unsigned blocks)
{
    unsigned n = blocks * THREADS;
    int rounds = ROUNDS, *values = (int *)check_alloc(n * sizeof *values), *d, *scratch;
    for (unsigned i = 0; i < n; i++)
        values[i] = (int)i;
    CUDA(cudaMalloc(&d, n * sizeof *values));
    CUDA(cudaMalloc(&scratch, n * sizeof *values));
    CUDA(cudaMemcpy(d, values, n * sizeof *values, cudaMemcpyHostToDevice));
    void *arguments[] = {&d, &scratch, &rounds};
    CUDA(cudaLaunchCooperativeKernel((void *)rotate, blocks, THREADS, arguments, 0, 0));
    CUDA(cudaMemcpy(values, d, n * sizeof *values, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < n; i++) {
        int expected = (int)((i + ROUNDS * (THREADS + 1)) % n) + ROUNDS;
        EXPECT(values[i] == expected, "%u blocks: value %u is %d, expected %d", blocks, i,
               values[i], expected);
    }
    CUDA(cudaFree(d));
    CUDA(cudaFree(scratch));
    free(values);
}

static void check_gathering(void)
{
    unsigned blocks = blocks_that_fit((const void *)gather), *d;
    unsigned *seen = (unsigned *)check_alloc((blocks + 1) * sizeof *seen), *all;
    CUDA(cudaMalloc(&d, (blocks + 1) * sizeof *seen));
    CUDA(cudaMemset(d, 0, (blocks + 1) * sizeof *seen));
    all = d + 1;
    void *arguments[] = {&d, &all};
    CUDA(cudaLaunchCooperativeKernel((void *)gather, blocks, THREADS, arguments, 0, 0));
    CUDA(cudaMemcpy(seen, d, (blocks + 1) * sizeof *seen, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i <= blocks; i++)
        EXPECT(seen[i] == blocks, "of %u blocks, %u saw %u", blocks, i, seen[i]);
    CUDA(cudaFree(d));
    free(seen);
}

static void check_refusal(void)
{
    int rounds = 0, *none = NULL;
    void *arguments[] = {&none, &none, &rounds};
    unsigned blocks = blocks_that_fit((const void *)rotate);
    cudaError_t at_once = cudaLaunchCooperativeKernel((void *)rotate, blocks + 1, THREADS,
                                                      arguments, 0, 0);
    cudaError_t later = cudaDeviceSynchronize(); // where the launch is not waited for
    cudaError_t told = at_once != cudaSuccess ? at_once : later;
    EXPECT(told == cudaErrorCooperativeLaunchTooLarge, "%u blocks where %u fit gave %s", blocks + 1,
           blocks, cudaGetErrorName(told));
    cudaGetLastError();
    CUDA(cudaDeviceSynchronize());
}

static void check_validity(void)
{
    int *d, valid[2];
    CUDA(cudaMalloc(&d, sizeof valid));
    int *second = d + 1;
    void *arguments[] = {&d};
    CUDA(cudaLaunchCooperativeKernel((void *)ask, 1, 1, arguments, 0, 0));
    ask<<<1, 1>>>(second);
    CUDA(cudaMemcpy(valid, d, sizeof valid, cudaMemcpyDeviceToHost));
    EXPECT(valid[0] == 1, "the grid of a cooperative launch is not valid");
    // Without room to synchronize in, which cards may give to every launch, as an H200 does.
    cudaDeviceProp device;
    CUDA(cudaGetDeviceProperties(&device, 0));
    EXPECT(valid[1] == 2 || !strstr(device.name, "soft GPU"),
           "the grid of another launch is valid");
    CUDA(cudaFree(d));
}

int main(void)
{
    int supported = 0;
    CUDA(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0));
    REQUIRE(supported, "the device has no cooperative launches");
    check_rotation(1);
    check_rotation(7);
    check_gathering();
    check_refusal();
    check_validity();
    return finish("grid_sync");
}
