/* Whether a copy becomes a node of a graph. */
#ifndef GPC_CAPTURED_COPY_H
#define GPC_CAPTURED_COPY_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#include "route.h"

/* Whether `stream` is capturing; asks only while any capture is under way. */
CUresult gpc_stream_captures(const struct gpc_route *on, CUstream stream, bool *captures);

/* Which ends of a copy are memory of this process's own, that the GPU host has not. */
#define GPC_COPY_FROM_OWN 1u
#define GPC_COPY_TO_OWN 2u
struct gpc_copy;
unsigned gpc_copy_own_ends(const struct gpc_copy *c);
/* They become buffers of the worker's, with the functions that a graph must run before the copy
 * and behind it. What those have goes by gpc_copy_let_go. */
CUresult gpc_copy_moved(struct gpc_copy *c, CUDA_HOST_NODE_PARAMS *before,
                        CUDA_HOST_NODE_PARAMS *behind);
void CUDA_CB gpc_copy_let_go(void *arg);

#endif
