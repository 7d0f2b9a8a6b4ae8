#include "streams_driver.h"

struct fake_gpu gpu;

CUstream stream_at(unsigned i)
{
    return i == 0 ? CU_STREAM_LEGACY : (CUstream)&gpu.streams[i];
}

static unsigned stream_index(CUstream stream)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (stream == stream_at(i))
            return i;
    fail_msg("no stream of ours");
    return 0;
}

static struct fake_event *event_at(CUevent event)
{
    uintptr_t i = (uintptr_t)event;
    assert_true(i > 0 && i <= gpu.event_last && gpu.events[i].alive);
    return &gpu.events[i];
}

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
    assert_int_equal(flags, CU_EVENT_DISABLE_TIMING);
    if (gpu.create_fails != CUDA_SUCCESS)
        return gpu.create_fails;
    assert_true(gpu.event_last + 1 < EVENTS);
    gpu.events[++gpu.event_last] = (struct fake_event){.alive = true};
    gpu.events_alive++;
    *event = (CUevent)(uintptr_t)gpu.event_last;
    return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent event)
{
    event_at(event)->alive = false;
    gpu.events_alive--;
    return CUDA_SUCCESS;
}

static CUresult fake_event_record(CUevent event, CUstream stream)
{
    if (gpu.record_fails != CUDA_SUCCESS)
        return gpu.record_fails;
    unsigned i = stream_index(stream);
    *event_at(event) = (struct fake_event){
        .alive = true, .stream = i, .mark = gpu.streams[i].submitted};
    gpu.records++;
    return CUDA_SUCCESS;
}

static CUresult fake_event_query(CUevent event)
{
    const struct fake_event *e = event_at(event);
    const struct fake_stream *stream = &gpu.streams[e->stream];
    if (stream->error != CUDA_SUCCESS)
        return stream->error;
    return stream->done >= e->mark ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* The worker may not block: this is for events that have passed. */
static CUresult fake_event_synchronize(CUevent event)
{
    assert_int_equal(fake_event_query(event), CUDA_SUCCESS);
    event_at(event)->synchronized = true;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_query(CUstream stream)
{
    gpu.stream_queries++;
    if (stream == CU_STREAM_PER_THREAD)
        return gpu.per_thread_busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    const struct fake_stream *f = &gpu.streams[stream_index(stream)];
    if (f->capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (f->error != CUDA_SUCCESS)
        return f->error;
    return f->done >= f->submitted ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult fake_stream_context(CUstream stream, CUcontext *context)
{
    *context = gpu.streams[stream_index(stream)].context;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_flags(CUstream stream, unsigned *flags)
{
    *flags = gpu.streams[stream_index(stream)].flags;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    *status = gpu.streams[stream_index(stream)].capture;
    return CUDA_SUCCESS;
}

static CUresult fake_current(CUcontext *context)
{
    *context = gpu.current;
    return CUDA_SUCCESS;
}

struct gpw_driver streams_driver = {
    .cuEventCreate = fake_event_create,
    .cuEventDestroy_v2 = fake_event_destroy,
    .cuEventRecord = fake_event_record,
    .cuEventQuery = fake_event_query,
    .cuEventSynchronize = fake_event_synchronize,
    .cuStreamQuery = fake_stream_query,
    .cuStreamGetCtx = fake_stream_context,
    .cuStreamGetFlags = fake_stream_flags,
    .cuStreamIsCapturing = fake_stream_capturing,
    .cuCtxGetCurrent = fake_current,
};
