#include "observe.h"

#include "activity_table.h"
#include "monotonic.h"
#include "timeline.h"

unsigned gpc_observers;

void gpc_observe(enum gpc_observer who)
{
    __atomic_fetch_or(&gpc_observers, who, __ATOMIC_RELAXED);
}

void gpc_observe_no_more(enum gpc_observer who)
{
    __atomic_fetch_and(&gpc_observers, ~(unsigned)who, __ATOMIC_RELAXED);
}

void gpc_observe_begin(struct gpc_observed *o)
{
    if (GPC_OBSERVED(GPC_OBSERVER_ACTIVITY))
        gpc_activity_call_begin(o);
    o->began_ns = gp_now_ns();
}

void gpc_observe_end(struct gpc_observed *o, CUresult result)
{
    if (GPC_OBSERVED(GPC_OBSERVER_TIMELINE))
        gpc_timeline_call(o->name, o->began_ns, result);
    if (o->correlation)
        gpc_activity_call_end(o, result);
}
