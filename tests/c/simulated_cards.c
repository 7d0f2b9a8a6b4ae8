#include "simulated_cards.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arbiter_internal.h"
#include "gate.h"
#include "graph.h"
#include "handles.h"
#include "host_function.h"
#include "loop.h"
#include "memory.h"
#include "nccl.h"
#include "peer.h"
#include "quota.h"
#include "seat.h"
#include "slices.h"

/* How far the clock goes at a time; what a change of channels costs a GPU, and how often it does
 * that where two have work; what a client needs to hear of a step's end. */
#define TICK (10 * US)
#define CHANGE (200 * US)
#define SLICE (10 * MS)
#define EVENTS 256
#define QUEUE 256
#define MESSAGES 64

/* What lies on a stream, and what a client has sent. */
struct item {
    enum { KERNEL, RECORD, REACH, AWAIT } kind;
    uint64_t left;  /* ns, of a kernel */
    unsigned event; /* that is recorded; the step whose end on this card is reached or awaited */
    unsigned card;
};

struct queue {
    struct item at[QUEUE];
    unsigned head, tail;
};

struct process {
    struct sim_actor *actor;
    struct gpw_session session;
    int current; /* the card of the context that is current */
    struct queue sent, streams[SIM_CARDS];
    unsigned reached[SIM_CARDS]; /* steps whose kernels are over */
    uint64_t wake;
    bool waits; /* its client, for the end of the step */
};

static struct sim {
    uint64_t now;
    struct process processes[SIM_ACTORS];
    unsigned count;
    struct process *serving;
    struct card {
        struct gp_arbiter *arbiter;
        int bells[SIM_ACTORS];
        uint64_t look_at; /* when its timer goes off */
        struct process *runs;
        uint64_t changing, slice_end;
    } cards[SIM_CARDS];
    bool taken[EVENTS], pending[EVENTS];
} sim;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    *t = (struct timespec){(time_t)(sim.now / (1000 * MS)), (long)(sim.now % (1000 * MS))};
    return 0;
}

static void arbiter_step(struct card *c)
{
    gp_arbiter_step(c->arbiter, 0);
    const struct gp_board *b = gp_arbiter_board(c->arbiter);
    c->look_at = UINT64_MAX;
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        if (b->tenants[i].wanting)
            c->look_at = sim.now + MS;
    if (c->look_at != UINT64_MAX && b->quantum_end > sim.now && b->quantum_end < c->look_at)
        c->look_at = b->quantum_end;
}

/* A bell is heard at once. */
ssize_t write(int fd, const void *bytes, size_t count)
{
    ssize_t n = syscall(SYS_write, fd, bytes, count);
    for (int i = 0; i < SIM_CARDS; i++)
        for (unsigned k = 0; k < sim.count; k++)
            if (sim.cards[i].bells[k] == fd)
                arbiter_step(&sim.cards[i]);
    return n;
}

/* --- the driver ------------------------------------------------------------------------------ */

static void put(struct queue *q, struct item item)
{
    assert_true(q->tail - q->head < QUEUE);
    q->at[q->tail++ % QUEUE] = item;
}

static struct item *front(struct queue *q)
{
    return q->head == q->tail ? NULL : &q->at[q->head % QUEUE];
}

static CUcontext context_of(int card)
{
    return (CUcontext)(uintptr_t)(card + 1);
}

static CUresult sim_current(CUcontext *context)
{
    *context = context_of(sim.serving->current);
    return CUDA_SUCCESS;
}

static CUresult sim_set_current(CUcontext context)
{
    sim.serving->current = (int)(uintptr_t)context - 1;
    return CUDA_SUCCESS;
}

static CUresult sim_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult sim_record(CUevent event, CUstream stream)
{
    unsigned number = (unsigned)(uintptr_t)event;
    sim.pending[number] = true;
    put(&sim.serving->streams[(uintptr_t)stream - 1], (struct item){RECORD, .event = number});
    return CUDA_SUCCESS;
}

