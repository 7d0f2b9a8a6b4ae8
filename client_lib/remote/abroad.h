/*
 * Memory of one host, named in a call on a stream of another: CUDA allows that for
 * copies and sets. The stream is waited for, then the call is made where the memory
 * is, and waited for as well.
 */
#ifndef GPC_ABROAD_H
#define GPC_ABROAD_H

#include <cuda.h>
#include <stdbool.h>

#include "ranges.h"
#include "session.h"

struct gpc_abroad {
    CUcontext before; /* the thread's, until gpc_abroad_end */
};

/* The session that has the range; NULL for memory of no device. */
struct gpc_session *gpc_range_session(const struct gpc_range *range);
/* Whether the range is a device's of another session than the stream's. */
bool gpc_is_abroad(const struct gpc_range *range, CUstream stream);
/* Wait for the stream; from here on the thread is in a context on the range's host, with
 * CU_STREAM_LEGACY for the call to be made. On failure there is nothing to end. */
CUresult gpc_abroad_begin(struct gpc_abroad *a, const struct gpc_range *range, CUstream stream);
/* Wait for it if `r` is success, and go back; `r`, or what the wait gave. */
CUresult gpc_abroad_end(struct gpc_abroad *a, CUresult r);

#endif
