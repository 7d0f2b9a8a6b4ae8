/* Graphs with host functions and copies of this process's own memory, made, run and let go again and
 * again: each runs what it was given last, for as long as anything can run it, and nothing is left
 * behind. */
#include "driver.h"

#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

enum { COUNT = 1 << 15, SIZE = COUNT * (int)sizeof(int) };

static CUstream stream;
static CUdeviceptr device;
static int *from, *to;

/* Run on a thread of the library's, or of the driver's, which the launches below wait for. */
static void CUDA_CB count_up(void *at)
{
    __atomic_fetch_add((int *)at, 1, __ATOMIC_SEQ_CST);
}

static void launch(CUgraphExec exec)
{
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
}

static void launch_and_end(CUgraphExec exec)
{
    launch(exec);
    CU(cuGraphExecDestroy(exec));
}

static void expect_runs(int *runs, int expected, const char *what)
{
    EXPECT(*runs == expected, "%s: %d runs, expected %d", what, *runs, expected);
    *runs = 0;
}

static CUgraphExec exec_of(CUgraph graph)
{
    CUgraphExec exec;
    CU(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

static CUgraph graph_with(int *runs, CUgraphNode *node)
{
    const CUDA_HOST_NODE_PARAMS p = {count_up, runs};
    CUgraph graph;
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddHostNode(node, graph, NULL, 0, &p));
    return graph;
}

/* The graph goes before what was made of it runs. */
static void captured(int round)
{
    int runs = 0;
    CUgraph graph, clone;
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemcpyHtoDAsync(device, from, SIZE, stream));
    CU(cuLaunchHostFunc(stream, count_up, &runs));
    CU(cuMemcpyDtoHAsync(to, device, SIZE, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = exec_of(graph);
    CU(cuGraphClone(&clone, graph));
    CU(cuGraphDestroy(graph));
    for (int times = 0; times < 2; times++) {
        from[0] = from[COUNT - 1] = 2 * round + times;
        launch(exec);
        EXPECT(to[0] == from[0] && to[COUNT - 1] == from[0], "a captured copy of other bytes");
    }
    CU(cuGraphExecDestroy(exec));
    expect_runs(&runs, 2, "a captured function");
    exec = exec_of(clone);
    CU(cuGraphDestroy(clone));
    from[0] = -round;
    launch_and_end(exec);
    EXPECT(to[0] == from[0], "a copy of a clone of other bytes");
    expect_runs(&runs, 1, "a function of a clone");
}

/* Of a graph, and of what was instantiated of it before and after. */
static void changed(void)
{
    int first = 0, second = 0, third = 0;
    CUgraphNode node;
    CUgraph graph = graph_with(&first, &node);
    CUgraphExec before = exec_of(graph);
    CUDA_HOST_NODE_PARAMS p = {count_up, &second};
    CU(cuGraphHostNodeSetParams(node, &p));
    CUgraphExec after = exec_of(graph);
    launch(before);
    launch(after);
    p.userData = &third;
    CU(cuGraphExecHostNodeSetParams(before, node, &p));
    launch(before);
    CU(cuGraphExecHostNodeSetParams(before, node, &p));
    launch(before);
    CU(cuGraphLaunch(before, stream)); /* and goes while it is under way */
    CU(cuGraphExecDestroy(before));
    CU(cuGraphDestroy(graph));
    launch_and_end(after);
    expect_runs(&first, 1, "the first function");
    expect_runs(&second, 2, "the second function");
    expect_runs(&third, 3, "the function of an instantiated graph");
}

static void updated(void)
{
    int first = 0, second = 0, given = 0;
    CUgraphNode node, other;
    CUgraph graph = graph_with(&first, &node), next = graph_with(&second, &other);
    CUgraphExec exec = exec_of(graph);
    CUgraphExecUpdateResultInfo info;
    const CUDA_HOST_NODE_PARAMS p = {count_up, &given};
    launch(exec);
    CU(cuGraphExecHostNodeSetParams(exec, node, &p));
    CU(cuGraphDestroy(graph));
    CU(cuGraphExecUpdate(exec, next, &info));
    CU(cuGraphDestroy(next));
    launch_and_end(exec);
    expect_runs(&first, 1, "before an update");
    expect_runs(&second, 1, "after an update");
    expect_runs(&given, 0, "replaced by an update");
}

/* In a child, which goes before its parent is instantiated; then in another in its place. */
static void of_children(void)
{
    int first = 0, second = 0;
    CUgraphNode node, place;
    CUgraph parent, child = graph_with(&first, &node);
    CU(cuGraphCreate(&parent, 0));
    CU(cuGraphAddChildGraphNode(&place, parent, NULL, 0, child));
    CU(cuGraphDestroy(child));
    CUgraphExec exec = exec_of(parent);
    launch(exec);
    child = graph_with(&second, &node);
    CU(cuGraphExecChildGraphNodeSetParams(exec, place, child));
    CU(cuGraphDestroy(child));
    CU(cuGraphDestroy(parent));
    launch(exec);
    launch_and_end(exec);
    expect_runs(&first, 1, "a child's function");
    expect_runs(&second, 2, "the function of another child");
}

/* No capture takes a launch of a graph; it ends the capture. */
static void of_captured_launches(void)
{
    int runs = 0;
    CUgraphNode node;
    CUgraph graph = graph_with(&runs, &node), none;
    CUgraphExec exec = exec_of(graph);
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGraphLaunch(exec, stream));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &none));
    CU(cuGraphDestroy(graph));
    launch_and_end(exec);
    EXPECT(runs == 1, "behind a capture: %d runs of functions", runs);
}

