#include "gate_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "budget.h"
#include "graph.h"
#include "handles.h"
#include "host_function.h"
#include "loop.h"
#include "memory.h"
#include "message_fields.h"
#include "monotonic.h"
#include "nccl.h"
#include "peer.h"
#include "quota.h"
#include "slices.h"

/* Marks under way while others wait for the GPU; behind long work one. */
#define AHEAD 2
#define LONG_NS 10000000u
/* No copy is larger. */
#define BYTES_MOST (UINT64_C(256) << 30)
/* How often to look at marks: of a session that is alone, of one that is not, and when
 * others wait for just this. */
#define LOOK_US 1000
#define LOOK_CONTENDED_US 100
#define LOOK_ENDING_US 20
/* How long a turn that ends waits for work that may be blocked. */
#define BLOCKED_NS 50000000u
/* How long a turn that ends goes on for what other ranks have begun. */
#define CATCH_UP_NS 4000000u
/* How long nothing of a rank's is over while others wait for its GPU, before more of it is let in. */
#define APART_NS 5000000u
/* How long nothing under way is over before that stands: of a program whose streams or kernels wait
 * for what it does, and of any other. Each hundredth of it something more is let in then. */
#define STALLS_NS 20000000u
#define STANDS_NS 1000000000u

int gpw_gate_open(struct gpw_session *s, uint32_t ordinal, int page_fd, int bell_fd)
{
    if (!s->gates && !(s->gates = calloc(1, sizeof *s->gates)))
        return -1;
    struct gate *g = &s->gates->at[ordinal];
    int r = gp_seat_open(page_fd, bell_fd, &g->seat);
    if (r != 0) {
        gpw_log("error", "device %u: descriptors %d and %d are no seat at its board: %s", ordinal,
                page_fd, bell_fd, r == -EPROTO ? "it is of another release" : strerror(-r));
        return -1;
    }
    g->marks.every = 1;
    if (s->gates->count <= ordinal)
        s->gates->count = ordinal + 1;
    return 0;
}

struct gp_seat *gpw_gate_seat(struct gpw_session *s, uint32_t ordinal)
{
    return s->gates ? s->gates->at[ordinal].seat : NULL;
}

void gpw_gate_close(struct gpw_session *s)
{
    for (struct gate *g = gate_next(s, NULL); g; g = gate_next(s, g))
        gp_seat_leave(g->seat);
}

/* --- the end of a turn -------------------------------------------------------------- */

static void marks_check(struct gpw_session *s, struct gate *g)
{
    gpw_marks_check(s, &g->marks, gp_seat_contended(g->seat));
}

static void start_check(struct gpw_session *s, struct gate *g)
{
    if (!g->start || s->driver->cuEventQuery(g->start) == CUDA_ERROR_NOT_READY)
        return;
    gpw_event_give(s, g->start_context, g->start);
    g->start = NULL;
    gp_seat_started(g->seat);
}

/*
 * Streams may be blocked until the client has run a host function or another worker has
 * acted, which may itself be waiting for a turn on this GPU or another. What is marked
 * behind that may not pass before somebody else has had a turn, or before a message
 * comes that would not be taken in front of a closed gate.
 */
static bool may_be_blocked(struct gpw_session *s)
{
    return gpw_host_functions_pending(s) || gpw_peers_pending(s) || gpw_nccl_pending(s);
}

/*
 * Whether a turn that should end goes on because another rank has begun a collective that this one
 * has not: it would wait for that on its GPU until this one has its next turn. All ranks of a gang
 * are to end at the same moment, so each comes as far as the first, and not further.
 */
static bool catches_up(const struct gate *g)
{
    return g->busy && g->yields && gp_seat_must_yield(g->seat) && gp_seat_behind(g->seat) &&
           gp_now_ns() - g->yields < CATCH_UP_NS;
}

/* The turn should end. Work that may be blocked is waited for no longer than others
 * can bear; once it goes on it is charged again (gpw_gate_resume). */
static void yield_blocked(struct gpw_session *s, struct gate *g)
{
    uint64_t now = gp_now_ns();
    if (!gp_seat_must_yield(g->seat)) {
        g->yields = 0;
        return;
    }
    if (g->yields == 0)
        g->yields = now;
    if (now - g->yields < BLOCKED_NS || !may_be_blocked(s))
        return;
    gpw_marks_drop_all(s, &g->marks);
}

