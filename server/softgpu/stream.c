/* The entry points of streams; queue.c has the machinery. */
#include "pool.h"
#include "shared_event.h"

#define PRIORITY_GREATEST (-5)

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!phStream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    priority = priority > 0 ? 0 : priority < PRIORITY_GREATEST ? PRIORITY_GREATEST : priority;
    CUstream stream = sg_stream_new(context, flags, priority);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sg_handle_add(stream, SG_STREAM)) {
        sg_stream_retire(stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->is_handle = true;
    CUresult result = sg_green_enter(sg_green_current(), stream);
    if (result != CUDA_SUCCESS)
        sg_stream_retire(stream);
    else
        *phStream = stream;
    return result;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
    SG_LOCKED;
    SG_READY();
    if (!sg_handle_is(hStream, SG_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    sg_stream_retire(hStream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream hStream)
{
    return cuStreamDestroy_v2(hStream);
}

/* The default stream counts as busy while any stream that it orders is. */
static bool legacy_idle(CUcontext context)
{
    for (CUstream s = context->streams; s; s = s->next)
        if (!(s->flags & CU_STREAM_NON_BLOCKING) && !sg_stream_idle(s))
            return false;
    return true;
}

static bool waits(const struct sg_task *task)
{
    for (size_t i = 0; i < task->mark_count; i++)
        if (!sg_mark_done(&task->marks[i]))
            return true;
    return false;
}

/* It writes what whoever asks may have seen, or records an event, for which a GPU needs no time. */
static bool is_done_with(CUstream stream, const struct sg_op *op)
{
    return op->kind == SG_OP_RECORD || (op->kind == SG_OP_WRITE_VALUE && op == stream->running &&
                                        __atomic_load_n(&stream->written, __ATOMIC_SEQ_CST));
}

/* All that is left is for the stream's thread to come to it. */
static bool nearly_idle(CUstream stream)
{
    if (!stream->running && !stream->head)
        return false;
    if (stream->running && !is_done_with(stream, stream->running))
        return false;
    for (const struct sg_task *task = stream->head; task; task = task->next)
        if (!is_done_with(stream, task->op) || waits(task))
            return false;
    return true;
}

/* Likewise of all that make the default stream busy. */
static bool legacy_nearly_idle(CUcontext context)
{
    bool some = false;
    for (CUstream s = context->streams; s; s = s->next) {
        if (s->flags & CU_STREAM_NON_BLOCKING || sg_stream_idle(s))
            continue;
        if (!nearly_idle(s))
            return false;
        some = true;
    }
    return some;
}

/* A capturing stream can be neither asked nor waited for. */
static CUresult not_capturing(CUstream stream)
{
    if (!stream->capture)
        return sg_capture_legacy(stream);
    stream->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamQuery(CUstream hStream)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    SG_TRY(not_capturing(stream));
    stream->refs++; /* another thread may destroy it meanwhile */
    while (stream->is_legacy ? legacy_nearly_idle(stream->context) : nearly_idle(stream))
        pthread_cond_wait(&sg.progress, &sg.lock);
    bool idle = stream->is_legacy ? legacy_idle(stream->context) : sg_stream_idle(stream);
    sg_stream_unref(stream);
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream hStream)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    SG_TRY(not_capturing(stream));
    CUresult result = stream->is_legacy && !legacy_idle(stream->context)
                          ? sg_stream_submit_wait(stream, sg_op_new(SG_OP_EMPTY, stream->context))
                          : sg_stream_wait(stream);
    sg_waited++;
    return result;
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!sg_handle_is(hEvent, SG_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    if (Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (Flags & CU_EVENT_WAIT_EXTERNAL) {
        if (!stream->capture)
            return CUDA_ERROR_ILLEGAL_STATE;
        struct sg_op *op = sg_op_new(SG_OP_WAIT, stream->context);
        if (!op)
            return CUDA_ERROR_OUT_OF_MEMORY;
        op->event.event = hEvent;
        op->event.external = true;
        hEvent->refs++;
        return sg_capture_add(stream, op);
    }
    if (hEvent->capture)
        return sg_capture_wait(stream, hEvent);
    if (stream->capture) {
        stream->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    SG_TRY(sg_capture_legacy(stream));
    return hEvent->shared ? sg_event_wait_shared(hEvent, stream)
                          : sg_stream_wait_mark(stream, &hEvent->mark);
}

/* What can be read of a stream without waiting for it. */
#define STREAM_READ(pointer)                                                                       \
    SG_LOCKED;                                                                                     \
    CUstream stream;                                                                               \
    SG_TRY(sg_stream_get(hStream, &stream));                                                       \
    if (!(pointer))                                                                                \
    return CUDA_ERROR_INVALID_VALUE

CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
    STREAM_READ(priority);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    STREAM_READ(flags);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    STREAM_READ(streamId);
    *streamId = stream->id;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    STREAM_READ(device);
    *device = stream->context->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    STREAM_READ(pctx);
    *pctx = stream->green ? stream->green : stream->context;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
    STREAM_READ(pCtx);
    if (!pGreenCtx)
        return CUDA_ERROR_INVALID_VALUE;
    *pCtx = stream->context;
    *pGreenCtx = (CUgreenCtx)stream->green;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx)
{
    STREAM_READ(phCtx);
    *phCtx = (CUgreenCtx)stream->green;
    return CUDA_SUCCESS;
}

#define ATTRIBUTE_COUNT (sizeof(((CUstream)0)->attributes) / sizeof(CUstreamAttrValue))

static bool attribute_known(CUstreamAttrID attr)
{
    return attr == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW ||
           attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY ||
           attr == CU_LAUNCH_ATTRIBUTE_PRIORITY ||
           attr == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
           attr == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
}

CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value)
{
    STREAM_READ(value);
    if (!attribute_known(attr) || (size_t)attr >= ATTRIBUTE_COUNT)
        return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        value->priority = stream->priority;
    else
        *value = stream->attributes[attr];
    return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value)
{
    STREAM_READ(value);
    if (!attribute_known(attr) || (size_t)attr >= ATTRIBUTE_COUNT)
        return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        stream->priority = value->priority;
    stream->attributes[attr] = *value;
    return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src)
{
    SG_LOCKED;
    CUstream to, from;
    SG_TRY(sg_stream_get(dst, &to));
    SG_TRY(sg_stream_get(src, &from));
    memcpy(to->attributes, from->attributes, sizeof(to->attributes));
    to->priority = from->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                unsigned int flags)
{
    SG_LOCKED;
    CUstream stream;
    struct sg_extent extent;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
        flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_address_find(dptr, &extent) || extent.space != SG_SPACE_MANAGED ||
        extent.begin != dptr || (length && length != extent.end - extent.begin))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* memory is where it is; nothing moves */
}

/* ---- host functions ---- */
CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                             unsigned int flags)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!callback || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        stream->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct sg_op *op = sg_op_new(SG_OP_CALLBACK, stream->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->callback.fn = callback;
    op->callback.stream = hStream;
    op->callback.data = userData;
    return sg_stream_submit(stream, op);
}

/* ---- values in memory ---- */
CUresult sg_value_op(CUcontext context, enum sg_op_kind kind, CUdeviceptr address, uint64_t value,
                     unsigned bytes, unsigned flags, struct sg_op **out)
{
    unsigned known = kind == SG_OP_WAIT_VALUE ? 3u | CU_STREAM_WAIT_VALUE_FLUSH
                                              : (unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
    if ((flags & ~known) || address % bytes || !sg_address_covers(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_STREAM_WAIT_VALUE_FLUSH && kind == SG_OP_WAIT_VALUE)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct sg_op *op = sg_op_new(kind, context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->value.address = address;
    op->value.value = value;
    op->value.bytes = bytes;
    op->value.flags = flags;
    *out = op;
    return CUDA_SUCCESS;
}

static CUresult value_op(CUstream hStream, enum sg_op_kind kind, CUdeviceptr address,
                         uint64_t value, unsigned bytes, unsigned flags)
{
    SG_LOCKED;
    CUstream stream;
    struct sg_op *op;
    SG_TRY(sg_stream_get(hStream, &stream));
    SG_TRY(sg_value_op(stream->context, kind, address, value, bytes, flags, &op));
    return sg_stream_submit(stream, op);
}

#define VALUE_FUNCTIONS(suffix)                                                                    \
    CUresult cuStreamWaitValue32##suffix(CUstream stream, CUdeviceptr addr, cuuint32_t value,      \
                                         unsigned int flags)                                       \
    {                                                                                              \
        return value_op(stream, SG_OP_WAIT_VALUE, addr, value, 4, flags);                          \
    }                                                                                              \
    CUresult cuStreamWaitValue64##suffix(CUstream stream, CUdeviceptr addr, cuuint64_t value,      \
                                         unsigned int flags)                                       \
    {                                                                                              \
        return value_op(stream, SG_OP_WAIT_VALUE, addr, value, 8, flags);                          \
    }                                                                                              \
    CUresult cuStreamWriteValue32##suffix(CUstream stream, CUdeviceptr addr, cuuint32_t value,     \
                                          unsigned int flags)                                      \
    {                                                                                              \
        return value_op(stream, SG_OP_WRITE_VALUE, addr, value, 4, flags);                         \
    }                                                                                              \
    CUresult cuStreamWriteValue64##suffix(CUstream stream, CUdeviceptr addr, cuuint64_t value,     \
                                          unsigned int flags)                                      \
    {                                                                                              \
        return value_op(stream, SG_OP_WRITE_VALUE, addr, value, 8, flags);                         \
    }
VALUE_FUNCTIONS()
VALUE_FUNCTIONS(_v2)
