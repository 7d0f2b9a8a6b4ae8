/*
 * From host memory that the GPU's host does not have: the bytes are taken over before the
 * call returns, into slots of the arena or into messages, and nobody waits for an answer. Messages
 * are lent to the channel meanwhile, so that several can be sent side by side.
 */
#include <string.h>

#include "call.h"
#include "gpc_wire.h"
#include "host_function.h"
#include "memory.h"
#include "movers.h"
#include "plan.h"
#include "session.h"

/* Pieces under way at a time in a long copy. */
#define AHEAD 8u

static CUresult send_slot(struct gpc_copy *c, uint64_t dst, uint32_t bytes, int slot)
{
    CUresult r = gpc_wire_gp_htod_arena_on(c->on, dst, c->stream, (uint64_t)slot * GP_CHUNK_MAX,
                                           bytes, (uint32_t)slot);
    if (r != CUDA_SUCCESS)
        gpc_arena_give(c->on->session, (unsigned)slot);
    return r;
}

static CUresult put_slot(struct gpc_copy *c, uint64_t dst, const void *src, uint32_t bytes,
                         int slot)
{
    memcpy(gpc_arena_slot(c->on->session, (unsigned)slot), src, bytes);
    return send_slot(c, dst, bytes, slot);
}

static CUresult put_bytes(struct gpc_copy *c, uint64_t dst, const void *src, uint32_t bytes)
{
    if (c->dst.kind != GPC_END_ARRAY)
        return gpc_wire_gp_htod_on(c->on, dst, c->stream, bytes, src);
    const struct gp_array_box at = gpc_array_box(c, &c->dst, dst, bytes);
    return gpc_wire_gp_array_upload_on(c->on, c->dst.array, &at, c->stream, bytes, src);
}

static CUresult row_by_message(struct gpc_copy *c, uint64_t dst, uint64_t src, size_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t at = 0; at < bytes && r == CUDA_SUCCESS; c->messages++) {
        uint32_t n = gpc_copy_piece(c, at, bytes - at);
        r = put_bytes(c, dst + at, (const void *)(uintptr_t)(src + at), n);
        at += n;
    }
    return r;
}

static CUresult row_by_arena(struct gpc_copy *c, uint64_t dst, uint64_t src, size_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t at = 0; at < bytes && r == CUDA_SUCCESS; at += GP_CHUNK_MAX, c->messages++) {
        const void *from = (const void *)(uintptr_t)(src + at);
        uint32_t n = gpc_copy_chunk(bytes - at);
        int slot = n > GPC_ARENA_LEAST ? gpc_arena_take(c->on->session) : -1;
        r = slot >= 0 ? put_slot(c, dst + at, from, n, slot)
                      : gpc_wire_gp_htod_on(c->on, dst + at, c->stream, n, from);
    }
    return r;
}

/* Pieces of a long row that movers copy into the arena ahead of their messages. */
struct ahead {
    struct ahead_piece {
        uint64_t dst;
        uint32_t bytes;
        int slot, move;
    } pieces[AHEAD];
    size_t begun, sent;
};

/* Whether there is a slot for one more. Only the first may wait for one: a thread that holds slots
 * must not, for others may wait for its own. */
static bool ahead_begin(struct ahead *a, struct gpc_copy *c, uint64_t dst, uint64_t src,
                        uint32_t bytes)
{
    struct gpc_session *s = c->on->session;
    int slot = a->begun == a->sent ? gpc_arena_take(s) : gpc_arena_try(s);
    if (slot < 0)
        return false;
    int move = gpc_move_begin(gpc_arena_slot(s, (unsigned)slot), (const void *)(uintptr_t)src,
                              bytes);
    a->pieces[a->begun++ % AHEAD] = (struct ahead_piece){dst, bytes, slot, move};
    return true;
}

static CUresult ahead_send(struct ahead *a, struct gpc_copy *c, CUresult r)
{
    const struct ahead_piece *p = &a->pieces[a->sent++ % AHEAD];
    gpc_move_finish(p->move);
    if (r == CUDA_SUCCESS)
        return send_slot(c, p->dst, p->bytes, p->slot);
    gpc_arena_give(c->on->session, (unsigned)p->slot);
    return r;
}

static CUresult row_ahead(struct gpc_copy *c, uint64_t dst, uint64_t src, size_t bytes)
{
    struct ahead a = {.begun = 0};
    CUresult r = CUDA_SUCCESS;
    for (size_t at = 0; a.begun != a.sent || (at < bytes && r == CUDA_SUCCESS);) {
        uint32_t n = gpc_copy_chunk(bytes - at);
        if (r == CUDA_SUCCESS && n > 0 && a.begun - a.sent < AHEAD &&
            ahead_begin(&a, c, dst + at, src + at, n)) {
            at += n;
            c->messages++;
        } else if (a.begun != a.sent) {
            r = ahead_send(&a, c, r);
        } else { /* there is no arena, or the session is lost */
            return row_by_arena(c, dst + at, src + at, bytes - at);
        }
    }
    return r;
}

static CUresult upload(struct gpc_copy *c,
                       CUresult (*row)(struct gpc_copy *, uint64_t, uint64_t, size_t))
{
    CUresult r = CUDA_SUCCESS;
    /* what an earlier copy or host function has still to write here must be read */
    if (c->src.known && gpc_host_functions_outstanding())
        r = gpc_wire_cuStreamSynchronize_on(c->on, c->stream);
    if (c->src.known && r == CUDA_SUCCESS)
        r = gpc_pinned_settle((const void *)(uintptr_t)c->src.at, c->src.span.bytes);
    if (r != CUDA_SUCCESS)
        return r;
    c->on->lends = true;
    r = gpc_copy_rows(c, row);
    c->on->lends = false;
    CUresult back = gpc_session_take_back(c->on->session);
    if (r == CUDA_SUCCESS)
        r = back;
    if (r == CUDA_SUCCESS)
        gpc_session_note_upload(c->on, c->messages);
    return r;
}

static CUresult row_by_several(struct gpc_copy *c, uint64_t dst, uint64_t src, size_t bytes)
{
    return bytes < GPC_MOVE_LEAST ? row_by_arena(c, dst, src, bytes)
                                  : row_ahead(c, dst, src, bytes);
}

CUresult gpc_copy_upload_arena(struct gpc_copy *c)
{
    return upload(c, row_by_several);
}

CUresult gpc_copy_upload_message(struct gpc_copy *c)
{
    return upload(c, row_by_message);
}
