/* What the parts of the simulation share: cards and their driver, workers and clients. */
#ifndef SIMULATED_CARDS_INTERNAL_H
#define SIMULATED_CARDS_INTERNAL_H

#include "simulated_cards.h"

#include "arbiter_internal.h"
#include "session.h"

#define EVENTS 256
#define QUEUE 1024
#define STREAMS 2 /* on each card: kernels, and collectives beside them */

/* What lies on a stream, and what a client has sent. */
struct item {
    enum { KERNEL, COLLECTIVE, BEHIND, RECORD, REACH, AWAIT } kind;
    uint64_t left; /* ns, of a kernel or a collective */
    unsigned
        number; /* of the event that is recorded, of a collective, of the step whose end on this
                        card is reached or awaited; or how many kernels must be over */
    unsigned card, stream;
};

struct queue {
    struct item at[QUEUE];
    unsigned head, tail;
};

struct process {
    struct sim_actor *actor;
    struct gpw_session session;
    int current;     /* the card of the context that is current */
    unsigned stream; /* of the message */
    struct queue sent, streams[SIM_CARDS][STREAMS];
    unsigned reached[SIM_CARDS]; /* steps whose kernels are over */
    unsigned kernels_sent, kernels_over, collectives_sent;
    /* NCCL's thread, which puts a collective on its stream */
    struct item launching;
    uint64_t launched; /* when it will have; 0: there is none */
    int gate;
    unsigned latest; /* the event behind the latest collective; 0: it is over */
    uint64_t random;
    uint64_t wake;
    bool waits; /* its client, for the end of the step */
    bool votes; /* that is over, and its ranks sum whether to go on */
};

extern struct sim {
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
        bool works, sums; /* what runs there comes on; so does its collective */
    } cards[SIM_CARDS];
    bool taken[EVENTS];
    unsigned pending[EVENTS]; /* records of it that are under way */
} sim;

static inline void put(struct queue *q, struct item item)
{
    assert_true(q->tail - q->head < QUEUE);
    q->at[q->tail++ % QUEUE] = item;
}

static inline struct item *front(struct queue *q)
{
    return q->head == q->tail ? NULL : &q->at[q->head % QUEUE];
}

static inline CUcontext context_of(unsigned card)
{
    return (CUcontext)(uintptr_t)(card + 1);
}

static inline CUstream stream_of(unsigned card, unsigned stream)
{
    return (CUstream)(uintptr_t)(card * STREAMS + stream + 1);
}

/* The driver (simulated_cards.c). */
extern struct gpw_driver sim_driver;

/* Let a client go on, and a worker take what it has sent (simulated_worker.c). */
void sim_client(struct process *p);
void sim_worker(struct process *p);

#endif