static void gate_poll(struct gpw_session *s, struct gate *g)
{
    if (!g->busy)
        return;
    yield_blocked(s, g);
    start_check(s, g);
    marks_check(s, g);
    if (g->marks.count == 0 || gp_seat_must_yield(g->seat))
        gpw_marks_close(s, &g->marks);
    marks_check(s, g);
    if (g->marks.lost) { /* before it is idle */
        gp_seat_lost_sight(g->seat);
        g->marks.lost = false;
    }
    if (gpw_marks_drained(&g->marks) && !catches_up(g)) {
        g->busy = false;
        g->yields = 0;
        g->beyond = 0;
        gp_seat_idle(g->seat, 0);
    }
}

void gpw_gate_poll(struct gpw_session *s)
{
    for (struct gate *g = gate_next(s, NULL); g; g = gate_next(s, g))
        gate_poll(s, g);
}

/* --- messages ------------------------------------------------------------------------ */

static bool stream_of(struct gpw_session *s, const struct gp_header *h, CUstream *stream)
{
    uint64_t id = gp_message_id(h, gp_op_info(h->op)->stream_at), real = 0;
    CUresult r = gpw_handle_get(s, GP_HANDLE_STREAM, id ? id : GP_STREAM_LEGACY, false, &real);
    *stream = (CUstream)real;
    return r == CUDA_SUCCESS;
}

/* In front of the first work of a turn. */
static void start_place(struct gpw_session *s, struct gate *g, CUstream stream)
{
    CUevent event = NULL;
    if (g->start)
        return;
    /* a turn that has not begun does not end: nothing that is blocked may be in front */
    if (!may_be_blocked(s) && gpw_mark_may(s, stream) &&
        s->driver->cuCtxGetCurrent(&g->start_context) == CUDA_SUCCESS &&
        gpw_event_take(s, g->start_context, &event) == CUDA_SUCCESS &&
        s->driver->cuEventRecord(event, stream) == CUDA_SUCCESS) {
        g->start = event;
        return;
    }
    if (event)
        gpw_event_give(s, g->start_context, event);
    gp_seat_started(g->seat); /* as well as we know */
}

/* Since when nothing has been over. */
static uint64_t since_progress(const struct gate *g)
{
    const struct gpw_marks *m = &g->marks;
    uint64_t placed = m->count ? m->at[m->first].placed : gp_now_ns();
    return gp_now_ns() - (placed > m->passed ? placed : m->passed);
}

/*
 * Whether what is under way may be blocked until what comes behind is let in. A collective waits for
 * other processes, which do without that: only where one hears from the other by other ways, which
 * can be seen by nothing, it may not; and a step of a training may have all of its kernels in front
 * of who waits for the GPU.
 */
static bool needs_more(struct gpw_session *s, const struct gate *g)
{
    if (gpw_host_functions_pending(s) || gpw_peers_pending(s))
        return true;
    return gpw_nccl_pending(s) &&
           (!gp_seat_contended(g->seat) || gpw_nccl_crowded(s) || since_progress(g) >= APART_NS);
}

/*
 * What is under way may wait for a message that waits here: for a value that the program writes, for
 * the kernel or copy that ends one which stays. Nothing tells that from work that takes long, but
 * that nothing is over: then more and more is let in, so that it ends some time, and so that long
 * work has little more in front of who comes next.
 */
static bool stands(const struct gpw_session *s, const struct gate *g)
{
    uint64_t patience_ns = s->gates->stalls ? STALLS_NS : STANDS_NS;
    uint64_t since = since_progress(g);
    return since >= patience_ns && g->beyond <= (since - patience_ns) / (patience_ns / 100);
}

/*
 * The turn ends in front of work that is to come, which is not the end of a step that somebody waits
 * for: the arbiter knows one from the other by who asks for the next turn before his work is over.
 * True: this one goes on.
 */
static bool next_asked(const struct gate *g)
{
    return !gp_seat_waits(g->seat) && gp_seat_enter(g->seat);
}

