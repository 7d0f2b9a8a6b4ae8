/* Graphs: made, listed, linked, instantiated in several historic forms, updated, ended. */
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "exec_names.h"
#include "export.h"
#include "gpc_stubs.h"
#include "gpc_wire.h"
#include "graph_node.h"
#include "handle.h"
#include "shared.h"

/* A kernel that launches it is given the driver's handle: the program has that one. */
static CUresult name_for_kernels(CUgraphExec *exec)
{
    uint64_t name = 0, id = (uint64_t)*exec;
    CUresult r = gpc_wire_gp_graph_exec_named(*exec, &name);
    if (r == CUDA_SUCCESS && !gpc_exec_name(id, name))
        r = CUDA_ERROR_UNKNOWN;
    if (r != CUDA_SUCCESS)
        gpc_wire_cuGraphExecDestroy(*exec);
    *exec = (CUgraphExec)name;
    return r;
}

CUresult gpc_as_cuGraphInstantiateWithFlags(uint16_t op, CUgraphExec *phGraphExec, CUgraph hGraph,
                                            unsigned long long flags)
{
    CUgraphExec made;
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r == CUDA_SUCCESS && !phGraphExec)
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        r = gpc_wire_cuGraphInstantiateWithFlags(&made, hGraph, flags);
    if (r == CUDA_SUCCESS && flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        r = name_for_kernels(&made);
    if (r == CUDA_SUCCESS)
        *phGraphExec = made;
    return gpc_leave(r);
}

/* What a worker says is a CUgraphInstantiateResult of a failure, or an error as good as any. */
static void ask_why(CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    uint32_t why;
    uint64_t node;
    if (gpc_wire_gp_graph_fault(graph, p->flags, &why, &node) != CUDA_SUCCESS)
        return;
    if (why <= CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED &&
        why != CUDA_GRAPH_INSTANTIATE_SUCCESS)
        p->result_out = (CUgraphInstantiateResult)why;
    p->hErrNode_out = (CUgraphNode)node;
}

GPC_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                 CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    if (!instantiateParams)
        return CUDA_ERROR_INVALID_VALUE;
    cuuint64_t flags = instantiateParams->flags & ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    CUresult r = gpc_as_cuGraphInstantiateWithFlags(GP_OP_cuGraphInstantiateWithParams, phGraphExec,
                                                    hGraph, flags);
    instantiateParams->hErrNode_out = NULL;
    instantiateParams->result_out = r == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                                                      : CUDA_GRAPH_INSTANTIATE_ERROR;
    if (r != CUDA_SUCCESS && gpc_handle_live(GP_HANDLE_GRAPH, (uint64_t)hGraph))
        ask_why(hGraph, instantiateParams);
    if (r == CUDA_SUCCESS && (instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        r = gpc_wire_cuGraphUpload(*phGraphExec, instantiateParams->hUploadStream);
    return r;
}

/* --- made and ended ---------------------------------------------------------------- */

GPC_EXPORT CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    CUgraph graph;
    CUresult r = gpc_enter(GP_OP_cuGraphCreate, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!phGraph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if ((r = gpc_wire_cuGraphCreate(&graph, flags)) != CUDA_SUCCESS)
        return r;
    gpc_graphs_lock();
    gpc_graph_known(graph); /* if there is no memory, the worker is asked */
    gpc_graphs_unlock();
    *phGraph = graph;
    return r;
}

GPC_EXPORT CUresult cuGraphDestroy(CUgraph hGraph)
{
    CUresult r = gpc_enter(GP_OP_cuGraphDestroy, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    gpc_graphs_lock();
    bool child = gpc_graph_is_child(hGraph);
    if (!child)
        gpc_graph_forget(hGraph);
    gpc_graphs_unlock();
    return gpc_leave(child ? CUDA_ERROR_INVALID_VALUE : gpc_wire_cuGraphDestroy(hGraph));
}

CUresult gpc_node_destroy(CUgraphNode id)
{
    CUresult r = gpc_wire_cuGraphDestroyNode(id);
    if (r != CUDA_SUCCESS)
        return r;
    gpc_graphs_lock();
    struct gpc_node *node = gpc_node_of(id);
    if (node)
        gpc_node_leave(node);
    gpc_graphs_unlock();
    return r;
}

GPC_EXPORT CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    CUresult r = gpc_enter(GP_OP_cuGraphDestroyNode, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    gpc_graphs_lock();
    const struct gpc_node *node = gpc_node_of(hNode);
    bool stays = node && gpc_graph_has_memory(node->graph);
    gpc_graphs_unlock();
    return gpc_leave(stays ? CUDA_ERROR_NOT_SUPPORTED : gpc_node_destroy(hNode));
}

/* One handle for the graph of a node, whatever number of times it is asked for. */
GPC_EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    CUresult r = gpc_enter(GP_OP_cuGraphChildGraphNodeGetGraph, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!phGraph)
        return CUDA_ERROR_INVALID_VALUE;
    gpc_graphs_lock();
    struct gpc_node *node = gpc_node_of(hNode);
    bool is_child = !node || node->type == CU_GRAPH_NODE_TYPE_GRAPH;
    CUgraph graph = node && is_child ? node->work.child : NULL;
    gpc_graphs_unlock();
    if (!is_child)
        return CUDA_ERROR_INVALID_VALUE;
    if (!graph && (r = gpc_wire_cuGraphChildGraphNodeGetGraph(hNode, &graph)) != CUDA_SUCCESS)
        return gpc_leave(r);
    gpc_graphs_lock();
    node = gpc_node_of(hNode);
    if (node && !node->work.child && gpc_graph_of_node(graph))
        node->work.child = graph;
    gpc_graphs_unlock();
    *phGraph = graph;
    return r;
}

GPC_EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                           CUgraph hClonedGraph)
{
    uint64_t found;
    CUresult r = gpc_enter(GP_OP_cuGraphNodeFindInClone, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!phNode)
        return CUDA_ERROR_INVALID_VALUE;
    r = gpc_wire_gp_graph_find(hOriginalNode, hClonedGraph, &found);
    if (r == CUDA_SUCCESS)
        *phNode = (CUgraphNode)found;
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    CUresult r = gpc_enter(GP_OP_cuGraphNodeGetType, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!type)
        return CUDA_ERROR_INVALID_VALUE;
    gpc_graphs_lock();
    const struct gpc_node *node = gpc_node_of(hNode);
    CUgraphNodeType own = node ? node->type : CU_GRAPH_NODE_TYPE_EMPTY;
    gpc_graphs_unlock();
    if (!node)
        return gpc_leave(gpc_wire_cuGraphNodeGetType(hNode, type));
    *type = own;
    return r;
}

