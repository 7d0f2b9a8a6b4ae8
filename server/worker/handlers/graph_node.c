/* Graphs built by hand: their nodes, edges, and what is asked of those that were not. */
#include "graph_node.h"

#include <stdlib.h>
#include <string.h>

#include "function.h"
#include "gpw_handlers.h"
#include "graph.h"
#include "graph_edges.h"
#include "graph_budget.h"
#include "growth.h"
#include "handles.h"
#include "host_function.h"
#include "memory_internal.h"
#include "module.h"

CUresult gpw_node_changed(struct gpw_session *s, CUgraphExec exec, CUgraphNode node, CUresult r)
{
    if (r == CUDA_SUCCESS && node)
        gpw_graph_works_here(s, exec ? gpw_handle_find(s, GP_HANDLE_GRAPH_EXEC, (uint64_t)exec)
                                     : gpw_handle_graph_of(s, (uint64_t)node));
    return r;
}

/* --- kernels ------------------------------------------------------------------------ */

/* A function brings its context, which must be the one that the node is charged to. */
static CUresult kernel_take(struct gpw_session *s, CUfunction function, CUcontext current,
                            CUDA_KERNEL_NODE_PARAMS *p)
{
    uint16_t tag;
    uint64_t own = gpw_handle_context_of(s, GP_HANDLE_FUNCTION, (uint64_t)function, &tag);
    if (own && own != gpw_handle_find(s, GP_HANDLE_CONTEXT, (uint64_t)current))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (tag == GPW_TAG_KERNEL) {
        p->kern = (CUkernel)(void *)function;
        p->ctx = current;
    } else {
        p->func = function;
    }
    return CUDA_SUCCESS;
}

static CUresult kernel_put(struct gpw_session *s, CUgraphNode *made, CUgraph graph,
                           CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
    if (made)
        return s->driver->cuGraphAddKernelNode_v2(made, graph, NULL, 0, p);
    return gpw_node_changed(s, exec, node,
                            exec ? s->driver->cuGraphExecKernelNodeSetParams_v2(exec, node, p)
                                 : s->driver->cuGraphKernelNodeSetParams_v2(node, p));
}

CUresult gpw_node_kernel(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                         CUgraphNode node, CUfunction function, const uint32_t *shape,
                         const void *parameters, uint32_t parameter_bytes)
{
    void *pointers[GP_PARAMETERS_MAX];
    struct gpw_parameters p;
    CUcontext current = NULL;
    CUresult r = gpw_parameters_of(s, function, &p);
    if (r == CUDA_SUCCESS)
        r = s->driver->cuCtxGetCurrent(&current);
    if (r == CUDA_SUCCESS && p.bytes != parameter_bytes) {
        gpw_session_broken(s, "a kernel node whose parameters are not the kernel's");
        r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r == CUDA_SUCCESS && p.local && !gpw_growth_local_fits(s, p.local))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS)
        return r;
    gpw_modules_launched(s, p.prints);
    for (uint32_t i = 0; i < p.count; i++)
        pointers[i] = (char *)(uintptr_t)parameters + p.at[i].offset;
    CUDA_KERNEL_NODE_PARAMS params = {.gridDimX = shape[0],
                                      .gridDimY = shape[1],
                                      .gridDimZ = shape[2],
                                      .blockDimX = shape[3],
                                      .blockDimY = shape[4],
                                      .blockDimZ = shape[5],
                                      .sharedMemBytes = shape[6],
                                      .kernelParams = pointers};
    r = kernel_take(s, function, current, &params);
    if (r == CUDA_SUCCESS)
        r = kernel_put(s, made, graph, exec, node, &params);
    if (p.local && r == CUDA_SUCCESS)
        gpw_growth_local_taken(s, p.local);
    return r;
}

/* --- copies and sets ------------------------------------------------------------------ */

