/*
 * The client's ids and the driver's handles behind them: looked up by index,
 * kind and generation; a failed creation leaves its error, which every use of
 * the id then gives.
 */
#ifndef GPW_HANDLES_H
#define GPW_HANDLES_H

#include "session.h"

struct gpw_handles *gpw_handles_new(void);
void gpw_handles_free(struct gpw_handles *handles);

/* Whether the client may name a new object so. */
bool gpw_handle_free(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id);
/* Bind the id to the driver's handle, or to the error of its creation. */
void gpw_handle_put(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, uint64_t real,
                    CUresult result);
/* The driver's handle: INVALID_HANDLE (INVALID_CONTEXT, …) for an id that is not
 * live, or its creation's error. Streams: GP_STREAM_LEGACY gives CU_STREAM_LEGACY. */
CUresult gpw_handle_get(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, bool nullable,
                        uint64_t *real);
/* As get, and the id is free afterwards. */
CUresult gpw_handle_take(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id,
                         bool nullable, uint64_t *real);
/* A kernel's id, as get: a function that is none will not do. */
CUresult gpw_handle_get_kernel(struct gpw_session *s, uint64_t id, bool nullable, uint64_t *real);
/* A live id of the driver's object, 0 if it has none. Looks at all of the kind. */
uint64_t gpw_handle_find(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real);

/*
 * What the driver makes for another object goes with that one, and a handle that it has
 * let go must never come back to it. So an id lives as long as those that it is bound to:
 * a parent (0: none) and, if `of_context`, the context that is current now.
 */
void gpw_handle_bind(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, uint64_t parent,
                     bool of_context, uint16_t tag);
#define GPW_TAG_KERNEL 1u

/* The driver keeps a copy of the image that it has loaded: it is charged until the module or
 * library that is bound next has gone. */
void gpw_handle_next_image(struct gpw_session *s, uint64_t bytes);

/* Graphs go with the contexts that they were captured in, given as bits. What the handler
 * of a message knows of the graph that it makes; `capture`: one that is being captured,
 * and still the driver's. Its id lives while the stream captures into it. */
uint64_t gpw_handle_context_bit(struct gpw_session *s); /* of the current one */
void gpw_handle_next_graph(struct gpw_session *s, uint64_t contexts, uint64_t capture);
/* A capture has ended, and left this graph or none. */
void gpw_handle_capture_over(struct gpw_session *s, uint64_t real);

/* The client's id of a node; or one of the worker's own choosing, which goes with the graph; the
 * same node keeps its id. 0 when there are too many. */
uint64_t gpw_handle_name(struct gpw_session *s, uint64_t real, uint64_t graph);
/* The id of the graph that has a node, 0 if none is known to. */
uint64_t gpw_handle_graph_of(struct gpw_session *s, uint64_t node);
/* No two objects have the same; 0 for an id that is not live. */
uint64_t gpw_handle_birth(struct gpw_session *s, uint64_t id);
/* The driver's handle of the object that had this id and this birth; 0: it has gone. */
uint64_t gpw_handle_real(struct gpw_session *s, uint64_t id, uint64_t birth);
/* That of the object that is put next: for a handler, of what it makes. */
uint64_t gpw_handle_next_birth(const struct gpw_session *s);
/* The graph of the node that has this one as its child or body, by their ids; 0: none has. */
uint64_t gpw_handle_graph_around(struct gpw_session *s, uint64_t graph);
/* What its graph is charged for a node, both by their ids; 0 for one that is not live. */
void gpw_handle_share(struct gpw_session *s, uint64_t node, uint64_t bytes);
uint64_t gpw_handle_share_of(struct gpw_session *s, uint64_t node, uint64_t *graph);
/* The driver has let a node go before its graph. */
void gpw_handle_node_gone(struct gpw_session *s, uint64_t node);
/* The id of the context that the driver's object goes with, 0 if it goes with none; and its tag. */
uint64_t gpw_handle_context_of(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real,
                               uint16_t *tag);
/* What goes with another's contexts from now on: graphs, and what is instantiated of them. */
void gpw_handle_join_contexts(struct gpw_session *s, uint64_t id, uint64_t other);
void gpw_handle_join_context_bits(struct gpw_session *s, uint64_t id, uint64_t contexts);
/* Visit every live id of a kind. */
void gpw_handle_each(struct gpw_session *s, enum gp_handle_kind kind,
                     void (*visit)(struct gpw_session *, uint64_t id, uint64_t real, void *),
                     void *arg);

#endif
