/*
 * What an application has asked our CUPTI for, and the records on their way to it.
 *
 * Records are kept as they came until the application flushes, or has made calls for a while, and
 * then written into its buffers, on its own threads.
 */
#ifndef GPC_PROFILE_H
#define GPC_PROFILE_H

#include <stdbool.h>

#include "activity_table.h"
#include "cupti.h"

typedef uint64_t gpc_cupti_clock(void);

/* The table of our libcuda.so.1; NULL if the process has another one. */
const struct gpc_activity_table *gpc_profile_link(void);

/* All return what CUPTI's functions do. */
uint32_t gpc_profile_enable(uint32_t kind, bool on);
uint32_t gpc_profile_skip(uint32_t number, bool skip);
uint32_t gpc_profile_buffers(gp_cupti_requested *request, gp_cupti_completed *complete);
uint32_t gpc_profile_clock(gpc_cupti_clock *clock);
uint64_t gpc_profile_now(void);
/* How records of calls name their threads, a gp_cupti_thread. */
uint32_t gpc_profile_threads(uint32_t type);
uint32_t gpc_profile_thread_type(void);
uint32_t gpc_profile_flush(bool forced);
uint64_t gpc_profile_dropped(void);
uint32_t gpc_profile_push(uint32_t kind, uint64_t id);
uint32_t gpc_profile_pop(uint32_t kind, uint64_t *last);
/* Who is told of what the program does when it does it, on its thread. */
struct gpc_profile_listener {
    void (*context)(CUcontext context, bool made);
    /* Its `number` is CUPTI's, 0 if it has none; `result` is NULL where it begins. */
    void (*call)(struct gpc_observed *call, const CUresult *result);
};
/* NULL: nobody, from some later call on; without `calls` of contexts alone. The listener stays
 * where it is for the life of the process. */
void gpc_profile_listen(const struct gpc_profile_listener *listener, bool calls);
/* Everything as before the first call. */
void gpc_profile_end(void);

#endif
