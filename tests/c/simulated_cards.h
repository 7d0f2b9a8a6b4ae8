/*
 * Two GPUs and the workers of some tenants on them, by a clock that only the test moves: real
 * arbiters, pages, seats and gates, over a driver that is simulated. A worker takes its client's
 * messages in their order, as it does: what waits at the gate of one GPU holds back what is for
 * the other.
 */
#ifndef SIMULATED_CARDS_H
#define SIMULATED_CARDS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "board.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define SIM_CARDS 2
#define SIM_ACTORS 4

/* A process of a tenant's. Its step: `kernels` on each of its cards, then one on each that waits
 * for the kernels of the step of all the tenant's processes; then its client waits for all of them.
 * A rank of those that sum (`sum`) has one card, and a collective beside the kernels behind each of
 * them, which goes on while all ranks are at it and keeps its card until then; its client then sums
 * and waits once more, as those do that agree whether to go on. */
struct sim_actor {
    const char *tenant;
    struct gp_board_grant grant;
    bool on[SIM_CARDS];
    unsigned kernels;
    uint64_t kernel, last; /* ns: each of the kernels, and the one behind them */
    uint64_t think;        /* ns: from the end of what it waits for to what is next */
    uint64_t jitter;       /* ns: up to so much longer */
    uint64_t sum;          /* ns: of a collective; 0: there are none */
    uint64_t launch;       /* ns: until NCCL's thread has put one on its stream, up to twice that */
    unsigned steps;        /* what came of it */
};

/* Lets them work for so long. */
void sim_run(struct sim_actor *actors, unsigned count, uint64_t duration);

#endif
