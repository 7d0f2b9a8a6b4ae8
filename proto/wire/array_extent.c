#include "array_extent.h"

static uint32_t channel_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

/* Those that say their channels themselves. */
static uint32_t packed_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
        return 1;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
        return 2;
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT_101010_2:
        return 4;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
        return 8;
    default:
        return 0;
    }
}

uint32_t gp_array_element(CUarray_format format, unsigned channels)
{
    uint32_t bytes = channel_bytes(format);
    return bytes && channels <= 4 ? bytes * channels : packed_bytes(format);
}

struct gp_array_extent gp_array_extent(uint64_t width, uint64_t height, uint64_t depth,
                                       CUarray_format format, unsigned channels)
{
    uint32_t element = gp_array_element(format, channels);
    return (struct gp_array_extent){.element = element,
                                    .width = gp_span_line(width, element ? element : 1),
                                    .height = height ? height : 1,
                                    .depth = depth ? depth : 1};
}

uint64_t gp_array_bytes(const struct gp_array_extent *e)
{
    uint64_t bytes;
    return e->width == GP_SPAN_NONE || __builtin_mul_overflow(e->width, e->height, &bytes) ||
                   __builtin_mul_overflow(bytes, e->depth, &bytes)
               ? GP_SPAN_NONE
               : bytes;
}

uint64_t gp_array_least(uint64_t width, uint64_t height, uint64_t depth, CUarray_format format,
                        unsigned channels, unsigned flags)
{
    const struct gp_array_extent e = gp_array_extent(width, height, depth, format, channels);
    bool mapped_later = flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
    return mapped_later ? 0 : gp_array_bytes(&e);
}

static bool within(uint64_t begin, uint64_t length, uint64_t size)
{
    return begin < size && length <= size - begin;
}

bool gp_array_holds(const struct gp_array_extent *e, const struct gp_span_end *at,
                    const struct gp_span_box *box)
{
    if (!within(at->y, box->height, e->height) || !within(at->z, box->depth, e->depth))
        return false;
    return !e->element || (within(at->x, box->width, e->width) && at->x % e->element == 0 &&
                           box->width % e->element == 0);
}
