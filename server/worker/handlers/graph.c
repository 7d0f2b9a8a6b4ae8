/* Stream capture as it stands, and the nodes of graphs. */
#include <stdlib.h>

#include "gpw_handlers.h"
#include "graph.h"
#include "graph_budget.h"
#include "handles.h"

/* A node that stands in a graph of the client's and is not the application's. */
struct hidden {
    CUgraphNode node;
    CUgraph graph;
    uint64_t capture; /* the driver's number of it while it goes on; 0: it has left the graph */
    CUstream stream;
};

struct gpw_graphs {
    unsigned captures;          /* begun and not ended */
    uint64_t captured_contexts; /* in which something was asked for since the first began */
    /* Of all graphs of the session: a few, so a list does. They go with their graph, whose
     * nodes' addresses may then be those of another's. */
    struct hidden *hidden;
    size_t count, room;
};

int gpw_graphs_open(struct gpw_session *s)
{
    s->graphs = calloc(1, sizeof *s->graphs);
    return s->graphs ? 0 : -1;
}

/* The driver lets go of the graph of a capture that it has given up: what is at these addresses
 * then is the application's. */
static bool is_given_up(struct gpw_session *s, const struct hidden *n)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    if (n->capture == 0)
        return false;
    if (!gpw_handle_find(s, GP_HANDLE_STREAM, (uint64_t)n->stream)) /* another may go on */
        return s->graphs->captures == 0;
    return gpw_capture_of(s, n->stream, &state, &id, &graph) != CUDA_SUCCESS ||
           state != CU_STREAM_CAPTURE_STATUS_ACTIVE || id != n->capture;
}

static void drop_given_up(struct gpw_session *s)
{
    struct gpw_graphs *g = s->graphs;
    size_t kept = 0;
    for (size_t i = 0; i < g->count; i++)
        if (!is_given_up(s, &g->hidden[i]))
            g->hidden[kept++] = g->hidden[i];
    g->count = kept;
}

static bool is_hidden(const struct gpw_graphs *g, CUgraphNode node)
{
    for (size_t i = 0; i < g->count; i++)
        if (g->hidden[i].node == node)
            return true;
    return false;
}

bool gpw_graph_has_hidden(struct gpw_session *s, CUgraph graph)
{
    drop_given_up(s);
    for (size_t i = 0; i < s->graphs->count; i++)
        if (s->graphs->hidden[i].graph == graph)
            return true;
    return false;
}

bool gpw_graph_is_beside_hidden(struct gpw_session *s, CUgraphNode node)
{
    uint64_t graph = 0;
    if (s->graphs->count == 0)
        return false;
    CUresult r = gpw_handle_get(s, GP_HANDLE_GRAPH, gpw_handle_graph_of(s, (uint64_t)node), false,
                                &graph);
    return r != CUDA_SUCCESS || gpw_graph_has_hidden(s, (CUgraph)graph);
}

CUgraphNode gpw_graph_hidden(struct gpw_session *s, CUgraph graph, size_t *at)
{
    const struct gpw_graphs *g = s->graphs;
    while (*at < g->count) {
        const struct hidden *n = &g->hidden[(*at)++];
        if (n->graph == graph)
            return n->node;
    }
    return NULL;
}

void gpw_graph_ending(struct gpw_session *s, CUgraph graph)
{
    struct gpw_graphs *g = s->graphs;
    size_t kept = 0;
    for (size_t i = 0; i < g->count; i++)
        if (g->hidden[i].graph != graph)
            g->hidden[kept++] = g->hidden[i];
    g->count = kept;
}

/* What a capturing stream's next operation depends on; `data` NULL: by edges of the default kind.
 * Both are the driver's. */
struct tips {
    const CUgraphNode *nodes;
    const CUgraphEdgeData *data;
    size_t count;
};

static CUresult capture_info(struct gpw_session *s, CUstream stream, CUstreamCaptureStatus *state,
                             cuuint64_t *id, CUgraph *graph, struct tips *tips)
{
    *tips = (struct tips){NULL, NULL, 0};
    CUresult r = s->driver->cuStreamGetCaptureInfo_v3(stream, state, id, graph, &tips->nodes,
                                                      &tips->data, &tips->count);
    if (r == CUDA_ERROR_NOT_SUPPORTED) /* drivers before 12.3 */
        r = s->driver->cuStreamGetCaptureInfo_v2(stream, state, id, graph, &tips->nodes,
                                                 &tips->count);
    return r;
}

CUresult gpw_capture_of(struct gpw_session *s, CUstream stream, CUstreamCaptureStatus *state,
                        cuuint64_t *id, CUgraph *graph)
{
    struct tips tips;
    return capture_info(s, stream, state, id, graph, &tips);
}