/* Whether so much is under way that the next has to wait. */
static bool is_full(struct gpw_session *s, struct gate *g)
{
    if (g->busy && gp_seat_must_yield(g->seat)) {
        gate_poll(s, g); /* marks what is not marked, says when it is over */
        if (g->busy && gp_seat_must_yield(g->seat))
            return !catches_up(g) && !next_asked(g);
    }
    /* behind long work the GPU may wait for the next a little: that is less than a turn
     * that cannot end */
    unsigned ahead = !gp_seat_contended(g->seat) ? gpw_marks_room(&g->marks)
                     : g->marks.took > LONG_NS   ? 1
                                                 : AHEAD;
    if (g->marks.count < ahead)
        return false;
    marks_check(s, g);
    if (g->marks.count >= ahead && !needs_more(s, g))
        return true;
    if (g->marks.count == GPW_MARKS_MOST)
        gpw_marks_drop(s, &g->marks);
    return false;
}

static bool admit(struct gpw_session *s, struct gate *g)
{
    if (is_full(s, g)) {
        bool more = g->busy && stands(s, g);
        g->beyond += more;
        return more;
    }
    if (!catches_up(g) && !gp_seat_enter(g->seat))
        return false;
    g->busy = true;
    return true;
}

/* For a call that keeps this thread in the driver for long. Inside it nobody would see that
 * the turn can end, so it waits until the work is over; work of the same tenant may
 * then have to wait for the next turn, which it would have to anyway. */
static bool admit_slow(struct gpw_session *s)
{
    for (struct gate *g = gate_next(s, NULL); g; g = gate_next(s, g)) {
        if (!g->busy || !gp_seat_contended(g->seat))
            continue;
        gpw_marks_place(s, &g->marks);
        gate_poll(s, g);
        if (g->busy && !stands(s, g)) {
            s->gates->closed = g;
            return false;
        }
    }
    return true;
}

/* The client's word, and nothing has checked it yet: no more than any GPU has. */
static uint64_t bytes_of(const struct gp_header *h)
{
    const struct gp_op_info *op = gp_op_info(h->op);
    uint64_t bytes = gp_message_field(h, op->work_bytes_at, op->work_bytes_size);
    return bytes < BYTES_MOST ? bytes : BYTES_MOST;
}

/* A copy takes an end for pinned memory first, and of what is none the driver may have to be asked. */
static bool is_device_end(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    return !gpw_pinned_find(s, address, bytes) && gpw_memory_is_device(s, address, bytes);
}

/* A copy whose ends are both known to the worker may still be one to or from the host. */
static enum gp_work work_of(struct gpw_session *s, const struct gp_header *h)
{
    const struct gp_op_info *op = gp_op_info(h->op);
    if (op->work != GP_WORK_MOVE)
        return op->work;
    bool to = is_device_end(s, gp_message_id(h, op->dst_at), bytes_of(h));
    bool from = is_device_end(s, gp_message_id(h, op->src_at), bytes_of(h));
    return to == from ? GP_WORK_COPY : to ? GP_WORK_UPLOAD : GP_WORK_DOWNLOAD;
}

static bool is_transfer(enum gp_work kind)
{
    return kind == GP_WORK_UPLOAD || kind == GP_WORK_DOWNLOAD;
}

/* Into a graph nothing moves yet. */
static bool is_captured(struct gpw_session *s, const struct gp_header *h)
{
    CUstream stream;
    return gpw_captures_any(s) && stream_of(s, h, &stream) && !gpw_mark_may(s, stream);
}

static bool admit_transfer(const struct gate *g, const struct gp_header *h, enum gp_work kind)
{
    enum gp_board_way way = kind == GP_WORK_UPLOAD ? GP_BOARD_UPLOAD : GP_BOARD_DOWNLOAD;
    return gp_seat_copy(g->seat, way, bytes_of(h));
}

bool gpw_gate_admit(struct gpw_session *s, const struct gp_header *h, const struct gpw_place *place)
{
    if (!s->gates)
        return true;
    s->gates->closed = NULL;
    enum gp_work kind = s->gates->kind = work_of(s, h);
    if (kind == GP_WORK_NONE)
        return !gp_op_info(h->op)->slow || admit_slow(s);
    struct gate *g = gate_of(s, place->ordinal);
    if (!g)
        return true;
    if (is_transfer(kind) && (is_captured(s, h) || admit_transfer(g, h, kind)))
        return true;
    if (!is_transfer(kind) && admit(s, g)) {
        CUstream stream;
        if (gp_seat_fresh(g->seat) && stream_of(s, h, &stream))
            start_place(s, g, stream);
        return true;
    }
    s->gates->closed = g;
    return false;
}

