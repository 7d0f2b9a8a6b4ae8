/* Graphs of the soft GPU: nodes, edges, captures, and what is instantiated. Part of softgpu.h. */
#ifndef SG_GRAPH_OBJECTS_H
#define SG_GRAPH_OBJECTS_H

#include "softgpu.h"

struct sg_edge {
    CUgraphNode node;
    CUgraphEdgeData data; /* kept and told; every edge is a full one here */
};
struct CUgraphNode_st {
    CUgraph graph;
    struct sg_op *op;
    CUgraphNodeType type;
    CUgraph child;   /* child graph nodes: their own copy */
    CUgraph *bodies; /* conditional nodes: their own */
    unsigned body_count;
    CUgraphNode origin;      /* in a clone or an executable: the node copied from */
    struct sg_edge *depends; /* nodes that come before */
    size_t depend_count;
    bool disabled; /* in an executable */
    size_t order;  /* scratch for sorting and copying */
};
/* References to user objects, of a graph or of a launch (user_object.c). */
struct sg_kept {
    struct sg_kept *next;
    CUuserObject object;
    uint64_t count;
};
/* Those of `from` as well: OUT_OF_MEMORY if that cannot be. sg.lock is held. */
CUresult sg_kept_copy(struct sg_kept **to, const struct sg_kept *from);
void sg_kept_release(struct sg_kept **kept);

struct CUgraph_st {
    CUgraphNode *nodes; /* in the order of their making */
    size_t node_count, node_room;
    bool owned;     /* by a node, an executable or a capture: cuGraphDestroy refuses */
    bool is_body;   /* of a conditional node: it may be filled all the same */
    bool capturing; /* a capture fills it */
    unsigned depth; /* conditional nodes around it */
    struct sg_kept *kept;
    CUgraph origin;
};
struct CUgraphExec_st {
    CUgraph graph; /* a copy, its nodes sorted */
    cuuint64_t flags;
};
CUgraph sg_graph_new(void);
void sg_graph_free(CUgraph graph);
/* Adds a node; takes `op` over even when it fails. sg.lock is held. */
CUresult sg_graph_add(CUgraph graph, struct sg_op *op, CUgraphNodeType type,
                      const CUgraphNode *depends, size_t count, CUgraphNode *out);
CUresult sg_graph_copy(CUgraph graph, CUgraph *out);
/* Takes a node out of its graph. */
void sg_graph_drop(CUgraphNode node);
/* What the graph's nodes do, one after the other; `resets`: behind its conditions' initial values. */
CUresult sg_graph_op(CUgraph graph, CUcontext context, bool resets, struct sg_op **out);
/* Whether there is an edge with this data; of any if `data` is NULL. */
bool sg_graph_linked(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data);
/* NULL: of the default kind. */
CUresult sg_graph_link(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data);
void sg_graph_unlink(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data);
/* Whether an edge from a node may have this data (NULL: the default). */
bool sg_edge_is_legal(CUgraphNode from, const CUgraphEdgeData *data);
/* Nodes of a graph, each once, and what edges from them may have; INVALID_VALUE if not. */
CUresult sg_edges_check(CUgraph graph, const CUgraphNode *from, const CUgraphEdgeData *data,
                        size_t count);
/* Orders the nodes so that each comes after what it depends on; INVALID_VALUE: a cycle. */
CUresult sg_graph_sort(CUgraph graph);
/* What a new node's graph and dependencies are checked for. */
CUresult sg_node_check(CUgraphNode *out, CUgraph graph, const CUgraphNode *depends, size_t count);
/* The node of a type to change: in an executable, or (NULL) the node itself. */
CUresult sg_node_target(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUgraphNode *out);
/* Replaces a node's operation, taking `op` over. */
void sg_node_replace(CUgraphNode node, struct sg_op *op);

/* A launch from a graph node's parameters, with the attributes that it has (NULL: a new one). */
CUresult sg_kernel_node_op(const CUDA_KERNEL_NODE_PARAMS *params, CUcontext context,
                           CUgraphNode node, struct sg_op **out);

/* ---- capture (capture.c) ---- */
struct sg_capture {
    int refs;
    uint64_t id;
    CUstream origin;
    CUgraph graph;
    CUstreamCaptureMode mode;
    pthread_t thread;
    CUresult invalid; /* CUDA_SUCCESS while good */
    bool own_graph;   /* false: cuStreamBeginCaptureToGraph */
    bool was_owned;   /* that graph, before */
};
void sg_capture_unref(struct sg_capture *capture);
/* Nodes in the place of those that are there, or added to them; `data` NULL: edges of the
 * default kind. */
CUresult sg_tips_set(struct sg_tips *tips, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                     size_t count);
CUresult sg_tips_add(struct sg_tips *tips, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                     size_t count);
void sg_tips_clear(struct sg_tips *tips);
CUresult sg_capture_add(CUstream stream, struct sg_op *op); /* takes the reference over */
CUresult sg_capture_wait(CUstream stream, CUevent event);
CUresult sg_capture_record(CUstream stream, CUevent event);
void sg_capture_leave(CUstream stream);
/* Before a call that may not happen while a capture watches this thread:
 * invalidates the capture and says STREAM_CAPTURE_UNSUPPORTED. sg.lock is held. */
