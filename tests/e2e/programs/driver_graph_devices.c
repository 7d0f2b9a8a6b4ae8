/*
 * A graph that is launched on one device and has work on another: captured through an event
 * that both streams wait for, or (with an argument) built by hand. Says with which error it ended.
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

static CUgraphExec built(void)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    const CUDA_MEMSET_NODE_PARAMS set = {
        .dst = at, .value = 2, .elementSize = 1, .width = BYTES, .height = 1};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, its_context));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    return exec;
}

int main(int argc, char **argv)
{
    (void)argv;
    start();
    CUgraphExec exec = argc > 1 ? built() : captured();
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
