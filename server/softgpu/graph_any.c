/* Graph nodes in the forms that name their type in the parameters. */
#include "softgpu.h"

/* What the typed functions are given. */
static bool plain(const CUgraphNodeParams *p)
{
    return p && !p->reserved0[0] && !p->reserved0[1] && !p->reserved0[2] && !p->reserved2;
}

static CUresult add(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *d,
                    size_t numDependencies, CUgraphNodeParams *p)
{
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphAddKernelNode_v2(phGraphNode, hGraph, d, numDependencies,
                                       (const CUDA_KERNEL_NODE_PARAMS *)&p->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(phGraphNode, hGraph, d, numDependencies, &p->memcpy.copyParams,
                                    p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphAddMemsetNode(phGraphNode, hGraph, d, numDependencies,
                                    (const CUDA_MEMSET_NODE_PARAMS *)&p->memset, p->memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuGraphAddHostNode(phGraphNode, hGraph, d, numDependencies,
                                  (const CUDA_HOST_NODE_PARAMS *)&p->host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphAddChildGraphNode(phGraphNode, hGraph, d, numDependencies, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return cuGraphAddEmptyNode(phGraphNode, hGraph, d, numDependencies);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(phGraphNode, hGraph, d, numDependencies,
                                         p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(phGraphNode, hGraph, d, numDependencies, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return cuGraphAddBatchMemOpNode(phGraphNode, hGraph, d, numDependencies,
                                        (const CUDA_BATCH_MEM_OP_NODE_PARAMS *)&p->memOp);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(phGraphNode, hGraph, d, numDependencies,
                                      (CUDA_MEM_ALLOC_NODE_PARAMS *)&p->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(phGraphNode, hGraph, d, numDependencies, p->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return sg_condition_node_add(phGraphNode, hGraph, d, numDependencies, &p->conditional);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult check_edges(CUgraph graph, const CUgraphNode *from, const CUgraphEdgeData *data,
                            size_t count)
{
    SG_LOCKED;
    SG_READY();
    if (!sg_handle_is(graph, SG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    return sg_edges_check(graph, from, data, count);
}

/* The edges to a new node are of other kinds than the default. */
static CUresult link_again(CUgraphNode node, const CUgraphNode *from, const CUgraphEdgeData *data,
                           size_t count)
{
    SG_LOCKED;
    for (size_t i = 0; data && i < count; i++) {
        sg_graph_unlink(from[i], node, NULL);
        SG_TRY(sg_graph_link(from[i], node, &data[i]));
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                           const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
                           size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    if (!plain(nodeParams))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(check_edges(hGraph, dependencies, dependencyData, numDependencies));
    SG_TRY(add(phGraphNode, hGraph, dependencies, numDependencies, nodeParams));
    return link_again(*phGraphNode, dependencies, dependencyData, numDependencies);
}

CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                        size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL, numDependencies, nodeParams);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *p)
{
    if (!plain(p))
        return CUDA_ERROR_INVALID_VALUE;
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphKernelNodeSetParams_v2(hNode, (const CUDA_KERNEL_NODE_PARAMS *)&p->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphMemcpyNodeSetParams(hNode, &p->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphMemsetNodeSetParams(hNode, (const CUDA_MEMSET_NODE_PARAMS *)&p->memset);
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuGraphHostNodeSetParams(hNode, (const CUDA_HOST_NODE_PARAMS *)&p->host);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphEventRecordNodeSetEvent(hNode, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphEventWaitNodeSetEvent(hNode, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return cuGraphBatchMemOpNodeSetParams(hNode,
                                              (const CUDA_BATCH_MEM_OP_NODE_PARAMS *)&p->memOp);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *p)
{
    if (!plain(p))
        return CUDA_ERROR_INVALID_VALUE;
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode,
                                                 (const CUDA_KERNEL_NODE_PARAMS *)&p->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphExecMemcpyNodeSetParams(hGraphExec, hNode, &p->memcpy.copyParams,
                                              p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphExecMemsetNodeSetParams(
            hGraphExec, hNode, (const CUDA_MEMSET_NODE_PARAMS *)&p->memset, p->memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuGraphExecHostNodeSetParams(hGraphExec, hNode,
                                            (const CUDA_HOST_NODE_PARAMS *)&p->host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphExecEventRecordNodeSetEvent(hGraphExec, hNode, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphExecEventWaitNodeSetEvent(hGraphExec, hNode, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return cuGraphExecBatchMemOpNodeSetParams(hGraphExec, hNode,
                                                  (const CUDA_BATCH_MEM_OP_NODE_PARAMS *)&p->memOp);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}
