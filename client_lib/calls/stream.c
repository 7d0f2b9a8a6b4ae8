#include "stream.h"

#include <stdlib.h>

#include "call.h"
#include "captured_copy.h"
#include "captures.h"
#include "completion.h"
#include "export.h"
#include "gpc_stubs.h"
#include "gpc_wire.h"
#include "handle.h"
#include "host_function.h"
#include "ipc.h"
#include "its.h"
#include "managed.h"
#include "operations_there.h"
#include "peer.h"
#include "session.h"
#include "shared.h"

static unsigned long long last_id = 2; /* 1 and 2 are the default streams' */
static unsigned independent;           /* those that the legacy stream does not wait for */

static struct gpc_stream *stream_of(CUstream hStream)
{
    return gpc_handle_shadow(GP_HANDLE_STREAM, (uint64_t)hStream);
}

static bool is_default(CUstream hStream)
{
    return hStream == NULL || hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD;
}

/* As CUDA does with what is out of range. */
static int clamped(CUcontext context, int priority)
{
    const struct gp_device_info *d = gpc_device_info(gpc_context_device(context));
    if (!d)
        return priority;
    if (priority > d->least_priority)
        return d->least_priority;
    return priority < d->greatest_priority ? d->greatest_priority : priority;
}

CUresult gpc_stream_note_in(CUcontext context, CUstream made, unsigned flags, int priority)
{
    struct gpc_stream *s = malloc(sizeof *s);
    if (!s) {
        gpc_wire_cuStreamDestroy_v2(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *s = (struct gpc_stream){context, flags, clamped(context, priority),
                             __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED)};
    gpc_handle_attach((uint64_t)made, s);
    if (flags & CU_STREAM_NON_BLOCKING)
        __atomic_add_fetch(&independent, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

static void forget(struct gpc_stream *s)
{
    if (s->flags & CU_STREAM_NON_BLOCKING)
        __atomic_sub_fetch(&independent, 1, __ATOMIC_RELAXED);
    gpc_handle_free(s);
}

CUresult gpc_stream_note(CUstream made, unsigned flags, int priority)
{
    return gpc_stream_note_in(gpc_current(), made, flags, priority);
}

CUresult gpc_as_cuStreamDestroy_v2(uint16_t op, CUstream hStream)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, op, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_stream *s = stream_of(hStream);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    r = gpc_wire_cuStreamDestroy_v2_on(&on, hStream);
    gpc_captures_ended((uint64_t)hStream); /* what it captured goes with it */
    if (r == CUDA_SUCCESS) {
        gpc_managed_stream_ended((uint64_t)hStream);
        forget(s);
    }
    return gpc_leave(r);
}

static void stream_ended(uint64_t id, void *shadow, void *context)
{
    struct gpc_stream *s = shadow;
    if (s && s->context == context) {
        gpc_handle_drop(id);
        forget(s);
    }
}

void gpc_stream_context_ended(CUcontext context)
{
    gpc_handle_each(GP_HANDLE_STREAM, stream_ended, context);
}

CUcontext gpc_stream_context(CUstream hStream)
{
    const struct gpc_stream *s = stream_of(hStream);
    return s ? s->context : NULL;
}

unsigned long long gpc_stream_identity(CUcontext context, CUstream hStream, int per_thread)
{
    if (hStream == NULL)
        hStream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (is_default(hStream))
        return ((uint64_t)context << 8) ^ (uint64_t)hStream;
    return stream_of(hStream) ? (uint64_t)hStream : 0;
}

/* No stream that could be blocked, for want of a message that is still to come, is waited for by
 * work on this one if it was idle. */
bool gpc_stream_is_independent(CUstream hStream, uint64_t wire)
{
    const struct gpc_stream *s = is_default(hStream) ? NULL : stream_of(hStream);
    if (gpc_host_functions_outstanding()) /* the default stream waits for others that may be blocked */
        return false;
    return wire == GP_STREAM_LEGACY || (s && (s->flags & CU_STREAM_NON_BLOCKING));
}

bool gpc_stream_is_alone(const struct gpc_route *on)
{
    return on->stream == GP_STREAM_LEGACY && !gpc_ipc_used() &&
           __atomic_load_n(&independent, __ATOMIC_RELAXED) == 0 &&
           !__atomic_load_n(&on->session->several_contexts, __ATOMIC_RELAXED);
}

/*
 * The stream was idle, and since then bytes were copied to the device that are taken over
 * already, as from pageable memory: frameworks wait for each such copy. Nothing of the program
 * can see whether the bytes have arrived but what is sent next, so that is what waits, over
 * there. Another process that has the memory, too, can.
 */
static CUresult fence(const struct gpc_route *on, CUstream hStream, uint64_t wire, uint64_t behind)
{
    struct gp_req_gp_fence q = {.h.op = GP_OP_gp_fence, .stream = wire};
    struct gpc_call call = {
        .route = *on, .request = &q.h, .request_size = sizeof q, .only_behind = behind};
    if (!gpc_session_has(on->session, GP_OP_gp_fence))
        return gpc_wire_cuStreamSynchronize_on(on, hStream);
    CUresult r = gpc_call_post(&call);
    if (r == CUDA_SUCCESS)
        gpc_session_settle_fence(on->session);
    /* another thread has sent something since, perhaps a host function, behind whose end
     * nothing may be held back */
    return r == CUDA_ERROR_NOT_READY ? gpc_wire_cuStreamSynchronize_on(on, hStream) : r;
}

CUresult gpc_stream_fence(const struct gpc_route *on, CUstream stream)
{
    return gpc_session_has(on->session, GP_OP_gp_fence)
               ? gpc_wire_gp_fence_on(on, stream)
               : gpc_wire_cuStreamSynchronize_on(on, stream);
}

CUresult gpc_stream_wait(struct gpc_route *on, CUstream stream)
{
    uint64_t wire;
    CUresult r = gpc_route_stream(on, stream, &wire);
    if (r != CUDA_SUCCESS)
        return r;
    uint64_t behind = gpc_session_only_uploads(on);
    if (behind && !gpc_ipc_used() && gpc_stream_is_independent(stream, wire))
        return fence(on, stream, wire, behind);
    if (gpc_session_settled(on))
        return CUDA_SUCCESS;
    r = gpc_complete_stream(on, stream);
    if (r == CUDA_SUCCESS)
        gpc_session_settle(on, gpc_thread()->last_answer);
    return r;
}

GPC_EXPORT CUresult cuStreamSynchronize(CUstream hStream)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuStreamSynchronize, hStream);
    return r ? r : gpc_leave(gpc_stream_wait(&on, hStream));
}

