/* How the spec says what a node of a graph is given (proto/spec/graph.toml). */
#ifndef GPC_GRAPH_NODE_H
#define GPC_GRAPH_NODE_H

#include <cuda.h>
#include <stdint.h>

#include "graphs.h"

/* The nodes that a new one waits for. */
struct gpc_depends {
    const CUgraphNode *nodes;
    const CUgraphEdgeData *data; /* NULL: all of the default kind */
    size_t count;
};

/* What it does: the structure of its type, or the event or graph itself. */
struct gpc_node_given {
    CUgraphNodeType type;
    const void *params;
    CUcontext context; /* NULL: the current one */
};

CUresult gpc_graph_add(uint16_t op, CUgraphNode *out, CUgraph graph,
                       const struct gpc_depends *depends, const struct gpc_node_given *given);
CUresult gpc_graph_add_any(uint16_t op, CUgraphNode *out, CUgraph graph,
                           const struct gpc_depends *depends, const CUgraphNodeParams *params);
/* In an instantiated graph, or (NULL) in its graph. */
CUresult gpc_node_set(uint16_t op, const CUgraphExec *exec, CUgraphNode node,
                      const struct gpc_node_given *given);
CUresult gpc_node_set_any(uint16_t op, const CUgraphExec *exec, CUgraphNode node,
                          const CUgraphNodeParams *params);
/* What it was given: `size` bytes of the structure of its type. */
CUresult gpc_node_get(uint16_t op, CUgraphNode node, CUgraphNodeType type, void *to, size_t size);
/* The parameters of CUDA 10 as those of CUDA 12; NULL stays NULL. */
const CUDA_KERNEL_NODE_PARAMS *gpc_kernel_of_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *from,
                                                CUDA_KERNEL_NODE_PARAMS *to);

/* A copy with memory that the GPU host has not: a node to make in a graph, or to change in an
 * instantiated one (graph_copy.c). */
struct gpc_route;
struct gpc_node_copy;
CUresult gpc_graph_copy(const struct gpc_route *on, const struct gpc_node_copy *copy,
                        CUgraphNode *made, CUgraph graph, CUgraphExec exec, CUgraphNode node);

/* The node's own copy of a kernel's parameters, which cuGraphKernelNodeGetParams gives. It stays
 * where it is for as long as it has the same layout: the application may still hold what it was
 * given before. */
struct gpc_kernel;
CUresult gpc_node_keep_parameters(struct gpc_node *noted, const struct gpc_kernel *k,
                                  const unsigned char *packed);

/* Nodes that allocate and free memory (graph_memory.c). */
CUresult gpc_node_alloc(uint16_t op, const struct gpc_route *on, CUgraph graph, CUgraphNode *made,
                        struct gpc_node *noted, CUDA_MEM_ALLOC_NODE_PARAMS *p);
CUresult gpc_node_free_memory(const struct gpc_route *on, CUgraph graph, CUgraphNode *made,
                              struct gpc_node *noted, const CUdeviceptr *at);
/* And those that go by a condition (graph_condition.c). */
CUresult gpc_node_condition(uint16_t op, const struct gpc_route *on, CUgraph graph,
                            CUgraphNode *made, struct gpc_node *noted,
                            CUDA_CONDITIONAL_NODE_PARAMS *p);
CUresult gpc_node_ask_alloc(CUgraphNode id, CUDA_MEM_ALLOC_NODE_PARAMS *p);

/* Take it out of its graph. */
CUresult gpc_node_destroy(CUgraphNode node);

/* Edges, and lists in CUDA's way: without room, the count. */
CUresult gpc_graph_link(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                        const CUgraphEdgeData *data, size_t count, bool remove);
CUresult gpc_graph_edges(CUgraph graph, const struct gpc_edges *to, size_t *count);
CUresult gpc_node_edges(CUgraphNode node, bool behind, CUgraphNode *nodes, CUgraphEdgeData *data,
                        size_t *count);
/* Of the two forms' outputs, those of the one that was called. */
CUresult gpc_exec_update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info,
                         CUgraphNode *node, CUgraphExecUpdateResult *result);

/* Say an attribute of a kernel node, or set it to what `value` says. */
CUresult gpc_node_attribute(uint16_t op, CUgraphNode node, CUkernelNodeAttrID attr,
                            const CUkernelNodeAttrValue *value);

#endif
