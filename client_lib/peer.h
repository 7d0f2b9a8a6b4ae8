/* Copies and waits between the hosts of two sessions. */
#ifndef GPC_PEER_H
#define GPC_PEER_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#include "ranges.h"

/* From a device of one host to a device of another, in the order of the stream. */
CUresult gpc_peer_copy(uint16_t op, const struct gpc_range *to, CUdeviceptr dst,
                       const struct gpc_range *from, CUdeviceptr src, size_t bytes,
                       CUstream stream, int blocking);

#endif
