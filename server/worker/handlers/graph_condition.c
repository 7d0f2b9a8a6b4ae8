/*
 * Conditional nodes. A condition's handle is the driver's own number, because kernels name it; so the
 * client's word for it is looked up among those that the session has been given. Bodies lie in an
 * array of the driver's, which lives as long as the node does.
 */
#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "handles.h"

struct gpw_condition {
    struct gpw_condition *next;
    CUgraphConditionalHandle handle;
    uint64_t graph, birth; /* the client's, and which it was: it goes with that */
};

struct gpw_bodies {
    struct gpw_bodies *next;
    CUgraphNode node;
    uint64_t birth; /* of the node's id: no other node's */
    CUgraph *graphs;
    uint32_t count;
};

/* --- conditions ----------------------------------------------------------------------- */

static bool is_there(struct gpw_session *s, const struct gpw_condition *c)
{
    return gpw_handle_real(s, c->graph, c->birth) != 0;
}

static void drop_gone(struct gpw_session *s)
{
    for (struct gpw_condition **at = &s->conditions.handles; *at;) {
        struct gpw_condition *c = *at;
        if (is_there(s, c)) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *c);
        free(c);
    }
}

CUresult gpw_noted_cuGraphConditionalHandleCreate(struct gpw_session *s,
                                                  CUgraphConditionalHandle *pHandle_out,
                                                  CUgraph hGraph, CUcontext ctx,
                                                  unsigned int defaultLaunchValue,
                                                  unsigned int flags)
{
    (void)ctx, (void)defaultLaunchValue, (void)flags;
    drop_gone(s);
    if (!gpw_budget_take(s, GPW_USE_OBJECTS, sizeof(struct gpw_condition)))
        return CUDA_ERROR_OUT_OF_MEMORY; /* the driver's goes with its graph */
    struct gpw_condition *c = malloc(sizeof *c);
    if (!c) {
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t graph = gpw_handle_find(s, GP_HANDLE_GRAPH, (uint64_t)hGraph);
    *c = (struct gpw_condition){s->conditions.handles, *pHandle_out, graph,
                                gpw_handle_birth(s, graph)};
    s->conditions.handles = c;
    return CUDA_SUCCESS;
}

static bool is_condition(struct gpw_session *s, CUgraphConditionalHandle handle)
{
    for (const struct gpw_condition *c = s->conditions.handles; c; c = c->next)
        if (c->handle == handle && is_there(s, c))
            return true;
    return false;
}

/* --- nodes ------------------------------------------------------------------------------ */

static bool lives(struct gpw_session *s, const struct gpw_bodies *b)
{
    uint64_t id = gpw_handle_find(s, GP_HANDLE_GRAPH_NODE, (uint64_t)b->node);
    return id && gpw_handle_birth(s, id) == b->birth;
}

static struct gpw_bodies *bodies_new(struct gpw_session *s)
{
    for (struct gpw_bodies **at = &s->conditions.nodes; *at;) {
        struct gpw_bodies *b = *at;
        if (lives(s, b)) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *b);
        free(b);
    }
    if (!gpw_budget_take(s, GPW_USE_OBJECTS, sizeof(struct gpw_bodies)))
        return NULL;
    struct gpw_bodies *b = calloc(1, sizeof *b);
    if (!b)
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *b);
    return b;
}

CUresult gpw_gp_node_condition(struct gpw_session *s, CUgraphNode *node, CUgraph graph,
                               uint64_t handle, uint32_t type, uint32_t size)
{
    CUgraphNodeParams p = {
        .type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
        .conditional = {.handle = handle, .type = (CUgraphConditionalNodeType)type, .size = size}};
    CUresult r = size && size <= GP_BODIES_MAX && is_condition(s, handle)
                     ? s->driver->cuCtxGetCurrent(&p.conditional.ctx)
                     : CUDA_ERROR_INVALID_VALUE;
    struct gpw_bodies *b = r ? NULL : bodies_new(s);
    if (!b)
        return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
    r = s->driver->cuGraphAddNode_v2(node, graph, NULL, NULL, 0, &p);
    if (r == CUDA_ERROR_NOT_SUPPORTED) /* drivers before 12.3 have the one without data */
        r = s->driver->cuGraphAddNode(node, graph, NULL, 0, &p);
    if (r != CUDA_SUCCESS || !p.conditional.phGraph_out) {
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *b);
        free(b);
        return r ? r : CUDA_ERROR_UNKNOWN;
    }
    /* the node's id is bound next */
    *b = (struct gpw_bodies){s->conditions.nodes, *node, gpw_handle_next_birth(s),
                             p.conditional.phGraph_out, size};
    s->conditions.nodes = b;
    return CUDA_SUCCESS;
}

CUresult gpw_gp_node_body(struct gpw_session *s, CUgraphNode node, uint32_t index, CUgraph *graph)
{
    const struct gpw_bodies *b = s->conditions.nodes;
    while (b && (b->node != node || !lives(s, b)))
        b = b->next;
    if (!b || index >= b->count)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = b->graphs[index];
    return CUDA_SUCCESS;
}
