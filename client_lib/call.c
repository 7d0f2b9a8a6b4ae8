/* Building a call, and the checks every exported function starts and ends with. */
#include "call.h"

#include <string.h>

#include "handle.h"
#include "process.h"
#include "session.h"

CUresult gpc_call_in(struct gpc_call *call, const void *from, uint64_t count, size_t size,
                     uint32_t *n)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > GP_CHUNK_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes && !from)
        return CUDA_ERROR_INVALID_VALUE;
    *n = (uint32_t)bytes;
    call->in[call->in_count++] = (struct iovec){(void *)(uintptr_t)from, bytes};
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
    call->out[call->out_count++] =
        (struct gpc_call_room){.to = to, .room = (uint32_t)bytes, .length_at = (uint32_t)length_at};
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
    if (needs == GPC_NEEDS_CONTEXT && !gpc_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

CUresult gpc_leave(CUresult result)
{
    return result == CUDA_SUCCESS ? gpc_process_take_pending() : result;
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

CUresult gpc_device_wire(CUdevice device, int32_t *wire)
{
    if (device < 0 || (uint32_t)device >= gpc_device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    *wire = device;
    return CUDA_SUCCESS;
}
