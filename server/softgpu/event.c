/* Events: a mark in a stream's order and the time when it passed. */
#include "pool.h"
#include "shared_event.h"

#include <time.h>

void sg_event_forget_capture(CUevent event)
{
    if (event->capture)
        sg_capture_unref(event->capture);
    sg_tips_clear(&event->tips);
    event->capture = NULL;
}

void sg_event_unref(CUevent event)
{
    if (!event || --event->refs)
        return;
    sg_event_forget_capture(event);
    sg_mark_clear(&event->mark);
    sg_shared_event_free(event->shared);
    free(event);
}

void sg_event_stamp(CUevent event, uint64_t record)
{
    if (record == 0 || event->record == record)
        event->time_ns = sg_now_ns();
}

CUresult sg_event_make(CUcontext context, unsigned flags, struct sg_shared_event *shared,
                       CUevent *out)
{
    CUevent event = calloc(1, sizeof(*event));
    if (!event || !sg_handle_add(event, SG_EVENT)) {
        sg_shared_event_free(shared);
        free(event);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->context = context;
    event->refs = 1;
    event->flags = flags;
    event->shared = shared;
    *out = event;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!phEvent || (Flags & ~known) ||
        (Flags & CU_EVENT_INTERPROCESS && !(Flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_shared_event *shared = NULL;
    if (Flags & CU_EVENT_INTERPROCESS) {
        if (!sg_shared_events_there())
            return CUDA_ERROR_NOT_SUPPORTED;
        if (!(shared = sg_shared_event_new()))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return sg_event_make(context, Flags, shared, phEvent);
}

CUresult cuEventDestroy_v2(CUevent hEvent)
{
    SG_LOCKED;
    SG_READY();
    if (!sg_handle_is(hEvent, SG_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    sg_handle_remove(hEvent);
    sg_event_unref(hEvent);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent hEvent)
{
    return cuEventDestroy_v2(hEvent);
}

static CUresult record_external(CUstream stream, CUevent event)
{
    if (!stream->capture)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_op *op = sg_op_new(SG_OP_RECORD, stream->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->event.event = event;
    op->event.external = true;
    event->refs++;
    return sg_capture_add(stream, op);
}

CUresult sg_event_record(CUevent event, CUstream stream)
{
    struct sg_op *op = sg_op_new(SG_OP_RECORD, stream->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sg_event_forget_capture(event);
    op->event.event = event;
    op->event.record = event->record + 1;
    op->event.shared = event->shared ? sg_shared_event_record(event->shared) : 0;
    event->refs++;
    /* The number first: the operation may run before submit returns. */
    event->record++;
    CUresult result = sg_stream_submit(stream, op);
    if (result != CUDA_SUCCESS) {
        event->record--;
        return result;
    }
    sg_mark_clear(&event->mark);
    event->mark = sg_stream_mark(stream);
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!sg_handle_is(hEvent, SG_EVENT) || hEvent->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (hEvent->shared && stream->capture)
        return CUDA_ERROR_NOT_SUPPORTED; /* what a graph records no other process knows of */
    if (flags & CU_EVENT_RECORD_EXTERNAL)
        return record_external(stream, hEvent);
    return stream->capture ? sg_capture_record(stream, hEvent) : sg_event_record(hEvent, stream);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    return cuEventRecordWithFlags(hEvent, hStream, 0);
}

/* The event, if its state may be asked for now. One that a capture has recorded may not be,
 * by nobody. */
static CUresult askable(CUevent event)
{
    SG_READY();
    if (!sg_handle_is(event, SG_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!event->context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    SG_TRY(sg.fault);
    if (event->capture) {
        event->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return sg_capture_unsafe();
}

CUresult cuEventQuery(CUevent hEvent)
{
    SG_LOCKED;
    SG_TRY(askable(hEvent));
    bool done = hEvent->shared
                    ? sg_shared_event_passed(hEvent->shared, sg_shared_event_last(hEvent->shared))
                    : sg_mark_done(&hEvent->mark);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult sg_event_wait_shared(CUevent event, CUstream stream)
{
    uint64_t last = sg_shared_event_last(event->shared);
    if (sg_shared_event_passed(event->shared, last))
        return CUDA_SUCCESS;
    struct sg_op *op = sg_op_new(SG_OP_WAIT_SHARED, stream->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->event.event = event;
    op->event.shared = last;
    event->refs++;
    return sg_stream_submit(stream, op);
}

/* Nobody wakes us: who records it may be another process. */
static CUresult synchronize_shared(CUevent event)
{
    struct timespec pause = {0, 50000};
    uint64_t last = sg_shared_event_last(event->shared);
    event->refs++;
    while (!sg_shared_event_passed(event->shared, last)) {
        pthread_mutex_unlock(&sg.lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&sg.lock);
    }
    sg_event_unref(event);
    return sg.fault;
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    SG_LOCKED;
    SG_TRY(askable(hEvent));
    if (hEvent->shared)
        return synchronize_shared(hEvent);
    struct sg_mark mark = hEvent->mark; /* this record, not one that comes later */
    if (mark.stream)
        mark.stream->refs++;
    while (!sg_mark_done(&mark))
        pthread_cond_wait(&sg.progress, &sg.lock);
    sg_mark_clear(&mark);
    sg_waited++;
    return sg.fault;
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    SG_LOCKED;
    SG_TRY(askable(hStart));
    SG_TRY(askable(hEnd));
    if (!pMilliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hStart->record || !hEnd->record || (hStart->flags & CU_EVENT_DISABLE_TIMING) ||
        (hEnd->flags & CU_EVENT_DISABLE_TIMING) || hStart->context != hEnd->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sg_mark_done(&hStart->mark) || !sg_mark_done(&hEnd->mark))
        return CUDA_ERROR_NOT_READY;
    *pMilliseconds = (float)((double)(int64_t)(hEnd->time_ns - hStart->time_ns) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}
