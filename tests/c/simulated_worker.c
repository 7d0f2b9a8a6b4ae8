#include "simulated_cards_internal.h"

#include "gate.h"
#include "graph.h"
#include "handles.h"
#include "host_function.h"
#include "loop.h"
#include "memory.h"
#include "nccl.h"
#include "peer.h"
#include "quota.h"
#include "slices.h"

/* The sum by which ranks agree whether to go on. */
#define VOTE (20 * US)

/* --- the rest of a worker --------------------------------------------------------------------- */

CUresult gpw_event_take(struct gpw_session *s, CUcontext context, CUevent *event)
{
    (void)s, (void)context;
    uintptr_t i = 1;
    while (sim.taken[i] || sim.pending[i])
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
    *real = (uint64_t)(uintptr_t)stream_of((unsigned)sim.serving->current, sim.serving->stream);
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

void *gpw_pinned_find(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    (void)s, (void)address, (void)bytes;
    return NULL;
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

static struct process *process_of(const struct gpw_session *s)
{
    unsigned i = 0;
    while (&sim.processes[i].session != s)
        assert_true(++i < sim.count);
    return &sim.processes[i];
}

bool gpw_nccl_pending(struct gpw_session *s)
{
    struct process *p = process_of(s);
    if (!p->launched && p->latest && !sim.pending[p->latest]) {
        sim.taken[p->latest] = false;
        p->latest = 0;
    }
    return p->launched || p->latest;
}

bool gpw_nccl_crowded(const struct gpw_session *s)
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

static uint64_t random_below(struct process *p, uint64_t end)
{
    p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return end ? (p->random >> 33) % end : 0;
}

/* --- NCCL ------------------------------------------------------------------------------------- */

/* On a thread of its own, while nothing else is submitted. */
static void collective_begin(struct process *p, const struct item *m)
{
    uint64_t takes = p->actor->launch;
    gpw_gate_collective(&p->session, 1, m->number);
    p->launching = *m;
    p->launched = sim.now + takes + random_below(p, takes);
    p->gate = gpw_gate_launching(&p->session, context_of(m->card));
}

static void collective_launched(struct process *p)
{
    const struct item *m = &p->launching;
    CUstream stream = stream_of(m->card, m->stream);
    put(&p->streams[m->card][m->stream], *m);
    p->launched = 0;
    CUevent event = (CUevent)(uintptr_t)p->latest;
    if (!event)
        gpw_event_take(&p->session, context_of(m->card), &event);
    p->latest = (unsigned)(uintptr_t)event;
    sim_driver.cuEventRecord(event, stream);
    gpw_gate_launched(&p->session, p->gate, context_of(m->card), &stream);
}

/* --- messages --------------------------------------------------------------------------------- */

/* False: it waits at the gate. */
static bool dispatch(struct process *p, const struct item *m)
{
    p->current = (int)m->card;
    p->stream = m->stream;
    bool works = m->kind == KERNEL || m->kind == COLLECTIVE;
    const struct gpw_place place = {.context = context_of(m->card), .ordinal = p->current};
    if (works && !gpw_gate_admit(&p->session, &work.h, &place))
        return false;
    if (m->kind == COLLECTIVE)
        collective_begin(p, m);
    else
        put(&p->streams[m->card][m->stream], *m);
    if (works)
        gpw_gate_passed(&p->session, &work.h, &place);
    return true;
}

void sim_worker(struct process *p)
{
    sim.serving = p;
    struct item *m;
    if (p->launched && sim.now >= p->launched)
        collective_launched(p);
    while (!p->launched && (m = front(&p->sent)) && dispatch(p, m))
        p->sent.head++;
    gpw_gate_poll(&p->session);
}

/* --- clients ---------------------------------------------------------------------------------- */

static void kernel_send(struct process *p, unsigned card, uint64_t ns)
{
    put(&p->sent, (struct item){KERNEL, .left = ns, .card = card});
    p->kernels_sent++;
}

/* Behind the kernels that were sent. */
static void collective_send(struct process *p, unsigned card, uint64_t ns)
{
    put(&p->sent, (struct item){BEHIND, .number = p->kernels_sent, .card = card, .stream = 1});
    put(&p->sent, (struct item){COLLECTIVE, .left = ns, .number = ++p->collectives_sent,
                                .card = card, .stream = 1});
}

static void step_send(struct process *p)
{
    const struct sim_actor *a = p->actor;
    unsigned number = a->steps + 1, last = a->sum != 0; /* the stream that ends the step */
    for (unsigned card = 0; card < SIM_CARDS; card++) {
        for (unsigned k = 0; a->on[card] && k < a->kernels; k++) {
            kernel_send(p, card, a->kernel);
            if (a->sum)
                collective_send(p, card, a->sum);
        }
        if (a->on[card])
            put(&p->sent, (struct item){REACH, .number = number, .card = card, .stream = last});
    }
    for (unsigned card = 0; card < SIM_CARDS; card++) {
        if (!a->on[card])
            continue;
        put(&p->sent, (struct item){AWAIT, .number = number, .card = card});
        kernel_send(p, card, a->last);
    }
}

static void vote_send(struct process *p)
{
    for (unsigned card = 0; card < SIM_CARDS; card++)
        if (p->actor->on[card])
            collective_send(p, card, VOTE);
}

static bool is_done(struct process *p)
{
    if (front(&p->sent) || p->launched)
        return false;
    for (unsigned i = 0; i < SIM_CARDS * STREAMS; i++) {
        const struct queue *q = &p->streams[i / STREAMS][i % STREAMS];
        for (unsigned k = q->head; k != q->tail; k++)
            if (q->at[k % QUEUE].kind != RECORD)
                return false;
    }
    return true;
}

void sim_client(struct process *p)
{
    if (p->waits && is_done(p)) {
        p->actor->steps += !p->votes;
        p->votes = p->actor->sum && !p->votes;
        p->waits = false;
        p->wake = sim.now + p->actor->think + random_below(p, p->actor->jitter);
    }
    if (p->waits || sim.now < p->wake)
        return;
    if (p->votes)
        vote_send(p);
    else
        step_send(p);
    p->waits = true;
}
