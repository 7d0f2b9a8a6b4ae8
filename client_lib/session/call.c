/* Building a call, and the checks every exported function starts and ends with. */
#include "call.h"

#include <string.h>

#include "handle.h"
#include "managed.h"
#include "memory.h"
#include "monotonic.h"
#include "observe.h"
#include "process.h"
#include "session.h"
#include "stats.h"
#include "stream.h"
#include "timeline.h"

CUresult gpc_call_in(struct gpc_call *call, const void *from, uint64_t count, size_t size,
                     uint32_t *n)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > GP_CHUNK_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes && !from)
        return CUDA_ERROR_INVALID_VALUE;
    *n = (uint32_t)bytes;
    call->in[call->in_count++] = (struct iovec){gpc_managed_view(from, bytes, false), bytes};
    return CUDA_SUCCESS;
}

CUresult gpc_call_text(struct gpc_call *call, const char *text, uint32_t *n)
{
    return gpc_call_in(call, text, strlen(text) + 1, 1, n);
}

CUresult gpc_call_out(struct gpc_call *call, void *to, uint64_t count, size_t size,
                      size_t length_at)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > GP_CHUNK_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    call->out[call->out_count++] = (struct gpc_call_room){.to = gpc_managed_view(to, bytes, true),
                                                          .own = to,
                                                          .room = (uint32_t)bytes,
                                                          .length_at = (uint32_t)length_at};
    return CUDA_SUCCESS;
}

CUresult gpc_enter(uint16_t op, enum gpc_needs needs)
{
    gpc_count(op);
    if (needs == GPC_NEEDS_NONE)
        return CUDA_SUCCESS;
    CUresult r = gpc_process_state(needs == GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (gpc_thread()->inside) /* a handler has interrupted a call, which cannot go on before */
        return CUDA_ERROR_NOT_PERMITTED;
    if (gpc_thread()->host_function && (gp_op_table[op].in_context || gp_op_table[op].tidies))
        return CUDA_ERROR_NOT_PERMITTED; /* it may wait for this one */
    gpc_thread()->last = NULL;
    if (needs == GPC_NEEDS_CONTEXT && !gpc_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

static bool is_explicit(CUstream stream)
{
    return stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

/* The route of a call in this context, or its session's sticky error. */
static CUresult enter_context(struct gpc_route *on, CUcontext context)
{
    struct gpc_session *s = gpc_session_of_handle((uint64_t)context);
    gpc_thread()->last = s;
    *on = (struct gpc_route){
        .session = s, .context = context, .device = gpc_context_device(context)};
    return (CUresult)__atomic_load_n(&s->sticky, __ATOMIC_RELAXED);
}

CUresult gpc_enter_stream(struct gpc_route *on, uint16_t op, CUstream stream)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    CUcontext context = is_explicit(stream) ? gpc_stream_context(stream) : NULL;
    if (!context)
        context = gpc_current(); /* what is no stream is found when it is sent */
    if (context)
        return enter_context(on, context);
    if (is_explicit(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    r = gpc_process_state(true);
    return r ? r : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult gpc_enter_event(uint16_t op, CUevent event)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r == CUDA_SUCCESS && !gpc_handle_live(GP_HANDLE_EVENT, (uint64_t)event))
        return CUDA_ERROR_INVALID_HANDLE;
    return r == CUDA_SUCCESS ? gpc_process_state(true) : r;
}

/* With the local driver the program's thread sleeps in the system while the GPU works, and is
 * cancelled there. Here it is at the end of such a call, where it holds nothing of ours. */
static void cancellation_point(void)
{
    struct gpc_thread *t = gpc_thread();
    if (t->may_end) {
        t->may_end = false;
        pthread_testcancel();
    }
}

CUresult gpc_leave(CUresult result)
{
    cancellation_point();
    /* There is no context where an earlier call could not make it, and that one says why. */
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_CONTEXT)
        return result;
    struct gpc_session *s = gpc_thread()->last;
    if (!s)
        s = gpc_session();
    CUresult earlier = s ? gpc_session_take_pending(s) : CUDA_SUCCESS;
    return earlier ? earlier : result;
}

void gpc_call_waited(const struct gpc_call *call, uint64_t begin, bool gpu_told)
{
    GPC_STATS_ADD(waited_ns, gp_now_ns() - begin);
    if (GPC_OBSERVED(GPC_OBSERVER_TIMELINE))
        gpc_timeline_wait("answer", begin);
    gpc_thread()->last_answer = call->seq;
    if (gp_op_table[call->request->op].deferred)
        gpc_thread()->may_end = true;
    if (gpu_told)
        GPC_STATS_ADD(gpu_waits, 1);
    else if (!call->part_of_one)
        GPC_STATS_ADD(round_trips, 1);
    gpc_mapped_waited();
}

CUresult gpc_refuse(uint16_t op)
{
    gpc_count(op);
    static uint8_t told[GP_OP_COUNT];
    if (!__atomic_exchange_n(&told[op], 1, __ATOMIC_RELAXED))
        gpc_log(GPC_LOG_WARN, "%s is not supported (proto/coverage.md says why)",
                gp_op_table[op].name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult gpc_refuse_because(uint16_t op, const char *why)
{
    gpc_log(GPC_LOG_WARN, "%s: not supported here: %s", gp_op_table[op].name, why);
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool gpc_per_thread_streams(bool on)
{
    struct gpc_thread *t = gpc_thread();
    bool before = t->per_thread_streams;
    t->per_thread_streams = on;
    return before;
}
