#include "batch.h"

#include "graph_node.h"
#include "memory.h"

/* Values lie in the session's memory; of a parameter only what has a meaning is told. */
static CUresult wait_take(struct gpw_session *s, const CUstreamBatchMemOpParams *from,
                          unsigned bytes, CUstreamBatchMemOpParams *to)
{
    to->waitValue.address = from->waitValue.address;
    to->waitValue.value64 = bytes == 8 ? from->waitValue.value64 : from->waitValue.value;
    to->waitValue.flags = from->waitValue.flags;
    return gpw_memory_reach(s, from->waitValue.address, bytes) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_VALUE;
}

static CUresult write_take(struct gpw_session *s, const CUstreamBatchMemOpParams *from,
                           unsigned bytes, CUstreamBatchMemOpParams *to)
{
    to->writeValue.address = from->writeValue.address;
    to->writeValue.value64 = bytes == 8 ? from->writeValue.value64 : from->writeValue.value;
    to->writeValue.flags = from->writeValue.flags;
    return gpw_memory_reach(s, from->writeValue.address, bytes) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
}

static CUresult one_take(struct gpw_session *s, const CUstreamBatchMemOpParams *from,
                         CUstreamBatchMemOpParams *to)
{
    *to = (CUstreamBatchMemOpParams){.pad = {0}};
    to->operation = from->operation;
    switch ((unsigned)from->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return wait_take(s, from, 4, to);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return wait_take(s, from, 8, to);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return write_take(s, from, 4, to);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return write_take(s, from, 8, to);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: /* its flags lie where a barrier's do */
        to->memoryBarrier.flags = from->memoryBarrier.flags;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult batch_take(struct gpw_session *s, const CUstreamBatchMemOpParams *from,
                           uint32_t count, CUstreamBatchMemOpParams to[GP_MEMORY_OPERATIONS_MAX])
{
    CUresult r = count <= GP_MEMORY_OPERATIONS_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; r == CUDA_SUCCESS && i < count; i++)
        r = one_take(s, &from[i], &to[i]);
    return r;
}

CUresult gpw_batch(struct gpw_session *s, CUstream stream, uint32_t count,
                   const CUstreamBatchMemOpParams *list, uint32_t flags, bool old)
{
    CUstreamBatchMemOpParams own[GP_MEMORY_OPERATIONS_MAX];
    CUresult r = batch_take(s, list, count, own);
    if (r != CUDA_SUCCESS)
        return r;
    return old ? s->driver->cuStreamBatchMemOp(stream, count, own, flags)
               : s->driver->cuStreamBatchMemOp_v2(stream, count, own, flags);
}

CUresult gpw_node_batch(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                        CUgraphNode node, uint32_t count, const CUstreamBatchMemOpParams *list)
{
    CUstreamBatchMemOpParams own[GP_MEMORY_OPERATIONS_MAX];
    CUDA_BATCH_MEM_OP_NODE_PARAMS p = {.count = count, .paramArray = own};
    CUresult r = batch_take(s, list, count, own);
    if (r == CUDA_SUCCESS)
        r = s->driver->cuCtxGetCurrent(&p.ctx);
    if (r != CUDA_SUCCESS)
        return r;
    if (made)
        return s->driver->cuGraphAddBatchMemOpNode(made, graph, NULL, 0, &p);
    return gpw_node_changed(s, exec, node,
                            exec ? s->driver->cuGraphExecBatchMemOpNodeSetParams(exec, node, &p)
                                 : s->driver->cuGraphBatchMemOpNodeSetParams(node, &p));
}
