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
typedef void gpc_cupti_callback(void *userdata, uint32_t domain, uint32_t number, const void *data);

/* The table of our libcuda.so.1; NULL if the process has another one. */
const struct gpc_activity_table *gpc_profile_link(void);

/* All return what CUPTI's functions do. */
uint32_t gpc_profile_enable(uint32_t kind, bool on);
uint32_t gpc_profile_skip(uint32_t number, bool skip);
uint32_t gpc_profile_buffers(gp_cupti_requested *request, gp_cupti_completed *complete);
uint32_t gpc_profile_clock(gpc_cupti_clock *clock);
uint64_t gpc_profile_now(void);
uint32_t gpc_profile_flush(bool forced);
uint64_t gpc_profile_dropped(void);
uint32_t gpc_profile_push(uint32_t kind, uint64_t id);
uint32_t gpc_profile_pop(uint32_t kind, uint64_t *last);
/* Tell of contexts; NULL: no more. */
void gpc_profile_contexts(void (*told)(CUcontext context, bool made));
/* Everything as before the first call. */
void gpc_profile_end(void);

#endif
