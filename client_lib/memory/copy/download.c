/*
 * To host memory that the GPU's host does not have. Into pageable memory a call waits for
 * the bytes, several pieces under way at a time and one round trip in all; into pinned memory
 * an asynchronous one does not: notices bring them (pinned.c).
 */
#include <string.h>

#include "call.h"
#include "completion.h"
#include "gpc_wire.h"
#include "memory.h"
#include "movers.h"
#include "plan.h"
#include "session.h"

/* Answers under way at a time in a long copy; and pieces that movers have at a time then. */
#define WINDOW 8u
#define MOVED 8u

/* One piece of a long copy. */
struct piece {
    struct gpc_call call;
    union {
        struct gp_req_gp_dtoh inlined;
        struct gp_req_gp_dtoh_arena arena;
        struct gp_req_gp_array_download array;
    } request;
    struct gp_rep_gp_dtoh reply;
    int slot; /* of the arena, or -1 */
    char *to;
    uint32_t bytes;
};

static void ask_for_slot(struct piece *p, uint64_t stream, uint64_t src)
{
    p->request.arena = (struct gp_req_gp_dtoh_arena){.h = {.op = GP_OP_gp_dtoh_arena},
                                                     .src = src,
                                                     .stream = stream,
                                                     .offset = (uint64_t)p->slot * GP_CHUNK_MAX,
                                                     .bytes = p->bytes};
    p->call.request = &p->request.arena.h;
    p->call.request_size = sizeof p->request.arena;
}

_Static_assert(sizeof(struct gp_rep_gp_array_download) == sizeof(struct gp_rep_gp_dtoh) &&
                   offsetof(struct gp_rep_gp_array_download, n_data) ==
                       offsetof(struct gp_rep_gp_dtoh, n_data),
               "both answers are bytes alone");

static void ask_for_message(struct piece *p, const struct gpc_copy *c, uint64_t src)
{
    uint64_t stream = c->on->stream;
    if (c->src.kind == GPC_END_ARRAY) {
        p->request.array = (struct gp_req_gp_array_download){
            .h = {.op = GP_OP_gp_array_download},
            .array = (uint64_t)c->src.array,
            .at = gpc_array_box(c, &c->src, src, p->bytes),
            .stream = stream,
            .bytes = p->bytes};
        p->call.request = &p->request.array.h;
        p->call.request_size = sizeof p->request.array;
    } else {
        p->request.inlined = (struct gp_req_gp_dtoh){
            .h = {.op = GP_OP_gp_dtoh}, .src = src, .stream = stream, .bytes = p->bytes};
        p->call.request = &p->request.inlined.h;
        p->call.request_size = sizeof p->request.inlined;
    }
    p->call.reply = &p->reply.r;
    p->call.reply_size = sizeof p->reply;
    gpc_call_out(&p->call, p->to, p->bytes, 1, offsetof(struct gp_rep_gp_dtoh, n_data));
}

/* Send for the piece, whose `to`, `bytes` and `slot` are set. */
static CUresult piece_begin(const struct gpc_copy *c, struct piece *p, uint64_t src, bool last)
{
    const struct gpc_route *on = c->on;
    memset(&p->call, 0, sizeof p->call);
    memset(&p->request, 0, sizeof p->request);
    p->call.route = *on;
    p->call.part_of_one = !last;
    if (p->slot >= 0)
        ask_for_slot(p, on->stream, src);
    else
        ask_for_message(p, c, src);
    CUresult r = gpc_call_begin(&p->call);
    if (r != CUDA_SUCCESS && p->slot >= 0)
        gpc_arena_give(on->session, (unsigned)p->slot);
    return r;
}

/* Pieces that have come into the arena, and are on their way from there to where they belong. A
 * thread's stack may be small, so there is little of each. */
struct moving {
    struct gpc_session *session;
    struct {
        int move, slot;
    } of[MOVED];
    size_t begun, finished;
};

static void moving_finish(struct moving *m)
{
    size_t i = m->finished++ % MOVED;
    gpc_move_finish(m->of[i].move);
    gpc_arena_give(m->session, (unsigned)m->of[i].slot);
}

static void moving_add(struct moving *m, const struct piece *p)
{
    if (m->begun - m->finished == MOVED)
        moving_finish(m);
    size_t i = m->begun++ % MOVED;
    m->of[i].slot = p->slot;
    m->of[i].move = gpc_move_begin(p->to, gpc_arena_slot(m->session, (unsigned)p->slot), p->bytes);
}

/* Wait for its answer. Bytes in the arena are moved from there, by movers (`m`) if it is a long copy. */
static CUresult piece_finish(struct piece *p, struct moving *m)
{
    struct gpc_session *s = p->call.route.session;
    CUresult r = gpc_call_finish(&p->call);
    if (p->slot < 0) /* what the answer left out would be whatever was there */
        return r == CUDA_SUCCESS && p->call.out[0].got != p->bytes ? CUDA_ERROR_UNKNOWN : r;
    if (r == CUDA_SUCCESS && m != NULL) {
        moving_add(m, p);
        return r;
    }
    if (r == CUDA_SUCCESS)
        memcpy(p->to, gpc_arena_slot(s, (unsigned)p->slot), p->bytes);
    gpc_arena_give(s, (unsigned)p->slot);
    return r;
}

