/* Capture into graphs, launch them, and the errors of captures gone wrong. */
#include "driver.h"

enum { COUNT = 256 };

static int calls;

static void CUDA_CB count_call(void *argument)
{
    __sync_fetch_and_add((int *)argument, 1);
}

static void capture_and_launch(CUmodule module, CUstream stream)
{
    CUfunction step = driver_function(module, "multiply_add");
    CUdeviceptr values;
    CUgraph graph, within = NULL;
    CUgraphExec runnable;
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    size_t nodes = 0;
    int n = COUNT, factor = 3, term = 1, *host;
    const size_t size = COUNT * sizeof *host;
    void *parameters[] = {&values, &n, &factor, &term};

    CU(cuMemAlloc(&values, size));
    CU(cuMemAllocHost((void **)&host, size));
    CU(cuStreamIsCapturing(stream, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_NONE, "the state before is %d", (int)status);
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemsetD32Async(values, 2, COUNT, stream));
    CU(cuLaunchKernel(step, 2, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
    /* The parameters are taken at the call. */
    term = 5;
    CU(cuLaunchKernel(step, 2, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
    CU(cuLaunchHostFunc(stream, count_call, &calls));
    CU(cuMemcpyDtoHAsync(host, values, size, stream));
    CU(cuStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0, "the state within is %d",
           (int)status);
    CU(cuStreamGetCaptureInfo(stream, &status, &id, &within, NULL, NULL, NULL));
    CU(cuStreamEndCapture(stream, &graph));
    EXPECT(graph == within, "the graph of the capture has another handle than within it");
    CU(cuGraphGetNodes(graph, NULL, &nodes));
    EXPECT(nodes == 5, "the graph has %zu nodes, expected 5", nodes);
    CU(cuGraphInstantiate(&runnable, graph, 0));
    for (int round = 1; round <= 3; round++) {
        memset(host, 0, size);
        CU(cuGraphLaunch(runnable, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(calls == round, "the host node ran %d times, expected %d", calls, round);
        for (int i = 0; i < COUNT; i++)
            EXPECT(host[i] == (2 * 3 + 1) * 3 + 5, "round %d: value %d is %d", round, i, host[i]);
    }
    CU(cuGraphExecDestroy(runnable));
    CU(cuGraphDestroy(graph));
    CU(cuMemFreeHost(host));
    CU(cuMemFree(values));
}

/* Host memory is read and written as it is when the graph runs, not as it was captured. */
static void both_ways(CUmodule module, CUstream stream, int *in, int *out)
{
    CUfunction step = driver_function(module, "multiply_add");
    const size_t size = COUNT * sizeof(int);
    CUdeviceptr values;
    CUgraph graph;
    CUgraphNode root;
    CUgraphExec runnable;
    size_t nodes = 0, roots = 1;
    int n = COUNT, factor = 3, term = 1;
    void *parameters[] = {&values, &n, &factor, &term};

    CU(cuMemAlloc(&values, size));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuMemcpyHtoDAsync(values, in, size, stream));
    CU(cuLaunchKernel(step, 2, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
    CU(cuMemcpyDtoHAsync(out, values, size, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphGetNodes(graph, NULL, &nodes));
    EXPECT(nodes == 3, "the graph has %zu nodes, expected 3", nodes);
    CU(cuGraphGetRootNodes(graph, &root, &roots));
    EXPECT(roots == 1, "the graph has %zu roots, expected 1", roots);
    CU(cuGraphInstantiate(&runnable, graph, 0));
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < COUNT; i++)
            in[i] = round * 1000 + i;
        memset(out, 0, size);
        CU(cuGraphLaunch(runnable, stream));
        CU(cuStreamSynchronize(stream));
        for (int i = 0; i < COUNT; i++)
            EXPECT(out[i] == in[i] * 3 + 1, "round %d: value %d is %d", round, i, out[i]);
    }
    CU(cuGraphExecDestroy(runnable));
    CU(cuGraphDestroy(graph));
    CU(cuMemFree(values));
}

static void pinned_both_ways(CUmodule module, CUstream stream)
{
    int *in, *out;
    CU(cuMemAllocHost((void **)&in, COUNT * sizeof *in));
    CU(cuMemHostAlloc((void **)&out, COUNT * sizeof *out, CU_MEMHOSTALLOC_PORTABLE));
    both_ways(module, stream, in, out);
    CU(cuMemFreeHost(in));
    CU(cuMemFreeHost(out));
}

static void pageable_both_ways(CUmodule module, CUstream stream)
{
    int *in = check_alloc(COUNT * sizeof *in), *out = check_alloc(COUNT * sizeof *out);
    both_ways(module, stream, in, out);
    free(in);
    free(out);
}

static void wrong_captures(CUmodule module, CUstream stream)
{
    /* Looked up before: a capture need not allow loading. */
    CUfunction increment = driver_function(module, "increment");
    CUgraph graph = NULL;
    CUstreamCaptureStatus status;
    CUdeviceptr values;
    int n = COUNT;
    void *parameters[] = {&values, &n};

    CU(cuMemAlloc(&values, COUNT * sizeof(int)));
    CU_GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU_GIVES(CUDA_ERROR_ILLEGAL_STATE,
             cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuLaunchKernel(increment, 2, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
    /* To wait for a stream that is capturing invalidates the capture. */
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
    CU(cuStreamIsCapturing(stream, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED, "the state is %d", (int)status);
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
             cuLaunchKernel(increment, 2, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    /* And the stream is an ordinary one again. */
    CU(cuLaunchKernel(increment, 2, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
    CU(cuStreamSynchronize(stream));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
             cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemFree(values));
}

int main(void)
{
    CUmodule module;
    CUstream stream;

    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    capture_and_launch(module, stream);
    pinned_both_ways(module, stream);
    pageable_both_ways(module, stream);
    wrong_captures(module, stream);
    CU(cuStreamDestroy(stream));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_graph");
}
