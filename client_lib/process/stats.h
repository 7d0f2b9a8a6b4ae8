/*
 * GPUPOOL_STATS=FILE: at exit, JSON with calls per function and mode, round
 * trips, waits that the GPU ended, bytes each way and time waited. Counting costs one relaxed add.
 */
#ifndef GPC_STATS_H
#define GPC_STATS_H

#include <stdint.h>

struct gpc_stats {
    uint64_t round_trips;
    uint64_t gpu_waits; /* that the GPU ended: no round trips */
    uint64_t messages_sent;
    uint64_t bytes_sent;
    uint64_t bytes_received;
    uint64_t waited_ns;
};
extern struct gpc_stats gpc_stats;

#define GPC_STATS_ADD(field, n) __atomic_fetch_add(&gpc_stats.field, (n), __ATOMIC_RELAXED)

/* A call that a worker of another release lacks was refused. */
void gpc_count_lacking(uint16_t op);
/* Write the file, if one is asked for. Called once, at exit. */
void gpc_stats_write(const char *transport);

#endif
