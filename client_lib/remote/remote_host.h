/*
 * Memory of one host, named in a call on a stream of another: CUDA allows that for
 * copies and sets. The stream is waited for, then the call is made where the memory
 * is, and waited for as well.
 */
#ifndef GPC_REMOTE_HOST_H
#define GPC_REMOTE_HOST_H

#include <cuda.h>
#include <stdbool.h>

#include "ranges.h"
#include "session.h"

/* The session that has the range; NULL for memory of no device. */
struct gpc_session *gpc_range_session(const struct gpc_range *range);
/* Whether the range is a device's of another host than the route's. */
bool gpc_range_is_remote(const struct gpc_range *range, const struct gpc_route *on);
/* Wait for the stream of `on`; `there` becomes the default stream of a context on the range's
 * host, for the call to be made. On failure there is nothing to end. */
CUresult gpc_remote_begin(struct gpc_route *there, const struct gpc_range *range,
                          const struct gpc_route *on, CUstream stream);
/* Wait for it if `r` is success; `r`, or what the wait gave. */
CUresult gpc_remote_end(const struct gpc_route *there, CUresult r);

#endif
