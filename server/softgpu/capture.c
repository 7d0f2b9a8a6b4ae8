/* Stream capture: operations of a capturing stream become nodes of a graph. */
#include "softgpu.h"

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void sg_capture_unref(struct sg_capture *capture)
{
    if (--capture->refs == 0)
        free(capture);
}

/* Takes the stream out of its capture. */
static void detach(CUstream stream)
{
    struct sg_capture *capture = stream->capture;
    sg_tips_clear(&stream->tips);
    stream->capture = NULL;
    sg_capture_unref(capture);
}

static void detach_all(const struct sg_capture *capture)
{
    for (CUcontext c = sg.contexts; c; c = c->next)
        for (CUstream s = c->streams; s; s = s->next)
            if (s->capture == capture)
                detach(s);
}

/* It is as it was before the capture. */
static void leave_graph(const struct sg_capture *capture)
{
    capture->graph->owned = capture->was_owned;
    capture->graph->capturing = false;
}

/* The end of a capture, good or not. */
static void finish(struct sg_capture *capture)
{
    capture->refs++;
    detach_all(capture);
    capture->origin = NULL;
    capture->graph = NULL;
    sg.captures--;
    sg_capture_unref(capture);
}

CUresult sg_capture_unsafe(void)
{
    CUresult result = CUDA_SUCCESS;
    if (!sg.captures || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (CUcontext c = sg.contexts; c; c = c->next)
        for (CUstream s = c->streams; s; s = s->next) {
            struct sg_capture *capture = s->capture;
            if (!capture || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
                continue;
            bool mine = pthread_equal(capture->thread, pthread_self());
            bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                          thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
            if (mine || global) {
                capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
                result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            }
        }
    return result;
}

CUresult sg_capture_legacy(CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    if (!stream->is_legacy || !sg.captures)
        return CUDA_SUCCESS;
    for (CUstream s = stream->context->streams; s; s = s->next)
        if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING)) {
            s->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return result;
}

static CUgraphNodeType node_type(const struct sg_op *op)
{
    if (!op)
        return CU_GRAPH_NODE_TYPE_EMPTY;
    switch (op->kind) {
    case SG_OP_KERNEL:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    case SG_OP_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case SG_OP_SET:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case SG_OP_HOST:
        return CU_GRAPH_NODE_TYPE_HOST;
    case SG_OP_RECORD:
        return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case SG_OP_WAIT:
        return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    case SG_OP_WRITE_VALUE:
    case SG_OP_WAIT_VALUE:
    case SG_OP_BATCH:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    case SG_OP_BLOCK_ALLOC:
        return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    case SG_OP_BLOCK_FREE:
        return CU_GRAPH_NODE_TYPE_MEM_FREE;
    default:
        return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

/* Whether a launch may begin before what is ahead of it in its stream is through. */
static bool begins_early(const struct sg_op *op)
{
    const struct sg_kernel *k = op && op->kind == SG_OP_KERNEL ? &op->kernel : NULL;
    for (unsigned i = 0; k && i < k->attribute_count; i++)
        if (k->attributes[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            return k->attributes[i].value.programmaticStreamSerializationAllowed != 0;
    return false;
}

/* Behind one kernel the edge says so, unless the program has said something else of it. */
static const CUgraphEdgeData *edge_of(const struct sg_tips *tips, size_t i, const struct sg_op *op)
{
    static const CUgraphEdgeData plain,
        early = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                 .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
    bool is_plain = !memcmp(&tips->data[i], &plain, sizeof(plain));
    return is_plain && tips->count == 1 && tips->nodes[i]->type == CU_GRAPH_NODE_TYPE_KERNEL &&
                   begins_early(op)
               ? &early
               : &tips->data[i];
}

CUresult sg_capture_add(CUstream stream, struct sg_op *op)
{
    struct sg_capture *capture = stream->capture;
    CUgraphNode node;
    if (capture->invalid != CUDA_SUCCESS) {
        sg_op_unref(op);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    const struct sg_tips *tips = &stream->tips;
    SG_TRY(sg_graph_add(capture->graph, op, node_type(op), NULL, 0, &node));
    for (size_t i = 0; i < tips->count; i++)
        SG_TRY(sg_graph_link(tips->nodes[i], node, edge_of(tips, i, op)));
    return sg_tips_set(&stream->tips, &node, NULL, 1);
}

CUresult sg_capture_record(CUstream stream, CUevent event)
{
    struct sg_capture *capture = stream->capture;
    if (capture->invalid != CUDA_SUCCESS)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    SG_TRY(sg_tips_set(&event->tips, stream->tips.nodes, stream->tips.data, stream->tips.count));
    capture->refs++;
    if (event->capture)
        sg_capture_unref(event->capture);
    event->capture = capture;
    return CUDA_SUCCESS;
}

CUresult sg_capture_wait(CUstream stream, CUevent event)
{
    struct sg_capture *capture = event->capture;
    if (!capture->origin) /* that capture is over */
        return CUDA_ERROR_CAPTURED_EVENT;
    if (capture->invalid != CUDA_SUCCESS)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) {
        capture->invalid = stream->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream->is_legacy) {
        capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (!stream->capture) {
        stream->capture = capture;
        capture->refs++;
    }
    return sg_tips_add(&stream->tips, event->tips.nodes, event->tips.data, event->tips.count);
}

/* ---- entry points ---- */
static CUresult begin(CUstream stream, CUstreamCaptureMode mode, CUgraph graph)
{
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->is_legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct sg_capture *capture = calloc(1, sizeof(*capture));
    CUgraph target = graph ? graph : sg_graph_new();
    if (!capture || !target) {
        free(capture);
        if (!graph && target)
            sg_graph_free(target);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture = (struct sg_capture){.refs = 1,
                                   .id = ++sg.next_id,
                                   .origin = stream,
                                   .graph = target,
                                   .mode = mode,
                                   .thread = pthread_self(),
                                   .own_graph = !graph,
                                   .was_owned = target->owned};
    target->owned = target->capturing = true;
    stream->capture = capture;
    sg.captures++;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    return begin(stream, mode, NULL);
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
    return cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                     const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!sg_handle_is(hGraph, SG_GRAPH) || hGraph->capturing || (hGraph->owned && !hGraph->is_body))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_edges_check(hGraph, dependencies, dependencyData, numDependencies));
    SG_TRY(begin(stream, mode, hGraph));
    return sg_tips_set(&stream->tips, dependencies, dependencyData, numDependencies);
}

/* Marks, in `order`, everything that the origin's last nodes come after. */
static void mark_ancestors(CUgraphNode node)
{
    if (node->order)
        return;
    node->order = 1;
    for (size_t i = 0; i < node->depend_count; i++)
        mark_ancestors(node->depends[i].node);
}

static void marks_clear(const struct sg_capture *capture)
{
    for (size_t i = 0; i < capture->graph->node_count; i++)
        capture->graph->nodes[i]->order = 0;
}

static void mark_before(CUstream stream)
{
    for (size_t i = 0; i < stream->tips.count; i++)
        mark_ancestors(stream->tips.nodes[i]);
}

/* Whether all that the stream's last nodes are is marked. */
static bool is_marked(CUstream stream)
{
    for (size_t i = 0; i < stream->tips.count; i++)
        if (!stream->tips.nodes[i]->order)
            return false;
    return true;
}

static bool all_joined(const struct sg_capture *capture)
{
    marks_clear(capture);
    mark_before(capture->origin);
    for (CUcontext c = sg.contexts; c; c = c->next)
        for (CUstream s = c->streams; s; s = s->next)
            if (s->capture == capture && !is_marked(s))
                return false;
    return true;
}

/* Others come after all that this stream has captured. */
static bool is_joined(CUstream stream)
{
    marks_clear(stream->capture);
    for (CUcontext c = sg.contexts; c; c = c->next)
        for (CUstream s = c->streams; s; s = s->next)
            if (s->capture == stream->capture && s != stream)
                mark_before(s);
    return is_marked(stream);
}

void sg_capture_leave(CUstream stream)
{
    struct sg_capture *capture = stream->capture;
    if (!capture)
        return;
    if (capture->origin != stream) {
        if (!is_joined(stream))
            capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        detach(stream);
        return;
    }
    capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUgraph graph = capture->graph;
    bool own = capture->own_graph;
    leave_graph(capture);
    finish(capture);
    if (own)
        sg_graph_free(graph);
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    struct sg_capture *capture = stream->capture;
    if (!phGraph && (!capture || capture->own_graph))
        return CUDA_ERROR_INVALID_VALUE;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    CUresult result = CUDA_SUCCESS;
    if (capture->origin != stream) {
        capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        !pthread_equal(capture->thread, pthread_self()))
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; /* and it is over all the same */
    else if (capture->invalid != CUDA_SUCCESS)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!all_joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    CUgraph graph = capture->graph;
    bool own = capture->own_graph;
    leave_graph(capture);
    finish(capture);
    if (result != CUDA_SUCCESS && own) {
        sg_graph_free(graph);
        graph = NULL;
    }
    if (phGraph)
        *phGraph = graph;
    return result;
}

/* Asking about the default stream while a blocking one captures is refused too, but
 * unlike use of it does not end the capture. */
static CUresult askable(CUstream stream)
{
    if (stream->is_legacy && sg.captures)
        for (CUstream s = stream->context->streams; s; s = s->next)
            if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING))
                return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    if (!stream->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->invalid == CUDA_SUCCESS ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                    : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!captureStatus)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(askable(stream));
    *captureStatus = status_of(stream);
    return CUDA_SUCCESS;
}

/* Some edge of the next operation has data. */
static bool is_lossy(const struct sg_tips *tips)
{
    const CUgraphEdgeData none = {0};
    for (size_t i = 0; i < tips->count; i++)
        if (memcmp(&tips->data[i], &none, sizeof(none)) != 0)
            return true;
    return false;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                   cuuint64_t *id_out, CUgraph *graph_out,
                                   const CUgraphNode **dependencies_out,
                                   const CUgraphEdgeData **edgeData_out,
                                   size_t *numDependencies_out)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!captureStatus_out)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(askable(stream));
    *captureStatus_out = status_of(stream);
    if (*captureStatus_out != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (!edgeData_out && dependencies_out && is_lossy(&stream->tips))
        return CUDA_ERROR_LOSSY_QUERY;
    if (id_out)
        *id_out = stream->capture->id;
    if (graph_out)
        *graph_out = stream->capture->graph;
    if (dependencies_out)
        *dependencies_out = stream->tips.nodes;
    if (edgeData_out)
        *edgeData_out = stream->tips.data;
    if (numDependencies_out)
        *numDependencies_out = stream->tips.count;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                   cuuint64_t *id_out, CUgraph *graph_out,
                                   const CUgraphNode **dependencies_out,
                                   size_t *numDependencies_out)
{
    return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out,
                                     dependencies_out, NULL, numDependencies_out);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                cuuint64_t *id_out)
{
    return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, NULL, NULL, NULL, NULL);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                              const CUgraphEdgeData *dependencyData,
                                              size_t numDependencies, unsigned int flags)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_ERROR_INVALID_VALUE;
    if (status_of(stream) != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_ERROR_ILLEGAL_STATE;
    SG_TRY(sg_edges_check(stream->capture->graph, dependencies, dependencyData, numDependencies));
    return flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES
               ? sg_tips_add(&stream->tips, dependencies, dependencyData, numDependencies)
               : sg_tips_set(&stream->tips, dependencies, dependencyData, numDependencies);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
                                           size_t numDependencies, unsigned int flags)
{
    return cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, NULL, numDependencies,
                                                flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SG_READY();
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
