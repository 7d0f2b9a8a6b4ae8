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

int main(void)
{
    driver_start();
    CU(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&words, 4096));
    joined_streams_go();
    a_stream_goes_unjoined();
    joined_streams_go();
    driver_stop();
    return finish("driver_forks");
}
