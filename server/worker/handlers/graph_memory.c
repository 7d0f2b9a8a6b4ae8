/* Nodes of graphs that allocate memory and free it. */
#include "gpw_handlers.h"
#include "growth.h"
#include "memory_internal.h"
#include "quota.h"

/* A launch is charged to the device of its stream, and so is what its graph allocates. */
CUresult gpw_gp_node_alloc(struct gpw_session *s, CUgraphNode *node, CUgraph graph,
                           const CUmemPoolProps *props, uint64_t bytes, uint32_t count,
                           const CUmemAccessDesc *access, CUdeviceptr *dptr)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = *props,
                                    .accessDescs = count ? access : NULL,
                                    .accessDescCount = count,
                                    .bytesize = bytes};
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        props->location.id != gpw_current_ordinal(s))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!gpw_location_take(s, &p.poolProps.location))
        return CUDA_ERROR_INVALID_DEVICE;
    p.poolProps.win32SecurityAttributes = NULL;
    gpw_growth_in_graphs(s); /* counted when a launch has it */
    CUresult r = s->driver->cuGraphAddMemAllocNode(node, graph, NULL, 0, &p);
    if (r != CUDA_SUCCESS)
        return r;
    *dptr = p.dptr;
    return gpw_graph_memory_note(s, p.dptr, bytes);
}

CUresult gpw_gp_node_free(struct gpw_session *s, CUgraphNode *node, CUgraph graph, CUdeviceptr dptr)
{
    if (!gpw_graph_memory_begins(s, dptr))
        return CUDA_ERROR_INVALID_VALUE;
    return s->driver->cuGraphAddMemFreeNode(node, graph, NULL, 0, dptr);
}

/* In the client's words: its ordinal, and nothing of this process. */
CUresult gpw_noted_gp_node_alloc_told(struct gpw_session *s, CUgraphNode node,
                                      CUDA_MEM_ALLOC_NODE_PARAMS *told)
{
    (void)node;
    gpw_location_give(s, &told->poolProps.location);
    told->poolProps.win32SecurityAttributes = NULL;
    told->accessDescs = NULL;
    told->accessDescCount = 0;
    return CUDA_SUCCESS;
}

/* --- what graphs of a device have -------------------------------------------------- */

/* As of a pool: behind the frees before it. */
CUresult gpw_cuDeviceGraphMemTrim(struct gpw_session *s, CUdevice device)
{
    uint64_t last = gpw_memory_last_free(s);
    CUdevice real;
    if (gpw_device_take(s, device, &real) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!gpw_memory_frees_under_way(s, last))
        return s->driver->cuDeviceGraphMemTrim(real);
    s->memory->windows[device].graphs_trim_behind = last;
    return CUDA_SUCCESS;
}

void gpw_graph_memory_freed(struct gpw_session *s)
{
    for (uint32_t i = 0; i < s->device_count; i++) {
        uint64_t *behind = &s->memory->windows[i].graphs_trim_behind;
        if (!*behind || gpw_memory_frees_under_way(s, *behind))
            continue;
        *behind = 0;
        gpw_growth_trim_graphs(s, i);
    }
}
