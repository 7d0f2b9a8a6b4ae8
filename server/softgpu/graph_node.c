/* Graph nodes made by hand, and what nodes say of themselves. */
#include "softgpu.h"

/* What every "add" function starts with. sg.lock is held. */
CUresult sg_node_check(CUgraphNode *out, CUgraph graph, const CUgraphNode *depends, size_t count)
{
    if (!sg.ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !sg_handle_is(graph, SG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    return sg_edges_check(graph, depends, NULL, count);
}

CUresult sg_kernel_node_op(const CUDA_KERNEL_NODE_PARAMS *p, CUcontext context, CUgraphNode node,
                           struct sg_op **out)
{
    CUlaunchConfig config = {.gridDimX = p->gridDimX,
                             .gridDimY = p->gridDimY,
                             .gridDimZ = p->gridDimZ,
                             .blockDimX = p->blockDimX,
                             .blockDimY = p->blockDimY,
                             .blockDimZ = p->blockDimZ,
                             .sharedMemBytes = p->sharedMemBytes,
                             .attrs = node ? node->op->kernel.attributes : NULL,
                             .numAttrs = node ? node->op->kernel.attribute_count : 0};
    CUfunction function = p->func ? p->func : (CUfunction)(void *)p->kern;
    return sg_launch_prepare(&config, function, p->kernelParams, p->extra,
                             p->ctx ? p->ctx : context, out);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                 const CUgraphNode *dependencies, size_t numDependencies,
                                 const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_op *op;
    SG_TRY(sg_node_check(phGraphNode, hGraph, dependencies, numDependencies));
    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_context_of(nodeParams->ctx, &context));
    SG_TRY(sg_kernel_node_op(nodeParams, context, NULL, &op));
    return sg_graph_add(hGraph, op, CU_GRAPH_NODE_TYPE_KERNEL, dependencies, numDependencies,
                        phGraphNode);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                              const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_copy copy;
    SG_TRY(sg_node_check(phGraphNode, hGraph, dependencies, numDependencies));
    SG_TRY(sg_context_of(ctx, &context));
    if (!copyParams)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_copy_make(copyParams, &copy));
    struct sg_op *op = sg_op_new(SG_OP_COPY, context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->copy = copy;
    return sg_graph_add(hGraph, op, CU_GRAPH_NODE_TYPE_MEMCPY, dependencies, numDependencies,
                        phGraphNode);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                              const CUgraphNode *dependencies, size_t numDependencies,
                              const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_set set;
    SG_TRY(sg_node_check(phGraphNode, hGraph, dependencies, numDependencies));
    SG_TRY(sg_context_of(ctx, &context));
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_set_make(p->dst, p->pitch, p->elementSize, p->value, p->width, p->height, &set));
    struct sg_op *op = sg_op_new(SG_OP_SET, context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->set = set;
    return sg_graph_add(hGraph, op, CU_GRAPH_NODE_TYPE_MEMSET, dependencies, numDependencies,
                        phGraphNode);
}

CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                            const CUgraphNode *dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SG_LOCKED;
    SG_TRY(sg_node_check(phGraphNode, hGraph, dependencies, numDependencies));
    if (!nodeParams || !nodeParams->fn)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_op *op = sg_op_new(SG_OP_HOST, NULL);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->host.fn = nodeParams->fn;
    op->host.data = nodeParams->userData;
    return sg_graph_add(hGraph, op, CU_GRAPH_NODE_TYPE_HOST, dependencies, numDependencies,
                        phGraphNode);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                             const CUgraphNode *dependencies, size_t numDependencies)
{
    SG_LOCKED;
    SG_TRY(sg_node_check(phGraphNode, hGraph, dependencies, numDependencies));
    return sg_graph_add(hGraph, NULL, CU_GRAPH_NODE_TYPE_EMPTY, dependencies, numDependencies,
                        phGraphNode);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  CUgraph childGraph)
{
    SG_LOCKED;
    CUgraph child;
    SG_TRY(sg_node_check(phGraphNode, hGraph, dependencies, numDependencies));
    if (!sg_handle_is(childGraph, SG_GRAPH) || childGraph == hGraph)
        return CUDA_ERROR_INVALID_VALUE;
    if (sg_graph_has_memory(childGraph))
        return CUDA_ERROR_NOT_SUPPORTED;
    SG_TRY(sg_graph_copy(childGraph, &child));
    CUresult result = sg_graph_add(hGraph, NULL, CU_GRAPH_NODE_TYPE_GRAPH, dependencies,
                                   numDependencies, phGraphNode);
    if (result != CUDA_SUCCESS) {
        sg_graph_free(child);
        return result;
    }
    child->owned = true;
    (*phGraphNode)->child = child;
    return CUDA_SUCCESS;
}

