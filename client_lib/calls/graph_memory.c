/* Nodes of graphs that allocate memory and free it: the address is good for other nodes at once. */
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "gpc_wire.h"
#include "graph_node.h"
#include "memory.h"
#include "session.h"
#include "shared.h"

static CUresult check(uint16_t op, const struct gpc_route *on, const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    if (!p->bytesize || (p->accessDescCount && !p->accessDescs) ||
        p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED; /* as CUDA says */
    if (p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        p->poolProps.location.id != gpc_context_device(on->context))
        return gpc_refuse_because(op, "memory in a graph of another GPU than the current one");
    return p->accessDescCount > GP_DEVICES_MAX ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult keep_access(struct gpc_node *noted, const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    if (!p->accessDescCount)
        return CUDA_SUCCESS;
    noted->access = calloc(p->accessDescCount, sizeof *noted->access);
    if (!noted->access)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(noted->access, p->accessDescs, p->accessDescCount * sizeof *noted->access);
    return CUDA_SUCCESS;
}

CUresult gpc_node_alloc(uint16_t op, const struct gpc_route *on, CUgraph graph, CUgraphNode *made,
                        struct gpc_node *noted, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    const CUmemAccessDesc none = {.flags = 0};
    CUdeviceptr at = 0;
    CUresult r = check(op, on, p);
    if (r == CUDA_SUCCESS)
        r = keep_access(noted, p);
    if (r == CUDA_SUCCESS)
        r = gpc_wire_gp_node_alloc_on(on, made, graph, &p->poolProps, p->bytesize,
                                      (uint32_t)p->accessDescCount,
                                      noted->access ? noted->access : &none, &at);
    if (r == CUDA_SUCCESS)
        r = gpc_memory_keep(0, at, p->bytesize, GPC_RANGE_GRAPH);
    if (r != CUDA_SUCCESS)
        return r;
    p->dptr = at;
    noted->work.alloc = *p;
    noted->work.alloc.accessDescs = noted->access;
    return r;
}

CUresult gpc_node_free_memory(const struct gpc_route *on, CUgraph graph, CUgraphNode *made,
                              struct gpc_node *noted, const CUdeviceptr *at)
{
    noted->work.freed = *at;
    return gpc_wire_gp_node_free_on(on, made, graph, *at);
}

CUresult gpc_node_ask_alloc(CUgraphNode id, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    CUDA_MEM_ALLOC_NODE_PARAMS told;
    CUresult r = gpc_wire_gp_node_alloc_told(id, &told);
    if (r != CUDA_SUCCESS)
        return r;
    int ordinal = told.poolProps.location.id;
    if (ordinal < 0 || ordinal >= GP_DEVICES_MAX)
        return CUDA_ERROR_UNKNOWN;
    const CUmemLocation where = {
        .type = CU_MEM_LOCATION_TYPE_DEVICE,
        .id = gpc_device_of(gpc_session_of_handle((uint64_t)id), (uint32_t)ordinal)};
    *p = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = where},
        .bytesize = told.bytesize,
        .dptr = told.dptr};
    return CUDA_SUCCESS;
}
