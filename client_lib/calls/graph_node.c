/* Nodes of graphs, made and changed by hand: checked here as CUDA does at once, then sent. */
#include "graph_node.h"

#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "event_page.h"
#include "exec_names.h"
#include "gpc_wire.h"
#include "handle.h"
#include "host_function.h"
#include "module.h"
#include "session.h"
#include "shared.h"

/* The node to make in a graph, or the one to change, in an instantiated graph if that is
 * given; and what is noted of it. */
struct target {
    uint16_t op;
    CUgraph graph;
    CUgraphNode *made; /* NULL: changed */
    CUgraphExec exec;
    CUgraphNode node;
    struct gpc_node *noted;
    int own; /* of a copy to change: which ends are this process's; -1: it is new */
};

/* The route of a node's work, in its context. */
static CUresult route_of(CUcontext context, struct gpc_node *noted, struct gpc_route *on)
{
    if (!context)
        context = noted->context ? noted->context : gpc_current();
    if (!context || !gpc_handle_live(GP_HANDLE_CONTEXT, (uint64_t)context))
        return CUDA_ERROR_INVALID_CONTEXT;
    *on = gpc_route_in(context);
    noted->context = context;
    return CUDA_SUCCESS;
}

/* --- kernels -------------------------------------------------------------------------- */

const CUDA_KERNEL_NODE_PARAMS *gpc_kernel_of_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *from,
                                                CUDA_KERNEL_NODE_PARAMS *to)
{
    if (!from)
        return NULL;
    memcpy(to, from, sizeof *from); /* the newer one begins as the older */
    return to;
}

static struct gpc_node_parameters *parameters_new(const struct gpc_kernel *k)
{
    size_t table = k->count * sizeof(void *), at = (k->bytes + 15) & ~(size_t)15;
    struct gpc_node_parameters *p = malloc(sizeof *p + at + table + 16);
    if (!p)
        return NULL;
    p->count = k->count;
    p->size = k->bytes;
    p->pointers = (void **)(((uintptr_t)p->bytes + at + 15) & ~(uintptr_t)15);
    for (uint32_t i = 0; i < k->count; i++)
        p->pointers[i] = p->bytes + k->parameters[i].offset;
    return p;
}

CUresult gpc_node_keep_parameters(struct gpc_node *noted, const struct gpc_kernel *k,
                                  const unsigned char *packed)
{
    struct gpc_node_parameters *p = noted->parameters;
    if (!p || p->count != k->count || p->size != k->bytes) {
        if (!(p = parameters_new(k)))
            return CUDA_ERROR_OUT_OF_MEMORY;
        free(noted->parameters);
        noted->parameters = p;
    }
    memcpy(p->bytes, packed, k->bytes);
    noted->work.kernel.kernelParams = k->count ? p->pointers : NULL;
    noted->work.kernel.extra = NULL;
    return CUDA_SUCCESS;
}

static CUresult send_kernel(const struct target *t, const struct gpc_node_given *given)
{
    unsigned char packed[GP_PARAMETER_BYTES_MAX];
    const CUDA_KERNEL_NODE_PARAMS *p = given->params;
    struct gpc_route on;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUfunction f = p->func ? p->func : (CUfunction)(void *)p->kern;
    struct gpc_kernel *k = gpc_kernel_of(f);
    if (!k)
        return CUDA_ERROR_INVALID_HANDLE;
    CUcontext own = k->context ? k->context : k->image->context;
    CUresult r = route_of(own ? own : p->ctx, t->noted, &on);
    const struct gpc_shape shape = {{p->gridDimX, p->gridDimY, p->gridDimZ},
                                    {p->blockDimX, p->blockDimY, p->blockDimZ},
                                    p->sharedMemBytes};
    if (r == CUDA_SUCCESS)
        r = gpc_launch_pack(&on, k, &shape, p->kernelParams, p->extra, packed);
    t->noted->work.kernel = *p;
    t->noted->work.kernel.ctx = t->noted->context;
    if (r == CUDA_SUCCESS)
        r = gpc_node_keep_parameters(t->noted, k, packed);
    if (r != CUDA_SUCCESS)
        return r;
    const uint32_t sent[7] = {p->gridDimX,  p->gridDimY,  p->gridDimZ,      p->blockDimX,
                              p->blockDimY, p->blockDimZ, p->sharedMemBytes};
    return t->made
               ? gpc_wire_gp_node_kernel_on(&on, t->made, t->graph, f, k->bytes, sent, packed)
               : gpc_wire_gp_node_set_kernel_on(&on, t->exec, t->node, f, k->bytes, sent, packed);
}

