/*
 * How bytes get from user memory to the device and back.
 *
 *              shared memory                     network
 *  pageable →  arena slot, no answer             in the message, no answer
 *  → pageable  arena slots, one round trip       in the answers, one round trip
 *  pinned      the GPU copies by itself          taken over at the call / sent as notices
 */
#include <string.h>

#include "abroad.h"
#include "call.h"
#include "captured_copy.h"
#include "gpc_wire.h"
#include "host_function.h"
#include "memory.h"
#include "peer.h"
#include "ranges.h"
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

/* Where a copy on this stream is made. */
static CUresult session_of(CUstream stream, struct gpc_session **s, uint64_t *wire)
{
    struct gpc_call where = {.session = NULL};
    CUresult r = gpc_stream_wire(&where, stream, wire);
    *s = where.session;
    return r;
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
static CUresult capture(uint16_t op, CUdeviceptr device, void *host, size_t bytes, CUstream stream,
                        bool to_device, bool *done)
{
    struct gpc_range range;
    CUresult r = gpc_stream_captures(stream, done);
    if (r != CUDA_SUCCESS || !*done)
        return r;
    if (!gpc_range_find((uint64_t)(uintptr_t)host, &range) ||
        bytes > range.size - ((uint64_t)(uintptr_t)host - range.begin))
        return gpc_refuse_because(op, "a copy in a graph from or to host memory that is not pinned");
    return gpc_captured_copy(device, host, bytes, stream, to_device);
}

static CUresult put_slot(struct gpc_session *s, CUdeviceptr dst, const char *src, uint32_t bytes,
                         CUstream stream, int slot)
{
    memcpy(gpc_arena_slot(s, (unsigned)slot), src, bytes);
    CUresult r = gpc_wire_gp_htod_arena(dst, stream, (uint64_t)slot * GP_CHUNK_MAX, bytes,
                                        (uint32_t)slot);
    if (r != CUDA_SUCCESS)
        gpc_arena_give(s, (unsigned)slot);
    return r;
}

static CUresult abroad_to_device(uint16_t op, const struct gpc_range *there, CUdeviceptr dst,
                                 const void *src, size_t bytes, CUstream stream)
{
    struct gpc_abroad a;
    CUresult r = gpc_abroad_begin(&a, there, stream);
    if (r != CUDA_SUCCESS)
        return r;
    return gpc_abroad_end(&a, gpc_copy_to_device(op, dst, src, bytes, CU_STREAM_LEGACY));
}

CUresult gpc_copy_to_device(uint16_t op, CUdeviceptr dst, const void *src, size_t bytes,
                            CUstream stream)
{
    struct gpc_range range;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!src || !dst || is_device_only(src) || !fits(dst, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (is_host(dst)) /* pinned memory has an address for the device as well */
        return gpc_copy_any(op, dst, (uint64_t)(uintptr_t)src, bytes, stream, 1);
    if (gpc_range_find(dst, &range) && gpc_is_abroad(&range, stream))
        return abroad_to_device(op, &range, dst, src, bytes, stream);
    struct gpc_session *s;
    uint64_t wire;
    CUresult r = session_of(stream, &s, &wire);
    if (r != CUDA_SUCCESS)
        return r;
    if (is_shared(s, src, bytes))
        return gpc_wire_gp_copy(dst, (uint64_t)(uintptr_t)src, bytes, stream, 1);
    bool captured;
    r = capture(op, dst, (void *)(uintptr_t)src, bytes, stream, true, &captured);
    if (r != CUDA_SUCCESS || captured)
        return r;
    /* what an earlier copy or host function has still to write here must be read */
    bool pinned = gpc_range_find((uint64_t)(uintptr_t)src, &range);
    if (pinned && gpc_host_functions_outstanding())
        r = gpc_wire_cuStreamSynchronize(stream);
    if (pinned && r == CUDA_SUCCESS)
        r = gpc_pinned_settle(src, bytes);
    const char *from = src;
    unsigned messages = 0;
    while (r == CUDA_SUCCESS && bytes) {
        uint32_t n = bytes < GP_CHUNK_MAX ? (uint32_t)bytes : (uint32_t)GP_CHUNK_MAX;
        int slot = n > INLINE_MAX ? gpc_arena_take(s) : -1;
        r = slot >= 0 ? put_slot(s, dst, from, n, stream, slot)
                      : gpc_wire_gp_htod(dst, stream, n, from);
        dst += n;
        from += n;
        bytes -= n;
        messages++;
    }
    if (r == CUDA_SUCCESS)
        gpc_session_note_upload(s, wire, messages);
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

static CUresult piece_begin(struct gpc_session *s, struct piece *p, char *to, CUdeviceptr src,
                            uint32_t bytes, uint64_t stream, bool last)
{
    memset(&p->call, 0, sizeof p->call);
    memset(&p->request, 0, sizeof p->request);
    p->to = to;
    p->bytes = bytes;
    p->slot = bytes > INLINE_MAX ? gpc_arena_take(s) : -1;
    p->call.session = s;
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
        memcpy(p->to, gpc_arena_slot(p->call.session, (unsigned)p->slot), p->bytes);
    gpc_arena_give(p->call.session, (unsigned)p->slot);
    return r;
}

/* Wait for the bytes, several pieces under way: one round trip in all. */
static CUresult read_blocking(char *to, CUdeviceptr src, size_t bytes, CUstream stream)
{
    struct piece pieces[WINDOW];
    struct gpc_session *s;
    uint64_t wire;
    CUresult r = session_of(stream, &s, &wire), first = CUDA_SUCCESS;
    if (r != CUDA_SUCCESS)
        return r;
    unsigned begun = 0, finished = 0;
    uint64_t last_seq = 0;
    while (bytes || finished < begun) {
        if (bytes && first == CUDA_SUCCESS && begun - finished < WINDOW) {
            uint32_t n = bytes < GP_CHUNK_MAX ? (uint32_t)bytes : (uint32_t)GP_CHUNK_MAX;
            first = piece_begin(s, &pieces[begun % WINDOW], to, src, n, wire, n == bytes);
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
        gpc_session_settle(s, wire, last_seq);
    return first;
}

/* Into pinned memory of this process's own, without waiting: notices bring it. */
static CUresult read_pinned(struct gpc_session *s, char *to, CUdeviceptr src, size_t bytes,
                            CUstream stream)
{
    uint64_t cookie = gpc_pinned_expect(s, to, bytes);
    if (!cookie)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = CUDA_SUCCESS;
    for (uint64_t at = 0; r == CUDA_SUCCESS && at < bytes;) {
        size_t left = bytes - at;
        uint32_t n = left < GP_CHUNK_MAX ? (uint32_t)left : (uint32_t)GP_CHUNK_MAX;
        r = gpc_wire_gp_dtoh_pinned(src + at, stream, cookie, at, n, n == left);
        at += n;
    }
    return r;
}

static CUresult abroad_to_host(uint16_t op, const struct gpc_range *there, void *dst,
                               CUdeviceptr src, size_t bytes, CUstream stream)
{
    struct gpc_abroad a;
    CUresult r = gpc_abroad_begin(&a, there, stream);
    if (r != CUDA_SUCCESS)
        return r;
    return gpc_abroad_end(&a, gpc_copy_to_host(op, dst, src, bytes, CU_STREAM_LEGACY, 1));
}

CUresult gpc_copy_to_host(uint16_t op, void *dst, CUdeviceptr src, size_t bytes, CUstream stream,
                          int blocking)
{
    struct gpc_range range;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!src || !dst || is_device_only(dst) || !fits(src, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (is_host(src))
        return gpc_copy_any(op, (uint64_t)(uintptr_t)dst, src, bytes, stream, blocking);
    if (gpc_range_find(src, &range) && gpc_is_abroad(&range, stream))
        return abroad_to_host(op, &range, dst, src, bytes, stream);
    struct gpc_session *s;
    uint64_t wire;
    CUresult r = session_of(stream, &s, &wire);
    if (r != CUDA_SUCCESS)
        return r;
    if (is_shared(s, dst, bytes)) {
        r = gpc_wire_gp_copy((uint64_t)(uintptr_t)dst, src, bytes, stream, 2);
        return r || !blocking ? r : gpc_wire_cuStreamSynchronize(stream);
    }
    bool captured;
    r = capture(op, src, dst, bytes, stream, false, &captured);
    if (r != CUDA_SUCCESS || captured)
        return r;
    if (!blocking && gpc_range_find((uint64_t)(uintptr_t)dst, &range) &&
        bytes <= range.size - ((uint64_t)(uintptr_t)dst - range.begin))
        return read_pinned(s, dst, src, bytes, stream);
    return read_blocking(dst, src, bytes, stream);
}

/* Both ends are devices': of one host, or of two. */
static CUresult on_devices(uint16_t op, const struct gpc_range *to, const struct gpc_range *from,
                           CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    if (gpc_session_count() < 2)
        return gpc_wire_cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
    if (gpc_range_session(to) != gpc_range_session(from))
        return gpc_peer_copy(op, to, dst, from, src, bytes, stream);
    if (!gpc_is_abroad(to, stream))
        return gpc_wire_cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
    struct gpc_abroad a;
    CUresult r = gpc_abroad_begin(&a, to, stream);
    if (r != CUDA_SUCCESS)
        return r;
    return gpc_abroad_end(&a, gpc_wire_cuMemcpyDtoDAsync_v2(dst, src, bytes, CU_STREAM_LEGACY));
}

CUresult gpc_copy_any(uint16_t op, uint64_t dst, uint64_t src, size_t bytes, CUstream stream,
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
        return on_devices(op, &to, &from, dst, src, bytes, stream);
    if (to_device)
        return gpc_copy_to_device(op, dst, (const void *)(uintptr_t)src, bytes, stream);
    if (from_device)
        return gpc_copy_to_host(op, (void *)(uintptr_t)dst, src, bytes, stream, blocking);
    /* both are host memory: in stream order, then here */
    CUresult r = gpc_wire_cuStreamSynchronize(stream);
    if (r == CUDA_SUCCESS)
        r = gpc_pinned_settle(NULL, 0);
    if (r == CUDA_SUCCESS)
        memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
    return r;
}
