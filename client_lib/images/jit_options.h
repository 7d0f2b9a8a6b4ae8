/*
 * CUjit_option lists as applications give them, split into what travels and where the
 * answers go.
 */
#ifndef GPC_JIT_OPTIONS_H
#define GPC_JIT_OPTIONS_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define GPC_JIT_PAIRS 32u

struct gpc_jit_options {
    uint64_t pairs[2 * GPC_JIT_PAIRS]; /* (option, value), values that are no pointers */
    uint32_t count;
    char *info, *error; /* the application's logs; the rooms are 0 where there is none */
    uint32_t info_room, error_room;
    void **info_size, **error_size, **wall_time, **threads;
};

/* INVALID_VALUE for lists that cannot be; NOT_SUPPORTED for options that hold tables. */
CUresult gpc_jit_split(uint16_t op, unsigned count, const CUjit_option *options, void **values,
                       struct gpc_jit_options *out);
/* Whether it has an option that only a whole linking can have: a log, a time, a target. */
bool gpc_jit_is_whole(unsigned count, const CUjit_option *options);
/* Fill in what came: the bytes of each log that are in it, and the compiler's time. */
void gpc_jit_answer(const struct gpc_jit_options *o, float wall_time, uint32_t info,
                    uint32_t error);

#endif