/* --- copies and sets --------------------------------------------------------------------- */

static CUresult send_copy(const struct target *t, const struct gpc_node_given *given)
{
    struct gpc_node_copy copy;
    struct gpc_route on;
    if (!given->params)
        return CUDA_ERROR_INVALID_VALUE;
    t->noted->work.copy = *(const CUDA_MEMCPY3D *)given->params;
    CUresult r = route_of(given->context, t->noted, &on);
    if (r == CUDA_SUCCESS && t->own > 0 && !t->exec)
        r = gpc_refuse_because(t->op, "a change of a copy node of host memory in its graph");
    if (r == CUDA_SUCCESS)
        r = gpc_copy_node(t->op, &on, given->params, t->own, &copy);
    if (r != CUDA_SUCCESS)
        return r;
    t->noted->own_ends = copy.own;
    if (copy.own)
        return gpc_graph_copy(&on, &copy, t->made, t->graph, t->exec, t->node);
    return t->made ? gpc_wire_gp_node_copy_on(&on, t->made, t->graph, &copy.sent)
                   : gpc_wire_gp_node_set_copy_on(&on, t->exec, t->node, &copy.sent);
}

static CUresult send_set(const struct target *t, const struct gpc_node_given *given)
{
    const CUDA_MEMSET_NODE_PARAMS *p = given->params;
    struct gpc_route on;
    if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width ||
        !p->height)
        return CUDA_ERROR_INVALID_VALUE;
    t->noted->work.memset = *p;
    CUdeviceptr at = p->dst;
    CUresult r = route_of(given->context, t->noted, &on);
    if (r == CUDA_SUCCESS)
        r = gpc_memset_node(t->op, &on, &at, p);
    if (r != CUDA_SUCCESS)
        return r;
    size_t pitch = p->height == 1 ? 0 : p->pitch;
    return t->made ? gpc_wire_gp_node_memset_on(&on, t->made, t->graph, at, pitch, p->value,
                                                p->elementSize, p->width, p->height)
                   : gpc_wire_gp_node_set_memset_on(&on, t->exec, t->node, at, pitch, p->value,
                                                    p->elementSize, p->width, p->height);
}

static CUresult send_batch(const struct target *t, const struct gpc_node_given *given)
{
    const CUDA_BATCH_MEM_OP_NODE_PARAMS *p = given->params;
    struct gpc_route on;
    if (!p || (p->count && !p->paramArray) || p->count > GP_MEMORY_OPERATIONS_MAX || p->flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = route_of(p->ctx, t->noted, &on);
    size_t bytes = p->count * sizeof *p->paramArray;
    if (r == CUDA_SUCCESS && !(t->noted->operations = malloc(bytes ? bytes : 1)))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS)
        return r;
    if (bytes)
        memcpy(t->noted->operations, p->paramArray, bytes);
    t->noted->work.batch = *p;
    t->noted->work.batch.ctx = t->noted->context;
    t->noted->work.batch.paramArray = t->noted->operations;
    return t->made ? gpc_wire_gp_node_batch_on(&on, t->made, t->graph, p->count, p->paramArray)
                   : gpc_wire_gp_node_set_batch_on(&on, t->exec, t->node, p->count, p->paramArray);
}

