/*
 * Graphs that kernels may launch: what they may have in them. No kernel of the soft GPU launches one,
 * because its image would need CUDA's device runtime, which is refused; the host does.
 */
#include "softgpu.h"

static bool may_have(CUgraphNodeType type)
{
    return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
           type == CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_GRAPH;
}

/* All in one context: the first node's. */
static CUresult check(CUgraph graph, CUcontext *context, CUgraphInstantiateResult *why,
                      CUgraphNode *wrong)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        CUcontext its = node->op ? node->op->context : NULL;
        *wrong = node;
        *why = CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
        if (!may_have(node->type))
            return CUDA_ERROR_NOT_SUPPORTED;
        *why = CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;
        if (its && *context && its != *context)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (its)
            *context = its;
        if (node->child)
            SG_TRY(check(node->child, context, why, wrong));
    }
    *wrong = NULL;
    *why = CUDA_GRAPH_INSTANTIATE_ERROR;
    return CUDA_SUCCESS;
}

CUresult sg_device_launch_check(CUgraph graph, cuuint64_t flags, CUgraphInstantiateResult *why,
                                CUgraphNode *wrong)
{
    CUcontext context = NULL;
    if (!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH))
        return CUDA_SUCCESS;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        return CUDA_ERROR_INVALID_VALUE;
    return check(graph, &context, why, wrong);
}