/* What of a copy is still to be asked for: its rows, one after the other, in pieces. */
struct rest {
    const struct gpc_copy *copy;
    struct gpc_rows rows;
    size_t row, at;
    bool arena;
};

/* The next piece: its slot is taken only if one is free. A thread that holds slots must not
 * wait for more: others may wait for its own. */
static CUresult rest_begin(struct rest *rest, struct piece *p)
{
    const struct gpc_copy *c = rest->copy;
    size_t at = rest->at;
    p->bytes = gpc_copy_piece(c, at, rest->rows.bytes - at);
    p->slot = rest->arena && p->bytes > GPC_ARENA_LEAST ? gpc_arena_try(c->on->session) : -1;
    p->to = (char *)(uintptr_t)c->dst.at + gpc_copy_row_at(&c->dst.span, &rest->rows, rest->row) +
            at;
    uint64_t src = c->src.at + gpc_copy_row_at(&c->src.span, &rest->rows, rest->row) + at;
    rest->at += p->bytes;
    if (rest->at == rest->rows.bytes) {
        rest->row++;
        rest->at = 0;
    }
    return piece_begin(c, p, src, rest->row == rest->rows.count);
}

/* Wait for the bytes, several pieces under way: one round trip in all. */
static CUresult read_pieces(struct gpc_copy *c, bool arena)
{
    struct piece pieces[WINDOW];
    struct rest rest = {.copy = c, .rows = gpc_copy_rows_of(c), .arena = arena};
    struct moving moving = {.session = c->on->session};
    const bool is_long = rest.rows.bytes >= GPC_MOVE_LEAST;
    CUresult first = CUDA_SUCCESS;
    size_t begun = 0, finished = 0;
    uint64_t last_seq = 0;
    for (;;) {
        bool more = rest.row < rest.rows.count && first == CUDA_SUCCESS;
        if (more && begun - finished < WINDOW) {
            first = rest_begin(&rest, &pieces[begun % WINDOW]);
            begun += first == CUDA_SUCCESS;
            continue;
        }
        if (finished == begun)
            break;
        struct piece *p = &pieces[finished++ % WINDOW];
        last_seq = p->call.seq;
        CUresult r = piece_finish(p, is_long ? &moving : NULL);
        if (first == CUDA_SUCCESS)
            first = r;
    }
    while (moving.finished != moving.begun)
        moving_finish(&moving);
    if (first == CUDA_SUCCESS)
        gpc_session_settle(c->on, last_seq);
    return first;
}

/* A few bytes, which the GPU itself brings. */
static bool read_small(struct gpc_copy *c, CUresult *r)
{
    struct gpc_rows rows = gpc_copy_rows_of(c);
    void *to = (void *)(uintptr_t)(c->dst.at + gpc_copy_row_at(&c->dst.span, &rows, 0));
    uint64_t src = c->src.at + gpc_copy_row_at(&c->src.span, &rows, 0);
    if (rows.count != 1 || c->src.kind != GPC_END_DEVICE ||
        !gpc_complete_download(c->on, to, src, rows.bytes, r))
        return false;
    if (*r == CUDA_SUCCESS)
        gpc_session_settle(c->on, gpc_thread()->last_answer);
    return true;
}

static CUresult read_waiting(struct gpc_copy *c, bool arena)
{
    CUresult r;
    return read_small(c, &r) ? r : read_pieces(c, arena);
}

static CUresult send_for_notice(struct gpc_copy *c, uint64_t src, uint64_t cookie, uint64_t at,
                                uint32_t bytes, bool last)
{
    if (c->src.kind != GPC_END_ARRAY)
        return gpc_wire_gp_dtoh_pinned_on(c->on, src, c->stream, cookie, at, bytes, last);
    const struct gp_array_box box = gpc_array_box(c, &c->src, src, bytes);
    return gpc_wire_gp_array_download_pinned_on(c->on, c->src.array, &box, c->stream, cookie, at,
                                                bytes, last);
}

/* Into pinned memory of this process's own, without waiting: notices bring it. */
static CUresult row_by_notices(struct gpc_copy *c, uint64_t dst, uint64_t src, size_t bytes)
{
    uint64_t cookie = gpc_pinned_expect(c->on->session, (void *)(uintptr_t)dst, bytes);
    if (!cookie)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = CUDA_SUCCESS;
    for (uint64_t at = 0; r == CUDA_SUCCESS && at < bytes;) {
        uint32_t n = gpc_copy_piece(c, at, bytes - at);
        r = send_for_notice(c, src + at, cookie, at, n, n == bytes - at);
        at += n;
    }
    return r;
}

CUresult gpc_copy_download_arena(struct gpc_copy *c)
{
    return read_waiting(c, true);
}

CUresult gpc_copy_download_message(struct gpc_copy *c)
{
    return read_waiting(c, false);
}

CUresult gpc_copy_download_pinned_arena(struct gpc_copy *c)
{
    return c->blocking ? read_waiting(c, true) : gpc_copy_rows(c, row_by_notices);
}

CUresult gpc_copy_download_pinned_message(struct gpc_copy *c)
{
    return c->blocking ? read_waiting(c, false) : gpc_copy_rows(c, row_by_notices);
}
