/* Memory sets: checked here, as CUDA does at once, then sent without waiting. Those
 * without a stream go to the default one, which may be the thread's own. */
#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "ranges.h"

/* `rows` of `width` elements of `size` bytes, `pitch` bytes apart. */
static CUresult check(uint16_t op, CUdeviceptr dst, size_t size, size_t pitch, size_t width,
                      size_t rows)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
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
    struct gpc_range range;
    if (!gpc_range_find(dst, &range))
        return CUDA_ERROR_INVALID_VALUE;
    return range.kind == GPC_RANGE_MAPPED || bytes <= range.size - (dst - range.begin)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

#define LINEAR(name, type)                                                                         \
    GPC_EXPORT CUresult name##_v2(CUdeviceptr dstDevice, type value, size_t N)                     \
    {                                                                                              \
        CUresult r = check(GP_OP_##name##_v2, dstDevice, sizeof(type), 0, N, 1);                   \
        return r || N == 0 ? r : gpc_leave(gpc_wire_##name##Async(dstDevice, value, N, NULL));             \
    }                                                                                              \
    GPC_EXPORT CUresult name##Async(CUdeviceptr dstDevice, type value, size_t N, CUstream hStream) \
    {                                                                                              \
        CUresult r = check(GP_OP_##name##Async, dstDevice, sizeof(type), 0, N, 1);                 \
        return r || N == 0 ? r : gpc_leave(gpc_wire_##name##Async(dstDevice, value, N, hStream));  \
    }

#define PITCHED(name, type)                                                                        \
    GPC_EXPORT CUresult name##_v2(CUdeviceptr dstDevice, size_t dstPitch, type value,              \
                                  size_t Width, size_t Height)                                     \
    {                                                                                              \
        CUresult r =                                                                               \
            check(GP_OP_##name##_v2, dstDevice, sizeof(type), dstPitch, Width, Height);            \
        if (r != CUDA_SUCCESS || Width == 0 || Height == 0)                                        \
            return r;                                                                              \
        return gpc_leave(                                                                          \
            gpc_wire_##name##Async(dstDevice, dstPitch, value, Width, Height, NULL));              \
    }                                                                                              \
    GPC_EXPORT CUresult name##Async(CUdeviceptr dstDevice, size_t dstPitch, type value,            \
                                    size_t Width, size_t Height, CUstream hStream)                 \
    {                                                                                              \
        CUresult r =                                                                               \
            check(GP_OP_##name##Async, dstDevice, sizeof(type), dstPitch, Width, Height);          \
        if (r != CUDA_SUCCESS || Width == 0 || Height == 0)                                        \
            return r;                                                                              \
        return gpc_leave(                                                                          \
            gpc_wire_##name##Async(dstDevice, dstPitch, value, Width, Height, hStream));           \
    }

LINEAR(cuMemsetD8, unsigned char)
LINEAR(cuMemsetD16, unsigned short)
LINEAR(cuMemsetD32, unsigned int)
PITCHED(cuMemsetD2D8, unsigned char)
PITCHED(cuMemsetD2D16, unsigned short)
PITCHED(cuMemsetD2D32, unsigned int)
