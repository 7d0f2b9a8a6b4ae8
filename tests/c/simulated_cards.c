#include "simulated_cards_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"
#include "seat.h"

/* How far the clock goes at a time; what a change of channels costs a GPU, and how often it does
 * that where two have work. */
#define TICK (10 * US)
#define CHANGE (200 * US)
#define SLICE (10 * MS)

struct sim sim;

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

static CUresult sim_current(CUcontext *context)
{
    *context = context_of((unsigned)sim.serving->current);
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

static struct queue *stream_at(CUstream stream)
{
    uintptr_t i = (uintptr_t)stream - 1;
    return &sim.serving->streams[i / STREAMS][i % STREAMS];
}

static CUresult sim_record(CUevent event, CUstream stream)
{
    unsigned number = (unsigned)(uintptr_t)event;
    sim.pending[number]++;
    put(stream_at(stream), (struct item){RECORD, .number = number});
    return CUDA_SUCCESS;
}

static CUresult sim_query(CUevent event)
{
    return sim.pending[(uintptr_t)event] ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult sim_stream_query(CUstream stream)
{
    return !front(stream_at(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

struct gpw_driver sim_driver = {.cuCtxGetCurrent = sim_current,
                                .cuCtxSetCurrent = sim_set_current,
                                .cuStreamIsCapturing = sim_capturing,
                                .cuStreamQuery = sim_stream_query,
                                .cuEventRecord = sim_record,
                                .cuEventQuery = sim_query};

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

/* What takes no time is over at once. True: a kernel is next, or a sum. */
static bool is_runnable_at(struct process *p, unsigned card, unsigned stream)
{
    struct queue *q = &p->streams[card][stream];
    struct item *i;
    while ((i = front(q)) && i->kind != KERNEL && i->kind != COLLECTIVE) {
        if (i->kind == AWAIT && !all_reached(p, i->number))
            return false;
        if (i->kind == BEHIND && p->kernels_over < i->number)
            return false;
        if (i->kind == REACH)
            p->reached[card] = i->number;
        if (i->kind == RECORD)
            sim.pending[i->number]--;
        q->head++;
    }
    return i != NULL;
}

static bool is_runnable(struct process *p, unsigned card)
{
    bool runnable = is_runnable_at(p, card, 1); /* which the other stream may wait for */
    return is_runnable_at(p, card, 0) || runnable;
}

static struct process *other_runnable(const struct card *c, unsigned card)
{
    for (unsigned i = 0; i < sim.count; i++)
        if (&sim.processes[i] != c->runs && is_runnable(&sim.processes[i], card))
            return &sim.processes[i];
    return NULL;
}

static void card_change(struct card *c, unsigned card)
{
    bool runnable = c->runs && is_runnable(c->runs, card);
    struct process *other = other_runnable(c, card);
    c->works = false;
    if (other && (!runnable || sim.now >= c->slice_end)) {
        c->runs = other;
        c->changing = CHANGE;
        c->slice_end = sim.now + CHANGE + SLICE;
        runnable = true;
    }
    if (!runnable)
        return;
    if (c->changing)
        c->changing -= TICK;
    else
        c->works = true;
}

/* A sum goes on while all that take part in it are on their cards. */
static bool all_sum(const struct item *sum, const struct process *of)
{
    for (unsigned i = 0; i < sim.count; i++)
        for (unsigned card = 0; card < SIM_CARDS; card++) {
            struct process *p = &sim.processes[i];
            if (!p->actor->on[card] || strcmp(p->actor->tenant, of->actor->tenant) != 0)
                continue;
            const struct item *its = front(&p->streams[card][1]);
            if (!sim.cards[card].works || sim.cards[card].runs != p || !its ||
                its->kind != COLLECTIVE || its->number != sum->number)
                return false;
        }
    return true;
}

static void card_run(struct card *c, unsigned card)
{
    for (unsigned stream = 0; c->works && stream < STREAMS; stream++) {
        struct item *i = front(&c->runs->streams[card][stream]);
        if (!i || (i->kind != KERNEL && i->kind != COLLECTIVE) ||
            (i->kind == COLLECTIVE && !c->sums))
            continue;
        i->left = i->left > TICK ? i->left - TICK : 0;
        if (i->left)
            continue;
        c->runs->kernels_over += i->kind == KERNEL;
        c->runs->streams[card][stream].head++;
    }
    if (c->works)
        is_runnable(c->runs, card); /* records behind it */
}

static void cards_run(void)
{
    for (unsigned card = 0; card < SIM_CARDS; card++)
        card_change(&sim.cards[card], card);
    for (unsigned card = 0; card < SIM_CARDS; card++) {
        struct card *c = &sim.cards[card];
        struct item *sum = c->works ? front(&c->runs->streams[card][1]) : NULL;
        c->sums = sum && sum->kind == COLLECTIVE && all_sum(sum, c->runs);
    }
    for (unsigned card = 0; card < SIM_CARDS; card++)
        card_run(&sim.cards[card], card);
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
    p->random = (uint64_t)(p - sim.processes) + 1;
    p->session = (struct gpw_session){.driver = &sim_driver, .device_count = SIM_CARDS};
    for (unsigned card = 0; card < SIM_CARDS; card++) {
        struct gp_arbiter *a = sim.cards[card].arbiter;
        int page, bell;
        p->session.devices[card] = (CUdevice)card;
        if (!actor->on[card] && !actor->sum)
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
            sim_client(&sim.processes[i]);
            sim_worker(&sim.processes[i]);
        }
        for (unsigned card = 0; card < SIM_CARDS; card++)
            if (sim.now >= sim.cards[card].look_at)
                arbiter_step(&sim.cards[card]);
        cards_run();
    }
    close_all();
}