CUresult sg_capture_unsafe(void);
/* Before use of the legacy stream: STREAM_CAPTURE_IMPLICIT while a blocking stream captures. */
CUresult sg_capture_legacy(CUstream stream);

/* ---- memory of graphs (graph_memory.c); sg.lock is held ---- */
/* An operation that allocates a block with an address of its own, and one that frees it in a graph:
 * INVALID_VALUE if it is no block's, or freed in a graph already. */
CUresult sg_block_alloc(CUcontext context, struct sg_device *device, uint64_t size,
                        CUdeviceptr *address, struct sg_op **out);
CUresult sg_block_free_captured(CUcontext context, CUgraph graph, CUdeviceptr address,
                                struct sg_op **out);
/* One that frees it behind a launch: INVALID_VALUE if it is not allocated. */
CUresult sg_block_free(CUcontext context, struct sg_block *block, struct sg_op **out);
CUresult sg_block_give(struct sg_block *block); /* at once */
void sg_block_node_gone(const struct sg_op *op, CUgraph graph);
void sg_block_run(const struct sg_op *op); /* takes sg.lock */
void sg_block_op_gone(const struct sg_op *op);
/* What a launch with these operations allocates has memory now; `frees`: also what an earlier
 * launch has left. Whether it succeeds or not, it has passed at some time. */
CUresult sg_blocks_launch(struct sg_op *const *list, size_t n, bool frees);
void sg_blocks_passed(struct sg_op *const *list, size_t n);
/* A graph with such nodes is instantiated once at a time. */
CUresult sg_blocks_instantiate(CUgraph graph);
void sg_blocks_run(CUgraph graph, bool runs);
bool sg_graph_has_memory(CUgraph graph);
static inline bool sg_node_is_memory(CUgraphNode node)
{
    return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}

/* ---- nodes that kernels update (graph_updates.c); sg.lock is held, where nothing else is said ---- */
/* What the kernel's attributes say: by the name that is there, or as a new node of its own. */
CUresult sg_updates_take(struct sg_kernel *kernel);
void sg_updates_drop(struct sg_updates *updates);
CUgraphDeviceNode sg_updates_name(const struct sg_kernel *kernel); /* NULL: it is none */
bool sg_updates_any(CUgraph graph);
/* Of an executable: once at a time. */
CUresult sg_updates_instantiate(CUgraph graph);
void sg_updates_end(CUgraph graph);
/* What kernels have changed is as the node has it again. */
CUresult sg_updates_begin(const struct sg_kernel *kernel);
bool *sg_updates_disabled(CUgraphNode node);
/* On the way to the kernel, without sg.lock: `parameters` are to be freed. */
CUresult sg_updates_now(const struct sg_kernel *kernel, struct sg_launch *launch,
                        unsigned char **parameters, bool *runs);
bool sg_updates_change(uint64_t name, const struct sg_update *update);

/* ---- conditional nodes (graph_condition.c); sg.lock is held, where nothing else is said ---- */
CUresult sg_condition_node_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *depends,
                               size_t count, CUDA_CONDITIONAL_NODE_PARAMS *p); /* takes it */
CUresult sg_condition_copy(CUgraphNode from, CUgraphNode to);
void sg_condition_node_gone(CUgraphNode node);
void sg_conditions_of_graph_gone(CUgraph graph);
void sg_condition_op_gone(const struct sg_op *op);
/* Whether a graph may be instantiated; if not, why, and which node is wrong. */
CUresult sg_conditions_check(CUgraph graph, CUgraphInstantiateResult *why, CUgraphNode *wrong);
/* What a launch begins with, into a list (NULL: they are counted alone); no memory leaves NULL. */
size_t sg_condition_resets(CUgraph graph, struct sg_op **list);
CUresult sg_condition_launch(CUgraphNode node, struct sg_op **out);
/* With no lock held: on a stream, and by a kernel. */
CUresult sg_condition_run(const struct sg_op *op);
void sg_condition_set(void *context, uint64_t id, uint32_t value);

/* ---- what kernels may name (graph_device.c); sg.lock is held ---- */
/* Whether a graph may be instantiated with these flags for kernels that launch it; if not, why, and
 * which node is wrong. */
CUresult sg_device_launch_check(CUgraph graph, cuuint64_t flags, CUgraphInstantiateResult *why,
                                CUgraphNode *wrong);

/* What an entry point of graphs or nodes begins with: the lock, and a live handle. */
#define SG_GRAPH_CHECK(graph)                                                                      \
    SG_LOCKED;                                                                                     \
    SG_READY();                                                                                    \
    if (!sg_handle_is(graph, SG_GRAPH))                                                            \
    return CUDA_ERROR_INVALID_VALUE
#define SG_NODE_CHECK(node)                                                                        \
    SG_LOCKED;                                                                                     \
    SG_READY();                                                                                    \
    if (!sg_handle_is(node, SG_NODE))                                                              \
    return CUDA_ERROR_INVALID_VALUE

#endif
