/*
 * Where a call is made: which session, in which context, on which stream and device. It is
 * resolved once, where the call enters, and handed down to everything that sends for it.
 *
 * What names it is what the spec says: an explicit stream, else another handle, a device, a
 * location, or an address in a device's window; what names nothing goes where the thread's
 * current context is. Once something has named the session, what belongs to another one is
 * the error that CUDA gives for a handle of another context. A library and its kernels belong
 * to no session: there they become their replicas (replica.h).
 */
#ifndef GPC_ROUTE_H
#define GPC_ROUTE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "gp_ops.h"

struct gpc_session;
struct gpc_call;

struct gpc_route {
    struct gpc_session *session; /* NULL: nothing has named one yet */
    CUcontext context;           /* in which the call is made; NULL: none is current */
    uint64_t stream;             /* as it travels; 0: none yet */
    CUstream named;              /* the same as the application has it */
    CUdevice device;             /* the context's, -1 if there is none; of a call on a stream */
    bool lends; /* what calls take along stays as it is until gpc_session_take_back */
};

/* The calling thread's context, and nothing named yet. */
struct gpc_route gpc_route_here(void);
/* To a session, whatever the call names; in the thread's context if that is one of it. */
struct gpc_route gpc_route_to(struct gpc_session *s);
/* A context's default stream. */
struct gpc_route gpc_route_in(CUcontext context);
/* The session, resolved if it was not; NULL without sessions. */
struct gpc_session *gpc_route_session(struct gpc_route *on);
/* Whether the route may be one of this session, as far as is known so far. */
bool gpc_route_take(struct gpc_route *on, struct gpc_session *s);
/* Take a stream in; what travels for it. The thread's own default stream is made when it
 * is first needed. */
CUresult gpc_route_stream(struct gpc_route *on, CUstream stream, uint64_t *wire);

/* --- for the generated encoders: what travels for an argument of a call ------------------- */

/* A stream, which names context and session, or one of the current context's own. */
CUresult gpc_stream_wire(struct gpc_call *call, CUstream stream, uint64_t *wire);
/* A handle: its id, or the error that CUDA gives for a wrong one of this kind. */
CUresult gpc_handle_wire(struct gpc_call *call, enum gp_handle_kind kind, uint64_t id,
                         bool nullable, uint64_t *wire);
/* The ordinal that the device has on its host; INVALID_DEVICE if there is none such. */
CUresult gpc_device_wire(struct gpc_call *call, CUdevice device, int32_t *wire);
/* A device address, which travels unchanged. One that lies in no session's windows names none. */
CUresult gpc_address_wire(struct gpc_call *call, uint64_t address);
/* The ordinal in a memory location, in place; what is no device's is left alone. */
CUresult gpc_location_wire(struct gpc_call *call, CUmemLocation *location);
CUresult gpc_access_wire(struct gpc_call *call, const CUmemAccessDesc *from, uint64_t count,
                         CUmemAccessDesc *to);
/* And back, from what the call's session answered. */
void gpc_location_back(const struct gpc_call *call, CUmemLocation *location);
/* The index of the session of a call that creates a handle. */
uint32_t gpc_call_index(struct gpc_call *call);

#endif
