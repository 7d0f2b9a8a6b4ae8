/* Graphs beyond nodes: data of edges, attributes of kernels, captures into graphs that are there. */
#include "driver.h"

#include <stdbool.h>

enum { COUNT = 256, SIZE = COUNT * (int)sizeof(int) };

static CUmodule module;
static CUstream stream, other_stream;
static CUfunction multiply_add;
static CUdeviceptr values;

static const CUgraphEdgeData programmatic = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                             .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};

static CUgraphNode add_kernel(CUgraph graph, const CUgraphNode *behind, int factor, int term)
{
    int n = COUNT;
    void *parameters[] = {&values, &n, &factor, &term};
    const CUDA_KERNEL_NODE_PARAMS p = {.func = multiply_add,
                                       .gridDimX = 1,
                                       .gridDimY = 1,
                                       .gridDimZ = 1,
                                       .blockDimX = COUNT,
                                       .blockDimY = 1,
                                       .blockDimZ = 1,
                                       .kernelParams = parameters};
    CUgraphNode node;
    CU(cuGraphAddKernelNode(&node, graph, behind, behind != NULL, &p));
    return node;
}

static void launch_kernel(CUstream on, int factor, int term)
{
    int n = COUNT;
    void *parameters[] = {&values, &n, &factor, &term};
    CU(cuLaunchKernel(multiply_add, 1, 1, 1, COUNT, 1, 1, 0, on, parameters, NULL));
}

static void expect_launched(CUgraph graph, int begin, int wanted, const char *when)
{
    CUgraphExec exec;
    int got[COUNT];
    CU(cuMemsetD32Async(values, (unsigned)begin, COUNT, stream));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(got, values, SIZE));
    EXPECT(got[0] == wanted && got[COUNT - 1] == wanted, "%s: %d and %d, expected %d", when, got[0],
           got[COUNT - 1], wanted);
    CU(cuGraphExecDestroy(exec));
}

/* --- data of edges -------------------------------------------------------------------- */

static void expect_data(CUgraph graph, size_t edges, unsigned char type, const char *when)
{
    CUgraphNode from[8], to[8];
    CUgraphEdgeData data[8];
    size_t count = 8;
    CU(cuGraphGetEdges(graph, from, to, data, &count));
    EXPECT(count == edges && data[0].type == type, "%s: %zu edges, the first of type %u", when,
           count, data[0].type);
}

/* Of launches that may begin early, behind a kernel. */
static void data_of_captured_edges(void)
{
    int n = COUNT, factor = 2, term = 1;
    void *parameters[] = {&values, &n, &factor, &term};
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    CUlaunchConfig config = {1, 1, 1, COUNT, 1, 1, 0, stream, &early, 1};
    CUgraph graph;
    early.value.programmaticStreamSerializationAllowed = 1;
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch_kernel(stream, 3, 0);
    CU(cuLaunchKernelEx(&config, multiply_add, parameters, NULL));
    CU(cuStreamEndCapture(stream, &graph));
    expect_data(graph, 1, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, "a capture");
    CU(cuGraphDestroy(graph));
}

static void data_of_edges(void)
{
    CUgraph graph, clone;
    CUgraphNode list[8];
    CUgraphEdgeData data[8], wrong = programmatic;
    size_t count = 8;

    CU(cuGraphCreate(&graph, 0));
    CUgraphNode first = add_kernel(graph, NULL, 2, 1), second = add_kernel(graph, NULL, 3, 2), set;
    const CUDA_MEMSET_NODE_PARAMS params = {
        .dst = values, .value = 1, .elementSize = 4, .width = COUNT, .height = 1};
    CU(cuGraphAddMemsetNode(&set, graph, NULL, 0, &params, driver_context));
    CU(cuGraphAddDependencies(graph, &first, &second, &programmatic, 1));
    expect_data(graph, 1, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, "a graph built by hand");
    CU_GIVES(CUDA_ERROR_LOSSY_QUERY, cuGraphGetEdges(graph, list, list, NULL, &count));
    count = 8;
    CU(cuGraphNodeGetDependencies(second, list, data, &count));
    EXPECT(count == 1 && data[0].from_port == programmatic.from_port, "%zu edges from port %u",
           count, data[0].from_port);
    CU(cuGraphClone(&clone, graph));
    expect_data(clone, 1, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, "its clone");
    CU(cuGraphDestroy(clone));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphAddDependencies(graph, &set, &second, &programmatic, 1));
    wrong.reserved[0] = 1;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &first, &set, &wrong, 1));
    CU(cuGraphDestroyNode(set));
    expect_launched(graph, 5, (5 * 2 + 1) * 3 + 2, "a programmatic edge");
    CU(cuGraphRemoveDependencies(graph, &first, &second, &programmatic, 1));
    CU(cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
    EXPECT(count == 0, "%zu edges are left", count);
    CU(cuGraphAddDependencies(graph, &first, &second, &programmatic, 1));
    CU(cuGraphRemoveDependencies(graph, &first, &second, NULL, 1)); /* whatever its data */
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &first, &second, NULL, 1));
    CU(cuGraphDestroy(graph));
}

