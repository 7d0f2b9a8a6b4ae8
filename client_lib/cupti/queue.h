/*
 * Records that have come and are still to be written into an application's buffers, as CUPTI of
 * its version would have written them. A bounded number, and names of a bounded size: what comes
 * over a wire must not take all memory.
 */
#ifndef GPC_QUEUE_H
#define GPC_QUEUE_H

#include <stdbool.h>

#include "activity_record.h"
#include "cupti.h"

/* One moment in two clocks: CLOCK_MONOTONIC, and what the application's records are in. */
struct gpc_clock_pair {
    uint64_t ours, theirs;
};

struct gpc_queue_names;
struct gpc_queue {
    struct gpc_queued *list;
    size_t count, room;
    struct gpc_queue_names *names; /* kept for good: the application has pointers to them */
};

/* Each false: there are too many, or no memory. */
bool gpc_queue_activity(struct gpc_queue *q, const struct gp_activity_record *r, const char *name,
                        uint32_t correlation);
bool gpc_queue_api(struct gpc_queue *q, const struct gp_cupti_api *api);
bool gpc_queue_external(struct gpc_queue *q, uint32_t kind, uint64_t id, uint32_t correlation);

/* Write all: first what is said of calls, then what GPUs did, which refers to it. One copy that
 * was made in pieces is one. Returns how many `write` has refused. */
typedef bool gpc_queue_writer(void *arg, const void *record, size_t size);
size_t gpc_queue_write(const struct gpc_queue *q, const struct gpc_clock_pair *first,
                       const struct gpc_clock_pair *latest, gpc_queue_writer *write, void *arg);
/* All but the names. */
void gpc_queue_free(struct gpc_queue *q);

#endif
