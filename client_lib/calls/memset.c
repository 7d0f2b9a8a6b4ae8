/* Memory sets: checked here, as CUDA does at once, then sent without waiting. Those
 * without a stream go to the default one, which may be the thread's own. */
#include <string.h>

#include "call.h"
#include "captured_copy.h"
#include "gpc_wire.h"
#include "memory.h"
#include "ranges.h"
#include "remote_host.h"
#include "shared.h"
#include "span.h"

static CUresult check_shape(CUdeviceptr dst, size_t size, size_t pitch, size_t width, size_t rows,
                            size_t *bytes)
{
    size_t row;
    if (dst % size || __builtin_mul_overflow(width, size, &row))
        return CUDA_ERROR_INVALID_VALUE;
    if (rows > 1 && (pitch < row || pitch % size))
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(pitch, rows ? rows - 1 : 0, bytes) ||
        __builtin_add_overflow(*bytes, row, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Where the bytes are to be set: `*at` becomes the address that the GPU has for them.
 * Pinned memory is a legal place; where it is not shared with that host, it is of kind
 * GPC_RANGE_HOST. */
static CUresult check_place(const struct gpc_route *on, CUdeviceptr *at, size_t bytes,
                            struct gpc_range *range)
{
    CUdeviceptr dst = *at;
    if (!gpc_range_find_at(on->session->index, dst, range))
        return CUDA_ERROR_INVALID_VALUE;
    if (range->kind != GPC_RANGE_MAPPED && bytes > range->size - (dst - range->begin))
        return CUDA_ERROR_INVALID_VALUE;
    if (range->kind == GPC_RANGE_SHARED && gpc_range_session(range) != on->session)
        range->kind = GPC_RANGE_HOST; /* for the host of this GPU it is */
    if (range->kind == GPC_RANGE_SHARED)
        *at = range->device_address + (dst - range->begin);
    return CUDA_SUCCESS;
}

CUresult gpc_memset_node(uint16_t op, const struct gpc_route *on, CUdeviceptr *at,
                         const CUDA_MEMSET_NODE_PARAMS *p)
{
    struct gpc_range range;
    size_t bytes;
    CUresult r = check_shape(*at, p->elementSize, p->pitch, p->width, p->height, &bytes);
    if (r == CUDA_SUCCESS)
        r = check_place(on, at, bytes, &range);
    if (r != CUDA_SUCCESS)
        return r;
    if (range.kind == GPC_RANGE_HOST)
        return gpc_refuse_because(op, "a set of memory of this process's own in a graph");
    return gpc_range_is_remote(&range, on)
               ? gpc_refuse_because(op, "a set of another host's memory in a graph")
               : CUDA_SUCCESS;
}

/* Memory of this process's own, once the stream has come here. Of a value's bytes the low ones
 * come first. */
static CUresult set_here(const struct gpc_route *on, CUdeviceptr dst, const void *value,
                         size_t size, size_t pitch, size_t width, size_t rows, CUstream stream)
{
    CUresult r = gpc_wire_cuStreamSynchronize_on(on, stream);
    if (r == CUDA_SUCCESS)
        r = gpc_pinned_settle(NULL, 0);
    for (size_t y = 0; y < rows && r == CUDA_SUCCESS; y++)
        for (size_t x = 0; x < width; x++)
            memcpy((char *)(uintptr_t)dst + y * pitch + x * size, value, size);
    return r;
}

/* The message of this size: a row, or rows. */
static CUresult send(const struct gpc_route *on, CUdeviceptr dst, size_t pitch, uint32_t value,
                     size_t size, size_t width, size_t rows, CUstream stream)
{
    const uint8_t byte = (uint8_t)value;
    const uint16_t half = (uint16_t)value;
    bool row = rows == 1;
    if (size == 1)
        return row ? gpc_wire_cuMemsetD8Async_on(on, dst, byte, width, stream)
                   : gpc_wire_cuMemsetD2D8Async_on(on, dst, pitch, byte, width, rows, stream);
    if (size == 2)
        return row ? gpc_wire_cuMemsetD16Async_on(on, dst, half, width, stream)
                   : gpc_wire_cuMemsetD2D16Async_on(on, dst, pitch, half, width, rows, stream);
    return row ? gpc_wire_cuMemsetD32Async_on(on, dst, value, width, stream)
               : gpc_wire_cuMemsetD2D32Async_on(on, dst, pitch, value, width, rows, stream);
}

/* Where no memory is. CUDA captures such a set, and refuses to instantiate it: cuDNN captures its
 * work with made-up addresses to look at the nodes. */
static CUresult set_nowhere(const struct gpc_route *on, CUdeviceptr dst, size_t pitch,
                            uint32_t value, size_t size, size_t width, size_t rows, CUstream stream)
{
    bool captures = false;
    CUresult r = gpc_stream_captures(on, stream, &captures);
    if (r != CUDA_SUCCESS)
        return r;
    return captures && dst < GP_NOWHERE
               ? send(on, dst + GP_NOWHERE, pitch, value, size, width, rows, stream)
               : CUDA_ERROR_INVALID_VALUE;
}

/* CUDA waits where the memory is pinned: the program may look at it at once. */
CUresult gpc_memset_now(const struct gpc_route *on, CUdeviceptr dst, size_t pitch, uint32_t value,
                        size_t size, size_t width, size_t rows)
{
    struct gpc_range range;
    CUresult r = gpc_memset(on, dst, pitch, value, size, width, rows, NULL);
    bool waits = r == CUDA_SUCCESS && gpc_range_find_at(on->session->index, dst, &range) &&
                 (range.sync || gpc_range_is_host(&range));
    return waits ? gpc_wire_cuStreamSynchronize_on(on, NULL) : r;
}

CUresult gpc_memset(const struct gpc_route *on, CUdeviceptr dst, size_t pitch, uint32_t value,
                    size_t size, size_t width, size_t rows, CUstream stream)
{
    struct gpc_range range;
    size_t bytes;
    if (width == 0 || rows == 0)
        return CUDA_SUCCESS; /* wherever that is */
    CUresult r = check_shape(dst, size, pitch, width, rows, &bytes);
    if (r != CUDA_SUCCESS)
        return r;
    if ((r = check_place(on, &dst, bytes, &range)) != CUDA_SUCCESS)
        return set_nowhere(on, dst, pitch, value, size, width, rows, stream);
    if (range.kind == GPC_RANGE_HOST)
        return set_here(on, dst, &value, size, pitch, width, rows, stream);
    if (!gpc_range_is_remote(&range, on))
        return send(on, dst, pitch, value, size, width, rows, stream);
    struct gpc_route there;
    if ((r = gpc_remote_begin(&there, &range, on, stream)) != CUDA_SUCCESS)
        return r;
    r = send(&there, dst, pitch, value, size, width, rows, CU_STREAM_LEGACY);
    return gpc_remote_end(&there, r);
}
