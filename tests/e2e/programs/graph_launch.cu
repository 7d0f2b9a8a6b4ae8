/*
 * Kernels that launch graphs: beside the launching one, as its sibling, behind it, and itself again.
 * What a launched graph does is in graph_launch_part.cu. The soft GPU does not load this.
 */
#include "check.h"

#define COUNT 256
#define TIMES 5

extern __global__ void added(int *values, int count, int more);

__global__ void launch(cudaGraphExec_t beside, cudaGraphExec_t sibling, cudaGraphExec_t behind,
                       int *errors)
{
    errors[0] = cudaGraphLaunch(beside, cudaStreamGraphFireAndForget);
    errors[1] = cudaGraphLaunch(sibling, cudaStreamGraphFireAndForgetAsSibling);
    errors[2] = cudaGraphLaunch(behind, cudaStreamGraphTailLaunch);
}

/* Runs TIMES times for one launch of the host's. */
__global__ void again(int *count, int *error)
{
    if (++*count % TIMES)
        *error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
}

static cudaStream_t stream;

/* Ends a capture; the graph may be launched by kernels. */
static cudaGraphExec_t end(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaGetLastError());
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagDeviceLaunch));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphUpload(exec, stream));
    return exec;
}

static cudaGraphExec_t adding(int *values, int more)
{
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    added<<<COUNT / 64, 64, 0, stream>>>(values, COUNT, more);
    return end();
}

static void launched(int *values, int *errors)
{
    int host[3 * COUNT], failed[3];
    cudaGraphExec_t graphs[4];
    for (int i = 0; i < 3; i++)
        graphs[i] = adding(values + i * COUNT, 10 + i);
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    launch<<<1, 1, 0, stream>>>(graphs[0], graphs[1], graphs[2], errors);
    graphs[3] = end();
    for (int times = 1; times <= 3; times++) {
        CUDA(cudaGraphLaunch(graphs[3], stream));
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(failed, errors, sizeof failed, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 3; i++) {
            EXPECT(failed[i] == cudaSuccess, "launch %d of a kernel: error %d", i, failed[i]);
            EXPECT(host[i * COUNT] == times * (10 + i) &&
                       host[(i + 1) * COUNT - 1] == host[i * COUNT],
                   "graph %d after %d launches: %d, expected %d", i, times, host[i * COUNT],
                   times * (10 + i));
        }
    }
    for (int i = 0; i < 4; i++)
        CUDA(cudaGraphExecDestroy(graphs[i]));
}

static void launched_itself(int *count, int *error)
{
    int runs = 0, failed = 0;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    again<<<1, 1, 0, stream>>>(count, error);
    cudaGraphExec_t graph = end();
    for (int times = 1; times <= 2; times++) {
        CUDA(cudaGraphLaunch(graph, stream));
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(&runs, count, sizeof runs, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(&failed, error, sizeof failed, cudaMemcpyDeviceToHost));
        EXPECT(failed == cudaSuccess, "a graph that launches itself: error %d", failed);
        EXPECT(runs == times * TIMES, "it ran %d times, expected %d", runs, times * TIMES);
    }
    CUDA(cudaGraphExecDestroy(graph));
}

int main(void)
{
    int *values, *numbers;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&values, 3 * COUNT * sizeof *values));
    CUDA(cudaMalloc(&numbers, 8 * sizeof *numbers));
    CUDA(cudaMemset(values, 0, 3 * COUNT * sizeof *values));
    CUDA(cudaMemset(numbers, 0, 8 * sizeof *numbers));
    CUDA(cudaDeviceSynchronize());
    launched(values, numbers);
    launched_itself(numbers + 4, numbers + 5);
    CUDA(cudaFree(numbers));
    CUDA(cudaFree(values));
    CUDA(cudaStreamDestroy(stream));
    return finish("graph_launch");
}
