/*
 * Waits that the GPU ends itself, where memory is shared: behind the work it writes a number into
 * the wait's place of a page that both sides map, and the thread that waits looks there for a
 * moment before it sleeps. The worker answers all the same: that answer ends what takes long, tells
 * of errors, and until it has come the place is the wait's, whoever has gone on meanwhile.
 *
 * The worker writes nothing for kernels that may print, whose output comes before the answer.
 * What stands in the page is the worker's to say and the GPU's to write: a wrong number makes a
 * wait of this session end too early, and leads nowhere.
 */
#ifndef GPC_COMPLETION_H
#define GPC_COMPLETION_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "route.h"

/* Wait until the route's stream has nothing left to do. */
CUresult gpc_complete_stream(const struct gpc_route *on, CUstream stream);
/* Copy device memory behind the work of the route's stream. False: it is to be asked for otherwise;
 * `*r` is not set then. */
bool gpc_complete_download(const struct gpc_route *on, void *to, uint64_t src, size_t bytes,
                           CUresult *r);

#endif