CUresult gpw_graph_hide_last(struct gpw_session *s, CUstream stream)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    struct tips tips;
    CUresult r = capture_info(s, stream, &state, &id, &graph, &tips);
    if (r != CUDA_SUCCESS || state != CU_STREAM_CAPTURE_STATUS_ACTIVE || tips.count != 1)
        return r;
    struct gpw_graphs *g = s->graphs;
    drop_given_up(s);
    if (g->count == g->room) {
        size_t room = g->room ? 2 * g->room : 64;
        struct hidden *more = realloc(g->hidden, room * sizeof *more);
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        g->hidden = more;
        g->room = room;
    }
    g->hidden[g->count++] = (struct hidden){tips.nodes[0], graph, id, stream};
    return CUDA_SUCCESS;
}

/* --- captures ------------------------------------------------------------------------ */

bool gpw_captures_any(const struct gpw_session *s)
{
    return s->graphs->captures > 0;
}

void gpw_captures_note(struct gpw_session *s)
{
    if (s->graphs->captures)
        s->graphs->captured_contexts |= gpw_handle_context_bit(s);
}

void gpw_capture_begun(struct gpw_session *s, CUresult r)
{
    s->graphs->captures += r == CUDA_SUCCESS;
    gpw_captures_note(s);
}

/* What is hidden in a graph that a capture has left goes with that graph from now on. */
static void hidden_left(struct gpw_graphs *g, CUgraph graph)
{
    for (size_t i = 0; i < g->count; i++)
        if (g->hidden[i].graph == graph)
            g->hidden[i].capture = 0;
}

void gpw_capture_ended(struct gpw_session *s, CUresult r, CUgraph graph)
{
    struct gpw_graphs *g = s->graphs;
    gpw_captures_note(s);
    gpw_handle_next_graph(s, g->captured_contexts, 0);
    gpw_handle_capture_over(s, r == CUDA_SUCCESS ? (uint64_t)graph : 0);
    bool over = r != CUDA_ERROR_ILLEGAL_STATE && r != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED &&
                r != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (over && g->captures && --g->captures == 0)
        g->captured_contexts = 0;
    if (r == CUDA_SUCCESS)
        hidden_left(g, graph);
    if (!graph) /* nothing is named */
        gpw_handle_next_graph(s, 0, 0);
    drop_given_up(s);
}

CUresult gpw_not_capturing(struct gpw_session *s, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = s->driver->cuStreamIsCapturing(stream, &status);
    if (r != CUDA_SUCCESS)
        return r;
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult gpw_gp_capture_info(struct gpw_session *s, CUstream stream, CUgraph *graph,
                             uint32_t *status, uint64_t *capture_id, uint64_t *dependencies,
                             uint32_t *n_dependencies, CUgraphEdgeData *data, uint32_t *n_data)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    struct tips tips;
    uint32_t room = *n_dependencies / sizeof *dependencies;
    *n_dependencies = *n_data = 0;
    CUresult r = capture_info(s, stream, &state, &id, graph, &tips);
    if (r != CUDA_SUCCESS)
        return r;
    *status = state;
    *capture_id = id;
    if (state != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        *graph = NULL; /* of a capture that was given up there is none */
        return CUDA_SUCCESS;
    }
    gpw_handle_next_graph(s, 0, id);
    if (tips.count > room)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < tips.count; i++) {
        data[i] = tips.data ? tips.data[i] : (CUgraphEdgeData){0};
        if (!(dependencies[i] = gpw_handle_name(s, (uint64_t)tips.nodes[i], (uint64_t)*graph)))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *n_dependencies = (uint32_t)(tips.count * sizeof *dependencies);
    *n_data = (uint32_t)(tips.count * sizeof *data);
    return CUDA_SUCCESS;
}

/* The driver's nodes for a list of ids; NULL without memory, or for one that is not live (`r`). */
static CUgraphNode *nodes_take(struct gpw_session *s, const uint64_t *ids, uint32_t count,
                               CUresult *r)
{
    CUgraphNode *nodes = calloc(count ? count : 1, sizeof *nodes);
    *r = nodes ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; *r == CUDA_SUCCESS && i < count; i++)
        *r = gpw_handle_get(s, GP_HANDLE_GRAPH_NODE, ids[i], false, (uint64_t *)&nodes[i]);
    if (*r == CUDA_SUCCESS)
        return nodes;
    free(nodes);
    return NULL;
}

/* The driver's number of the capture into a graph that has begun. */
static CUresult begin_to(struct gpw_session *s, CUstream stream, CUgraph graph, uint32_t mode,
                         const struct tips *tips, uint64_t *capture_id)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph same = NULL;
    CUresult r = s->driver->cuStreamBeginCaptureToGraph(stream, graph, tips->nodes, tips->data,
                                                        tips->count, (CUstreamCaptureMode)mode);
    if (r == CUDA_SUCCESS && gpw_capture_of(s, stream, &state, &id, &same) == CUDA_SUCCESS)
        *capture_id = id;
    return r;
}

