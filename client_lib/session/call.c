/* Building a call, and the checks every exported function starts and ends with. */
#include "call.h"

#include <string.h>

#include "handle.h"
#include "process.h"
#include "session.h"
#include "stream.h"
#include "twin.h"

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
    gpc_thread()->last = NULL;
    if (needs == GPC_NEEDS_CONTEXT && !gpc_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

static bool is_explicit(CUstream stream)
{
    return stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

CUresult gpc_enter_stream(struct gpc_place *place, uint16_t op, CUstream stream)
{
    if (!is_explicit(stream))
        return gpc_enter(op, GPC_NEEDS_CONTEXT);
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    struct gpc_thread *t = gpc_thread();
    CUcontext own = r == CUDA_SUCCESS ? gpc_stream_context(stream) : NULL;
    if (own && own != t->current) {
        *place = (struct gpc_place){.before = t->current, .moved = true};
        t->current = own;
    }
    if (r == CUDA_SUCCESS && !t->current)
        return CUDA_ERROR_INVALID_HANDLE;
    return r == CUDA_SUCCESS ? gpc_process_state(true) : r;
}

void gpc_place_leave(struct gpc_place *place)
{
    if (place->moved)
        gpc_thread()->current = place->before;
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
    if (result != CUDA_SUCCESS)
        return result;
    struct gpc_session *s = gpc_thread()->last;
    if (!s)
        s = gpc_session();
    return s ? gpc_session_take_pending(s) : CUDA_SUCCESS;
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

/* Whether the call may go to `s`, as far as the arguments so far say. */
static bool goes_to(struct gpc_call *call, struct gpc_session *s)
{
    if (!call)
        return true;
    if (!call->session)
        call->session = s;
    return call->session == s;
}

CUresult gpc_device_wire(struct gpc_call *call, CUdevice device, int32_t *wire)
{
    struct gpc_session *s = gpc_session_of_device(device);
    if (!s || !goes_to(call, s))
        return CUDA_ERROR_INVALID_DEVICE;
    *wire = device - s->first;
    return CUDA_SUCCESS;
}

CUresult gpc_address_wire(struct gpc_call *call, uint64_t address)
{
    struct gpc_session *s = gpc_session_count() > 1 ? gpc_session_of_address(address) : NULL;
    return !s || goes_to(call, s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpc_location_wire(struct gpc_call *call, CUmemLocation *location)
{
    int32_t wire;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_SUCCESS;
    CUresult r = gpc_device_wire(call, location->id, &wire);
    if (r == CUDA_SUCCESS)
        location->id = wire;
    return r;
}

CUresult gpc_access_wire(struct gpc_call *call, const CUmemAccessDesc *from, uint64_t count,
                         CUmemAccessDesc to[GP_DEVICES_MAX])
{
    if (!from || count > GP_DEVICES_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (uint64_t i = 0; i < count && r == CUDA_SUCCESS; i++) {
        to[i] = from[i];
        r = gpc_location_wire(call, &to[i].location);
    }
    return r;
}

void gpc_location_back(const struct gpc_call *call, CUmemLocation *location)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && call->session)
        location->id += call->session->first;
}

CUresult gpc_handle_wire(struct gpc_call *call, enum gp_handle_kind kind, uint64_t id,
                         bool nullable, uint64_t *wire)
{
    *wire = id;
    if (id == 0 && nullable)
        return CUDA_SUCCESS;
    if ((kind == GP_HANDLE_FUNCTION || kind == GP_HANDLE_LIBRARY) && gpc_session_count() > 1)
        return gpc_handle_live(kind, id) ? gpc_twin_wire(call, kind, id, wire)
                                         : gpc_handle_wrong(kind);
    return gpc_handle_live(kind, id) && goes_to(call, gpc_session_of_handle(id))
               ? CUDA_SUCCESS
               : gpc_handle_wrong(kind);
}

CUresult gpc_legacy_wire(struct gpc_call *call, uint64_t *wire)
{
    struct gpc_session *s = gpc_session();
    *wire = GP_STREAM_LEGACY;
    return !s || goes_to(call, s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

uint32_t gpc_call_index(struct gpc_call *call)
{
    if (!call->session)
        call->session = gpc_session();
    return call->session ? call->session->index : 0;
}
