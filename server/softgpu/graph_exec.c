/* Executable graphs: a sorted copy; a launch is one operation of its stream. */
#include "softgpu.h"

/* What a failure comes from. */
struct failure {
    CUgraphInstantiateResult why;
    CUgraphNode node;
};

/* A captured set may lead nowhere; what is instantiated may not. */
static CUresult check_sets(CUgraph graph, CUgraphNode *failed)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (node->type == CU_GRAPH_NODE_TYPE_MEMSET && !sg_set_covers(&node->op->set)) {
            *failed = node;
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (node->child)
            SG_TRY(check_sets(node->child, failed));
        for (unsigned k = 0; k < node->body_count; k++)
            SG_TRY(check_sets(node->bodies[k], failed));
    }
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, cuuint64_t flags, struct failure *f)
{
    SG_LOCKED;
    CUcontext context;
    *f = (struct failure){CUDA_GRAPH_INSTANTIATE_ERROR, NULL};
    SG_TRY(sg_context_current(&context));
    if (!out || !sg_handle_is(graph, SG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_device_launch_check(graph, flags, &f->why, &f->node));
    SG_TRY(sg_conditions_check(graph, &f->why, &f->node));
    SG_TRY(check_sets(graph, &f->node));
    CUgraphExec exec = calloc(1, sizeof(*exec));
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->flags = flags;
    CUresult result = sg_graph_copy(graph, &exec->graph);
    if (result == CUDA_SUCCESS) {
        result = sg_graph_sort(exec->graph);
        if (result == CUDA_ERROR_INVALID_VALUE)
            f->why = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
    }
    if (result == CUDA_SUCCESS)
        result = sg_updates_instantiate(exec->graph);
    bool updates = result == CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = sg_blocks_instantiate(exec->graph);
    if (result == CUDA_SUCCESS && !sg_handle_add(exec, SG_EXEC))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        if (updates)
            sg_updates_end(exec->graph);
        if (exec->graph)
            sg_graph_free(exec->graph);
        free(exec);
        return result;
    }
    exec->graph->owned = true;
    f->why = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    *out = exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                     unsigned long long flags)
{
    struct failure failure;
    return instantiate(phGraphExec, hGraph, flags, &failure);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    SG_READY();
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    struct failure failure;
    CUresult result = instantiate(phGraphExec, hGraph, params->flags, &failure);
    params->hErrNode_out = failure.node;
    params->result_out = failure.why;
    return result;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                               char *logBuffer, size_t bufferSize)
{
    if (phErrorNode)
        *phErrorNode = NULL;
    if (logBuffer && bufferSize)
        logBuffer[0] = 0;
    return cuGraphInstantiateWithFlags(phGraphExec, hGraph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                            char *logBuffer, size_t bufferSize)
{
    return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

#define EXEC_CHECK(exec)                                                                           \
    SG_LOCKED;                                                                                     \
    SG_READY();                                                                                    \
    if (!sg_handle_is(exec, SG_EXEC))                                                              \
    return CUDA_ERROR_INVALID_VALUE

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    EXEC_CHECK(hGraphExec);
    SG_TRY(sg_capture_unsafe());
    sg_handle_remove(hGraphExec);
    sg_blocks_run(hGraphExec->graph, false);
    sg_updates_end(hGraphExec->graph);
    sg_graph_free(hGraphExec->graph); /* launches under way hold their operations */
    free(hGraphExec);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    EXEC_CHECK(hGraphExec);
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = hGraphExec->flags;
    return CUDA_SUCCESS;
}

static size_t op_count(CUgraph graph)
{
    size_t count = 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (!node->disabled)
            count += node->child ? op_count(node->child) : node->op != NULL;
    }
    return count;
}

/* What the graph and its children keep, the launch does while it runs. */
static CUresult keep_all(CUgraph graph, struct sg_op *op)
{
    SG_TRY(sg_kept_copy(&op->graph.kept, graph->kept));
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (node->child)
            SG_TRY(keep_all(node->child, op));
        for (unsigned k = 0; k < node->body_count; k++)
            SG_TRY(keep_all(node->bodies[k], op));
    }
    return CUDA_SUCCESS;
}

