/*
 * Captures that go over several streams: what they are made of is gone before the capture ends, as
 * cuda.core's builders of graphs have it.
 */
#include "driver.h"

enum { BRANCHES = 3 };

static CUstream origin;
static CUdeviceptr words;

static CUevent recorded(CUstream stream)
{
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(event, stream));
    return event;
}

/* `stream` waits for what `other` has come to. */
static void wait_for(CUstream stream, CUstream other)
{
    CUevent event = recorded(other);
    CU(cuStreamWaitEvent(stream, event, 0));
    CU(cuEventDestroy(event));
}

static CUstream forked(unsigned value)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    wait_for(stream, origin);
    CU(cuMemsetD32Async(words + 4 * value, value, 1, stream));
    return stream;
}

static void begin(void)
{
    CU(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemsetD32Async(words, 1, BRANCHES + 2, origin));
}

/* The edges of what comes next are told, also where all are of the default kind. */
static void expect_edges_told(void)
{
    const CUgraphEdgeData *data = NULL, none = {0};
    const CUgraphNode *last;
    CUstreamCaptureStatus status;
    size_t count;
    CU(cuStreamGetCaptureInfo(origin, &status, NULL, NULL, &last, &data, &count));
    REQUIRE(count == 1 && data, "there are %zu edges, at %p", count, (const void *)data);
    EXPECT(memcmp(data, &none, sizeof none) == 0, "the edge has data");
}

/* Each branch is joined, and its stream destroyed, while the capture goes on. */
static void joined_streams_go(void)
{
    CUgraph graph;
    CUgraphExec exec;
    unsigned got[BRANCHES + 2];
    begin();
    for (unsigned i = 1; i <= BRANCHES; i++) {
        CUstream stream = forked(i + 1);
        wait_for(origin, stream);
        CU(cuStreamDestroy(stream));
    }
    CU(cuMemsetD32Async(words, 77, 1, origin));
    expect_edges_told();
    CU(cuStreamEndCapture(origin, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, origin));
    CU(cuStreamSynchronize(origin));
    CU(cuMemcpyDtoH(got, words, sizeof got));
    EXPECT(got[0] == 77 && got[1] == 1, "it set %u, %u", got[0], got[1]);
    for (unsigned i = 2; i < BRANCHES + 2; i++)
        EXPECT(got[i] == i, "branch %u set %u", i, got[i]);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* Work that nothing comes after: the capture is none. */
static void a_stream_goes_unjoined(void)
{
    CUgraph graph = NULL;
    begin();
    CU(cuStreamDestroy(forked(2)));
    CUresult r = cuStreamEndCapture(origin, &graph);
    EXPECT(r == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED || r == CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
           "a capture whose branch is gone ended with %s", driver_name(r));
    CU(cuMemsetD32Async(words, 1, 1, origin));
    CU(cuStreamSynchronize(origin));
}

/* The nodes of a capture have names of the worker's; a node that is added has one of ours. */
static void bodies_go_with_their_own_node(void)
{
    CUgraph captured, graph, *bodies;
    CUgraphNode nodes[BRANCHES + 2], node, set;
    CUgraphNodeParams condition = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    CUDA_MEMSET_NODE_PARAMS p = {
        .dst = words, .elementSize = 4, .value = 9, .width = 1, .height = 1};
    size_t count = BRANCHES + 2;
    CU(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (unsigned i = 0; i < BRANCHES + 2; i++)
        CU(cuMemsetD32Async(words, i, 1, origin));
    CU(cuStreamEndCapture(origin, &captured));
    CU(cuGraphGetNodes(captured, nodes, &count));
    CU(cuGraphCreate(&graph, 0));
    condition.conditional.type = CU_GRAPH_COND_TYPE_IF;
    condition.conditional.size = 1;
    condition.conditional.ctx = driver_context;
    CU(cuGraphConditionalHandleCreate(&condition.conditional.handle, graph, driver_context, 1,
                                      CU_GRAPH_COND_ASSIGN_DEFAULT));
    CU(cuGraphAddNode(&node, graph, NULL, NULL, 0, &condition));
    bodies = condition.conditional.phGraph_out;
    CU(cuGraphDestroy(captured));
    CU(cuGraphAddMemsetNode(&set, bodies[0], NULL, 0, &p, driver_context));
    CU(cuGraphDestroy(graph));
}

int main(void)
{
    driver_start();
    CU(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&words, 4096));
    joined_streams_go();
    a_stream_goes_unjoined();
    joined_streams_go();
    bodies_go_with_their_own_node();
    driver_stop();
    return finish("driver_forks");
}