static void data_of_a_new_node(void)
{
    CUgraph graph;
    CUgraphNode node;
    int n = COUNT, factor = 7, term = 3;
    void *parameters[] = {&values, &n, &factor, &term};
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_KERNEL,
                           .kernel = {.func = multiply_add,
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = COUNT,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = parameters}};
    CU(cuGraphCreate(&graph, 0));
    CUgraphNode first = add_kernel(graph, NULL, 2, 1);
    CU(cuGraphAddNode(&node, graph, &first, &programmatic, 1, &p));
    expect_data(graph, 1, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, "a node added with an edge");
    expect_launched(graph, 1, 3 * 7 + 3, "a node added with an edge");
    CU(cuGraphDestroy(graph));
}

/* --- attributes ------------------------------------------------------------------------ */

static int priority_of(CUgraphNode node)
{
    CUkernelNodeAttrValue value = {.priority = 99};
    CU(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    return value.priority;
}

static void attributes(void)
{
    CUgraph graph, clone;
    CUgraphNode empty, copy;
    CUkernelNodeAttrValue value = {.priority = 0}, got;

    CU(cuGraphCreate(&graph, 0));
    CUgraphNode first = add_kernel(graph, NULL, 2, 1), second = add_kernel(graph, &first, 3, 2);
    CU(cuGraphAddEmptyNode(&empty, graph, NULL, 0));
    value.priority = -1;
    CU(cuGraphKernelNodeSetAttribute(first, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    EXPECT(priority_of(first) == -1, "the priority is %d, expected -1", priority_of(first));
    CU(cuGraphClone(&clone, graph));
    CU(cuGraphNodeFindInClone(&copy, first, clone));
    EXPECT(priority_of(copy) == -1, "the clone's priority is %d, expected -1", priority_of(copy));
    CU(cuGraphKernelNodeCopyAttributes(second, first));
    EXPECT(priority_of(second) == -1, "the copied priority is %d", priority_of(second));
    value.priority = -2;
    CU(cuGraphKernelNodeSetAttribute(second, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    EXPECT(priority_of(first) == -1 && priority_of(copy) == -1, "other nodes have changed");
    value = (CUkernelNodeAttrValue){.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE};
    CU(cuGraphKernelNodeSetAttribute(first, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
    CU(cuGraphKernelNodeGetAttribute(first, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &got));
    EXPECT(got.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE, "the domain is %d",
           (int)got.memSyncDomain);
    EXPECT(priority_of(first) == -1, "the priority went with another attribute");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphKernelNodeGetAttribute(empty, CU_LAUNCH_ATTRIBUTE_PRIORITY, &got));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphKernelNodeSetAttribute(empty, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuGraphKernelNodeSetAttribute(first, CU_LAUNCH_ATTRIBUTE_PRIORITY, NULL));
    CU_GIVES(
        CUDA_ERROR_INVALID_VALUE,
        cuGraphKernelNodeSetAttribute(first, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeCopyAttributes(first, empty));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeCopyAttributes(NULL, first));
    expect_launched(graph, 5, (5 * 2 + 1) * 3 + 2, "kernels with attributes");
    CU(cuGraphDestroy(clone));
    CU(cuGraphDestroy(graph));
}

/* --- captures ---------------------------------------------------------------------------- */

/* A node by hand, then a kernel of a stream behind it, then one by hand again. */
static void captured_into_a_graph(void)
{
    CUgraph graph, same, left;
    CUgraphNode nodes[8];
    CUstreamCaptureStatus status;
    const CUgraphNode *last;
    size_t count = 8;

    CU(cuGraphCreate(&graph, 0));
    CUgraphNode first = add_kernel(graph, NULL, 2, 1);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBeginCaptureToGraph(stream, NULL, NULL, NULL, 0,
                                                                   CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 1,
                                                                   CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, (CUstreamCaptureMode)9));
    CU(cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch_kernel(stream, 3, 2);
    CU(cuStreamGetCaptureInfo(stream, &status, NULL, &same, &last, NULL, &count));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && same == graph && count == 1,
           "the capture says %d, %zu nodes, %s graph", (int)status, count,
           same == graph ? "its" : "another");
    CU(cuStreamEndCapture(stream, &left));
    EXPECT(left == graph, "the capture has left another graph");
    count = 8;
    CU(cuGraphGetNodes(graph, nodes, &count));
    EXPECT(count == 2 && (nodes[0] == first || nodes[1] == first), "%zu nodes, expected 2", count);
    add_kernel(graph, &nodes[nodes[0] == first], 5, 4);
    expect_launched(graph, 1, (3 * 3 + 2) * 5 + 4, "a graph built both ways");
    CU(cuGraphDestroy(graph));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
}

/* What comes next is put behind a node by hand, or behind nothing. */
static void changed_dependencies(void)
{
    CUgraph graph, left;
    CUgraphNode node, roots[4];
    CUstreamCaptureStatus status;
    size_t count = 0;

    CU_GIVES(CUDA_ERROR_ILLEGAL_STATE,
             cuStreamUpdateCaptureDependencies(stream, NULL, NULL, 0,
                                               CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch_kernel(stream, 2, 1);
    CU(cuStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, &count));
    const CUgraphNode *last;
    CU(cuStreamGetCaptureInfo(stream, &status, NULL, &graph, &last, NULL, &count));
    CUgraphNode behind = last[0];
    node = add_kernel(graph, &behind, 3, 2);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuStreamUpdateCaptureDependencies(stream, NULL, NULL, 1,
                                               CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuStreamUpdateCaptureDependencies(stream, &node, NULL, 1, 7));
    CU(cuStreamUpdateCaptureDependencies(stream, &node, &programmatic, 1,
                                         CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    const CUgraphEdgeData *data = NULL;
    CU(cuStreamGetCaptureInfo(stream, &status, NULL, &graph, &last, &data, &count));
    EXPECT(count == 1 && last[0] == node && data && data[0].type == programmatic.type,
           "the next operation waits for %zu nodes", count);
    CU_GIVES(CUDA_ERROR_LOSSY_QUERY,
             cuStreamGetCaptureInfo(stream, &status, NULL, &graph, &last, NULL, &count));
    launch_kernel(stream, 5, 4);
    CU(cuStreamUpdateCaptureDependencies(stream, &node, NULL, 1,
                                         CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    CU(cuStreamGetCaptureInfo(stream, &status, NULL, &graph, &last, &data, &count));
    EXPECT(count == 2, "the next operation waits for %zu nodes, expected 2", count);
    CU(cuStreamEndCapture(stream, &left));
    count = 4;
    CU(cuGraphGetRootNodes(left, roots, &count));
    EXPECT(count == 1, "%zu roots, expected one", count);
    expect_launched(left, 1, ((2 + 1) * 3 + 2) * 5 + 4, "a capture that was changed");
    CU(cuGraphDestroy(left));
}

/* Another stream joins by an event; the graph is the one that was there. */
static void two_streams(void)
{
    CUgraph graph, same, left;
    CUevent forked, joined;
    CUstreamCaptureStatus status;

    CU(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    CU(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    CU(cuGraphCreate(&graph, 0));
    CU(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0,
                                   CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch_kernel(stream, 2, 1);
    CU(cuEventRecord(forked, stream));
    CU(cuStreamWaitEvent(other_stream, forked, 0));
    launch_kernel(other_stream, 3, 2);
    CU(cuStreamGetCaptureInfo(other_stream, &status, NULL, &same, NULL, NULL, NULL));
    EXPECT(same == graph, "the stream that joined captures into another graph");
    CU(cuEventRecord(joined, other_stream));
    CU(cuStreamWaitEvent(stream, joined, 0));
    CU(cuStreamEndCapture(stream, &left));
    EXPECT(left == graph, "the capture has left another graph");
    expect_launched(graph, 1, (2 + 1) * 3 + 2, "two streams in one graph");
    CU(cuGraphDestroy(graph));
    CU(cuEventDestroy(forked));
    CU(cuEventDestroy(joined));
}

int main(void)
{
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
    multiply_add = driver_function(module, "multiply_add");
    CU(cuMemAlloc(&values, SIZE));
    data_of_edges();
    data_of_captured_edges();
    data_of_a_new_node();
    attributes();
    captured_into_a_graph();
    changed_dependencies();
    two_streams();
    CU(cuMemFree(values));
    CU(cuStreamDestroy(other_stream));
    CU(cuStreamDestroy(stream));
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_graph_edges");
}
