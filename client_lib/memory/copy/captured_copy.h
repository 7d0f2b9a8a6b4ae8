/* Whether a copy becomes a node of a graph. */
#ifndef GPC_CAPTURED_COPY_H
#define GPC_CAPTURED_COPY_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#include "route.h"

/* Whether `stream` is capturing; asks only while any capture is under way. */
CUresult gpc_stream_captures(const struct gpc_route *on, CUstream stream, bool *captures);

#endif
