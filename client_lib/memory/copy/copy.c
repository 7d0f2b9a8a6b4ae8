/*
 * How bytes get from user memory to the device and back.
 *
 *              shared memory                     network
 *  pageable →  arena slot, no answer             in the message, no answer
 *  → pageable  arena slots, one round trip       in the answers, one round trip
 *  pinned      the GPU copies by itself          taken over at the call / sent as notices
 */
#include <string.h>

#include "call.h"
#include "captured_copy.h"
#include "gpc_wire.h"
#include "host_function.h"
#include "memory.h"
#include "peer.h"
#include "ranges.h"
#include "remote_host.h"
#include "session.h"

/* Below this a message is cheaper than a slot of the arena. */
#define INLINE_MAX 16384u
/* Answers under way at a time in a long copy to the host. */
#define WINDOW 8u

/* Pinned memory that the worker of this session has, too; that of another session is
 * for this one as if it were not shared. */
static bool is_shared(const struct gpc_session *s, const void *p, size_t bytes)
{
    struct gpc_range range;
    uint64_t at = (uint64_t)(uintptr_t)p;
    return gpc_range_find(at, &range) && range.kind == GPC_RANGE_SHARED &&
           bytes <= range.size - (at - range.begin) && gpc_range_session(&range) == s;
}

static bool is_host(CUdeviceptr at)
{
    struct gpc_range range;
    return gpc_range_find(at, &range) && gpc_range_is_host(&range);
}

/* Memory of a GPU where host memory belongs, as when the two ends are mixed up. Addresses
 * that drivers have chosen, of pools and variables, may be this process's own as well. */
static bool is_device_only(const void *p)
{
    struct gpc_range range;
    return gpc_range_find((uint64_t)(uintptr_t)p, &range) && range.kind == GPC_RANGE_DEVICE;
}

/* What CUDA sees at once: more bytes than the allocation has. */
static bool fits(CUdeviceptr at, size_t bytes)
{
    struct gpc_range range;
    return !gpc_range_find(at, &range) || range.kind == GPC_RANGE_MAPPED ||
           bytes <= range.size - (at - range.begin);
}

/* Into a graph, pinned memory is copied by its ways alone: `*done` says that it was. */
static CUresult capture(uint16_t op, struct gpc_route *on, CUdeviceptr device, void *host, size_t bytes, CUstream stream,
                        bool to_device, bool *done)
{
    struct gpc_range range;
    CUresult r = gpc_stream_captures(on, stream, done);
    if (r != CUDA_SUCCESS || !*done)
        return r;
    if (!gpc_range_find((uint64_t)(uintptr_t)host, &range) ||
        bytes > range.size - ((uint64_t)(uintptr_t)host - range.begin))
        return gpc_refuse_because(op, "a copy in a graph from or to host memory that is not pinned");
    return gpc_captured_copy(on, device, host, bytes, stream, to_device);
}

static CUresult put_slot(const struct gpc_route *on, CUdeviceptr dst, const char *src, uint32_t bytes,
                         CUstream stream, int slot)
{
    struct gpc_session *s = on->session;
    memcpy(gpc_arena_slot(s, (unsigned)slot), src, bytes);
    CUresult r = gpc_wire_gp_htod_arena_on(on, dst, stream, (uint64_t)slot * GP_CHUNK_MAX, bytes,
                                        (uint32_t)slot);
    if (r != CUDA_SUCCESS)
        gpc_arena_give(s, (unsigned)slot);
    return r;
}

static CUresult remote_to_device(uint16_t op, const struct gpc_route *on,
                                 const struct gpc_range *range, CUdeviceptr dst, const void *src,
                                 size_t bytes, CUstream stream)
{
    struct gpc_route there;
    CUresult r = gpc_remote_begin(&there, range, on, stream);
    if (r != CUDA_SUCCESS)
        return r;
    return gpc_remote_end(&there,
                          gpc_copy_to_device(op, &there, dst, src, bytes, CU_STREAM_LEGACY));
}