static void note_work(struct gpw_session *s, const struct gp_header *h,
                      const struct gpw_place *place, enum gp_work kind)
{
    struct gate *g = gate_of(s, place->ordinal);
    if (g && is_transfer(kind))
        gp_seat_count(g->seat, 0, bytes_of(h));
    if (!g || !g->busy || is_transfer(kind))
        return;
    CUstream stream;
    if (stream_of(s, h, &stream))
        gpw_marks_stream(s, &g->marks, place->context, stream);
    bool launch = kind == GP_WORK_KERNEL || kind == GP_WORK_GRAPH;
    gp_seat_count(g->seat, launch, bytes_of(h));
    gpw_marks_submitted(s, &g->marks);
}

bool gpw_gate_resume(struct gpw_session *s, CUcontext context, CUstream stream)
{
    if (!s->gates)
        return true;
    CUcontext before;
    struct gate *g = gpw_gate_enter(s, context, &before);
    bool open = !g || admit(s, g);
    if (g && open) {
        gpw_marks_stream(s, &g->marks, context, stream);
        g->marks.unmarked++;
    }
    s->driver->cuCtxSetCurrent(before);
    return open;
}

void gpw_gate_passed(struct gpw_session *s, const struct gp_header *h,
                     const struct gpw_place *place)
{
    if (!s->gates)
        return;
    enum gp_work kind = s->gates->kind;
    s->gates->stalls |= gp_op_info(h->op)->stalls;
    if (kind != GP_WORK_NONE)
        note_work(s, h, place, kind);
}

void gpw_gate_stream_ending(struct gpw_session *s, const struct gp_header *h)
{
    CUstream stream;
    bool known = stream_of(s, h, &stream);
    for (struct gate *g = gate_next(s, NULL); g; g = gate_next(s, g)) {
        if (known)
            gpw_marks_stream_ending(s, &g->marks, stream);
        else
            gpw_marks_place(s, &g->marks);
    }
}

void gpw_gate_context_ended(struct gpw_session *s, CUcontext context)
{
    gpw_nccl_context_ended(s, context);
    for (struct gate *g = gate_next(s, NULL); g; g = gate_next(s, g)) {
        if (g->start_context == context)
            g->start = NULL;
        gpw_marks_context_ended(&g->marks, context);
    }
}

/* --- waiting --------------------------------------------------------------------------- */

void gpw_gate_wait(struct gpw_session *s, int64_t most_us)
{
    gpw_gate_poll(s);
    const struct gate *closed = s->gates ? s->gates->closed : NULL;
    if (!closed)
        return;
    if (closed->busy) { /* it waits for its own work, which only looking tells */
        bool ending = gp_seat_must_yield(closed->seat);
        struct timespec t = {0, (ending ? LOOK_ENDING_US : LOOK_CONTENDED_US / 2) * 1000};
        nanosleep(&t, NULL);
    } else {
        gp_seat_wait(closed->seat, most_us < LOOK_US ? most_us : LOOK_US);
    }
}

int64_t gpw_gate_patience(struct gpw_session *s, int64_t most_us)
{
    for (struct gate *g = gate_next(s, NULL); g; g = gate_next(s, g)) {
        if (!g->busy)
            continue;
        int64_t look = gp_seat_must_yield(g->seat) || g->start ? LOOK_ENDING_US
                       : gp_seat_contended(g->seat)            ? LOOK_CONTENDED_US
                                                               : LOOK_US;
        most_us = look < most_us ? look : most_us;
    }
    return most_us;
}

bool gpw_gate_busy(struct gpw_session *s)
{
    struct gate *g = gate_next(s, NULL);
    while (g && !g->busy)
        g = gate_next(s, g);
    return g != NULL;
}

bool gpw_gate_contended(struct gpw_session *s)
{
    struct gate *g = gate_next(s, NULL);
    while (g && !(g->busy && gp_seat_contended(g->seat)))
        g = gate_next(s, g);
    return g != NULL;
}

void gpw_gate_tick(struct gpw_session *s)
{
    for (struct gate *g = gate_next(s, NULL); g; g = gate_next(s, g)) {
        uint32_t i = ordinal_of(s, g);
        g->slice_us = gp_seat_slice_us(g->seat);
        gpw_slices_set(i, g->slice_us);
        gp_seat_host_set(g->seat, i == 0 ? gpw_budget_used(s, GPW_BUDGET_HOST_MEMORY) : 0);
    }
}
