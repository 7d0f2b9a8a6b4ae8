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
 * for the kernels of the step of all the tenant's processes, as a collective does; then its client
 * waits for all of them. */
struct sim_actor {
    const char *tenant;
    struct gp_board_grant grant;
    bool on[SIM_CARDS];
    unsigned kernels;
    uint64_t kernel, last; /* ns: each of the kernels, and the one behind them */
    uint64_t think;        /* ns: from the end of a step to the next */
    unsigned steps;        /* what came of it */
};

/* Lets them work for so long. */
void sim_run(struct sim_actor *actors, unsigned count, uint64_t duration);

#endif
