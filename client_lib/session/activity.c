#include "activity.h"

#include "activity_table.h"
#include "gpc_wire.h"
#include "monotonic.h"
#include "observe.h"
#include "timeline.h"

#define PINGS 8

static CUresult ask(struct gpc_session *s, enum gp_activity_what what, uint64_t *now,
                    uint64_t *dropped)
{
    const struct gpc_route on = gpc_route_to(s);
    return gpc_wire_gp_activity_ask_on(&on, what, now, dropped);
}

/* The clock of the other side, from the shortest of some round trips: wrong by half of it at
 * most. */
static CUresult compare_clocks(struct gpc_session *s)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < PINGS; i++) {
        uint64_t theirs, dropped, before = gp_now_ns();
        CUresult r = ask(s, GP_ACTIVITY_CLOCK, &theirs, &dropped);
        if (r != CUDA_SUCCESS)
            return r;
        uint64_t took = gp_now_ns() - before;
        if (took >= best)
            continue;
        best = took;
        __atomic_store_n(&s->clock_ahead, theirs - (before + took / 2), __ATOMIC_RELAXED);
    }
    return CUDA_SUCCESS;
}

CUresult gpc_activity_start(void)
{
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    uint64_t now, dropped;
    for (unsigned i = 0; i < gpc_session_count(); i++) {
        struct gpc_session *s = gpc_session_at(i);
        if (compare_clocks(s) == CUDA_SUCCESS &&
            ask(s, GP_ACTIVITY_START, &now, &dropped) == CUDA_SUCCESS)
            result = CUDA_SUCCESS;
    }
    return result;
}

void gpc_activity_stop(void)
{
    uint64_t now, dropped;
    for (unsigned i = 0; i < gpc_session_count(); i++)
        ask(gpc_session_at(i), GP_ACTIVITY_STOP, &now, &dropped);
}

CUresult gpc_activity_flush(bool forced, uint64_t *dropped)
{
    const enum gp_activity_what what = forced ? GP_ACTIVITY_FLUSH_FORCED : GP_ACTIVITY_FLUSH;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    uint64_t all = 0, lost, now;
    for (unsigned i = 0; i < gpc_session_count(); i++) {
        if (ask(gpc_session_at(i), what, &now, &lost) != CUDA_SUCCESS)
            continue;
        all += lost;
        result = CUDA_SUCCESS;
    }
    if (dropped)
        *dropped = all;
    return result;
}

static bool take_device(const struct gpc_session *s, uint32_t *device)
{
    CUdevice ours = *device < s->snapshot->device_count ? gpc_device_of(s, *device) : -1;
    if (ours >= 0)
        *device = (uint32_t)ours;
    return ours >= 0;
}

/* Of one record, as it came: in our clock, with our numbers of its devices. False: it is of no
 * device of the session, or has not ended. */
static bool take_over(const struct gpc_session *s, struct gp_activity_record *r)
{
    uint64_t ahead = __atomic_load_n(&s->clock_ahead, __ATOMIC_RELAXED);
    bool two = gp_activity_between_gpus(r);
    if (!r->start || r->end < r->start || !take_device(s, &r->device))
        return false;
    if (two && !(take_device(s, &r->from_device) && take_device(s, &r->to_device)))
        return false;
    r->start -= ahead;
    r->end -= ahead;
    return r->start <= r->end;
}

static void tell(const struct gpc_session *s, const struct gp_activity_record *r, const char *name)
{
    if (GPC_OBSERVED(GPC_OBSERVER_TIMELINE))
        gpc_timeline_activity(r, name);
    if (GPC_OBSERVED(GPC_OBSERVER_ACTIVITY))
        gpc_activity_tell(s, r, name);
}

void gpc_on_gp_activity(struct gpc_session *s, const struct gp_req_gp_activity *q,
                        const void *records)
{
    struct gp_activity_record r;
    const char *name;
    size_t at = 0;
    while (gp_activity_next(records, q->bytes, &at, &r, &name))
        if (take_over(s, &r))
            tell(s, &r, name);
    if (at != q->bytes)
        gpc_log(GPC_LOG_WARN,
                "session %s on %s: what its GPU did is told in a form that cannot be"
                " read; the rest of it is left out",
                s->id, s->server);
}
