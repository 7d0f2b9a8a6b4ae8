/* Graphs: instantiation in its several historic forms, and lists of nodes. */
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "shared.h"

static CUresult instantiate(uint16_t op, CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    return gpc_leave(r ? r : gpc_wire_cuGraphInstantiateWithFlags(exec, graph, flags));
}

GPC_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                 CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    if (!instantiateParams)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = instantiate(GP_OP_cuGraphInstantiateWithParams, phGraphExec, hGraph,
                             instantiateParams->flags &
                                 ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    instantiateParams->hErrNode_out = NULL;
    instantiateParams->result_out = r == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                                                      : CUDA_GRAPH_INSTANTIATE_ERROR;
    if (r == CUDA_SUCCESS && (instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        r = gpc_wire_cuGraphUpload(*phGraphExec, instantiateParams->hUploadStream);
    return r;
}

/* CUDA's rule for both lists: without room, the count; with room, as many as fit,
 * the rest set to null, and the count of those filled. */
CUresult gpc_graph_list(CUgraph graph, bool roots, CUgraphNode *nodes, size_t *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t room = nodes ? *count : 0;
    uint32_t capacity = room > GP_NODES_MAX ? GP_NODES_MAX : (uint32_t)room;
    uint64_t *ids = calloc(capacity ? capacity : 1, sizeof *ids);
    if (!ids)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t total;
    uint32_t got = 0;
    CUresult r = gpc_wire_gp_graph_nodes(graph, roots, capacity, &total, ids, &got);
    if (r == CUDA_SUCCESS && nodes) {
        size_t filled = got / sizeof *ids;
        memset(nodes, 0, room * sizeof *nodes);
        memcpy(nodes, ids, filled * sizeof *nodes);
        *count = filled;
    } else if (r == CUDA_SUCCESS) {
        *count = total;
    }
    free(ids);
    return r;
}