static CUresult depend_on(struct gpw_session *s, CUstream stream, uint32_t flags,
                          const struct tips *tips)
{
    CUgraphNode *nodes = (CUgraphNode *)(uintptr_t)tips->nodes;
    CUresult r = s->driver->cuStreamUpdateCaptureDependencies_v2(stream, nodes, tips->data,
                                                                 tips->count, flags);
    if (r == CUDA_ERROR_NOT_SUPPORTED) /* drivers before 12.3 */
        r = s->driver->cuStreamUpdateCaptureDependencies(stream, nodes, tips->count, flags);
    return r;
}

CUresult gpw_capture_behind(struct gpw_session *s, CUstream stream, CUgraph graph, uint32_t how,
                            uint32_t count, const uint64_t *nodes, const CUgraphEdgeData *data,
                            uint64_t *capture_id)
{
    CUresult r;
    CUgraphNode *own = nodes_take(s, nodes, count, &r);
    if (!own)
        return r;
    const struct tips tips = {own, data, count};
    r = graph ? begin_to(s, stream, graph, how, &tips, capture_id)
              : depend_on(s, stream, how, &tips);
    free(own);
    return r;
}

CUresult gpw_gp_capture_end_to_graph(struct gpw_session *s, CUstream stream, CUgraph graph)
{
    CUgraph left = NULL;
    CUresult r = s->driver->cuStreamEndCapture(stream, &left);
    if (r != CUDA_SUCCESS)
        return r;
    if (left != graph) {
        gpw_session_broken(s, "the end of a capture that was begun to another graph");
        return CUDA_ERROR_INVALID_VALUE; /* the graph that it left goes with the session */
    }
    uint64_t id = gpw_handle_find(s, GP_HANDLE_GRAPH, (uint64_t)graph);
    hidden_left(s->graphs, graph);
    gpw_captures_note(s);
    gpw_handle_join_context_bits(s, id, s->graphs->captured_contexts);
    gpw_handle_next_graph(s, s->graphs->captured_contexts, 0);
    gpw_handle_capture_over(s, (uint64_t)graph);
    gpw_graph_captured(s, id);
    return CUDA_SUCCESS;
}

CUresult gpw_gp_graph_fault(struct gpw_session *s, CUgraph graph, uint64_t flags, uint32_t *result,
                            uint64_t *node)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS p = {.flags = flags &
                                                ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
                                       .result_out = CUDA_GRAPH_INSTANTIATE_ERROR};
    CUgraphExec exec = NULL;
    *node = 0;
    if (s->driver->cuGraphInstantiateWithParams(&exec, graph, &p) == CUDA_SUCCESS)
        s->driver->cuGraphExecDestroy(exec);
    *result = p.result_out;
    if (p.hErrNode_out)
        *node = gpw_handle_name(s, (uint64_t)p.hErrNode_out, (uint64_t)graph);
    return CUDA_SUCCESS;
}

/* A hidden root stands before one copy, which is the root that the client knows. */
static CUgraphNode shown(struct gpw_session *s, CUgraphNode node, bool root)
{
    CUgraphNode behind = NULL;
    size_t one = 1;
    if (!is_hidden(s->graphs, node))
        return node;
    if (!root || s->driver->cuGraphNodeGetDependentNodes(node, &behind, &one) != CUDA_SUCCESS)
        return NULL;
    return one == 1 ? behind : NULL;
}

static CUresult list_nodes(struct gpw_session *s, CUgraph graph, bool roots, CUgraphNode **list,
                           size_t *count)
{
    __typeof__(s->driver->cuGraphGetNodes) get = roots ? s->driver->cuGraphGetRootNodes
                                                       : s->driver->cuGraphGetNodes;
    size_t total = 0, kept = 0;
    drop_given_up(s);
    CUresult r = get(graph, NULL, &total);
    CUgraphNode *nodes = calloc(total ? total : 1, sizeof *nodes);
    if (r == CUDA_SUCCESS && !nodes)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && total)
        r = get(graph, nodes, &total);
    for (size_t i = 0; r == CUDA_SUCCESS && i < total; i++) {
        CUgraphNode node = shown(s, nodes[i], roots);
        if (node)
            nodes[kept++] = node;
    }
    *list = nodes;
    *count = kept;
    return r;
}

CUresult gpw_gp_graph_nodes(struct gpw_session *s, CUgraph graph, uint32_t roots_only,
                            uint32_t capacity, uint64_t *count, uint64_t *nodes, uint32_t *n_nodes)
{
    CUgraphNode *list = NULL;
    size_t total = 0, filled = 0;
    CUresult r = list_nodes(s, graph, roots_only != 0, &list, &total);
    for (; r == CUDA_SUCCESS && filled < total && filled < capacity; filled++)
        if (!(nodes[filled] = gpw_handle_name(s, (uint64_t)list[filled], (uint64_t)graph)))
            r = CUDA_ERROR_OUT_OF_MEMORY;
    free(list);
    *count = total;
    *n_nodes = r == CUDA_SUCCESS ? (uint32_t)(filled * sizeof *nodes) : 0;
    return r;
}
