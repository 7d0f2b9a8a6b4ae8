/* Copies of pinned memory that is not shared, captured into a graph. */
#ifndef GPC_CAPTURED_COPY_H
#define GPC_CAPTURED_COPY_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#include "route.h"

/* Whether `stream` is capturing; asks only while any capture is under way. */
CUresult gpc_stream_captures(const struct gpc_route *on, CUstream stream, bool *captures);

/* Capture a copy between device memory and pinned memory of this process's own. Each
 * launch of the graph reads or writes the memory as it then is. */
CUresult gpc_captured_copy(struct gpc_route *on, CUdeviceptr device, void *host, size_t bytes,
                           CUstream stream, bool to_device);

#endif
