/*
 * Device memory that this process hands out again without asking: what cuMemFree has freed, of up to
 * 2 MiB. The worker leaves such memory alone, one granule of each size (proto/wire/size_class.h), until
 * a message that may need free memory; gp_ops says which (`tidies`). So all that is known here is
 * forgotten when one is sent, and what a piece was chosen by must still hold when gp_memory_take is
 * sent. A piece is handed out when the work before its free is over: the worker says so, and while
 * nothing but what is `quiet` is sent since, every context's work that was over still is.
 */
#ifndef GPC_SPARE_H
#define GPC_SPARE_H

#include "call.h"
#include "ranges.h"
#include "session.h"

/* Memory of the route's context; NOT_READY: there is none, ask the worker. */
CUresult gpc_spare_take(const struct gpc_route *on, CUdeviceptr *at, size_t bytes);
/* Free memory of cuMemAlloc; NOT_READY: free it in the plain way. */
CUresult gpc_spare_free(const struct gpc_route *on, const struct gpc_range *range);
/* Another process may have it from now on, and what shares its pages: none of this size is kept. */
void gpc_spare_named(const struct gpc_range *range);
/* A message has its number; under submit_lock. */
void gpc_spare_sent(struct gpc_session *s, const struct gp_header *h);

#endif
