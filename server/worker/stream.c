/* Waiting for streams, events and contexts without blocking the loop. */
#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "loop.h"

/* Whom to answer when it has passed. */
struct answer {
    struct gpw_token token;
    int (*send)(struct gpw_session *s, struct gpw_token token, CUresult result);
};

static void passed(struct gpw_session *s, void *arg, CUresult result)
{
    struct answer *a = arg;
    a->send(s, a->token, result);
    free(a);
}

static struct answer *answer_new(struct gpw_token token,
                                 int (*send)(struct gpw_session *, struct gpw_token, CUresult))
{
    struct answer *a = malloc(sizeof *a);
    if (a)
        *a = (struct answer){token, send};
    return a;
}

/* Started: the answer comes later. Not started: this is the answer. */
static CUresult deferred(struct answer *a, CUresult r)
{
    if (r == CUDA_SUCCESS)
        return GPW_DEFERRED;
    free(a);
    return r;
}

CUresult gpw_cuStreamSynchronize(struct gpw_session *s, struct gpw_token token, CUstream hStream)
{
    struct answer *a = answer_new(token, gpw_answer_cuStreamSynchronize);
    return a ? deferred(a, gpw_after_stream(s, hStream, passed, a)) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gpw_cuCtxSynchronize(struct gpw_session *s, struct gpw_token token)
{
    struct answer *a = answer_new(token, gpw_answer_cuCtxSynchronize);
    return a ? deferred(a, gpw_after_context(s, passed, a)) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gpw_cuCtxSynchronize_v2(struct gpw_session *s, struct gpw_token token, CUcontext ctx)
{
    struct answer *a = answer_new(token, gpw_answer_cuCtxSynchronize_v2);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = CUDA_SUCCESS;
    if (ctx)
        r = s->driver->cuCtxPushCurrent_v2(ctx);
    if (r == CUDA_SUCCESS) {
        r = gpw_after_context(s, passed, a);
        CUcontext popped;
        if (ctx)
            s->driver->cuCtxPopCurrent_v2(&popped);
    }
    return deferred(a, r);
}

/* Success may only be said after what older waits have to send. */
CUresult gpw_cuStreamQuery(struct gpw_session *s, CUstream hStream)
{
    CUresult r = s->driver->cuStreamQuery(hStream);
    if (r == CUDA_SUCCESS)
        gpw_waits_poll(s);
    return r;
}

CUresult gpw_cuEventQuery(struct gpw_session *s, CUevent hEvent)
{
    CUresult r = s->driver->cuEventQuery(hEvent);
    if (r == CUDA_SUCCESS)
        gpw_waits_poll(s);
    return r;
}

/* A time is known once both have passed, so this tells that they have. */
CUresult gpw_cuEventElapsedTime_v2(struct gpw_session *s, float *pMilliseconds, CUevent hStart,
                                   CUevent hEnd)
{
    CUresult r = s->driver->cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
    if (r == CUDA_SUCCESS)
        gpw_waits_poll(s);
    return r;
}

CUresult gpw_cuEventElapsedTime(struct gpw_session *s, float *pMilliseconds, CUevent hStart,
                                CUevent hEnd)
{
    CUresult r = s->driver->cuEventElapsedTime(pMilliseconds, hStart, hEnd);
    if (r == CUDA_SUCCESS)
        gpw_waits_poll(s);
    return r;
}

/* An event of the client's: nothing is recorded, it is asked itself. */
struct event_wait {
    struct gpw_wait wait;
    struct gpw_token token;
    CUevent event;
};

static bool event_ready(struct gpw_session *s, struct gpw_wait *w)
{
    return s->driver->cuEventQuery(((struct event_wait *)w)->event) != CUDA_ERROR_NOT_READY;
}

static bool event_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct event_wait *e = (struct event_wait *)w;
    /* returns at once, and lets the driver print what kernels have printed */
    CUresult r = s->driver->cuEventSynchronize(e->event);
    gpw_answer_cuEventSynchronize(s, e->token, r);
    gpw_budget_give(GPW_BUDGET_WAITS, sizeof *e);
    free(e);
    return true;
}

static void event_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s;
    gpw_budget_give(GPW_BUDGET_WAITS, sizeof(struct event_wait));
    free(w);
}

CUresult gpw_cuEventSynchronize(struct gpw_session *s, struct gpw_token token, CUevent hEvent)
{
    if (!gpw_budget_take(GPW_BUDGET_WAITS, sizeof(struct event_wait)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct event_wait *e = malloc(sizeof *e);
    if (!e) {
        gpw_budget_give(GPW_BUDGET_WAITS, sizeof *e);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *e = (struct event_wait){
        {.ready = event_ready, .poll = event_poll, .cancel = event_cancel}, token, hEvent};
    /* answers keep the order of what they wait for: older waits come first */
    if (gpw_waits_any(s) || !event_ready(s, &e->wait))
        gpw_wait_add(s, &e->wait);
    else
        event_poll(s, &e->wait);
    return GPW_DEFERRED;
}
