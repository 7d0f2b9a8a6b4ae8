#include "jit_options.h"

#include <string.h>

#include "call.h"

#define LOG_MAX (1u << 18)

static uint32_t room(const char *log, void *const *size)
{
    if (!log || !size)
        return 0;
    uint32_t wanted = (uint32_t)(uintptr_t)*size;
    return wanted < LOG_MAX ? wanted : LOG_MAX;
}

static CUresult pair(struct gpc_jit_options *o, CUjit_option option, const void *value)
{
    if (o->count == GPC_JIT_PAIRS)
        return CUDA_ERROR_INVALID_VALUE;
    o->pairs[2 * o->count] = option;
    o->pairs[2 * o->count + 1] = (uint64_t)(uintptr_t)value;
    o->count++;
    return CUDA_SUCCESS;
}

static CUresult split(uint16_t op, CUjit_option option, void **value, struct gpc_jit_options *o)
{
    switch (option) {
    case CU_JIT_WALL_TIME:
        o->wall_time = value;
        return CUDA_SUCCESS;
    case CU_JIT_INFO_LOG_BUFFER:
        o->info = *value;
        return CUDA_SUCCESS;
    case CU_JIT_ERROR_LOG_BUFFER:
        o->error = *value;
        return CUDA_SUCCESS;
    case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        o->info_size = value;
        return CUDA_SUCCESS;
    case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        o->error_size = value;
        return CUDA_SUCCESS;
    case CU_JIT_GLOBAL_SYMBOL_NAMES:
    case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
        return gpc_refuse_because(op, "global symbols given to the JIT compiler");
    case CU_JIT_REFERENCED_KERNEL_NAMES:
    case CU_JIT_REFERENCED_VARIABLE_NAMES:
        return gpc_refuse_because(op, "names that link-time optimization keeps");
    case CU_JIT_THREADS_PER_BLOCK:
        o->threads = value;
        return pair(o, option, *value);
    default:
        return pair(o, option, *value);
    }
}

CUresult gpc_jit_split(uint16_t op, unsigned count, const CUjit_option *options, void **values,
                       struct gpc_jit_options *out)
{
    memset(out, 0, sizeof *out);
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        CUresult r = split(op, options[i], &values[i], out);
        if (r != CUDA_SUCCESS)
            return r;
    }
    out->info_room = room(out->info, out->info_size);
    out->error_room = room(out->error, out->error_size);
    return CUDA_SUCCESS;
}

bool gpc_jit_is_whole(unsigned count, const CUjit_option *options)
{
    for (unsigned i = 0; i < count; i++)
        switch (options[i]) {
        case CU_JIT_WALL_TIME:
        case CU_JIT_INFO_LOG_BUFFER:
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        case CU_JIT_ERROR_LOG_BUFFER:
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        case CU_JIT_TARGET_FROM_CUCONTEXT:
        case CU_JIT_TARGET:
            return true;
        default:
            break;
        }
    return false;
}

/* The application reads a log to its NUL, and whether one came is the worker's word. */
static void log_end(char *log, uint32_t room, uint32_t got)
{
    if (room)
        log[got < room ? got : room - 1] = '\0';
}

void gpc_jit_answer(const struct gpc_jit_options *o, float wall_time, uint32_t info, uint32_t error)
{
    log_end(o->info, o->info_room, info);
    log_end(o->error, o->error_room, error);
    if (o->wall_time)
        memcpy(o->wall_time, &wall_time, sizeof wall_time);
    if (o->info_size)
        *o->info_size = (void *)(uintptr_t)info;
    if (o->error_size)
        *o->error_size = (void *)(uintptr_t)error;
}
