/* cuMemset in every width. */
#include "softgpu.h"
#include "span.h"

void sg_set_run(const struct sg_set *set)
{
    char *row = set->dst;
    for (size_t y = 0; y < set->height; y++, row += set->pitch) {
        if (set->element == 1) {
            memset(row, (int)(set->value & 0xff), set->width);
        } else if (set->element == 2) {
            uint16_t *cells = (uint16_t *)(void *)row;
            for (size_t x = 0; x < set->width; x++)
                cells[x] = (uint16_t)set->value;
        } else {
            uint32_t *cells = (uint32_t *)(void *)row;
            for (size_t x = 0; x < set->width; x++)
                cells[x] = set->value;
        }
    }
}

/* The same wherever the address leads. */
static CUresult shape_make(CUdeviceptr dst, size_t pitch, unsigned element, uint32_t value,
                           size_t width, size_t height, struct sg_set *out)
{
    if (!width || !height || (element != 1 && element != 2 && element != 4) || dst % element ||
        (height > 1 && (pitch == 0 || pitch % element)) ||
        gp_span_rows(pitch, width, element, height) == GP_SPAN_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct sg_set){(char *)(uintptr_t)dst, pitch, width, height, element, value};
    return CUDA_SUCCESS;
}

bool sg_set_covers(const struct sg_set *set)
{
    return sg_address_covers((uintptr_t)set->dst,
                             gp_span_rows(set->pitch, set->width, set->element, set->height));
}

CUresult sg_set_make(CUdeviceptr dst, size_t pitch, unsigned element, uint32_t value, size_t width,
                     size_t height, struct sg_set *out)
{
    SG_TRY(shape_make(dst, pitch, element, value, width, height, out));
    return sg_set_covers(out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set(CUdeviceptr dst, size_t pitch, unsigned element, uint32_t value, size_t width,
                    size_t height, CUstream handle, bool async)
{
    SG_LOCKED;
    CUstream stream;
    struct sg_set made;
    struct sg_extent extent;
    SG_TRY(sg_stream_get(handle, &stream));
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    SG_TRY(shape_make(dst, pitch, element, value, width, height, &made));
    if (!stream->capture && !sg_set_covers(&made))
        return CUDA_ERROR_INVALID_VALUE; /* what is captured is looked at when it is instantiated */
    struct sg_op *op = sg_op_new(SG_OP_SET, stream->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->set = made;
    bool waits = sg_address_find(dst, &extent) &&
                 (sg_space_is_host(extent.space) || extent.sync_memops);
    /* Like CUDA's: asynchronous to the host, unless it writes host memory, or that is set. */
    return !async && waits ? sg_stream_submit_wait(stream, op) : sg_stream_submit(stream, op);
}

#define SET_FUNCTIONS(bits, type)                                                                  \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr dstDevice, type value, size_t N)                     \
    {                                                                                              \
        return set(dstDevice, 0, bits / 8, value, N, 1, NULL, false);                              \
    }                                                                                              \
    CUresult cuMemsetD##bits##Async(CUdeviceptr dstDevice, type value, size_t N, CUstream hStream) \
    {                                                                                              \
        return set(dstDevice, 0, bits / 8, value, N, 1, hStream, true);                            \
    }                                                                                              \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dstDevice, size_t dstPitch, type value,            \
                                    size_t Width, size_t Height)                                   \
    {                                                                                              \
        return set(dstDevice, dstPitch, bits / 8, value, Width, Height, NULL, false);              \
    }                                                                                              \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr dstDevice, size_t dstPitch, type value,          \
                                      size_t Width, size_t Height, CUstream hStream)               \
    {                                                                                              \
        return set(dstDevice, dstPitch, bits / 8, value, Width, Height, hStream, true);            \
    }
SET_FUNCTIONS(8, unsigned char)
SET_FUNCTIONS(16, unsigned short)
SET_FUNCTIONS(32, unsigned int)
