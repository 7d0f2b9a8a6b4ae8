/*
 * What a session may take of its host's memory: for calls that wait, for pinned buffers, for
 * memory that the client places on the host, for images, graphs and handles. One limit over
 * all of it (--host-memory); whoever makes something grow takes the bytes first and gives them
 * back when it is freed. The server shows the sums.
 */
#ifndef GPW_BUDGET_H
#define GPW_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gpw_budget {
    GPW_BUDGET_WAITS,   /* calls put off, waits, host functions */
    GPW_BUDGET_STAGING, /* pinned buffers for copies */
    GPW_BUDGET_HOST,    /* allocations that are the host's, buffers of captured graphs */
    GPW_BUDGET_IMAGES,  /* uploaded, not loaded yet */
    GPW_BUDGET_GRAPHS,  /* nodes, as the driver keeps them */
    GPW_BUDGET_OBJECTS, /* handles and what they name */
    GPW_BUDGET_KINDS,
};

/* A session's use. Any thread, by atomic operations. */
struct gpw_budget_use {
    uint64_t limit, used, refused;
    uint64_t by_kind[GPW_BUDGET_KINDS];
    bool told[GPW_BUDGET_KINDS];
};

struct gpw_session;

/* The limit in bytes; 0: none. */
void gpw_budget_open(struct gpw_session *s, uint64_t limit);
/* False: over the limit. The first refusal of each kind is logged. */
bool gpw_budget_take(struct gpw_session *s, enum gpw_budget kind, uint64_t bytes);
/* What is there already, over the limit or not. */
void gpw_budget_force(struct gpw_session *s, enum gpw_budget kind, uint64_t bytes);
void gpw_budget_give(struct gpw_session *s, enum gpw_budget kind, uint64_t bytes);
uint64_t gpw_budget_used(const struct gpw_session *s);
uint64_t gpw_budget_limit(const struct gpw_session *s);
uint64_t gpw_budget_refused(const struct gpw_session *s);
/* JSON: {"waits": BYTES, …}. Returns its length as snprintf does; from any thread. */
int gpw_budget_describe(const struct gpw_session *s, char *out, size_t size);

#endif
