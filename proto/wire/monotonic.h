/* The clock that everything here is timed by. */
#ifndef GP_MONOTONIC_H
#define GP_MONOTONIC_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in nanoseconds: the same in all processes of a machine. */
static inline uint64_t gp_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CLOCK_REALTIME in nanoseconds, which is set anew now and then: what CUPTI's times are in. */
static inline uint64_t gp_real_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