CUresult gpc_copy_to_device(uint16_t op, struct gpc_route *on, CUdeviceptr dst, const void *src, size_t bytes,
                            CUstream stream)
{
    struct gpc_range range;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!src || !dst || is_device_only(src) || !fits(dst, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (is_host(dst)) /* pinned memory has an address for the device as well */
        return gpc_copy_any(op, on, dst, (uint64_t)(uintptr_t)src, bytes, stream, 1);
    if (gpc_range_find(dst, &range) && gpc_range_is_remote(&range, on))
        return remote_to_device(op, on, &range, dst, src, bytes, stream);
    struct gpc_session *s = on->session;
    uint64_t wire;
    CUresult r = gpc_route_stream(on, stream, &wire);
    if (r != CUDA_SUCCESS)
        return r;
    if (is_shared(s, src, bytes))
        return gpc_wire_gp_copy_on(on, dst, (uint64_t)(uintptr_t)src, bytes, stream, 1);
    bool captured;
    r = capture(op, on, dst, (void *)(uintptr_t)src, bytes, stream, true, &captured);
    if (r != CUDA_SUCCESS || captured)
        return r;
    /* what an earlier copy or host function has still to write here must be read */
    bool pinned = gpc_range_find((uint64_t)(uintptr_t)src, &range);
    if (pinned && gpc_host_functions_outstanding())
        r = gpc_wire_cuStreamSynchronize_on(on, stream);
    if (pinned && r == CUDA_SUCCESS)
        r = gpc_pinned_settle(src, bytes);
    const char *from = src;
    unsigned messages = 0;
    while (r == CUDA_SUCCESS && bytes) {
        uint32_t n = bytes < GP_CHUNK_MAX ? (uint32_t)bytes : (uint32_t)GP_CHUNK_MAX;
        int slot = n > INLINE_MAX ? gpc_arena_take(s) : -1;
        r = slot >= 0 ? put_slot(on, dst, from, n, stream, slot)
                      : gpc_wire_gp_htod_on(on, dst, stream, n, from);
        dst += n;
        from += n;
        bytes -= n;
        messages++;
    }
    if (r == CUDA_SUCCESS)
        gpc_session_note_upload(on, messages);
    return r;
}

/* --- to the host ------------------------------------------------------------------ */

/* One piece of a long copy. */
struct piece {
    struct gpc_call call;
    union {
        struct gp_req_gp_dtoh inlined;
        struct gp_req_gp_dtoh_arena arena;
    } request;
    struct gp_rep_gp_dtoh reply;
    int slot;
    char *to;
    uint32_t bytes;
};

static CUresult piece_begin(const struct gpc_route *on, struct piece *p, char *to, CUdeviceptr src,
                            uint32_t bytes, uint64_t stream, bool last)
{
    struct gpc_session *s = on->session;
    memset(&p->call, 0, sizeof p->call);
    memset(&p->request, 0, sizeof p->request);
    p->to = to;
    p->bytes = bytes;
    p->slot = bytes > INLINE_MAX ? gpc_arena_take(s) : -1;
    p->call.route = *on;
    p->call.part_of_one = !last;
    if (p->slot >= 0) {
        p->request.arena = (struct gp_req_gp_dtoh_arena){.h = {.op = GP_OP_gp_dtoh_arena},
                                                         .src = src,
                                                         .stream = stream,
                                                         .offset = (uint64_t)p->slot * GP_CHUNK_MAX,
                                                         .bytes = bytes};
        p->call.request = &p->request.arena.h;
        p->call.request_size = sizeof p->request.arena;
    } else {
        p->request.inlined = (struct gp_req_gp_dtoh){
            .h = {.op = GP_OP_gp_dtoh}, .src = src, .stream = stream, .bytes = bytes};
        p->call.request = &p->request.inlined.h;
        p->call.request_size = sizeof p->request.inlined;
        p->call.reply = &p->reply.r;
        p->call.reply_size = sizeof p->reply;
        gpc_call_out(&p->call, to, bytes, 1, offsetof(struct gp_rep_gp_dtoh, n_data));
    }
    CUresult r = gpc_call_begin(&p->call);
    if (r != CUDA_SUCCESS && p->slot >= 0)
        gpc_arena_give(s, (unsigned)p->slot);
    return r;
}

static CUresult piece_finish(struct piece *p)
{
    CUresult r = gpc_call_finish(&p->call);
    if (p->slot < 0) /* what the answer left out would be whatever was there */
        return r == CUDA_SUCCESS && p->call.out[0].got != p->bytes ? CUDA_ERROR_UNKNOWN : r;
    if (r == CUDA_SUCCESS)
        memcpy(p->to, gpc_arena_slot(p->call.route.session, (unsigned)p->slot), p->bytes);
    gpc_arena_give(p->call.route.session, (unsigned)p->slot);
    return r;
}

/* Wait for the bytes, several pieces under way: one round trip in all. */
static CUresult read_blocking(struct gpc_route *on, char *to, CUdeviceptr src, size_t bytes, CUstream stream)
{
    struct piece pieces[WINDOW];
    uint64_t wire;
    CUresult r = gpc_route_stream(on, stream, &wire), first = CUDA_SUCCESS;
    if (r != CUDA_SUCCESS)
        return r;
    unsigned begun = 0, finished = 0;
    uint64_t last_seq = 0;
    while (bytes || finished < begun) {
        if (bytes && first == CUDA_SUCCESS && begun - finished < WINDOW) {
            uint32_t n = bytes < GP_CHUNK_MAX ? (uint32_t)bytes : (uint32_t)GP_CHUNK_MAX;
            first = piece_begin(on, &pieces[begun % WINDOW], to, src, n, wire, n == bytes);
            if (first == CUDA_SUCCESS)
                begun++;
            to += n;
            src += n;
            bytes -= n;
            continue;
        }
        if (finished == begun)
            break; /* the first piece could not begin */
        last_seq = pieces[finished % WINDOW].call.seq;
        r = piece_finish(&pieces[finished++ % WINDOW]);
        if (first == CUDA_SUCCESS)
            first = r;
    }
    if (first == CUDA_SUCCESS)
        gpc_session_settle(on, last_seq);
    return first;
}

/* Into pinned memory of this process's own, without waiting: notices bring it. */
static CUresult read_pinned(const struct gpc_route *on, char *to, CUdeviceptr src, size_t bytes,
                            CUstream stream)
{
    uint64_t cookie = gpc_pinned_expect(on->session, to, bytes);
    if (!cookie)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = CUDA_SUCCESS;
    for (uint64_t at = 0; r == CUDA_SUCCESS && at < bytes;) {
        size_t left = bytes - at;
        uint32_t n = left < GP_CHUNK_MAX ? (uint32_t)left : (uint32_t)GP_CHUNK_MAX;
        r = gpc_wire_gp_dtoh_pinned_on(on, src + at, stream, cookie, at, n, n == left);
        at += n;
    }
    return r;
}

static CUresult remote_to_host(uint16_t op, const struct gpc_route *on,
                               const struct gpc_range *range, void *dst, CUdeviceptr src,
                               size_t bytes, CUstream stream)
{
    struct gpc_route there;
    CUresult r = gpc_remote_begin(&there, range, on, stream);
    if (r != CUDA_SUCCESS)
        return r;
    return gpc_remote_end(&there,
                          gpc_copy_to_host(op, &there, dst, src, bytes, CU_STREAM_LEGACY, 1));
}

CUresult gpc_copy_to_host(uint16_t op, struct gpc_route *on, void *dst, CUdeviceptr src, size_t bytes, CUstream stream,
                          int blocking)
{
    struct gpc_range range;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!src || !dst || is_device_only(dst) || !fits(src, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (is_host(src))
        return gpc_copy_any(op, on, (uint64_t)(uintptr_t)dst, src, bytes, stream, blocking);
    if (gpc_range_find(src, &range) && gpc_range_is_remote(&range, on))
        return remote_to_host(op, on, &range, dst, src, bytes, stream);
    struct gpc_session *s = on->session;
    uint64_t wire;
    CUresult r = gpc_route_stream(on, stream, &wire);
    if (r != CUDA_SUCCESS)
        return r;
    if (is_shared(s, dst, bytes)) {
        r = gpc_wire_gp_copy_on(on, (uint64_t)(uintptr_t)dst, src, bytes, stream, 2);
        return r || !blocking ? r : gpc_wire_cuStreamSynchronize_on(on, stream);
    }
    bool captured;
    r = capture(op, on, src, dst, bytes, stream, false, &captured);
    if (r != CUDA_SUCCESS || captured)
        return r;
    if (!blocking && gpc_range_find((uint64_t)(uintptr_t)dst, &range) &&
        bytes <= range.size - ((uint64_t)(uintptr_t)dst - range.begin))
        return read_pinned(on, dst, src, bytes, stream);
    return read_blocking(on, dst, src, bytes, stream);
}

/* Both ends are devices': of one host, or of two. */
static CUresult on_devices(uint16_t op, const struct gpc_route *on, const struct gpc_range *to,
                           const struct gpc_range *from, CUdeviceptr dst, CUdeviceptr src,
                           size_t bytes, CUstream stream)
{
    const struct gpc_session *there_ = gpc_range_session(to), *here = gpc_range_session(from);
    if (there_ && here && there_ != here)
        return gpc_peer_copy(op, on, to, dst, from, src, bytes, stream);
    if (!gpc_range_is_remote(to, on))
        return gpc_wire_cuMemcpyDtoDAsync_v2_on(on, dst, src, bytes, stream);
    struct gpc_route there;
    CUresult r = gpc_remote_begin(&there, to, on, stream);
    if (r != CUDA_SUCCESS)
        return r;
    return gpc_remote_end(
        &there, gpc_wire_cuMemcpyDtoDAsync_v2_on(&there, dst, src, bytes, CU_STREAM_LEGACY));
}

CUresult gpc_copy_any(uint16_t op, struct gpc_route *on, uint64_t dst, uint64_t src, size_t bytes, CUstream stream,
                      int blocking)
{
    struct gpc_range to, from;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!dst || !src)
        return CUDA_ERROR_INVALID_VALUE;
    bool to_device = gpc_range_find(dst, &to) && !gpc_range_is_host(&to);
    bool from_device = gpc_range_find(src, &from) && !gpc_range_is_host(&from);
    if (to_device && from_device && !(fits(dst, bytes) && fits(src, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    if (to_device && from_device)
        return on_devices(op, on, &to, &from, dst, src, bytes, stream);
    if (to_device)
        return gpc_copy_to_device(op, on, dst, (const void *)(uintptr_t)src, bytes, stream);
    if (from_device)
        return gpc_copy_to_host(op, on, (void *)(uintptr_t)dst, src, bytes, stream, blocking);
    /* both are host memory: in stream order, then here */
    CUresult r = gpc_wire_cuStreamSynchronize_on(on, stream);
    if (r == CUDA_SUCCESS)
        r = gpc_pinned_settle(NULL, 0);
    if (r == CUDA_SUCCESS)
        memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
    return r;
}
