/* Condition variables whose deadlines are of the clock that nobody sets (monotonic.h). */
#ifndef GP_CONDITION_H
#define GP_CONDITION_H

#include <pthread.h>
#include <time.h>

static inline void gp_condition_init(pthread_cond_t *c)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(c, &clock);
    pthread_condattr_destroy(&clock);
}

#endif
