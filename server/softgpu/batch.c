/* Batches of values that are waited for and written, in streams and as nodes of graphs. */
#include "softgpu.h"

#define BATCH_MOST 255u

/* One of a batch. */
static CUresult value_of(CUcontext context, const CUstreamBatchMemOpParams *p, struct sg_op **out)
{
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return sg_value_op(context, SG_OP_WAIT_VALUE, p->waitValue.address, p->waitValue.value, 4,
                           p->waitValue.flags, out);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return sg_value_op(context, SG_OP_WAIT_VALUE, p->waitValue.address, p->waitValue.value64, 8,
                           p->waitValue.flags, out);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return sg_value_op(context, SG_OP_WRITE_VALUE, p->writeValue.address, p->writeValue.value,
                           4, p->writeValue.flags, out);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return sg_value_op(context, SG_OP_WRITE_VALUE, p->writeValue.address, p->writeValue.value64,
                           8, p->writeValue.flags, out);
    case CU_STREAM_MEM_OP_BARRIER: /* operations of a stream are ordered as it is */
        if (p->memoryBarrier.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU)
            return CUDA_ERROR_INVALID_VALUE;
        *out = sg_op_new(SG_OP_EMPTY, context);
        return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult fill(CUcontext context, const CUstreamBatchMemOpParams *list, unsigned count,
                     struct sg_op *op)
{
    op->graph.list = calloc(count + 1, sizeof(*op->graph.list));
    op->graph.params = calloc(count + 1, sizeof(*op->graph.params));
    if (!op->graph.list || !op->graph.params)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (count)
        memcpy(op->graph.params, list, count * sizeof(*list));
    for (unsigned i = 0; i < count; i++, op->graph.count++)
        SG_TRY(value_of(context, &list[i], &op->graph.list[i]));
    return CUDA_SUCCESS;
}

static CUresult batch_op(CUcontext context, const CUstreamBatchMemOpParams *list, unsigned count,
                         unsigned flags, struct sg_op **out)
{
    if ((count && !list) || count > BATCH_MOST || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_op *op = sg_op_new(SG_OP_BATCH, context);
    CUresult result = op ? fill(context, list, count, op) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        sg_op_unref(op);
        return result;
    }
    *out = op;
    return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp_v2(CUstream hStream, unsigned int count, CUstreamBatchMemOpParams *list,
                               unsigned int flags)
{
    SG_LOCKED;
    CUstream stream;
    struct sg_op *op;
    SG_TRY(sg_stream_get(hStream, &stream));
    SG_TRY(batch_op(stream->context, list, count, flags, &op));
    return sg_stream_submit(stream, op);
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *list,
                            unsigned int flags)
{
    return cuStreamBatchMemOp_v2(stream, count, list, flags);
}

/* ---- nodes ---- */
CUresult cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_op *op;
    SG_TRY(sg_node_check(phGraphNode, hGraph, dependencies, numDependencies));
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_context_of(p->ctx, &context));
    SG_TRY(batch_op(context, p->paramArray, p->count, p->flags, &op));
    return sg_graph_add(hGraph, op, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, dependencies, numDependencies,
                        phGraphNode);
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode,
                                        CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams_out)
{
    SG_LOCKED;
    CUgraphNode node;
    SG_TRY(sg_node_target(NULL, hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &node));
    if (!nodeParams_out || node->op->kind != SG_OP_BATCH)
        return CUDA_ERROR_INVALID_VALUE;
    *nodeParams_out = (CUDA_BATCH_MEM_OP_NODE_PARAMS){.ctx = node->op->context,
                                                      .count = (unsigned)node->op->graph.count,
                                                      .paramArray = node->op->graph.params};
    return CUDA_SUCCESS;
}

static CUresult change(CUgraphExec exec, CUgraphNode handle, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
    SG_LOCKED;
    CUgraphNode node;
    struct sg_op *op;
    SG_TRY(sg_node_target(exec, handle, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &node));
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(batch_op(node->op->context, p->paramArray, p->count, p->flags, &op));
    sg_node_replace(node, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    return change(NULL, hNode, nodeParams);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    return hGraphExec ? change(hGraphExec, hNode, nodeParams) : CUDA_ERROR_INVALID_VALUE;
}