static CUresult sim_query(CUevent event)
{
    return sim.pending[(uintptr_t)event] ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult sim_stream_query(CUstream stream)
{
    bool over = !front(&sim.serving->streams[(uintptr_t)stream - 1]);
    return over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static struct gpw_driver driver = {.cuCtxGetCurrent = sim_current,
                                   .cuCtxSetCurrent = sim_set_current,
                                   .cuStreamIsCapturing = sim_capturing,
                                   .cuStreamQuery = sim_stream_query,
                                   .cuEventRecord = sim_record,
                                   .cuEventQuery = sim_query};

/* --- the rest of a worker --------------------------------------------------------------------- */

CUresult gpw_event_take(struct gpw_session *s, CUcontext context, CUevent *event)
{
    (void)s, (void)context;
    uintptr_t i = 1;
    while (sim.taken[i])
        assert_true(++i < EVENTS);
    sim.taken[i] = true;
    *event = (CUevent)i;
    return CUDA_SUCCESS;
}

void gpw_event_give(struct gpw_session *s, CUcontext context, CUevent event)
{
    (void)s, (void)context;
    sim.taken[(uintptr_t)event] = false;
}

CUresult gpw_handle_get(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, bool nullable,
                        uint64_t *real)
{
    (void)s, (void)kind, (void)id, (void)nullable;
    *real = (uint64_t)sim.serving->current + 1;
    return CUDA_SUCCESS;
}

int gpw_current_ordinal(struct gpw_session *s)
{
    (void)s;
    return sim.serving->current;
}

bool gpw_captures_any(const struct gpw_session *s)
{
    (void)s;
    return false;
}

bool gpw_memory_is_device(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    (void)s, (void)address, (void)bytes;
    return true;
}

bool gpw_host_functions_pending(struct gpw_session *s)
{
    (void)s;
    return false;
}

bool gpw_peers_pending(const struct gpw_session *s)
{
    (void)s;
    return false;
}

bool gpw_nccl_pending(struct gpw_session *s)
{
    (void)s;
    return false;
}

void gpw_nccl_context_ended(struct gpw_session *s, CUcontext context)
{
    (void)s, (void)context;
}

void gpw_slices_set(uint32_t device, uint64_t us)
{
    (void)device, (void)us;
}

static const struct gp_req_cuMemsetD8Async work = {
    .h = {.op = GP_OP_cuMemsetD8Async, .size = sizeof work},
    .N = 1,
    .hStream = 16};

/* False: it waits at the gate. */
static bool dispatch(struct process *p, const struct item *m)
{
    p->current = (int)m->card;
    const struct gpw_place place = {.context = context_of(p->current), .ordinal = p->current};
    if (m->kind == KERNEL && !gpw_gate_admit(&p->session, &work.h, &place))
        return false;
    put(&p->streams[m->card], *m);
    if (m->kind == KERNEL)
        gpw_gate_passed(&p->session, &work.h, &place);
    return true;
}

static void worker_run(struct process *p)
{
    sim.serving = p;
    struct item *m;
    while ((m = front(&p->sent)) && dispatch(p, m))
        p->sent.head++;
    gpw_gate_poll(&p->session);
}

/* --- clients ---------------------------------------------------------------------------------- */

static void step_send(struct process *p)
{
    const struct sim_actor *a = p->actor;
    unsigned number = a->steps + 1;
    for (unsigned card = 0; card < SIM_CARDS; card++) {
        for (unsigned k = 0; a->on[card] && k < a->kernels; k++)
            put(&p->sent, (struct item){KERNEL, .left = a->kernel, .card = card});
        if (a->on[card])
            put(&p->sent, (struct item){REACH, .event = number, .card = card});
    }
    for (unsigned card = 0; card < SIM_CARDS; card++) {
        if (!a->on[card])
            continue;
        put(&p->sent, (struct item){AWAIT, .event = number, .card = card});
        put(&p->sent, (struct item){KERNEL, .left = a->last, .card = card});
    }
}

static bool is_done(struct process *p)
{
    bool done = !front(&p->sent);
    for (unsigned card = 0; card < SIM_CARDS; card++)
        for (unsigned i = p->streams[card].head; i != p->streams[card].tail; i++)
            done &= p->streams[card].at[i % QUEUE].kind == RECORD;
    return done;
}

static void client_run(struct process *p)
{
    if (p->waits && is_done(p)) {
        p->actor->steps++;
        p->waits = false;
        p->wake = sim.now + p->actor->think;
    }
    if (p->waits || sim.now < p->wake)
        return;
    step_send(p);
    p->waits = true;
}

/* --- GPUs ------------------------------------------------------------------------------------- */

/* Whether all of the tenant's processes have come so far on all of their cards. */
static bool all_reached(const struct process *p, unsigned step)
{
    bool all = true;
    for (unsigned i = 0; i < sim.count; i++)
        for (unsigned card = 0; card < SIM_CARDS; card++) {
            const struct process *other = &sim.processes[i];
            if (other->actor->on[card] && strcmp(other->actor->tenant, p->actor->tenant) == 0)
                all &= other->reached[card] >= step;
        }
    return all;
}

/* What takes no time is over at once. True: a kernel is next. */
static bool is_runnable(struct process *p, unsigned card)
{
    struct queue *q = &p->streams[card];
    struct item *i;
    while ((i = front(q)) && i->kind != KERNEL) {
        if (i->kind == AWAIT && !all_reached(p, i->event))
            return false;
        if (i->kind == REACH)
            p->reached[card] = i->event;
        if (i->kind == RECORD)
            sim.pending[i->event] = false;
        q->head++;
    }
    return i != NULL;
}

static struct process *other_runnable(const struct card *c, unsigned card)
{
    for (unsigned i = 0; i < sim.count; i++)
        if (&sim.processes[i] != c->runs && is_runnable(&sim.processes[i], card))
            return &sim.processes[i];
    return NULL;
}

static void card_run(struct card *c, unsigned card)
{
    bool runnable = c->runs && is_runnable(c->runs, card);
    struct process *other = other_runnable(c, card);
    if (other && (!runnable || sim.now >= c->slice_end)) {
        c->runs = other;
        c->changing = CHANGE;
        c->slice_end = sim.now + CHANGE + SLICE;
        runnable = true;
    }
    if (!runnable)
        return;
    if (c->changing) {
        c->changing -= TICK;
        return;
    }
    struct item *i = front(&c->runs->streams[card]);
    i->left = i->left > TICK ? i->left - TICK : 0;
    if (i->left == 0) {
        c->runs->streams[card].head++;
        is_runnable(c->runs, card); /* records behind it */
    }
}

/* --- all of it -------------------------------------------------------------------------------- */

static void card_open(struct card *c)
{
    static const struct gp_board_gpu shares = {GP_POLICY_SHARE, 20, 90, 1, 0};
    memset(c->bells, -1, sizeof c->bells);
    assert_int_equal(gp_arbiter_new(-1, &c->arbiter), 0);
    assert_int_equal(gp_board_gpu_set(gp_arbiter_board(c->arbiter), &shares), 0);
}

static void process_open(struct process *p, struct sim_actor *actor)
{
    p->actor = actor;
    p->session = (struct gpw_session){.driver = &driver, .device_count = SIM_CARDS};
    for (unsigned card = 0; card < SIM_CARDS; card++) {
        struct gp_arbiter *a = sim.cards[card].arbiter;
        int page, bell;
        p->session.devices[card] = (CUdevice)card;
        if (!actor->on[card])
            continue;
        assert_int_equal(gp_board_tenant_set(gp_arbiter_board(a), actor->tenant, &actor->grant), 0);
        assert_true(gp_arbiter_join(a, actor->tenant, &page, &bell) >= 0);
        sim.cards[card].bells[p - sim.processes] = dup(bell);
        assert_int_equal(
            gpw_gate_open(&p->session, card, dup(page), sim.cards[card].bells[p - sim.processes]),
            0);
    }
}

static void close_all(void)
{
    for (unsigned i = 0; i < sim.count; i++) {
        struct gpw_session *s = &sim.processes[i].session;
        for (unsigned card = 0; card < SIM_CARDS; card++)
            gp_seat_close(gpw_gate_seat(s, card));
        free(s->gates);
    }
    for (unsigned card = 0; card < SIM_CARDS; card++)
        gp_arbiter_free(sim.cards[card].arbiter);
}

void sim_run(struct sim_actor *actors, unsigned count, uint64_t duration)
{
    memset(&sim, 0, sizeof sim);
    sim.now = 1000 * MS;
    assert_true(count <= SIM_ACTORS);
    for (unsigned i = 0; i < count; i++)
        actors[i].steps = 0;
    for (unsigned card = 0; card < SIM_CARDS; card++)
        card_open(&sim.cards[card]);
    for (; sim.count < count; sim.count++)
        process_open(&sim.processes[sim.count], &actors[sim.count]);
    for (uint64_t end = sim.now + duration; sim.now < end; sim.now += TICK) {
        for (unsigned i = 0; i < count; i++) {
            client_run(&sim.processes[i]);
            worker_run(&sim.processes[i]);
        }
        for (unsigned card = 0; card < SIM_CARDS; card++) {
            if (sim.now >= sim.cards[card].look_at)
                arbiter_step(&sim.cards[card]);
            card_run(&sim.cards[card], card);
        }
    }
    close_all();
}
