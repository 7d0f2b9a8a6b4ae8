// Sums and scans with warp shuffles, votes and dynamic shared memory.
#include "check.h"

__inline__ __device__ int warp_sum(int value)
{
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

__global__ void block_sums(int *sums, int *maxima, const int *in, int n)
{
    extern __shared__ int parts[];
    int sum = 0, largest = -2147483647 - 1;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += in[i];
        largest = max(largest, in[i]);
    }
    sum = warp_sum(sum);
    for (int mask = 16; mask > 0; mask /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (lane == 0) {
        parts[warp] = sum;
        parts[warps + warp] = largest;
    }
    __syncthreads();
    if (warp == 0) {
        sum = warp_sum(lane < warps ? parts[lane] : 0);
        if (lane == 0) {
            sums[blockIdx.x] = sum;
            for (int i = 0; i < warps; i++)
                largest = max(largest, parts[warps + i]);
            maxima[blockIdx.x] = largest;
        }
    }
}

__global__ void scan_warps(int *out, unsigned *votes, const int *in)
{
    int lane = threadIdx.x % 32, i = blockIdx.x * blockDim.x + threadIdx.x, value = in[i];
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step)
            value += left;
    }
    out[i] = value;
    unsigned odd = __ballot_sync(0xffffffffu, in[i] & 1);
    if (lane == 0)
        votes[i / 32] = odd + (__all_sync(0xffffffffu, 1) ? 0 : 1);
    else
        __all_sync(0xffffffffu, 1);
}

int main(void)
{
    const int n = 60000, blocks = 8, threads = 256, scanned = 1024;
    int *in = (int *)check_alloc(n * sizeof *in), *din, *dsums, *dmaxima, *dscan;
    int sums[blocks], maxima[blocks], scan[scanned];
    unsigned votes[scanned / 32], *dvotes, seed = 3;
    long long total = 0, expected = 0;
    int largest = 0, expected_largest = 0;

    for (int i = 0; i < n; i++) {
        in[i] = (int)(check_random(&seed) % 10000);
        expected += in[i];
        expected_largest = in[i] > expected_largest ? in[i] : expected_largest;
    }
    CUDA(cudaMalloc(&din, n * sizeof *in));
    CUDA(cudaMalloc(&dsums, sizeof sums));
    CUDA(cudaMalloc(&dmaxima, sizeof maxima));
    CUDA(cudaMalloc(&dscan, sizeof scan));
    CUDA(cudaMalloc(&dvotes, sizeof votes));
    CUDA(cudaMemcpy(din, in, n * sizeof *in, cudaMemcpyHostToDevice));
    block_sums<<<blocks, threads, 2 * threads / 32 * sizeof(int)>>>(dsums, dmaxima, din, n);
    CUDA(cudaGetLastError());
    scan_warps<<<scanned / 128, 128>>>(dscan, dvotes, din);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(sums, dsums, sizeof sums, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(maxima, dmaxima, sizeof maxima, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(scan, dscan, sizeof scan, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(votes, dvotes, sizeof votes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < blocks; i++) {
        total += sums[i];
        largest = maxima[i] > largest ? maxima[i] : largest;
    }
    EXPECT(total == expected, "the sum is %lld, expected %lld", total, expected);
    EXPECT(largest == expected_largest, "the maximum is %d, expected %d", largest, expected_largest);
    for (int i = 0, running = 0; i < scanned; i++) {
        running = i % 32 == 0 ? in[i] : running + in[i];
        EXPECT(scan[i] == running, "scan[%d] is %d, expected %d", i, scan[i], running);
        EXPECT((votes[i / 32] >> (i % 32) & 1) == (unsigned)(in[i] & 1), "vote %d is wrong", i);
    }
    CUDA(cudaFree(din));
    CUDA(cudaFree(dsums));
    CUDA(cudaFree(dmaxima));
    CUDA(cudaFree(dscan));
    CUDA(cudaFree(dvotes));
    free(in);
    return finish("reduction");
}