static CUresult event_op(CUevent event, bool record, struct sg_op **out)
{
    if (!sg_handle_is(event, SG_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    struct sg_op *op = sg_op_new(record ? SG_OP_RECORD : SG_OP_WAIT, event->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->event.event = event;
    op->event.external = true;
    event->refs++;
    *out = op;
    return CUDA_SUCCESS;
}

static CUresult add_event(CUgraphNode *out, CUgraph graph, const CUgraphNode *depends, size_t count,
                          CUevent event, bool record)
{
    SG_LOCKED;
    struct sg_op *op;
    SG_TRY(sg_node_check(out, graph, depends, count));
    SG_TRY(event_op(event, record, &op));
    return sg_graph_add(graph, op,
                        record ? CU_GRAPH_NODE_TYPE_EVENT_RECORD : CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                        depends, count, out);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                   const CUgraphNode *dependencies, size_t numDependencies,
                                   CUevent event)
{
    return add_event(phGraphNode, hGraph, dependencies, numDependencies, event, true);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                 const CUgraphNode *dependencies, size_t numDependencies,
                                 CUevent event)
{
    return add_event(phGraphNode, hGraph, dependencies, numDependencies, event, false);
}

/* ---- reading ---- */
#define NODE_CHECK(node, wanted)                                                                   \
    SG_LOCKED;                                                                                     \
    SG_READY();                                                                                    \
    if (!sg_handle_is(node, SG_NODE) || (node)->type != (wanted))                                  \
    return CUDA_ERROR_INVALID_VALUE

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *p)
{
    NODE_CHECK(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_kernel *kernel = &hNode->op->kernel;
    *p = (CUDA_KERNEL_NODE_PARAMS){.func = kernel->function,
                                   .kern = kernel->kernel,
                                   .gridDimX = kernel->grid[0],
                                   .gridDimY = kernel->grid[1],
                                   .gridDimZ = kernel->grid[2],
                                   .blockDimX = kernel->block[0],
                                   .blockDimY = kernel->block[1],
                                   .blockDimZ = kernel->block[2],
                                   .sharedMemBytes = kernel->shared,
                                   .kernelParams = kernel->pointers,
                                   .ctx = hNode->op->context};
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *p)
{
    NODE_CHECK(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    struct sg_op *op;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_kernel_node_op(p, hNode->op->context, hNode, &op));
    sg_node_replace(hNode, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
    NODE_CHECK(hNode, CU_GRAPH_NODE_TYPE_MEMCPY);
    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = hNode->op->copy.params;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *p)
{
    NODE_CHECK(hNode, CU_GRAPH_NODE_TYPE_MEMSET);
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_set *set = &hNode->op->set;
    *p = (CUDA_MEMSET_NODE_PARAMS){.dst = (uintptr_t)set->dst,
                                   .pitch = set->pitch,
                                   .value = set->value,
                                   .elementSize = set->element,
                                   .width = set->width,
                                   .height = set->height};
    return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
    NODE_CHECK(hNode, CU_GRAPH_NODE_TYPE_HOST);
    if (!nodeParams)
        return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = (CUDA_HOST_NODE_PARAMS){hNode->op->host.fn, hNode->op->host.data};
    return CUDA_SUCCESS;
}

static CUresult event_of(CUgraphNode node, CUgraphNodeType type, CUevent *event)
{
    NODE_CHECK(node, type);
    if (!event)
        return CUDA_ERROR_INVALID_VALUE;
    *event = node->op->event.event;
    return CUDA_SUCCESS;
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    return event_of(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    return event_of(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    NODE_CHECK(hNode, CU_GRAPH_NODE_TYPE_GRAPH);
    if (!phGraph)
        return CUDA_ERROR_INVALID_VALUE;
    *phGraph = hNode->child;
    return CUDA_SUCCESS;
}

/* ---- changing: the node of a graph, or its copy in an executable ---- */
CUresult sg_node_target(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUgraphNode *out)
{
    SG_READY();
    if (!exec) {
        if (!sg_handle_is(node, SG_NODE) || node->type != type)
            return CUDA_ERROR_INVALID_VALUE;
        *out = node;
        return CUDA_SUCCESS;
    }
    if (!sg_handle_is(exec, SG_EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < exec->graph->node_count; i++)
        if (exec->graph->nodes[i]->origin == node && exec->graph->nodes[i]->type == type) {
            *out = exec->graph->nodes[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult change_copy(CUgraphExec exec, CUgraphNode handle, const CUDA_MEMCPY3D *params)
{
    SG_LOCKED;
    CUgraphNode node;
    struct sg_copy copy;
    SG_TRY(sg_node_target(exec, handle, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_copy_make(params, &copy));
    struct sg_op *op = sg_op_new(SG_OP_COPY, node->op->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->copy = copy;
    sg_node_replace(node, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    return change_copy(NULL, hNode, nodeParams);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    (void)ctx;
    return hGraphExec ? change_copy(hGraphExec, hNode, copyParams) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult change_set(CUgraphExec exec, CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS *p)
{
    SG_LOCKED;
    CUgraphNode node;
    struct sg_set set;
    SG_TRY(sg_node_target(exec, handle, CU_GRAPH_NODE_TYPE_MEMSET, &node));
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_set_make(p->dst, p->pitch, p->elementSize, p->value, p->width, p->height, &set));
    struct sg_op *op = sg_op_new(SG_OP_SET, node->op->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->set = set;
    sg_node_replace(node, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    return change_set(NULL, hNode, nodeParams);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    (void)ctx;
    return hGraphExec ? change_set(hGraphExec, hNode, memsetParams) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult change_host(CUgraphExec exec, CUgraphNode handle, const CUDA_HOST_NODE_PARAMS *p)
{
    SG_LOCKED;
    CUgraphNode node;
    SG_TRY(sg_node_target(exec, handle, CU_GRAPH_NODE_TYPE_HOST, &node));
    if (!p || !p->fn)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_op *op = sg_op_new(SG_OP_HOST, node->op->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->host.fn = p->fn;
    op->host.data = p->userData;
    sg_node_replace(node, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    return change_host(NULL, hNode, nodeParams);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    return hGraphExec ? change_host(hGraphExec, hNode, nodeParams) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult change_event(CUgraphExec exec, CUgraphNode handle, CUevent event, bool record)
{
    SG_LOCKED;
    CUgraphNode node;
    SG_TRY(sg_node_target(exec, handle,
                          record ? CU_GRAPH_NODE_TYPE_EVENT_RECORD : CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                          &node));
    struct sg_op *op;
    SG_TRY(event_op(event, record, &op));
    sg_node_replace(node, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    return change_event(NULL, hNode, event, true);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    return change_event(NULL, hNode, event, false);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUevent event)
{
    return hGraphExec ? change_event(hGraphExec, hNode, event, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
    return hGraphExec ? change_event(hGraphExec, hNode, event, false) : CUDA_ERROR_INVALID_VALUE;
}
