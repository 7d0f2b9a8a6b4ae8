/* Nodes that stand in the client's graphs and are not the application's. */
#ifndef GPW_GRAPH_H
#define GPW_GRAPH_H

#include "session.h"

/* 0, or -1 when there is no memory. */
int gpw_graphs_open(struct gpw_session *s);

/* The node captured last into `stream` is in no list that the client asks for. */
CUresult gpw_graph_hide_last(struct gpw_session *s, CUstream stream);

/* Whether a graph has such nodes; whether a node is of one that has. What the client would do to
 * the edges there cannot be done. */
bool gpw_graph_has_hidden(struct gpw_session *s, CUgraph graph);
bool gpw_graph_is_beside_hidden(struct gpw_session *s, CUgraphNode node);

/* The next of them, from `*at` on, which begins with 0; NULL behind the last. */
CUgraphNode gpw_graph_hidden(struct gpw_session *s, CUgraph graph, size_t *at);

/* Its nodes' addresses may come again. */
void gpw_graph_ending(struct gpw_session *s, CUgraph graph);

/* A capture has begun, or not; it has ended and left a graph, or not (`r`). */
void gpw_capture_begun(struct gpw_session *s, CUresult r);
void gpw_capture_ended(struct gpw_session *s, CUresult r, CUgraph graph);
/* For what a graph could not do again; CUDA_ERROR_NOT_SUPPORTED while the stream captures. */
CUresult gpw_not_capturing(struct gpw_session *s, CUstream stream);

/* What a stream captures next comes behind these nodes, by their ids: a capture into `graph`
 * begins, in the mode `how`, or (NULL) the one that is under way goes on, with the flags `how`. */
CUresult gpw_capture_behind(struct gpw_session *s, CUstream stream, CUgraph graph, uint32_t how,
                            uint32_t count, const uint64_t *nodes, const CUgraphEdgeData *data,
                            uint64_t *capture_id);

/* What is captured from here on may be of the current context; for every message. */
void gpw_captures_note(struct gpw_session *s);
/* Whether some stream may be under capture. */
bool gpw_captures_any(const struct gpw_session *s);
/* Whether and into what a stream is captured. */
CUresult gpw_capture_of(struct gpw_session *s, CUstream stream, CUstreamCaptureStatus *state,
                        cuuint64_t *id, CUgraph *graph);

#endif
