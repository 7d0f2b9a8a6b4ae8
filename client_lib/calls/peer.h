/* Between the hosts of two sessions: copies, and streams that wait for events. */
#ifndef GPC_PEER_H
#define GPC_PEER_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#include "ranges.h"
#include "route.h"

/* What a copy between hosts has at one end: a session, and a device and a context of its if
 * they are known, else -1 and NULL. */
struct gpc_peer_end {
    struct gpc_session *session;
    CUdevice device;
    CUcontext context;
    CUdeviceptr at;
};

/* From a device of one host to a device of another, in the order of the stream. */
CUresult gpc_peer_copy(uint16_t op, const struct gpc_route *on, const struct gpc_peer_end *to,
                       const struct gpc_peer_end *from, size_t bytes, CUstream stream);
/* The stream waits for what an event of another host stands for now. */
CUresult gpc_peer_wait(uint16_t op, const struct gpc_route *on, CUstream stream, CUevent event,
                       unsigned flags);
/* Forget what is kept for a context that is no more. */
void gpc_peer_context_ended(CUcontext context);

/* A stream of this library's own in the route's context, on which nothing of the application's
 * is, and no transfer. */
CUresult gpc_lane_own(struct gpc_route *e, CUstream *stream);

#endif
