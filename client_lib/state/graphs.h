/*
 * Graphs that were built by hand, as the client knows them: their nodes, edges, and what each
 * node was given. What a capture, a clone or a child node has made is the worker's to know.
 */
#ifndef GPC_GRAPHS_H
#define GPC_GRAPHS_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a node does, by its type. */
union gpc_node_work {
    CUDA_KERNEL_NODE_PARAMS kernel; /* its parameters are the node's own */
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS memset;
    CUDA_HOST_NODE_PARAMS host;
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch; /* its operations are the node's own */
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;    /* who has access: the node's own */
    CUdeviceptr freed;
    CUDA_CONDITIONAL_NODE_PARAMS condition; /* its bodies are the node's */
    CUevent event;
    CUgraph child; /* once it was asked for */
};

/* Its bytes, as a launch packs them, and where each lies. */
struct gpc_node_parameters {
    void **pointers;
    uint32_t count, size; /* of parameters; of their bytes */
    unsigned char bytes[];
};

struct gpc_edge {
    CUgraphNode node;
    CUgraphEdgeData data;
};

struct gpc_edge_list {
    struct gpc_edge *at;
    size_t count, room;
};

struct gpc_node {
    CUgraphNode id;
    CUgraph graph;
    CUgraphNodeType type;
    CUcontext context; /* in which its work is made */
    unsigned own_ends; /* of a copy: which are memory of this process's own (captured_copy.h) */
    union gpc_node_work work;
    struct gpc_node_parameters *parameters;
    CUstreamBatchMemOpParams *operations;
    CUmemAccessDesc *access;
    CUgraph *bodies;
    unsigned body_count;
    struct gpc_edge_list before, behind;
};

/* A list of edges, as calls name it; `data` may be NULL. */
struct gpc_edges {
    CUgraphNode *from, *to;
    CUgraphEdgeData *data;
};

/* All below is under this lock. */
void gpc_graphs_lock(void);
void gpc_graphs_unlock(void);

/* A graph was made, empty; or is a node's. False without memory. */
bool gpc_graph_known(CUgraph graph);
bool gpc_graph_of_node(CUgraph graph);
/* Both: a body, which is filled by hand. */
bool gpc_graph_of_condition(CUgraph graph);
/* Whether all its nodes are known here; whether it goes with a node. */
bool gpc_graph_is_known(CUgraph graph);
bool gpc_graph_is_child(CUgraph graph);
/* Whether it allocates or frees memory, as far as is known: nothing is taken out of it then. */
bool gpc_graph_has_memory(CUgraph graph);
/* From now on it has nodes that are not; those that are stay. */
void gpc_graph_unknown(CUgraph graph);
/* Forget it, its nodes and their handles, but not its own. */
void gpc_graph_forget(CUgraph graph);

/* NULL if it was not made by hand. */
struct gpc_node *gpc_node_of(CUgraphNode node);
/* A node that is no graph's yet, and how to let it go again. */
struct gpc_node *gpc_node_new(void);
void gpc_node_free(struct gpc_node *node);
/* It has a handle and is a graph's from now on. False without memory. */
bool gpc_node_join(struct gpc_node *node);
/* It leaves its graph: its edges and its handle go. */
void gpc_node_leave(struct gpc_node *node);

/* Add or remove an edge. INVALID_VALUE: it is there already, or is not. */
CUresult gpc_edge_add(struct gpc_node *from, struct gpc_node *to, const CUgraphEdgeData *data);
CUresult gpc_edge_remove(struct gpc_node *from, struct gpc_node *to, const CUgraphEdgeData *data);
/* What an edge has; all zeros if there is none. */
CUgraphEdgeData gpc_edge_data(const struct gpc_node *from, const struct gpc_node *to);

/* The nodes of a known graph, in the order in which they came; NULL behind the last. */
struct gpc_node *gpc_graph_node(CUgraph graph, size_t index);

#endif
