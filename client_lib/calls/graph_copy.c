/*
 * Copy nodes with memory that the GPU host has not. To the worker such a node is a child graph of the
 * copy, from or to a buffer there, and of host functions that exchange the buffer's bytes; so its
 * edges, its clones and its launches are those of one node.
 */
#include <string.h>

#include "captured_copy.h"
#include "gpc_wire.h"
#include "graph_node.h"
#include "handle.h"
#include "host_function.h"
#include "shared.h"

/* The nodes of a child graph, in their order; 0: no such one. */
enum { BEFORE, COPY, BEHIND, NODES };

static CUresult add_function(CUgraph graph, const CUDA_HOST_NODE_PARAMS *p, uint64_t *made)
{
    CUgraphNode node = NULL;
    CUresult r = p->fn ? gpc_host_function_node(p, gpc_copy_let_go, graph, &node, NULL, NULL)
                       : CUDA_SUCCESS;
    *made = (uint64_t)node;
    return r;
}

/* What was made for functions that no graph has got. */
static void let_go(const struct gpc_node_copy *copy, const uint64_t nodes[NODES])
{
    if (copy->before.fn && !nodes[BEFORE])
        gpc_copy_let_go(copy->before.userData);
    if (copy->behind.fn && !nodes[BEHIND])
        gpc_copy_let_go(copy->behind.userData);
}

static CUresult fill(const struct gpc_route *on, CUgraph graph, const struct gpc_node_copy *copy,
                     uint64_t nodes[NODES])
{
    const CUgraphEdgeData data[1] = {{0}};
    uint64_t kind = 0;
    CUgraphNode made = NULL;
    memcpy(&kind, data, sizeof kind);
    CUresult r = add_function(graph, &copy->before, &nodes[BEFORE]);
    if (r == CUDA_SUCCESS)
        r = gpc_wire_gp_node_copy_on(on, &made, graph, &copy->sent);
    nodes[COPY] = (uint64_t)made;
    if (r == CUDA_SUCCESS)
        r = add_function(graph, &copy->behind, &nodes[BEHIND]);
    for (int i = BEFORE; r == CUDA_SUCCESS && i < BEHIND; i++)
        if (nodes[i] && nodes[i + 1])
            r = gpc_wire_gp_graph_link_on(on, graph, 1, &nodes[i], &nodes[i + 1], &kind);
    return r;
}

CUresult gpc_graph_copy(const struct gpc_route *on, const struct gpc_node_copy *copy,
                        CUgraphNode *made, CUgraph graph, CUgraphExec exec, CUgraphNode node)
{
    uint64_t nodes[NODES] = {0};
    CUgraph child;
    CUresult r = gpc_wire_cuGraphCreate_on(on, &child, 0);
    if (r != CUDA_SUCCESS) {
        let_go(copy, nodes);
        return r;
    }
    r = fill(on, child, copy, nodes);
    if (r == CUDA_SUCCESS)
        r = made ? gpc_wire_gp_node_child_on(on, made, graph, child)
                 : gpc_wire_cuGraphExecChildGraphNodeSetParams_on(on, exec, node, child);
    gpc_wire_cuGraphDestroy_on(on, child); /* the node has its own */
    let_go(copy, nodes);
    for (int i = BEFORE; i < NODES; i++)
        if (nodes[i])
            gpc_handle_drop(nodes[i]);
    return r;
}
