// A double-precision stencil cut over several streams, ordered by events only.
#include "check.h"

enum { PARTS = 4, WIDTH = 2048, STEPS = 6, TOTAL = PARTS * WIDTH };

__global__ void relax(double *out, const double *in, int begin, int end, int n)
{
    int i = begin + blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= end)
        return;
    double left = i > 0 ? in[i - 1] : 0.0, right = i + 1 < n ? in[i + 1] : 0.0;
    out[i] = fma(0.25, left, fma(0.5, in[i], 0.25 * right));
}

static void relax_here(double *out, const double *in, int n)
{
    for (int i = 0; i < n; i++) {
        double left = i > 0 ? in[i - 1] : 0.0, right = i + 1 < n ? in[i + 1] : 0.0;
        out[i] = fma(0.25, left, fma(0.5, in[i], 0.25 * right));
    }
}

int main(void)
{
    static double start[TOTAL], expected[2][TOTAL];
    double *pinned, *device[2];
    cudaStream_t streams[PARTS];
    cudaEvent_t done[2][PARTS], first, last;
    float elapsed = -1;
    unsigned seed = 5;

    CUDA(cudaMallocHost(&pinned, sizeof start));
    for (int i = 0; i < TOTAL; i++)
        start[i] = pinned[i] = expected[0][i] = check_random(&seed) / 1000.0;
    for (int s = 0; s < STEPS; s++)
        relax_here(expected[(s + 1) % 2], expected[s % 2], TOTAL);
    CUDA(cudaMalloc(&device[0], sizeof start));
    CUDA(cudaMalloc(&device[1], sizeof start));
    CUDA(cudaEventCreate(&first));
    CUDA(cudaEventCreate(&last));
    for (int p = 0; p < PARTS; p++) {
        CUDA(cudaStreamCreateWithFlags(&streams[p], cudaStreamNonBlocking));
        CUDA(cudaEventCreateWithFlags(&done[0][p], cudaEventDisableTiming));
        CUDA(cudaEventCreateWithFlags(&done[1][p], cudaEventDisableTiming));
    }
    CUDA(cudaEventRecord(first, streams[0]));
    for (int p = 0; p < PARTS; p++) {
        CUDA(cudaMemcpyAsync(device[0] + p * WIDTH, pinned + p * WIDTH, WIDTH * sizeof(double),
                             cudaMemcpyHostToDevice, streams[p]));
        CUDA(cudaEventRecord(done[0][p], streams[p]));
    }
    for (int s = 0; s < STEPS; s++) {
        for (int p = 0; p < PARTS; p++) {
            // A part needs its neighbours' last step, and they must have read this buffer.
            for (int q = p > 0 ? p - 1 : 0; q <= p + 1 && q < PARTS; q++)
                if (q != p)
                    CUDA(cudaStreamWaitEvent(streams[p], done[s % 2][q], 0));
            relax<<<WIDTH / 128, 128, 0, streams[p]>>>(device[(s + 1) % 2], device[s % 2], p * WIDTH,
                                                       (p + 1) * WIDTH, TOTAL);
        }
        for (int p = 0; p < PARTS; p++)
            CUDA(cudaEventRecord(done[(s + 1) % 2][p], streams[p]));
    }
    CUDA(cudaGetLastError());
    for (int p = 0; p < PARTS; p++)
        CUDA(cudaMemcpyAsync(pinned + p * WIDTH, device[STEPS % 2] + p * WIDTH, WIDTH * sizeof(double),
                             cudaMemcpyDeviceToHost, streams[p]));
    CUDA(cudaEventRecord(last, streams[0]));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < TOTAL; i++)
        EXPECT(pinned[i] == expected[STEPS % 2][i], "cell %d is %.17g, expected %.17g", i, pinned[i],
               expected[STEPS % 2][i]);
    CUDA(cudaEventElapsedTime(&elapsed, first, last));
    EXPECT(elapsed > 0, "the two events are %g ms apart", elapsed);
    for (int p = 0; p < PARTS; p++) {
        CUDA_GIVES(cudaSuccess, cudaStreamQuery(streams[p]));
        CUDA(cudaStreamDestroy(streams[p]));
        CUDA(cudaEventDestroy(done[0][p]));
        CUDA(cudaEventDestroy(done[1][p]));
    }
    CUDA(cudaEventDestroy(first));
    CUDA(cudaEventDestroy(last));
    CUDA(cudaFree(device[0]));
    CUDA(cudaFree(device[1]));
    CUDA(cudaFreeHost(pinned));
    return finish("stencil");
}
