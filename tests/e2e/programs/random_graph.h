/* driver_random.c: graphs that are captured, launched, updated and destroyed. */
#ifndef RANDOM_GRAPH_H
#define RANDOM_GRAPH_H

#include "random_box.h"
#include "random_work.h"

/* Work that becomes one node, whose kind the graph that updates this one has at the same place. Sets
 * of two bytes are not among it: a driver says that it has updated them, and sets single bytes. */
static void (*const alike[])(struct worker *) = {set_bytes, set_words, copy_on_device, launch};
#define ALIKE 4
/* And what an update may refuse, which is only captured. */
static void (*const any[])(struct worker *) = {set_memory,     copy_on_device, launch,
                                               copy_with_host, set_rows,       copy_box};
#define ANY 6

/* A node of this kind; of a buffer that is too small there is none. */
static void captured_alike(struct worker *w, unsigned kind)
{
    unsigned before = w->action_count;
    while (w->action_count == before)
        alike[kind](w);
}

static CUgraph captured(struct worker *w, const unsigned *kinds, unsigned nodes)
{
    CUgraph graph;
    CUstreamCaptureMode mode = pick(w, 2) ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                          : CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_rwlock_rdlock(&captures);
    w->action_count = 0;
    w->capturing = true;
    CU(cuStreamBeginCapture(stream_of(w), mode));
    for (unsigned i = 0; i < nodes; i++) {
        if (kinds)
            captured_alike(w, kinds[i]);
        else
            any[pick(w, ANY)](w);
    }
    CU(cuStreamEndCapture(stream_of(w), &graph));
    w->capturing = false;
    pthread_rwlock_unlock(&captures);
    return graph;
}

static void launch_graph(struct worker *w, CUgraphExec exec)
{
    for (unsigned launches = 1 + pick(w, 3); launches > 0; launches--) {
        CU(cuGraphLaunch(exec, stream_of(w)));
        for (unsigned k = 0; k < w->action_count; k++)
            act(&w->actions[k]);
    }
}

static CUgraphExec ready(struct worker *w, CUgraph graph)
{
    CUgraphExec exec;
    CU(cuGraphInstantiate(&exec, graph, 0));
    if (pick(w, 2))
        CU(cuGraphUpload(exec, stream_of(w)));
    return exec;
}

static void run_graph(struct worker *w)
{
    CUgraph graph = captured(w, NULL, 1 + pick(w, GRAPH_NODES));
    CUgraphExec exec = ready(w, graph);
    bool early = pick(w, 2);
    if (early)
        CU(cuGraphDestroy(graph));
    launch_graph(w, exec);
    if (pick(w, 2))
        wait_all(w);
    CU(cuGraphExecDestroy(exec));
    if (!early)
        CU(cuGraphDestroy(graph));
}

/* What a driver does not update stays what it was, and so does its model. */
static void update_graph(struct worker *w)
{
    unsigned kinds[GRAPH_NODES], nodes = 1 + pick(w, GRAPH_NODES);
    struct action before[GRAPH_NODES];
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    for (unsigned i = 0; i < nodes; i++)
        kinds[i] = pick(w, ALIKE);
    CUgraph graph = captured(w, kinds, nodes);
    CUgraphExec exec = ready(w, graph);
    launch_graph(w, exec);
    memcpy(before, w->actions, sizeof before);
    CUgraph other = captured(w, kinds, nodes);
    CUresult r = cuGraphExecUpdate(exec, other, &info);
    REQUIRE(r == CUDA_SUCCESS || r == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
            "thread %u: an update gave %s", w->number, driver_name(r));
    REQUIRE((r == CUDA_SUCCESS) == (info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS),
            "thread %u: an update gave %s and said %d", w->number, driver_name(r),
            (int)info.result);
    if (r != CUDA_SUCCESS)
        memcpy(w->actions, before, sizeof before);
    w->updates[r != CUDA_SUCCESS]++;
    CU(cuGraphDestroy(other));
    launch_graph(w, exec);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

#endif
