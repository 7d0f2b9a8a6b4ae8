#include "jit_options.h"

#include <string.h>

/* Options that are a number; the rest are pointers, and not for the wire. */
static bool is_value(uint64_t option)
{
    switch (option) {
    case CU_JIT_MAX_REGISTERS:
    case CU_JIT_THREADS_PER_BLOCK:
    case CU_JIT_OPTIMIZATION_LEVEL:
    case CU_JIT_TARGET_FROM_CUCONTEXT:
    case CU_JIT_TARGET:
    case CU_JIT_FALLBACK_STRATEGY:
    case CU_JIT_GENERATE_DEBUG_INFO:
    case CU_JIT_LOG_VERBOSE:
    case CU_JIT_GENERATE_LINE_INFO:
    case CU_JIT_CACHE_MODE:
    case CU_JIT_LTO:
    case CU_JIT_FTZ:
    case CU_JIT_PREC_DIV:
    case CU_JIT_PREC_SQRT:
    case CU_JIT_FMA:
    case CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES:
    case CU_JIT_POSITION_INDEPENDENT_CODE:
    case CU_JIT_MIN_CTA_PER_SM:
    case CU_JIT_MAX_THREADS_PER_BLOCK:
    case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
        return true;
    default:
        return false;
    }
}

static int add(struct gpw_jit_options *jit, CUjit_option name, uint64_t value)
{
    jit->names[jit->count] = name;
    jit->values[jit->count] = (void *)(uintptr_t)value;
    return (int)jit->count++;
}

bool gpw_jit_take(struct gpw_jit_options *jit, uint32_t count, const uint64_t *pairs)
{
    *jit = (struct gpw_jit_options){.wall_time_at = -1, .threads_at = -1};
    for (uint32_t i = 0; i < count; i++) {
        if (jit->count >= GPW_JIT_OPTIONS_MAX - 6 || !is_value(pairs[2 * i]))
            return false;
        int at = add(jit, (CUjit_option)pairs[2 * i], pairs[2 * i + 1]);
        if (pairs[2 * i] == CU_JIT_THREADS_PER_BLOCK)
            jit->threads_at = at;
    }
    return true;
}

static void ask_log(struct gpw_jit_options *jit, CUjit_option buffer, CUjit_option size, char *log,
                    uint32_t room)
{
    if (!room)
        return;
    *log = '\0';
    add(jit, buffer, (uint64_t)(uintptr_t)log);
    add(jit, size, room);
}

void gpw_jit_ask(struct gpw_jit_options *jit, char *info, uint32_t info_room, char *error,
                 uint32_t error_room)
{
    jit->info = info;
    jit->info_room = info_room;
    jit->error = error;
    jit->error_room = error_room;
    jit->wall_time_at = add(jit, CU_JIT_WALL_TIME, 0);
    ask_log(jit, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, info, info_room);
    ask_log(jit, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error, error_room);
}

uint32_t gpw_jit_written(const char *log, uint32_t room)
{
    if (room == 0)
        return 0;
    uint32_t n = (uint32_t)strnlen(log, room);
    return n < room ? n + 1 : room;
}

float gpw_jit_wall_time(const struct gpw_jit_options *jit)
{
    float ms = 0;
    if (jit->wall_time_at >= 0)
        memcpy(&ms, &jit->values[jit->wall_time_at], sizeof ms);
    return ms;
}

uint32_t gpw_jit_threads(const struct gpw_jit_options *jit)
{
    return jit->threads_at < 0 ? 0 : (uint32_t)(uintptr_t)jit->values[jit->threads_at];
}
