/* Conditional nodes: their bodies are graphs that go with the node, and are filled as others are. */
#include <stdlib.h>

#include "gpc_wire.h"
#include "graph_node.h"
#include "handle.h"
#include "shared.h"

static bool has_size(const CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    switch (p->type) {
    case CU_GRAPH_COND_TYPE_IF:
        return p->size == 1 || p->size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
        return p->size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
        return p->size > 0;
    default:
        return false;
    }
}

/* It is there already; what fails now leaves its error with the body's handle. */
static CUresult ask_bodies(const struct gpc_route *on, CUgraphNode node, struct gpc_node *noted,
                           unsigned count)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; r == CUDA_SUCCESS && i < count; i++) {
        r = gpc_wire_gp_node_body_on(on, node, i, &noted->bodies[i]);
        if (r != CUDA_SUCCESS)
            break;
        noted->body_count++;
        gpc_graphs_lock();
        gpc_graph_of_condition(noted->bodies[i]); /* without memory, the worker is asked */
        gpc_graphs_unlock();
    }
    return r;
}

CUresult gpc_node_condition(uint16_t op, const struct gpc_route *on, CUgraph graph,
                            CUgraphNode *made, struct gpc_node *noted,
                            CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    if (!has_size(p))
        return CUDA_ERROR_INVALID_VALUE;
    if (p->size > GP_BODIES_MAX)
        return gpc_refuse_because(op, "a conditional node with so many bodies");
    noted->bodies = calloc(p->size, sizeof *noted->bodies);
    if (!noted->bodies)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = gpc_wire_gp_node_condition_on(on, made, graph, p->handle, p->type, p->size);
    if (r == CUDA_SUCCESS)
        r = ask_bodies(on, *made, noted, p->size);
    if (r != CUDA_SUCCESS)
        return r;
    p->phGraph_out = noted->bodies; /* where they stay, as CUDA says */
    noted->work.condition = *p;
    return r;
}