static void copied_by_hand(int round)
{
    CUgraph graph;
    CUgraphNode up, down;
    CUDA_MEMCPY3D p = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = from,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = device,
                       .WidthInBytes = SIZE,
                       .Height = 1,
                       .Depth = 1};
    const CUDA_MEMCPY3D back = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = device,
                                .dstMemoryType = CU_MEMORYTYPE_HOST,
                                .dstHost = to,
                                .WidthInBytes = SIZE,
                                .Height = 1,
                                .Depth = 1};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &p, driver_context));
    CU(cuGraphAddMemcpyNode(&down, graph, &up, 1, &back, driver_context));
    CUgraphExec exec = exec_of(graph);
    p.srcHost = from + 1;
    p.WidthInBytes = SIZE - sizeof *from;
    CU(cuGraphExecMemcpyNodeSetParams(exec, up, &p, driver_context));
    CU(cuGraphDestroy(graph));
    from[1] = round;
    launch_and_end(exec);
    EXPECT(to[0] == round, "a copy node of other bytes");
}

/* One graph that stays, and whose nodes come, change and go. */
static void kept_graph(void)
{
    int runs = 0;
    CUgraphNode node, second;
    CUgraph graph = graph_with(&runs, &node);
    const CUDA_HOST_NODE_PARAMS p = {count_up, &runs};
    for (int i = 0; i < 4; i++) {
        CU(cuGraphHostNodeSetParams(node, &p));
        CU(cuGraphAddHostNode(&second, graph, &node, 1, &p));
        CU(cuGraphDestroyNode(second));
    }
    launch_and_end(exec_of(graph));
    expect_runs(&runs, 1, "a function that was set again");
    CU(cuGraphDestroy(graph));
}

/* Made, and never run. */
static void abandoned(void)
{
    int runs = 0;
    CUgraph graph;
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemcpyHtoDAsync(device, from, SIZE, stream));
    CU(cuLaunchHostFunc(stream, count_up, &runs));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
    expect_runs(&runs, 0, "a function that was never launched");
}

static void one_round(int round)
{
    captured(round);
    changed();
    updated();
    of_children();
    of_captured_launches();
    copied_by_hand(round);
    kept_graph();
    abandoned();
}

/* Of this process's heap. The least of some looks: a transport's threads have some for a while. */
static size_t in_use(void)
{
    size_t least = SIZE_MAX;
    for (int look = 0; look < 20; look++) {
        CU(cuCtxSynchronize());
        usleep(1000);
        size_t now = mallinfo2().uordblks;
        least = now < least ? now : least;
    }
    return least;
}

/* What a round has left there comes again with each; what a transport keeps for later does not. */
static void no_growth(int rounds)
{
    for (int round = 0; round < rounds; round++)
        one_round(round);
    size_t before = in_use();
    for (int round = 0; round < rounds; round++)
        one_round(round);
    size_t after = in_use(), most = before + (size_t)rounds * 2048;
    EXPECT(driver_is_native() || after < most, "%zu bytes are in use after %d rounds, %zu before",
           after, rounds, before);
}

int main(int argc, char **argv)
{
    driver_start();
    from = calloc(COUNT, sizeof *from);
    to = calloc(COUNT, sizeof *to);
    REQUIRE(from && to, "no memory");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&device, SIZE));
    no_growth(argc > 1 ? atoi(argv[1]) : 40);
    CU(cuMemFree(device));
    CU(cuStreamDestroy(stream));
    free(from);
    free(to);
    driver_stop();
    return finish("driver_graph_again");
}
