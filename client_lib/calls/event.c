/*
 * Events: those that other processes have, where what is submitted of them is waited for, and those
 * that the program polls (event_page.h).
 */
#include "call.h"
#include "event_page.h"
#include "export.h"
#include "gpc_stubs.h"
#include "gpc_wire.h"
#include "handle.h"
#include "monotonic.h"
#include "peer_behind.h"
#include "session.h"
#include "shared.h"
#include "spin.h"
#include "stream.h"

/* The shadow of such an event. */
static char others_have_it;

static bool is_others_too(CUevent event)
{
    return gpc_handle_shadow(GP_HANDLE_EVENT, (uint64_t)event) == &others_have_it;
}

CUresult gpc_event_submitted(CUevent event, unsigned flags)
{
    const uint64_t id = (uint64_t)event;
    int version;
    if (flags & CU_EVENT_INTERPROCESS)
        gpc_handle_attach(id, &others_have_it);
    if (!is_others_too(event))
        return CUDA_SUCCESS;
    const struct gpc_route on = gpc_route_to(gpc_session_of_handle(id));
    return gpc_wire_gp_ipc_settle_on(&on, &version);
}

CUresult gpc_event_noted(CUevent event, unsigned flags)
{
    bool shares = gpc_session_shares(gpc_session_of_handle((uint64_t)event));
    bool timed = !(flags & CU_EVENT_DISABLE_TIMING);
    if (!(shares && timed) && !(flags & CU_EVENT_INTERPROCESS))
        gpc_event_may_be_polled(event, timed);
    else
        gpc_event_not_polled(event);
    return gpc_event_submitted(event, flags);
}

/* Whether the stream has nothing left to do, and other streams keep it waiting for nothing. */
static bool is_idle(struct gpc_route on, CUstream stream)
{
    uint64_t wire;
    return on.context && gpc_route_stream(&on, stream, &wire) == CUDA_SUCCESS &&
           gpc_session_settled(&on) &&
           (gpc_stream_is_independent(stream, wire) || gpc_session_settled_context(&on));
}

/* An external record is a graph's, which makes it whenever it runs. `*adds`: it is work. */
static CUresult record(const struct gpc_route *on, CUevent event, CUstream stream, unsigned flags,
                       bool *adds)
{
    struct gpc_event_record q;
    bool is_so;
    if (flags & CU_EVENT_RECORD_EXTERNAL) {
        gpc_event_not_polled(event);
        return gpc_wire_cuEventRecordWithFlags_on(on, event, stream, flags);
    }
    *adds = !is_idle(*on, stream) || !gpc_event_over_at_once(on, event, &is_so);
    if (!*adds)
        return is_so ? CUDA_SUCCESS : gpc_wire_gp_event_record_idle_on(on, event, stream);
    if (!gpc_event_numbered(on, event, &q))
        return gpc_wire_cuEventRecord_on(on, event, stream);
    return q.told ? gpc_wire_gp_event_record_told_on(on, event, stream, q.place, q.number)
                  : gpc_wire_gp_event_record_on(on, event, stream, q.place, q.number);
}

CUresult gpc_event_record(const struct gpc_route *on, CUevent event, CUstream stream,
                          unsigned flags)
{
    bool adds = true;
    /* what others have they may record again, of which nothing is known here */
    uint64_t behind = flags || is_others_too(event) ? 0 : gpc_behind_now(*on, stream);
    CUresult r = record(on, event, stream, flags, &adds);
    gpc_behind_recorded(on->session, event, r ? 0 : behind, adds);
    return r ? r : gpc_event_submitted(event, 0);
}

CUresult gpc_event_ask(CUevent event, bool waits)
{
    CUresult r;
    if (waits ? gpc_event_awaited(event, &r) : gpc_event_told(event, &r))
        return r;
    uint64_t number = gpc_event_number(event), begin = gp_now_ns();
    r = waits ? gpc_wire_cuEventSynchronize(event) : gpc_wire_cuEventQuery(event);
    if (waits)
        gpc_spin_waited(gp_now_ns() - begin);
    gpc_event_asked(event, number, r, waits);
    return r;
}