CUresult gpw_node_copy(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                       CUgraphNode node, const CUDA_MEMCPY3D *copy)
{
    CUDA_MEMCPY3D own;
    CUcontext current = NULL;
    if (!gpw_copy_3d_take(s, copy, &(struct gpw_copy_arrays){NULL, NULL}, &own))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = s->driver->cuCtxGetCurrent(&current);
    if (r != CUDA_SUCCESS)
        return r;
    if (made)
        return s->driver->cuGraphAddMemcpyNode(made, graph, NULL, 0, &own, current);
    return gpw_node_changed(
        s, exec, node,
        exec ? s->driver->cuGraphExecMemcpyNodeSetParams(exec, node, &own, current)
             : s->driver->cuGraphMemcpyNodeSetParams(node, &own));
}

CUresult gpw_node_memset(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                         CUgraphNode node, CUdeviceptr dst, uint64_t pitch, uint32_t value,
                         uint32_t element, uint64_t width, uint64_t height)
{
    CUDA_MEMSET_NODE_PARAMS p = {.dst = dst,
                                 .pitch = pitch,
                                 .value = value,
                                 .elementSize = element,
                                 .width = width,
                                 .height = height};
    CUcontext current = NULL;
    CUresult r = s->driver->cuCtxGetCurrent(&current);
    if (r != CUDA_SUCCESS)
        return r;
    if (made)
        return s->driver->cuGraphAddMemsetNode(made, graph, NULL, 0, &p, current);
    return gpw_node_changed(s, exec, node,
                            exec
                                ? s->driver->cuGraphExecMemsetNodeSetParams(exec, node, &p, current)
                                : s->driver->cuGraphMemsetNodeSetParams(node, &p));
}

CUresult gpw_node_event(struct gpw_session *s, CUgraphExec exec, CUgraphNode node, CUevent event,
                        bool record)
{
    if (exec)
        return record ? s->driver->cuGraphExecEventRecordNodeSetEvent(exec, node, event)
                      : s->driver->cuGraphExecEventWaitNodeSetEvent(exec, node, event);
    return record ? s->driver->cuGraphEventRecordNodeSetEvent(node, event)
                  : s->driver->cuGraphEventWaitNodeSetEvent(node, event);
}

CUresult gpw_noted_gp_node_child(struct gpw_session *s, CUgraphNode node, CUgraph graph,
                                 CUgraph child)
{
    (void)node;
    gpw_handle_join_contexts(s, gpw_handle_find(s, GP_HANDLE_GRAPH, (uint64_t)graph),
                             gpw_handle_find(s, GP_HANDLE_GRAPH, (uint64_t)child));
    return CUDA_SUCCESS;
}

/* An executable graph works where a graph does that it has taken over. */
static void exec_takes_over(struct gpw_session *s, CUgraphExec exec, CUgraph graph)
{
    uint64_t own = gpw_handle_find(s, GP_HANDLE_GRAPH_EXEC, (uint64_t)exec);
    uint64_t other = gpw_handle_find(s, GP_HANDLE_GRAPH, (uint64_t)graph);
    gpw_graph_works_as(s, own, other);
    gpw_handle_join_contexts(s, own, other);
}

CUresult gpw_noted_cuGraphExecChildGraphNodeSetParams(struct gpw_session *s, CUgraphExec exec,
                                                      CUgraphNode node, CUgraph child)
{
    (void)node;
    exec_takes_over(s, exec, child);
    return CUDA_SUCCESS;
}

/* --- edges ---------------------------------------------------------------------------- */

static CUresult edges_take(struct gpw_session *s, const uint64_t *from, const uint64_t *to,
                           const uint64_t *data, struct gpw_edges *e)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; r == CUDA_SUCCESS && i < e->count; i++) {
        r = gpw_handle_get(s, GP_HANDLE_GRAPH_NODE, from[i], false, (uint64_t *)&e->from[i]);
        if (r == CUDA_SUCCESS)
            r = gpw_handle_get(s, GP_HANDLE_GRAPH_NODE, to[i], false, (uint64_t *)&e->to[i]);
        memcpy(&e->data[i], &data[i], sizeof e->data[i]);
    }
    return r;
}

