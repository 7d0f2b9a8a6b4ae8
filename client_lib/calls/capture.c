/*
 * Stream capture. Frameworks ask all the time whether a stream is capturing;
 * while no capture is under way in this process the answer is known here.
 */
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "captures.h"
#include "export.h"
#include "gpc_stubs.h"
#include "gpc_wire.h"
#include "graphs.h"
#include "handle.h"
#include "session.h"

CUresult gpc_as_cuStreamBeginCapture_v2(uint16_t op, CUstream hStream, CUstreamCaptureMode mode)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, op, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t wire;
    r = gpc_route_stream(&on, hStream, &wire);
    if (r != CUDA_SUCCESS)
        return gpc_leave(r);
    gpc_captures_begin();
    r = gpc_wire_cuStreamBeginCapture_v2_on(&on, hStream, mode);
    if (r == CUDA_SUCCESS)
        r = gpc_captures_begun(wire, mode);
    else
        gpc_captures_begin_not();
    return gpc_leave(r);
}

/* Dependencies as they travel; what is not given is of the default kind. */
struct depends {
    uint32_t count;
    const uint64_t *nodes;
    const CUgraphEdgeData *data;
};

static CUresult depends_of(uint16_t op, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                           size_t count, struct depends *d)
{
    static const CUgraphEdgeData defaults[GP_NODES_MAX];
    static const uint64_t none[1];
    if (count && !nodes)
        return CUDA_ERROR_INVALID_VALUE;
    if (count > GP_NODES_MAX)
        return gpc_refuse_because(op, "so many dependencies of a capture");
    *d = (struct depends){(uint32_t)count, count ? (const uint64_t *)nodes : none,
                          count && data ? data : defaults};
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                                const CUgraphNode *dependencies,
                                                const CUgraphEdgeData *dependencyData,
                                                size_t numDependencies, CUstreamCaptureMode mode)
{
    struct gpc_route on;
    struct depends d = {0, NULL, NULL};
    uint64_t wire, id = 0;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuStreamBeginCaptureToGraph, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED ||
        !gpc_handle_live(GP_HANDLE_GRAPH, (uint64_t)hGraph))
        return CUDA_ERROR_INVALID_VALUE;
    r = depends_of(GP_OP_cuStreamBeginCaptureToGraph, dependencies, dependencyData, numDependencies,
                   &d);
    if (r == CUDA_SUCCESS)
        r = gpc_route_stream(&on, hStream, &wire);
    if (r != CUDA_SUCCESS)
        return gpc_leave(r);
    gpc_captures_begin();
    r = gpc_wire_gp_capture_to_graph_on(&on, hStream, hGraph, mode, d.count, d.nodes, d.data, &id);
    if (r != CUDA_SUCCESS) {
        gpc_captures_begin_not();
        return gpc_leave(r);
    }
    gpc_graphs_lock();
    gpc_graph_unknown(hGraph);
    gpc_graphs_unlock();
    return gpc_leave(gpc_captures_begun_to(wire, mode, hGraph, id));
}