/* What cannot be changed any more, and tells its parameters' structure something. */
static CUresult send_made(const struct target *t, const struct gpc_node_given *given)
{
    void *params = (void *)(uintptr_t)given->params;
    struct gpc_route on;
    CUresult r = params && t->made ? route_of(given->context, t->noted, &on)
                                   : CUDA_ERROR_INVALID_VALUE;
    if (r != CUDA_SUCCESS)
        return r;
    if (given->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return gpc_node_condition(t->op, &on, t->graph, t->made, t->noted, params);
    return given->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC
               ? gpc_node_alloc(t->op, &on, t->graph, t->made, t->noted, params)
               : gpc_node_free_memory(&on, t->graph, t->made, t->noted, params);
}

/* --- what needs no context -------------------------------------------------------------------- */

static CUresult send_host(const struct target *t, const struct gpc_node_given *given)
{
    const CUDA_HOST_NODE_PARAMS *p = given->params;
    if (!p || !p->fn)
        return CUDA_ERROR_INVALID_VALUE;
    t->noted->work.host = *p;
    return gpc_host_function_node(p, NULL, t->graph, t->made, t->exec, t->node);
}

static CUresult send_event(const struct target *t, const struct gpc_node_given *given)
{
    CUevent e = (CUevent)(uintptr_t)given->params;
    bool record = given->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    if (!gpc_handle_live(GP_HANDLE_EVENT, (uint64_t)e))
        return CUDA_ERROR_INVALID_HANDLE;
    t->noted->work.event = e;
    gpc_event_not_polled(e); /* the graph records it */
    if (t->made)
        return record ? gpc_wire_gp_node_record(t->made, t->graph, e)
                      : gpc_wire_gp_node_wait(t->made, t->graph, e);
    return record ? gpc_wire_gp_node_set_record(t->exec, t->node, e)
                  : gpc_wire_gp_node_set_wait(t->exec, t->node, e);
}

static CUresult send_child(const struct target *t, CUgraph child)
{
    gpc_graphs_lock();
    bool allocates = gpc_graph_has_memory(child);
    gpc_graphs_unlock();
    if (child == t->graph || allocates)
        return allocates ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    return gpc_wire_gp_node_child(t->made, t->graph, child);
}

static CUresult send(const struct target *t, const struct gpc_node_given *given)
{
    CUgraph child = (CUgraph)(uintptr_t)given->params;
    switch (given->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return send_kernel(t, given);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return send_copy(t, given);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return send_set(t, given);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return send_batch(t, given);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return send_made(t, given);
    case CU_GRAPH_NODE_TYPE_HOST:
        return send_host(t, given);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return send_event(t, given);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return t->made ? gpc_wire_gp_node_empty(t->made, t->graph) : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        if (t->made)
            return send_child(t, child);
        return t->exec ? gpc_wire_cuGraphExecChildGraphNodeSetParams(t->exec, t->node, child)
                       : CUDA_ERROR_INVALID_VALUE;
    default:
        return gpc_refuse_because(t->op, "this type of node");
    }
}

/* --- made ----------------------------------------------------------------------------------- */

/* What CUDA sees at once of edges to a graph's nodes. */
static CUresult check_depends(CUgraph graph, const struct gpc_depends *d)
{
    if (d->count && !d->nodes)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < d->count; i++) {
        const struct gpc_node *node = gpc_node_of(d->nodes[i]);
        if (!gpc_handle_live(GP_HANDLE_GRAPH_NODE, (uint64_t)d->nodes[i]) ||
            (gpc_graph_is_known(graph) && (!node || node->graph != graph)))
            return CUDA_ERROR_INVALID_VALUE;
        for (size_t k = 0; k < i; k++)
            if (d->nodes[k] == d->nodes[i])
                return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult link_all(CUgraph graph, CUgraphNode node, const struct gpc_depends *d)
{
    CUgraphNode *to = d->count ? malloc(d->count * sizeof(CUgraphNode)) : NULL;
    if (d->count && !to)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < d->count; i++)
        to[i] = node;
    CUresult r = gpc_graph_link(graph, d->nodes, to, d->data, d->count, false);
    free(to);
    return r;
}

CUresult gpc_graph_add(uint16_t op, CUgraphNode *out, CUgraph graph,
                       const struct gpc_depends *depends, const struct gpc_node_given *given)
{
    if (!out || !gpc_handle_live(GP_HANDLE_GRAPH, (uint64_t)graph))
        return CUDA_ERROR_INVALID_VALUE;
    gpc_graphs_lock();
    CUresult r = check_depends(graph, depends);
    gpc_graphs_unlock();
    struct gpc_node *noted = r ? NULL : gpc_node_new();
    if (!noted)
        return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
    CUgraphNode made = NULL;
    const struct target t = {.op = op, .graph = graph, .made = &made, .noted = noted, .own = -1};
    r = send(&t, given);
    if (r != CUDA_SUCCESS) {
        gpc_node_free(noted);
        return r;
    }
    noted->id = made;
    noted->graph = graph;
    noted->type = given->type;
    gpc_graphs_lock();
    bool joined = gpc_node_join(noted);
    gpc_graphs_unlock();
    if (!joined) {
        gpc_node_free(noted);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    r = link_all(graph, made, depends);
    if (r == CUDA_SUCCESS)
        *out = made;
    else
        gpc_node_destroy(made);
    return r;
}

/* --- changed -------------------------------------------------------------------------------- */

/* What is noted of it becomes what it was given now. */
static void note(CUgraphNode id, struct gpc_node *now)
{
    gpc_graphs_lock();
    struct gpc_node *node = gpc_node_of(id);
    if (node) {
        struct gpc_node_parameters *before = node->parameters;
        CUstreamBatchMemOpParams *operations = node->operations;
        node->work = now->work;
        node->parameters = now->parameters;
        node->operations = now->operations;
        now->parameters = before;
        now->operations = operations;
    }
    gpc_graphs_unlock();
}

CUresult gpc_node_set(uint16_t op, const CUgraphExec *exec, CUgraphNode id,
                      const struct gpc_node_given *given)
{
    if ((exec && !gpc_handle_live(GP_HANDLE_GRAPH_EXEC, gpc_exec_number((uint64_t)*exec))) ||
        !gpc_handle_live(GP_HANDLE_GRAPH_NODE, (uint64_t)id))
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_node *noted = gpc_node_new();
    if (!noted)
        return CUDA_ERROR_OUT_OF_MEMORY;
    gpc_graphs_lock();
    const struct gpc_node *node = gpc_node_of(id);
    bool wrong = node && node->type != given->type;
    noted->context = node ? node->context : NULL;
    noted->own_ends = node ? node->own_ends : 0;
    gpc_graphs_unlock();
    const struct target t = {.op = op,
                             .exec = exec ? *exec : NULL,
                             .node = id,
                             .noted = noted,
                             .own = (int)noted->own_ends};
    CUresult r = wrong ? CUDA_ERROR_INVALID_VALUE : send(&t, given);
    if (r == CUDA_SUCCESS && !exec)
        note(id, noted);
    gpc_node_free(noted);
    return r;
}

/* --- of any type ------------------------------------------------------------------------------ */

_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v3) == sizeof(CUDA_KERNEL_NODE_PARAMS),
               "one form of a kernel's parameters");

