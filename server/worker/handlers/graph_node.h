/*
 * Nodes of graphs, made or changed by hand: `made` and `graph`, or the node, in an instantiated
 * graph if one is given. What the client says of their work is checked as it is of a stream's.
 */
#ifndef GPW_GRAPH_NODE_H
#define GPW_GRAPH_NODE_H

#include "session.h"

CUresult gpw_node_kernel(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                         CUgraphNode node, CUfunction function, const uint32_t *shape,
                         const void *parameters, uint32_t parameter_bytes);
CUresult gpw_node_copy(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                       CUgraphNode node, const CUDA_MEMCPY3D *copy);
CUresult gpw_node_memset(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                         CUgraphNode node, CUdeviceptr dst, uint64_t pitch, uint32_t value,
                         uint32_t element, uint64_t width, uint64_t height);
CUresult gpw_node_event(struct gpw_session *s, CUgraphExec exec, CUgraphNode node, CUevent event,
                        bool record);
/* graph_told.c: the client's id of the event. */
CUresult gpw_node_event_told(struct gpw_session *s, CUgraphNode node, bool record, uint64_t *event);
/* A changed node (`r`) has work for the GPU of the current context, and goes with it. */
CUresult gpw_node_changed(struct gpw_session *s, CUgraphExec exec, CUgraphNode node, CUresult r);
/* Edges, by the client's ids of their nodes; `data` has a CUgraphEdgeData for each, as a number. */
CUresult gpw_graph_link(struct gpw_session *s, CUgraph graph, bool remove, uint32_t count,
                        const uint64_t *from, const uint64_t *to, const uint64_t *data);
/* host_function.c */
CUresult gpw_node_host(struct gpw_session *s, CUgraphNode *made, CUgraph graph, CUgraphExec exec,
                       CUgraphNode node, uint64_t cookie);

#endif