/* What a wait has seen to be over is so for whoever asks: what the worker records behind the work may
 * still be under way over there. */
GPC_EXPORT CUresult cuStreamQuery(CUstream hStream)
{
    uint64_t wire;
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuStreamQuery, hStream);
    if (r == CUDA_SUCCESS)
        r = gpc_route_stream(&on, hStream, &wire);
    if (r == CUDA_SUCCESS && !gpc_session_settled(&on))
        r = gpc_wire_cuStreamQuery_on(&on, hStream);
    return gpc_leave(r);
}

/* Within a host the driver knows; an event of another host is waited for over there. */
GPC_EXPORT CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuStreamWaitEvent, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    uint64_t wire;
    if ((r = gpc_route_stream(&on, hStream, &wire)) != CUDA_SUCCESS)
        return r;
    if (!gpc_handle_live(GP_HANDLE_EVENT, (uint64_t)hEvent))
        return CUDA_ERROR_INVALID_HANDLE;
    if (Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    bool captures = true;
    if (Flags && (r = gpc_stream_captures(&on, hStream, &captures)) != CUDA_SUCCESS)
        return r;
    if (!captures)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (gpc_session_of_handle((uint64_t)hEvent) == on.session)
        r = gpc_wire_cuStreamWaitEvent_on(&on, hStream, hEvent, Flags);
    else
        r = gpc_peer_wait(GP_OP_cuStreamWaitEvent, &on, hStream, hEvent, Flags);
    return gpc_leave(r ? r : gpc_event_submitted(hEvent, 0));
}

static bool is_per_thread(CUstream hStream)
{
    return hStream == CU_STREAM_PER_THREAD || (!hStream && gpc_thread()->per_thread_streams);
}

const struct gpc_stream *gpc_stream_its(CUstream hStream, struct gpc_stream *own, CUresult *r)
{
    const struct gpc_stream *s = stream_of(hStream);
    if (is_default(hStream)) {
        *own = (struct gpc_stream){.context = gpc_current(), .id = is_per_thread(hStream) ? 2 : 1};
        return own;
    }
    if (!s)
        *r = CUDA_ERROR_INVALID_HANDLE;
    return s;
}
