/* Memory sets: checked here, as CUDA does at once, then sent without waiting. Those
 * without a stream go to the default one, which may be the thread's own. */
#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "memory.h"
#include "ranges.h"
#include "remote_host.h"

/* Where the bytes are to be set: `*at` becomes the address that the GPU has for them.
 * Pinned memory is a legal place; where it is not shared with that host, it is of kind
 * GPC_RANGE_HOST. */
static CUresult check(struct gpc_route *on, uint16_t op, CUstream stream, CUdeviceptr *at,
                      size_t size, size_t pitch, size_t width, size_t rows,
                      struct gpc_range *range)
{
    CUdeviceptr dst = *at;
    CUresult r = gpc_enter_stream(on, op, stream);
    if (r != CUDA_SUCCESS)
        return r;
    size_t row, bytes;
    if (!dst || dst % size || __builtin_mul_overflow(width, size, &row))
        return CUDA_ERROR_INVALID_VALUE;
    if (rows > 1 && (pitch < row || pitch % size))
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(pitch, rows ? rows - 1 : 0, &bytes) ||
        __builtin_add_overflow(bytes, row, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
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

/* Memory of this process's own, once the stream has come here. */
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

#define LINEAR(name, type)                                                                         \
    static CUresult name##_in(uint16_t op, CUdeviceptr dst, type value, size_t n, CUstream stream) \
    {                                                                                              \
        struct gpc_range range;                                                                    \
        struct gpc_route on;                                                                       \
        CUresult r = check(&on, op, stream, &dst, sizeof value, 0, n, 1, &range);                  \
        if (r != CUDA_SUCCESS || n == 0)                                                           \
            return r;                                                                              \
        if (range.kind == GPC_RANGE_HOST)                                                          \
            return gpc_leave(set_here(&on, dst, &value, sizeof value, 0, n, 1, stream));           \
        if (!gpc_range_is_remote(&range, &on))                                                     \
            return gpc_leave(gpc_wire_##name##Async_on(&on, dst, value, n, stream));               \
        struct gpc_route there;                                                                    \
        if ((r = gpc_remote_begin(&there, &range, &on, stream)) != CUDA_SUCCESS)                   \
            return gpc_leave(r);                                                                   \
        r = gpc_wire_##name##Async_on(&there, dst, value, n, CU_STREAM_LEGACY);                    \
        return gpc_leave(gpc_remote_end(&there, r));                                               \
    }                                                                                              \
    GPC_EXPORT CUresult name##_v2(CUdeviceptr dstDevice, type value, size_t N)                     \
    {                                                                                              \
        return name##_in(GP_OP_##name##_v2, dstDevice, value, N, NULL);                            \
    }                                                                                              \
    GPC_EXPORT CUresult name##Async(CUdeviceptr dstDevice, type value, size_t N, CUstream hStream) \
    {                                                                                              \
        return name##_in(GP_OP_##name##Async, dstDevice, value, N, hStream);                       \
    }

#define PITCHED(name, type)                                                                        \
    static CUresult name##_in(uint16_t op, CUdeviceptr dst, size_t pitch, type value,              \
                              size_t width, size_t rows, CUstream stream)                          \
    {                                                                                              \
        struct gpc_range range;                                                                    \
        struct gpc_route on;                                                                       \
        CUresult r = check(&on, op, stream, &dst, sizeof value, pitch, width, rows, &range);       \
        if (r != CUDA_SUCCESS || width == 0 || rows == 0)                                          \
            return r;                                                                              \
        if (range.kind == GPC_RANGE_HOST)                                                          \
            return gpc_leave(                                                                      \
                set_here(&on, dst, &value, sizeof value, pitch, width, rows, stream));             \
        if (!gpc_range_is_remote(&range, &on))                                                     \
            return gpc_leave(                                                                      \
                gpc_wire_##name##Async_on(&on, dst, pitch, value, width, rows, stream));           \
        struct gpc_route there;                                                                    \
        if ((r = gpc_remote_begin(&there, &range, &on, stream)) != CUDA_SUCCESS)                   \
            return gpc_leave(r);                                                                   \
        r = gpc_wire_##name##Async_on(&there, dst, pitch, value, width, rows, CU_STREAM_LEGACY);   \
        return gpc_leave(gpc_remote_end(&there, r));                                               \
    }                                                                                              \
    GPC_EXPORT CUresult name##_v2(CUdeviceptr dstDevice, size_t dstPitch, type value,              \
                                  size_t Width, size_t Height)                                     \
    {                                                                                              \
        return name##_in(GP_OP_##name##_v2, dstDevice, dstPitch, value, Width, Height, NULL);      \
    }                                                                                              \
    GPC_EXPORT CUresult name##Async(CUdeviceptr dstDevice, size_t dstPitch, type value,            \
                                    size_t Width, size_t Height, CUstream hStream)                 \
    {                                                                                              \
        return name##_in(GP_OP_##name##Async, dstDevice, dstPitch, value, Width, Height, hStream); \
    }

LINEAR(cuMemsetD8, unsigned char)
LINEAR(cuMemsetD16, unsigned short)
LINEAR(cuMemsetD32, unsigned int)
PITCHED(cuMemsetD2D8, unsigned char)
PITCHED(cuMemsetD2D16, unsigned short)
PITCHED(cuMemsetD2D32, unsigned int)
