// Two streams captured into a graph that is launched again and again; memory from a pool.
#include "check.h"

enum { COUNT = 1024, LAUNCHES = 5 };

__global__ void grow(int *values, int term)
{
    values[blockIdx.x * blockDim.x + threadIdx.x] += term;
}

__global__ void join(int *out, const int *a, const int *b)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = a[i] - b[i];
}

int main(void)
{
    int *a, *b, *out, host[COUNT];
    cudaStream_t one, two;
    cudaEvent_t fork, meet;
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    cudaStreamCaptureStatus status;
    size_t nodes = 0;

    CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&meet, cudaEventDisableTiming));
    CUDA(cudaMallocAsync(&a, sizeof host, one));
    CUDA(cudaMallocAsync(&b, sizeof host, one));
    CUDA(cudaMallocAsync(&out, sizeof host, one));
    CUDA(cudaMemsetAsync(a, 0, sizeof host, one));
    CUDA(cudaMemsetAsync(b, 0, sizeof host, one));
    CUDA(cudaStreamSynchronize(one));

    CUDA(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaEventRecord(fork, one));
    CUDA(cudaStreamWaitEvent(two, fork, 0));
    grow<<<COUNT / 128, 128, 0, one>>>(a, 5);
    grow<<<COUNT / 128, 128, 0, two>>>(b, 2);
    CUDA(cudaEventRecord(meet, two));
    CUDA(cudaStreamWaitEvent(one, meet, 0));
    join<<<COUNT / 128, 128, 0, one>>>(out, a, b);
    CUDA(cudaStreamIsCapturing(one, &status));
    EXPECT(status == cudaStreamCaptureStatusActive, "the capture has state %d", (int)status);
    CUDA(cudaStreamEndCapture(one, &graph));
    CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
    EXPECT(nodes == 3, "the graph has %zu nodes, expected 3", nodes);
    CUDA(cudaGraphInstantiate(&runnable, graph, 0));
    for (int i = 0; i < LAUNCHES; i++)
        CUDA(cudaGraphLaunch(runnable, one));
    CUDA(cudaMemcpyAsync(host, out, sizeof host, cudaMemcpyDeviceToHost, one));
    CUDA(cudaStreamSynchronize(one));
    for (int i = 0; i < COUNT; i++)
        EXPECT(host[i] == 3 * LAUNCHES, "value %d is %d, expected %d", i, host[i], 3 * LAUNCHES);
    CUDA(cudaGraphExecDestroy(runnable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaFreeAsync(a, one));
    CUDA(cudaFreeAsync(b, one));
    CUDA(cudaFreeAsync(out, one));
    CUDA(cudaStreamSynchronize(one));
    CUDA(cudaEventDestroy(fork));
    CUDA(cudaEventDestroy(meet));
    CUDA(cudaStreamDestroy(one));
    CUDA(cudaStreamDestroy(two));
    return finish("captured");
}
