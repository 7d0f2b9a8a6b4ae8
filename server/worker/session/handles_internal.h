/* What handles.c and handles_graph.c keep together. */
#ifndef GPW_HANDLES_INTERNAL_H
#define GPW_HANDLES_INTERNAL_H

#include "handles.h"

enum slot_state { SLOT_FREE, SLOT_LIVE, SLOT_FAILED };

struct slot {
    uint64_t real;
    uint64_t birth;           /* no two objects have the same; ids are used again */
    uint64_t parent, context; /* ids; it lives as long as they do. 0: of none */
    uint64_t parent_birth, context_birth;
    uint64_t contexts; /* of a graph: those that it was captured in, a bit each */
    uint64_t capture;  /* of a graph that is being captured: which; `parent` is the stream */
    uint64_t bytes;    /* of the host's memory that the driver keeps for it */
    uint64_t share;    /* of a node: what its graph is charged for it */
    uint32_t generation;
    uint16_t state;  /* slot_state */
    uint16_t result; /* of a failed creation */
    uint16_t tag;
};

/* Named by the worker: a node, by index. */
struct named {
    uint64_t real, graph; /* the driver's; 0: gone, its index may be had again */
    uint32_t generation;
};

/* What a look-up found last: most are of the stream and the few functions that a program uses all the
 * time. Good until any object comes or goes. */
struct found {
    uint64_t id, real, changes;
};
#define FOUND_KEPT 16

struct gpw_handles {
    uint64_t changes;                                        /* of slots; at least 1 */
    struct found streams[FOUND_KEPT], functions[FOUND_KEPT]; /* by an id's index */
    struct slot *slots[GP_HANDLE_KINDS];
    uint32_t rooms[GP_HANDLE_KINDS];
    struct named *named;
    uint32_t named_count, named_room;
    uint64_t births;
    bool aliased; /* some object has had a second id */
    /* what handlers know of the graph whose id is bound next */
    uint64_t next_contexts, next_capture;
    uint64_t next_image; /* bytes of the one that is loaded as the module bound next */
};

/* The slot of an id, growing the table if `grow`; NULL when the id cannot be. */
struct slot *gpw_slot_of(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, bool grow);
/* NULL unless it and all that it belongs to live. With `birth`, that object and no later one
 * of its id: a primary context has the same one each time, a client's ids are its own affair. */
struct slot *gpw_slot_live(struct gpw_session *s, uint64_t id, uint64_t birth);
bool gpw_slot_lives(struct gpw_session *s, const struct slot *slot);
void gpw_slot_free(struct gpw_session *s, struct slot *slot);
/* What it goes with from now on; 0: nothing. */
void gpw_slot_bind_parent(struct gpw_session *s, struct slot *slot, uint64_t parent);
/* A bit for each context; from 63 on they share one. */
uint64_t gpw_context_bit(uint64_t id);

/* handles_graph.c */
const struct named *gpw_named_of(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id);
void gpw_slot_bind_graph(struct gpw_session *s, struct slot *slot, uint64_t parent);
void gpw_slot_bind_node(struct gpw_session *s, struct slot *slot, uint64_t graph);
/* The driver's graph is gone, and its nodes; a context's graphs are; one of this address that was
 * being captured may be. */
void gpw_nodes_gone(struct gpw_session *s, uint64_t graph);
void gpw_graphs_of_context_gone(struct gpw_session *s, uint64_t id);
void gpw_graph_stale_gone(struct gpw_session *s, uint64_t real);

#endif