static bool has_data(const struct gpw_edges *e)
{
    const CUgraphEdgeData none = {0};
    for (size_t i = 0; i < e->count; i++)
        if (memcmp(&e->data[i], &none, sizeof none) != 0)
            return true;
    return false;
}

static CUresult link_edges(struct gpw_session *s, CUgraph graph, bool remove,
                           const struct gpw_edges *e)
{
    const struct gpw_driver *d = s->driver;
    if (has_data(e)) /* of drivers from 12.3 on */
        return remove ? d->cuGraphRemoveDependencies_v2(graph, e->from, e->to, e->data, e->count)
                      : d->cuGraphAddDependencies_v2(graph, e->from, e->to, e->data, e->count);
    return remove ? d->cuGraphRemoveDependencies(graph, e->from, e->to, e->count)
                  : d->cuGraphAddDependencies(graph, e->from, e->to, e->count);
}

CUresult gpw_graph_link(struct gpw_session *s, CUgraph graph, bool remove, uint32_t count,
                        const uint64_t *from, const uint64_t *to, const uint64_t *data)
{
    struct gpw_edges e;
    if (gpw_graph_has_hidden(s, graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult r = gpw_edges_new(&e, count);
    if (r == CUDA_SUCCESS)
        r = edges_take(s, from, to, data, &e);
    if (r == CUDA_SUCCESS)
        r = link_edges(s, graph, remove, &e);
    gpw_edges_free(&e);
    return r;
}

/* A node that copies for the client goes with one of ours. */
CUresult gpw_cuGraphDestroyNode(struct gpw_session *s, CUgraphNode hNode)
{
    if (gpw_graph_is_beside_hidden(s, hNode))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct host_function *f = gpw_host_function_of(s, hNode);
    CUresult r = s->driver->cuGraphDestroyNode(hNode);
    if (r == CUDA_SUCCESS) {
        gpw_host_function_left(s, f);
        gpw_graph_shrinks(s, (uint64_t)hNode);
        gpw_handle_node_gone(s, (uint64_t)hNode);
    }
    return r;
}

/* --- what is asked --------------------------------------------------------------------- */

static CUresult edges_of(struct gpw_session *s, CUgraph graph, struct gpw_edges *e)
{
    size_t count = 0;
    CUresult r = s->driver->cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &count);
    bool old = r == CUDA_ERROR_NOT_SUPPORTED; /* drivers before 12.3 */
    if (old)
        r = s->driver->cuGraphGetEdges(graph, NULL, NULL, &count);
    *e = (struct gpw_edges){.count = 0};
    if (r == CUDA_SUCCESS)
        r = gpw_edges_new(e, count);
    if (r != CUDA_SUCCESS || count == 0)
        return r;
    return old ? s->driver->cuGraphGetEdges(graph, e->from, e->to, &e->count)
               : s->driver->cuGraphGetEdges_v2(graph, e->from, e->to, e->data, &e->count);
}

/* As the client knows the graph: without what is hidden in it. */
static CUresult edges_shown(struct gpw_session *s, CUgraph graph, struct gpw_edges *e)
{
    CUgraphNode hidden;
    size_t at = 0;
    CUresult r = edges_of(s, graph, e);
    if (r != CUDA_SUCCESS || !gpw_graph_has_hidden(s, graph))
        return r;
    while (r == CUDA_SUCCESS && (hidden = gpw_graph_hidden(s, graph, &at)))
        r = gpw_edges_without(e, hidden);
    return r;
}

CUresult gpw_gp_graph_edges(struct gpw_session *s, CUgraph graph, uint32_t capacity,
                            uint64_t *count, uint64_t *from, uint32_t *n_from, uint64_t *to,
                            uint32_t *n_to, uint64_t *data, uint32_t *n_data)
{
    struct gpw_edges e;
    size_t filled = 0;
    *n_from = *n_to = *n_data = 0;
    CUresult r = edges_shown(s, graph, &e);
    for (; r == CUDA_SUCCESS && filled < e.count && filled < capacity; filled++) {
        from[filled] = gpw_handle_name(s, (uint64_t)e.from[filled], (uint64_t)graph);
        to[filled] = gpw_handle_name(s, (uint64_t)e.to[filled], (uint64_t)graph);
        memcpy(&data[filled], &e.data[filled], sizeof *data);
        if (!from[filled] || !to[filled])
            r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    *count = e.count;
    gpw_edges_free(&e);
    if (r == CUDA_SUCCESS)
        *n_from = *n_to = *n_data = (uint32_t)(filled * sizeof *data);
    return r;
}

static CUresult neighbours(struct gpw_session *s, CUgraphNode node, bool behind, CUgraphNode *nodes,
                           CUgraphEdgeData *data, size_t *count)
{
    const struct gpw_driver *d = s->driver;
    CUresult r = behind ? d->cuGraphNodeGetDependentNodes_v2(node, nodes, data, count)
                        : d->cuGraphNodeGetDependencies_v2(node, nodes, data, count);
    if (r == CUDA_ERROR_NOT_SUPPORTED)
        r = behind ? d->cuGraphNodeGetDependentNodes(node, nodes, count)
                   : d->cuGraphNodeGetDependencies(node, nodes, count);
    return r;
}

/* The nodes before or behind one. */
static CUresult edges_at(struct gpw_session *s, CUgraph graph, CUgraphNode node, bool behind,
                         struct gpw_edges *e)
{
    size_t count = 0;
    *e = (struct gpw_edges){.count = 0};
    if (gpw_graph_has_hidden(s, graph)) {
        CUresult r = edges_shown(s, graph, e);
        if (r == CUDA_SUCCESS)
            gpw_edges_at(e, node, behind);
        return r;
    }
    CUresult r = neighbours(s, node, behind, NULL, NULL, &count);
    if (r == CUDA_SUCCESS)
        r = gpw_edges_new(e, count);
    return r || count == 0 ? r : neighbours(s, node, behind, e->to, e->data, &e->count);
}

CUresult gpw_gp_node_edges(struct gpw_session *s, CUgraphNode node, uint32_t behind,
                           uint32_t capacity, uint64_t *count, uint64_t *nodes, uint32_t *n_nodes,
                           uint64_t *data, uint32_t *n_data)
{
    struct gpw_edges e;
    uint64_t graph = 0;
    size_t filled = 0;
    *n_nodes = *n_data = 0;
    gpw_handle_get(s, GP_HANDLE_GRAPH, gpw_handle_graph_of(s, (uint64_t)node), false, &graph);
    CUresult r = edges_at(s, (CUgraph)graph, node, behind, &e);
    for (; r == CUDA_SUCCESS && filled < e.count && filled < capacity; filled++) {
        memcpy(&data[filled], &e.data[filled], sizeof *data);
        if (!(nodes[filled] = gpw_handle_name(s, (uint64_t)e.to[filled], graph)))
            r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    *count = e.count;
    gpw_edges_free(&e);
    if (r == CUDA_SUCCESS)
        *n_nodes = *n_data = (uint32_t)(filled * sizeof *nodes);
    return r;
}

CUresult gpw_gp_graph_find(struct gpw_session *s, CUgraphNode node, CUgraph clone, uint64_t *found)
{
    CUgraphNode copy = NULL;
    CUresult r = s->driver->cuGraphNodeFindInClone(&copy, node, clone);
    if (r != CUDA_SUCCESS)
        return r;
    *found = gpw_handle_name(s, (uint64_t)copy, (uint64_t)clone);
    return *found ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct wanted_kernel {
    CUfunction function;
    uint64_t id;
};

static void kernel_look(struct gpw_session *s, uint64_t id, uint64_t real, void *arg)
{
    struct wanted_kernel *wanted = arg;
    uint64_t kernel = 0;
    CUfunction f = NULL;
    bool is_kernel = !wanted->id && gpw_handle_get_kernel(s, id, false, &kernel) == CUDA_SUCCESS;
    if (is_kernel && s->driver->cuKernelGetFunction(&f, (CUkernel)real) == CUDA_SUCCESS &&
        f == wanted->function)
        wanted->id = id;
}

/* The client's name for what a node runs: a function, or a kernel that it has launched without
 * asking for its function. 0: the driver's own, for a set or a copy. */
static uint64_t function_told(struct gpw_session *s, const CUDA_KERNEL_NODE_PARAMS *p)
{
    uint64_t id = p->func ? gpw_handle_find(s, GP_HANDLE_FUNCTION, (uint64_t)p->func) : 0;
    if (!id && p->kern)
        id = gpw_handle_find(s, GP_HANDLE_FUNCTION, (uint64_t)p->kern);
    struct wanted_kernel wanted = {p->func, id};
    if (!id && p->func)
        gpw_handle_each(s, GP_HANDLE_FUNCTION, kernel_look, &wanted);
    return wanted.id;
}

CUresult gpw_gp_node_kernel_told(struct gpw_session *s, CUgraphNode node, uint64_t *function,
                                 uint32_t *shape, uint32_t *n_shape, void *parameters,
                                 uint32_t *n_parameters)
{
    CUDA_KERNEL_NODE_PARAMS p;
    struct gpw_parameters known;
    CUresult r = s->driver->cuGraphKernelNodeGetParams_v2(node, &p);
    uint32_t room = *n_parameters;
    *n_shape = *n_parameters = 0;
    if (r != CUDA_SUCCESS)
        return r;
    CUfunction f = p.func ? p.func : (CUfunction)(void *)p.kern;
    *function = function_told(s, &p);
    if (!*function)
        return CUDA_ERROR_NOT_SUPPORTED;
    r = gpw_parameters_of(s, f, &known);
    if (r != CUDA_SUCCESS)
        return r;
    if (known.bytes > room || (known.count && !p.kernelParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    memset(parameters, 0, known.bytes);
    for (uint32_t i = 0; i < known.count; i++)
        memcpy((char *)parameters + known.at[i].offset, p.kernelParams[i], known.at[i].size);
    const uint32_t is[7] = {p.gridDimX,  p.gridDimY,  p.gridDimZ,      p.blockDimX,
                            p.blockDimY, p.blockDimZ, p.sharedMemBytes};
    memcpy(shape, is, sizeof is);
    *n_shape = sizeof is;
    *n_parameters = known.bytes;
    return CUDA_SUCCESS;
}

/* Of a failure, the driver says more; that is an answer, too. */
CUresult gpw_gp_graph_exec_update(struct gpw_session *s, CUgraphExec exec, CUgraph graph,
                                  uint32_t *status, uint32_t *result, uint64_t *node,
                                  uint64_t *from)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult r = s->driver->cuGraphExecUpdate_v2(exec, graph, &info);
    *status = r;
    *result = info.result;
    *node = *from = 0;
    if (info.errorNode)
        *node = gpw_handle_name(s, (uint64_t)info.errorNode, (uint64_t)graph);
    if (info.errorFromNode)
        *from = gpw_handle_name(s, (uint64_t)info.errorFromNode, (uint64_t)graph);
    if (r == CUDA_SUCCESS) {
        exec_takes_over(s, exec, graph);
        gpw_host_functions_replaced(s, gpw_handle_find(s, GP_HANDLE_GRAPH_EXEC, (uint64_t)exec));
    }
    return CUDA_SUCCESS;
}
