#include "left.h"

#include <stdlib.h>

#include "green.h"
#include "handles.h"
#include "loop.h"
#include "message_fields.h"

struct gpw_left {
    struct gpw_left *next;
    CUcontext context; /* no green one */
    CUstream stream;
};

static struct gpw_left **place_of(struct gpw_session *s, CUcontext context)
{
    struct gpw_left **at = &s->left;
    while (*at && (*at)->context != context)
        at = &(*at)->next;
    return at;
}

/* The current context's, made where there is none; NULL: it cannot be. */
static CUstream stand_in(struct gpw_session *s, CUcontext context)
{
    struct gpw_left **at = place_of(s, context), *l = *at;
    if (l)
        return l->stream;
    l = calloc(1, sizeof *l);
    if (!l || s->driver->cuStreamCreate(&l->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
        free(l);
        return NULL;
    }
    l->context = context;
    *at = l;
    return l->stream;
}

/* Of the current context. */
static void follow(struct gpw_session *s, CUcontext context, CUstream stream)
{
    CUevent event;
    CUstream behind = stand_in(s, context);
    if (!behind || gpw_event_take(s, context, &event) != CUDA_SUCCESS)
        return;
    if (s->driver->cuEventRecord(event, stream) == CUDA_SUCCESS)
        s->driver->cuStreamWaitEvent(behind, event, 0);
    gpw_event_give(s, context, event);
}

void gpw_left_take(struct gpw_session *s, const struct gp_header *h)
{
    uint64_t id = gp_message_id(h, gp_op_info(h->op)->stream_ended_at), real;
    CUcontext before = NULL, context;
    CUstreamCaptureStatus status;
    if (gpw_handle_get(s, GP_HANDLE_STREAM, id, false, &real) != CUDA_SUCCESS)
        return;
    CUstream stream = (CUstream)real;
    bool was_strict = gpw_strict(s, false);
    if (s->driver->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
        status == CU_STREAM_CAPTURE_STATUS_NONE &&
        s->driver->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY &&
        s->driver->cuStreamGetCtx(stream, &context) == CUDA_SUCCESS) {
        context = gpw_context_root(s, context);
        s->driver->cuCtxGetCurrent(&before);
        s->driver->cuCtxSetCurrent(context);
        follow(s, context, stream);
        s->driver->cuCtxSetCurrent(before);
    }
    gpw_strict(s, was_strict);
}

CUstream gpw_left_stream(struct gpw_session *s, CUcontext context)
{
    const struct gpw_left *l = *place_of(s, gpw_context_root(s, context));
    return l && s->driver->cuStreamQuery(l->stream) == CUDA_ERROR_NOT_READY ? l->stream : NULL;
}

void gpw_left_context_ended(struct gpw_session *s, CUcontext context)
{
    struct gpw_left **at = place_of(s, context), *l = *at;
    if (!l)
        return;
    *at = l->next;
    free(l);
}