static CUresult given_of(uint16_t op, const CUgraphNodeParams *p, struct gpc_node_given *g)
{
    if (!p || p->reserved0[0] || p->reserved0[1] || p->reserved0[2] || p->reserved2)
        return CUDA_ERROR_INVALID_VALUE;
    *g = (struct gpc_node_given){p->type, &p->kernel, NULL};
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        *g = (struct gpc_node_given){p->type, &p->memcpy.copyParams, p->memcpy.copyCtx};
        return p->memcpy.flags || p->memcpy.reserved ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        g->context = p->memset.ctx;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        g->context = p->conditional.ctx;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        g->params = p->graph.graph;
        return p->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE
                   ? CUDA_SUCCESS
                   : gpc_refuse_because(op, "child graphs that are moved");
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        g->params = p->eventRecord.event;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        g->params = p->eventWait.event;
        return CUDA_SUCCESS;
    default: /* the others begin where the union does */
        return CUDA_SUCCESS;
    }
}

CUresult gpc_graph_add_any(uint16_t op, CUgraphNode *out, CUgraph graph,
                           const struct gpc_depends *depends, const CUgraphNodeParams *params)
{
    struct gpc_node_given given;
    CUresult r = given_of(op, params, &given);
    return r ? r : gpc_graph_add(op, out, graph, depends, &given);
}

CUresult gpc_node_set_any(uint16_t op, const CUgraphExec *exec, CUgraphNode node,
                          const CUgraphNodeParams *params)
{
    struct gpc_node_given given;
    CUresult r = given_of(op, params, &given);
    return r ? r : gpc_node_set(op, exec, node, &given);
}
