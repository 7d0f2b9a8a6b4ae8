/*
 * A graph that is launched on one device and has work on another: captured through an event
 * that both streams wait for, or (with an argument) built by hand or
 * brought by another child graph, or added to a child that is there. Says with which error it ended.
 */
#include "driver.h"

#define BYTES 4096

static CUdevice second;
static CUcontext its_context;
static CUstream own, its;
static CUevent event, its_event;
static CUdeviceptr at;

static void start(void)
{
    driver_start();
    CU(cuDeviceGet(&second, 1));
    CU(cuDevicePrimaryCtxRetain(&its_context, second));
    CU(cuCtxSetCurrent(its_context));
    CU(cuStreamCreate(&its, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&its_event, CU_EVENT_DISABLE_TIMING));
    CU(cuMemAlloc(&at, BYTES));
    CU(cuCtxSetCurrent(driver_context));
    CU(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
}

static CUgraphExec captured(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CU(cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuEventRecord(event, own));
    CU(cuStreamWaitEvent(its, event, 0));
    CU(cuMemsetD8Async(at, 2, BYTES, its));
    CU(cuEventRecord(its_event, its));
    CU(cuStreamWaitEvent(own, its_event, 0));
    CU(cuStreamEndCapture(own, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    return exec;
}

/* A graph that sets memory of a device, in its context. */
static CUgraph setting(CUdeviceptr memory, CUcontext context)
{
    CUgraph graph;
    CUgraphNode node;
    const CUDA_MEMSET_NODE_PARAMS set = {
        .dst = memory, .value = 2, .elementSize = 1, .width = BYTES, .height = 1};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, context));
    return graph;
}

static CUgraphExec built(void)
{
    CUgraph graph = setting(at, its_context);
    CUgraphExec exec;
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    return exec;
}

/* The work on the other device comes with a child that takes the place of an own one. */
static CUgraphExec replaced(void)
{
    CUdeviceptr memory;
    CU(cuMemAlloc(&memory, BYTES));
    CUgraph before = setting(memory, driver_context), now = setting(at, its_context), graph;
    CUgraphNode child;
    CUgraphExec exec;
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddChildGraphNode(&child, graph, NULL, 0, before));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, own));
    CU(cuStreamSynchronize(own));
    CU(cuGraphExecChildGraphNodeSetParams(exec, child, now));
    CU(cuGraphDestroy(graph));
    CU(cuGraphDestroy(before));
    CU(cuGraphDestroy(now));
    CU(cuMemFree(memory));
    return exec;
}

/* And with a node that is added to the child graph itself. */
static CUgraphExec within(void)
{
    CUdeviceptr memory;
    CU(cuMemAlloc(&memory, BYTES));
    CUgraph inner = setting(memory, driver_context), graph, owned;
    CUgraphNode child, node;
    CUgraphExec exec;
    const CUDA_MEMSET_NODE_PARAMS set = {
        .dst = at, .value = 2, .elementSize = 1, .width = BYTES, .height = 1};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddChildGraphNode(&child, graph, NULL, 0, inner));
    CU(cuGraphChildGraphNodeGetGraph(child, &owned));
    CU(cuGraphAddMemsetNode(&node, owned, NULL, 0, &set, its_context));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    CU(cuGraphDestroy(inner));
    CU(cuMemFree(memory));
    return exec;
}

static CUgraphExec made(const char *how)
{
    return strcmp(how, "built") == 0      ? built()
           : strcmp(how, "replaced") == 0 ? replaced()
           : strcmp(how, "within") == 0   ? within()
                                          : captured();
}

int main(int argc, char **argv)
{
    start();
    CUgraphExec exec = made(argc < 2 ? "captured" : argv[1]);
    CUresult launched = cuGraphLaunch(exec, own), waited = cuStreamSynchronize(own);
    printf("launched %s\n", driver_name(launched == CUDA_SUCCESS ? waited : launched));
    CU(cuGraphExecDestroy(exec));
    /* captures on the stream of each device alone are everyday's */
    CU(cuMemsetD8Async(at, 3, BYTES, its));
    CU(cuStreamSynchronize(its));
    CU(cuDevicePrimaryCtxRelease(second));
    driver_stop();
    return finish("driver_graph_devices");
}
