/* Waiting for events without blocking the loop. */
#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "loop.h"
#include "shareable.h"

/* An event of the client's: nothing is recorded, it is asked itself. When the client records
 * it anew, another one of ours takes its place: the wait is for what was recorded before, and
 * an event that a capture has recorded must not be asked. */
struct event_wait {
    struct gpw_wait wait;
    struct gpw_token token;
    CUevent event;     /* NULL: it went with its context */
    CUcontext context; /* of an event of ours */
    bool destroy;      /* the client has, or it is ours: it goes when it is no longer waited for */
};

/* With what the driver keeps of an event of ours that may take the place of the client's. */
#define WAIT_BYTES (sizeof(struct event_wait) + 512u)

static bool event_ready(struct gpw_session *s, struct gpw_wait *w)
{
    CUevent event = ((struct event_wait *)w)->event;
    return !event || s->driver->cuEventQuery(event) != CUDA_ERROR_NOT_READY;
}

static void event_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    s->event_waits--;
    gpw_budget_give(s, GPW_USE_WAITS, WAIT_BYTES);
    free(w);
}

static bool event_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct event_wait *e = (struct event_wait *)w;
    /* returns at once, and lets the driver print what kernels have printed */
    CUresult r = e->event ? s->driver->cuEventSynchronize(e->event)
                          : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (e->event && e->destroy)
        s->driver->cuEventDestroy_v2(e->event);
    gpw_answer_cuEventSynchronize(s, e->token, r);
    event_cancel(s, w);
    return true;
}

CUresult gpw_cuEventSynchronize(struct gpw_session *s, struct gpw_token token, CUevent hEvent)
{
    if (s->strict_now) { /* may it be asked at all? Later we ask for ourselves */
        CUresult r = s->driver->cuEventQuery(hEvent);
        if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
            return r;
    }
    if (!gpw_budget_take(s, GPW_USE_WAITS, WAIT_BYTES))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct event_wait *e = malloc(sizeof *e);
    if (!e) {
        gpw_budget_give(s, GPW_USE_WAITS, WAIT_BYTES);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *e = (struct event_wait){
        {.what = "an event", .ready = event_ready, .poll = event_poll, .cancel = event_cancel},
        token,
        hEvent,
        NULL,
        false};
    s->event_waits++;
    /* answers keep the order of what they wait for: older waits come first */
    if (gpw_waits_any(s) || !event_ready(s, &e->wait))
        gpw_wait_add(s, &e->wait);
    else
        event_poll(s, &e->wait);
    return GPW_DEFERRED;
}

static struct event_wait *event_wait_of(struct gpw_wait *w)
{
    return w->ready == event_ready ? (struct event_wait *)w : NULL;
}

/* The youngest of those who wait for it, who is answered last. */
static struct event_wait *last_waiting(struct gpw_session *s, CUevent event)
{
    struct gpw_wait *lists[] = {s->waits_due, s->waits};
    struct event_wait *last = NULL;
    for (unsigned i = 0; i < 2; i++)
        for (struct gpw_wait *w = lists[i]; w; w = w->younger) {
            struct event_wait *e = event_wait_of(w);
            if (e && e->event == event)
                last = e;
        }
    return last;
}

bool gpw_event_ending(struct gpw_session *s, CUevent event)
{
    struct event_wait *e = last_waiting(s, event);
    gpw_shareable_gone(s, GPW_SHARES_EVENT, event);
    if (e)
        e->destroy = true;
    return e != NULL;
}

/* Passes when what is in the event now has passed. */
static CUresult event_copy(struct gpw_session *s, CUevent event, CUevent *copy)
{
    CUstream stream;
    CUresult r = s->driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (r != CUDA_SUCCESS)
        return r;
    r = s->driver->cuEventCreate(copy, CU_EVENT_DISABLE_TIMING);
    if (r == CUDA_SUCCESS) {
        r = s->driver->cuStreamWaitEvent(stream, event, 0);
        if (r == CUDA_SUCCESS)
            r = s->driver->cuEventRecord(*copy, stream);
        if (r != CUDA_SUCCESS)
            s->driver->cuEventDestroy_v2(*copy);
    }
    s->driver->cuStreamDestroy_v2(stream);
    return r;
}

/* Whoever waits for the event waits for its copy. */
static void waits_move(struct gpw_session *s, CUevent event, CUevent copy)
{
    struct gpw_wait *lists[] = {s->waits_due, s->waits};
    CUcontext context = NULL;
    s->driver->cuCtxGetCurrent(&context);
    for (unsigned i = 0; i < 2; i++)
        for (struct gpw_wait *w = lists[i]; w; w = w->younger) {
            struct event_wait *e = event_wait_of(w);
            if (!e || e->event != event)
                continue;
            e->event = copy;
            e->context = context;
        }
}

CUresult gpw_event_anew(struct gpw_session *s, CUevent event)
{
    struct event_wait *last = s->event_waits ? last_waiting(s, event) : NULL;
    CUevent copy;
    if (!last)
        return CUDA_SUCCESS;
    CUresult r = event_copy(s, event, &copy);
    if (r != CUDA_SUCCESS)
        return r; /* they go on waiting for the event itself, which is not recorded */
    waits_move(s, event, copy);
    last->destroy = true;
    return r;
}

CUresult gpw_event_anew_in(struct gpw_session *s, CUcontext context, CUevent event)
{
    CUcontext before = NULL;
    if (!s->event_waits)
        return CUDA_SUCCESS;
    s->driver->cuCtxGetCurrent(&before);
    CUresult r = s->driver->cuCtxSetCurrent(context);
    if (r == CUDA_SUCCESS) {
        r = gpw_event_anew(s, event);
        s->driver->cuCtxSetCurrent(before);
    }
    return r;
}

static bool event_lives(struct gpw_session *s, const struct event_wait *e)
{
    return e->context ? gpw_handle_find(s, GP_HANDLE_CONTEXT, (uint64_t)e->context) != 0
                      : gpw_handle_find(s, GP_HANDLE_EVENT, (uint64_t)e->event) != 0;
}

void gpw_event_waits_context_ended(struct gpw_session *s)
{
    gpw_shareable_events_context_ended(s);
    struct gpw_wait *lists[] = {s->waits_due, s->waits};
    for (unsigned i = 0; i < 2; i++)
        for (struct gpw_wait *w = lists[i]; w; w = w->younger) {
            struct event_wait *e = event_wait_of(w);
            if (e && e->event && !event_lives(s, e))
                e->event = NULL;
        }
}