/* What a worker says is a CUgraphExecUpdateResult, or an error as good as any. */
static CUgraphExecUpdateResult update_result_from(uint32_t said)
{
    return said > CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED ? CU_GRAPH_EXEC_UPDATE_ERROR
                                                                : (CUgraphExecUpdateResult)said;
}

CUresult gpc_exec_update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info,
                         CUgraphNode *node, CUgraphExecUpdateResult *result)
{
    uint32_t status, why;
    uint64_t error_node, from;
    if (!info && (!node || !result))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpc_wire_gp_graph_exec_update(exec, graph, &status, &why, &error_node, &from);
    if (r != CUDA_SUCCESS)
        return r;
    if (info)
        *info = (CUgraphExecUpdateResultInfo){update_result_from(why), (CUgraphNode)error_node,
                                              (CUgraphNode)from};
    if (node)
        *node = (CUgraphNode)error_node;
    if (result)
        *result = update_result_from(why);
    return gpc_result_from((int32_t)status);
}

/* --- attributes of kernel nodes ------------------------------------------------------- */

/* Kernels name the node as the GPU host's driver does, and the program has that name from where it
 * has said what it asks for. */
static CUresult let_update(CUgraphNode node, const CUkernelNodeAttrValue *value)
{
    CUkernelNodeAttrValue *told = (CUkernelNodeAttrValue *)(uintptr_t)value;
    uint64_t name;
    CUresult r = gpc_wire_gp_node_updatable(node, value->deviceUpdatableKernelNode.deviceUpdatable,
                                            &name);
    if (r == CUDA_ERROR_NOT_SUPPORTED)
        return gpc_refuse_because(GP_OP_cuGraphKernelNodeSetAttribute,
                                  "kernel nodes that a device updates, on this GPU");
    if (r == CUDA_SUCCESS)
        told->deviceUpdatableKernelNode.devNode = (CUgraphDeviceNode)(uintptr_t)name;
    return r;
}

CUresult gpc_node_attribute(uint16_t op, CUgraphNode node, CUkernelNodeAttrID attr,
                            const CUkernelNodeAttrValue *value)
{
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (op == GP_OP_cuGraphKernelNodeGetAttribute)
        return gpc_wire_cuGraphKernelNodeGetAttribute(node, attr,
                                                      (CUkernelNodeAttrValue *)(uintptr_t)value);
    return attr == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE
               ? let_update(node, value)
               : gpc_wire_cuGraphKernelNodeSetAttribute(node, attr, value);
}