CUresult gpc_as_cuStreamUpdateCaptureDependencies_v2(uint16_t op, CUstream hStream,
                                                     CUgraphNode *dependencies,
                                                     const CUgraphEdgeData *dependencyData,
                                                     size_t numDependencies, unsigned int flags)
{
    struct gpc_route on;
    struct depends d = {0, NULL, NULL};
    uint64_t wire;
    CUresult r = gpc_enter_stream(&on, op, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_ERROR_INVALID_VALUE;
    r = depends_of(op, dependencies, dependencyData, numDependencies, &d);
    if (r == CUDA_SUCCESS)
        r = gpc_route_stream(&on, hStream, &wire);
    if (r == CUDA_SUCCESS && !gpc_capture_active())
        r = CUDA_ERROR_ILLEGAL_STATE;
    if (r == CUDA_SUCCESS)
        r = gpc_wire_gp_capture_depends_on(&on, hStream, flags, d.count, d.nodes, d.data);
    return gpc_leave(r);
}

/* Node handles handed out stay valid until this thread asks again, as CUDA says. */
struct info {
    uint32_t status;
    uint64_t id;
    CUgraph graph;
    const CUgraphNode *dependencies;
    const CUgraphEdgeData *data; /* of each: readers go by the count, whatever kind it is */
    bool has_data;               /* not all are of the default kind */
    size_t count;
};

struct told {
    uint64_t nodes[GP_NODES_MAX];
    CUgraphEdgeData data[GP_NODES_MAX];
};

static bool has_data(const struct told *told, size_t count)
{
    const CUgraphEdgeData none = {0};
    for (size_t i = 0; i < count; i++)
        if (memcmp(&told->data[i], &none, sizeof none) != 0)
            return true;
    return false;
}

/* With `hands` the application is told of the graph; it has one handle for each capture, whatever
 * number of times it is asked for. */
static CUresult ask_info(const struct gpc_route *on, CUstream hStream, bool hands,
                         struct info *info)
{
    struct gpc_thread *self = gpc_thread();
    uint32_t got = 0, got_data = 0;
    CUgraph named;
    if (!self->told && !(self->told = malloc(sizeof(struct told))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct told *told = self->told;
    CUresult r = gpc_wire_gp_capture_info_on(on, hStream, &named, &info->status, &info->id,
                                             told->nodes, told->data, &got, &got_data);
    if (r == CUDA_SUCCESS && got / sizeof *told->nodes != got_data / sizeof *told->data)
        r = CUDA_ERROR_UNKNOWN;
    if (r != CUDA_SUCCESS)
        return r;
    bool active = info->status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    info->graph = active && hands ? gpc_captures_hand(info->id, named) : NULL;
    if (info->graph != named)
        gpc_handle_drop((uint64_t)named);
    if (active) {
        info->dependencies = (const CUgraphNode *)told->nodes;
        info->count = got / sizeof *told->nodes;
        info->data = told->data;
        info->has_data = has_data(told, info->count);
    }
    return CUDA_SUCCESS;
}

static CUresult get_info(uint16_t op, CUstream hStream, const void *status, bool hands,
                         struct info *info)
{
    struct gpc_route on;
    uint64_t wire;
    CUresult r = gpc_enter_stream(&on, op, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    memset(info, 0, sizeof *info);
    r = gpc_route_stream(&on, hStream, &wire);
    return r || !gpc_capture_active() ? r : ask_info(&on, hStream, hands, info);
}

/* A graph that is nobody's any more: what was noted of it, and its handle. */
static void graph_gone(CUgraph graph, bool here)
{
    gpc_graphs_lock();
    gpc_graph_forget(graph);
    gpc_graphs_unlock();
    if (here) /* the worker still has it */
        gpc_wire_cuGraphDestroy(graph);
    gpc_handle_drop((uint64_t)graph);
}

/* Of captures that went with their streams. */
static void forget_lost(void)
{
    CUgraph graph;
    while ((graph = gpc_captures_lost()))
        graph_gone(graph, false);
}

/* The graph of a capture, if the application was told of it while that was under way. */
static CUgraph told_graph(const struct gpc_route *on, CUstream stream)
{
    struct info info = {0};
    uint32_t session = on->session->index;
    if (!gpc_captures_told(session) || ask_info(on, stream, false, &info) != CUDA_SUCCESS ||
        info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return NULL;
    return gpc_captures_graph_of(info.id, session);
}

GPC_EXPORT CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuStreamEndCapture, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    uint64_t wire;
    if ((r = gpc_route_stream(&on, hStream, &wire)) != CUDA_SUCCESS)
        return r;
    CUgraph to = gpc_captures_graph(wire);
    if (!phGraph && !to) /* a graph that the application has need not be told again */
        return CUDA_ERROR_INVALID_VALUE;
    CUresult allowed = gpc_captures_may_end(wire);
    CUgraph told = to ? NULL : told_graph(&on, hStream);
    CUgraph graph = to ? to : told;
    r = graph ? gpc_wire_gp_capture_end_to_graph_on(&on, hStream, graph)
              : gpc_wire_cuStreamEndCapture_on(&on, hStream, &graph);
    /* any answer but these ends a capture: an invalidated one, too */
    bool over = r != CUDA_ERROR_ILLEGAL_STATE && r != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (over)
        gpc_captures_ended(wire);
    if (over && told)
        gpc_captures_forget(told);
    if (over && !to && (told || r == CUDA_SUCCESS) &&
        (r != CUDA_SUCCESS || allowed != CUDA_SUCCESS))
        graph_gone(graph, r == CUDA_SUCCESS); /* ended by the wrong thread, which gets nothing */
    if (allowed != CUDA_SUCCESS && r != CUDA_ERROR_ILLEGAL_STATE)
        r = allowed;
    forget_lost();
    /* CUDA leaves a null graph behind a capture that was invalidated */
    if (phGraph)
        *phGraph = r == CUDA_SUCCESS ? graph : NULL;
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuStreamIsCapturing, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    if (!captureStatus)
        return CUDA_ERROR_INVALID_VALUE;
    if (gpc_capture_active())
        return gpc_wire_cuStreamIsCapturing_on(&on, hStream, captureStatus);
    uint64_t wire;
    if ((r = gpc_route_stream(&on, hStream, &wire)) == CUDA_SUCCESS)
        *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
    return r;
}

static void give(const struct info *info, CUstreamCaptureStatus *status, cuuint64_t *id,
                 CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
    *status = (CUstreamCaptureStatus)info->status;
    if (info->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return;
    if (id)
        *id = info->id;
    if (graph)
        *graph = info->graph;
    if (dependencies)
        *dependencies = info->dependencies;
    if (count)
        *count = info->count;
}

CUresult gpc_as_cuStreamGetCaptureInfo_v3(uint16_t op, CUstream hStream,
                                          CUstreamCaptureStatus *status, cuuint64_t *id,
                                          CUgraph *graph, const CUgraphNode **dependencies,
                                          const CUgraphEdgeData **edgeData, size_t *count)
{
    struct info info;
    CUresult r = get_info(op, hStream, status, graph != NULL, &info);
    if (r != CUDA_SUCCESS)
        return r;
    if (info.has_data && dependencies && !edgeData)
        return CUDA_ERROR_LOSSY_QUERY;
    give(&info, status, id, graph, dependencies, count);
    if (edgeData)
        *edgeData = info.data;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUresult r = gpc_enter(GP_OP_cuThreadExchangeStreamCaptureMode, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_thread *t = gpc_thread();
    CUstreamCaptureMode before = (CUstreamCaptureMode)t->capture_mode;
    /* the next call of this thread carries it; what is no mode the driver takes, too,
     * and nothing comes of it */
    if ((unsigned)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED)
        t->capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