static CUresult collect(CUgraph graph, struct sg_op **list, size_t *count)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (node->disabled)
            continue;
        if (node->child) {
            SG_TRY(collect(node->child, list, count));
        } else if (node->body_count) {
            SG_TRY(sg_condition_launch(node, &list[*count]));
            (*count)++;
        } else if (node->op) {
            list[(*count)++] = sg_op_ref(node->op);
        }
    }
    return CUDA_SUCCESS;
}

/* Its list has room for all. */
static CUresult fill(CUgraph graph, struct sg_op *op, size_t resets)
{
    if (resets)
        sg_condition_resets(graph, op->graph.list);
    for (; op->graph.count < resets; op->graph.count++)
        if (!op->graph.list[op->graph.count])
            return CUDA_ERROR_OUT_OF_MEMORY;
    return collect(graph, op->graph.list, &op->graph.count);
}

CUresult sg_graph_op(CUgraph graph, CUcontext context, bool resets, struct sg_op **out)
{
    struct sg_op *op = sg_op_new(SG_OP_GRAPH, context);
    size_t first = resets ? sg_condition_resets(graph, NULL) : 0;
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->graph.list = calloc(first + op_count(graph) + 1, sizeof(*op->graph.list));
    CUresult result = op->graph.list ? fill(graph, op, first) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        sg_op_unref(op);
        return result;
    }
    *out = op;
    return CUDA_SUCCESS;
}

/* Events that the graph waits for come before the whole launch. */
static CUresult wait_events(CUstream stream, const struct sg_op *op)
{
    for (size_t i = 0; i < op->graph.count; i++)
        if (op->graph.list[i]->kind == SG_OP_WAIT)
            SG_TRY(sg_stream_wait_mark(stream, &op->graph.list[i]->event.event->mark));
    return CUDA_SUCCESS;
}

