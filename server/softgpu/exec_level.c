/* Which level of the processor the executor uses. */
#include "exec_level.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct sg_level *known[4];
static pthread_once_t once = PTHREAD_ONCE_INIT;

#ifdef SG_LEVELS /* beside the first one */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

static void find(void)
{
    const struct sg_level **at = known;
#ifdef SG_LEVELS
    __builtin_cpu_init();
    if (has_avx512())
        *at++ = &sg_level_v4;
    if (has_avx2())
        *at++ = &sg_level_v3;
#endif
    *at = &sg_level_v1;
}

const struct sg_level *const *sg_levels(void)
{
    pthread_once(&once, find);
    return known;
}

sg_pure sg_pure_select(const struct sg_insn *in)
{
    return sg_levels()[0]->pure(in);
}
