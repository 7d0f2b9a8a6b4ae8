/*
 * What a session may take of its host, by name: memory that the worker keeps for it (calls that
 * wait, pinned buffers, memory that the client places on the host, images, graphs, handles),
 * memory of the client's own that the worker pins, and how many pieces of that. Each budget has
 * a limit (--budget NAME=N) over all its kinds; whoever makes something grow takes first and
 * gives back when it is freed. The server shows the sums. What the kernel holds is only looked at.
 */
#ifndef GPW_BUDGET_H
#define GPW_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gpw_budget {
    GPW_BUDGET_HOST_MEMORY,   /* bytes */
    GPW_BUDGET_PINNED_MEMORY, /* bytes: the client's files of memory */
    GPW_BUDGET_SHARES,        /* their number: each is a mapping here */
    GPW_BUDGET_DISK,          /* bytes: what its jail lets it write. The kernel holds this one */
    GPW_BUDGET_OPEN_FILES,    /* their number; likewise */
    GPW_BUDGETS,
};

/* What grows, and of which budget. */
enum gpw_use {
    GPW_USE_WAITS,    /* host memory: calls put off, waits, host functions */
    GPW_USE_STAGING,  /* … pinned buffers for copies */
    GPW_USE_HOST,     /* … allocations that are the host's, buffers of captured graphs */
    GPW_USE_IMAGES,   /* … uploaded, not loaded yet */
    GPW_USE_GRAPHS,   /* … nodes, as the driver keeps them */
    GPW_USE_OBJECTS,  /* … handles and what they name, loaded images among it */
    GPW_USE_ACTIVITY, /* … buffers of records of what the GPU does */
    GPW_USE_PINNED,   /* pinned memory */
    GPW_USE_SHARES,   /* shares */
    GPW_USES,
};

struct gpw_session;

/* A session's use. Any thread, by atomic operations. */
struct gpw_budget_use {
    struct gpw_budget_sum {
        uint64_t limit, used, refused; /* limit 0: none */
    } of[GPW_BUDGETS];
    uint64_t by_use[GPW_USES];
    bool told[GPW_USES];
    /* Give back host memory that is kept only while nobody needs it, on any thread: behind it none
     * is charged. NULL: there never is any. */
    void (*spare)(struct gpw_session *s);
    /* The same of what the driver has to be asked for, which may wait for the GPU's work: not for
     * what waits itself. Whether there was some. */
    bool (*spare_pinned)(struct gpw_session *s);
};

/* "NAME=N": that budget's limit; 0: none. -1: no such budget, or no such number. */
int gpw_budget_parse(const char *text, uint64_t limits[GPW_BUDGETS]);
void gpw_budget_open(struct gpw_session *s, enum gpw_budget budget, uint64_t limit);
/* False: over the limit. The first refusal of each use is logged. */
bool gpw_budget_take(struct gpw_session *s, enum gpw_use use, uint64_t amount);
/* What is there already, over the limit or not. */
void gpw_budget_force(struct gpw_session *s, enum gpw_use use, uint64_t amount);
void gpw_budget_give(struct gpw_session *s, enum gpw_use use, uint64_t amount);
uint64_t gpw_budget_used(const struct gpw_session *s, enum gpw_budget budget);
uint64_t gpw_budget_limit(const struct gpw_session *s, enum gpw_budget budget);
uint64_t gpw_budget_refused(const struct gpw_session *s, enum gpw_budget budget);
/* JSON of the uses of host memory: {"waits": BYTES, …}; of the budgets: {"host_memory": {"used":
 * N, "limit": N, "refused": N}, …}. Return the length as snprintf does; from any thread. */
int gpw_budget_describe_uses(const struct gpw_session *s, char *out, size_t size);
int gpw_budget_describe(const struct gpw_session *s, char *out, size_t size);

#endif