/* Events that it records are done when the launch is. */
static void mark_events(CUstream stream, const struct sg_op *op)
{
    for (size_t i = 0; i < op->graph.count; i++)
        if (op->graph.list[i]->kind == SG_OP_RECORD) {
            CUevent event = op->graph.list[i]->event.event;
            event->record++;
            sg_event_forget_capture(event);
            sg_mark_clear(&event->mark);
            event->mark = sg_stream_mark(stream);
        }
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    EXEC_CHECK(hGraphExec);
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (stream->capture) {
        stream->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct sg_op *op;
    SG_TRY(sg_graph_op(hGraphExec->graph, stream->context, true, &op));
    CUresult result = keep_all(hGraphExec->graph, op);
    if (result == CUDA_SUCCESS)
        result = wait_events(stream, op);
    if (result == CUDA_SUCCESS) {
        op->graph.launched = true;
        result = sg_blocks_launch(op->graph.list, op->graph.count,
                                  hGraphExec->flags &
                                      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    }
    if (result != CUDA_SUCCESS) {
        sg_op_unref(op);
        return result;
    }
    op->refs++; /* for the events, after the stream took its own */
    result = sg_stream_submit(stream, op);
    if (result == CUDA_SUCCESS)
        mark_events(stream, op);
    sg_op_unref(op);
    return result;
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    EXEC_CHECK(hGraphExec);
    CUstream stream;
    return sg_stream_get(hStream, &stream);
}

/* ---- changing an executable ---- */
static CUgraphNode exec_node(CUgraphExec exec, CUgraphNode node)
{
    for (size_t i = 0; i < exec->graph->node_count; i++)
        if (exec->graph->nodes[i]->origin == node)
            return exec->graph->nodes[i];
    return NULL;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
    EXEC_CHECK(hGraphExec);
    CUgraphNode node = exec_node(hGraphExec, hNode);
    if (!node ||
        (node->type != CU_GRAPH_NODE_TYPE_KERNEL && node->type != CU_GRAPH_NODE_TYPE_MEMSET &&
         node->type != CU_GRAPH_NODE_TYPE_MEMCPY))
        return CUDA_ERROR_INVALID_VALUE;
    __atomic_store_n(sg_updates_disabled(node), !isEnabled, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
    EXEC_CHECK(hGraphExec);
    CUgraphNode node = exec_node(hGraphExec, hNode);
    if (!node || !isEnabled)
        return CUDA_ERROR_INVALID_VALUE;
    *isEnabled = !__atomic_load_n(sg_updates_disabled(node), __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    EXEC_CHECK(hGraphExec);
    struct sg_op *op;
    CUgraphNode node = exec_node(hGraphExec, hNode);
    if (!node || node->type != CU_GRAPH_NODE_TYPE_KERNEL || !nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_kernel_node_op(nodeParams, node->op->context, node, &op));
    sg_node_replace(node, op);
    return sg_updates_begin(&op->kernel);
}

/* Of a child: what it launches, in the shape that it has. */
static CUresult same_children(CUgraph exec, CUgraph graph);

static CUresult change_child(CUgraphNode node, CUgraph child)
{
    CUgraph copy;
    SG_TRY(sg_graph_copy(child, &copy));
    CUresult result = sg_graph_sort(copy);
    if (result == CUDA_SUCCESS)
        result = same_children(node->child, copy);
    if (result != CUDA_SUCCESS) {
        sg_graph_free(copy);
        return result;
    }
    sg_graph_free(node->child);
    copy->owned = true;
    node->child = copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUgraph childGraph)
{
    EXEC_CHECK(hGraphExec);
    CUgraphNode node = exec_node(hGraphExec, hNode);
    if (!node || node->type != CU_GRAPH_NODE_TYPE_GRAPH || !sg_handle_is(childGraph, SG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    return change_child(node, childGraph);
}

static bool same_bodies(CUgraphNode a, CUgraphNode b)
{
    if (a->body_count != b->body_count ||
        (a->body_count && a->op->condition.type != b->op->condition.type))
        return false;
    for (unsigned i = 0; i < a->body_count; i++)
        if (same_children(a->bodies[i], b->bodies[i]) != CUDA_SUCCESS)
            return false;
    return true;
}

static CUgraphExecUpdateResult edges_differ(CUgraphNode a, CUgraphNode b)
{
    for (size_t k = 0; k < a->depend_count; k++)
        if (a->depends[k].node->order != b->depends[k].node->order ||
            memcmp(&a->depends[k].data, &b->depends[k].data, sizeof(CUgraphEdgeData)) != 0)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/* Why a node cannot take another's parameters; those before them are paired. */
static CUgraphExecUpdateResult node_differs(CUgraphNode a, CUgraphNode b)
{
    if (a->depend_count != b->depend_count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if (a->type != b->type)
        return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (b->type == CU_GRAPH_NODE_TYPE_MEMSET && !sg_set_covers(&b->op->set))
        return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    if ((a->child && same_children(a->child, b->child) != CUDA_SUCCESS) || !same_bodies(a, b) ||
        (sg_node_is_memory(a) && a->op->block.its != b->op->block.its))
        return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    return edges_differ(a, b);
}

/* The same shape: as many nodes, of the same types, with the same edges. */
static CUgraphExecUpdateResultInfo compare(CUgraph exec, CUgraph graph)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    if (exec->node_count != graph->node_count)
        info.result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS && i < graph->node_count; i++) {
        CUgraphNode a = exec->nodes[i], b = graph->nodes[i];
        a->order = b->order = i;
        info.result = node_differs(a, b);
        if (info.result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            info.errorNode = b;
    }
    return info;
}

static CUresult same_children(CUgraph exec, CUgraph graph)
{
    return compare(exec, graph).result == CU_GRAPH_EXEC_UPDATE_SUCCESS
               ? CUDA_SUCCESS
               : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    EXEC_CHECK(exec);
    if (!sg_handle_is(graph, SG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph copy;
    SG_TRY(sg_graph_copy(graph, &copy));
    CUresult result = sg_graph_sort(copy);
    if (result == CUDA_SUCCESS) {
        *info = compare(exec->graph, copy);
        if (sg_updates_any(exec->graph) || sg_updates_any(copy))
            info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
        if (info->errorNode)
            info->errorNode = info->errorNode->origin;
        if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    if (result != CUDA_SUCCESS) {
        sg_graph_free(copy);
        return result;
    }
    /* Handles of the first graph stay the names of the nodes. */
    for (size_t i = 0; i < copy->node_count; i++) {
        copy->nodes[i]->origin = exec->graph->nodes[i]->origin;
        copy->nodes[i]->disabled = exec->graph->nodes[i]->disabled;
    }
    sg_graph_free(exec->graph);
    copy->owned = true;
    exec->graph = copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo *resultInfo)
{
    SG_READY();
    if (!resultInfo)
        return CUDA_ERROR_INVALID_VALUE;
    *resultInfo = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    return update(hGraphExec, hGraph, resultInfo);
}
