/* Stream capture as it stands, and the nodes of graphs. */
#include <stdlib.h>

#include "gpw_handlers.h"
#include "handles.h"

CUresult gpw_gp_capture_info(struct gpw_session *s, CUstream stream, CUgraph *graph,
                             uint32_t *status, uint64_t *capture_id, uint64_t *graph_id,
                             uint64_t *dependencies, uint32_t *n_dependencies)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    const CUgraphNode *nodes = NULL;
    size_t count = 0;
    uint32_t room = *n_dependencies / sizeof *dependencies;
    *n_dependencies = 0;
    CUresult r = s->driver->cuStreamGetCaptureInfo_v3(stream, &state, &id, graph, &nodes, NULL,
                                                      &count);
    if (r == CUDA_ERROR_NOT_SUPPORTED) /* drivers before 12.3 */
        r = s->driver->cuStreamGetCaptureInfo_v2(stream, &state, &id, graph, &nodes, &count);
    if (r != CUDA_SUCCESS)
        return r;
    *status = state;
    *capture_id = id;
    *graph_id = (uint64_t)*graph;
    if (state != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (count > room)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < count; i++)
        if (!(dependencies[i] = gpw_handle_name(s, GP_HANDLE_GRAPH_NODE, (uint64_t)nodes[i])))
            return CUDA_ERROR_OUT_OF_MEMORY;
    *n_dependencies = (uint32_t)(count * sizeof *dependencies);
    return CUDA_SUCCESS;
}

CUresult gpw_gp_graph_nodes(struct gpw_session *s, CUgraph graph, uint32_t roots_only,
                            uint32_t capacity, uint64_t *count, uint64_t *nodes, uint32_t *n_nodes)
{
    *n_nodes = 0;
    size_t total = 0;
    __typeof__(s->driver->cuGraphGetNodes) get =
        roots_only ? s->driver->cuGraphGetRootNodes : s->driver->cuGraphGetNodes;
    CUresult r = get(graph, NULL, &total);
    *count = total;
    if (r != CUDA_SUCCESS || capacity == 0)
        return r;
    size_t filled = total < capacity ? total : capacity;
    r = get(graph, (CUgraphNode *)nodes, &filled);
    for (size_t i = 0; r == CUDA_SUCCESS && i < filled; i++)
        if (!(nodes[i] = gpw_handle_name(s, GP_HANDLE_GRAPH_NODE, nodes[i])))
            r = CUDA_ERROR_OUT_OF_MEMORY;
    *n_nodes = (uint32_t)(filled * sizeof *nodes);
    return r;
}
