/* CUjit_option lists for the driver, of pairs that a client sent and logs of our own. */
#ifndef GPW_JIT_OPTIONS_H
#define GPW_JIT_OPTIONS_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define GPW_JIT_OPTIONS_MAX 48

struct gpw_jit_options {
    CUjit_option names[GPW_JIT_OPTIONS_MAX];
    void *values[GPW_JIT_OPTIONS_MAX]; /* the driver may write into it while it uses the list */
    unsigned count;
    int wall_time_at, threads_at; /* -1: it is not in the list */
    char *info, *error;
    uint32_t info_room, error_room;
};

/* The client's pairs; false for options that hold pointers, and for too many. */
bool gpw_jit_take(struct gpw_jit_options *jit, uint32_t count, const uint64_t *pairs);
/* Ask for the time it takes, and for the logs that have room, which are emptied. */
void gpw_jit_ask(struct gpw_jit_options *jit, char *info, uint32_t info_room, char *error,
                 uint32_t error_room);
/* The bytes of a log that hold text, its NUL among them; 0: nobody asked for it. */
uint32_t gpw_jit_written(const char *log, uint32_t room);
/* Milliseconds; what the compiler made of the threads that a block should have, 0: not asked. */
float gpw_jit_wall_time(const struct gpw_jit_options *jit);
uint32_t gpw_jit_threads(const struct gpw_jit_options *jit);

#endif
