#include "array.h"

#include "array_extent.h"

static bool holds(struct gpw_session *s, CUarray array, const struct gp_span_end *at,
                  const struct gp_span_box *box)
{
    CUDA_ARRAY3D_DESCRIPTOR d;
    if (s->driver->cuArray3DGetDescriptor_v2(&d, array) != CUDA_SUCCESS)
        return false;
    const struct gp_array_extent e = gp_array_extent(d.Width, d.Height, d.Depth, d.Format,
                                                     d.NumChannels);
    return box->width && box->height && box->depth && gp_array_holds(&e, at, box);
}

bool gpw_array_take_src(struct gpw_session *s, CUarray array, struct gp_span_end *at,
                        CUDA_MEMCPY3D *copy)
{
    const struct gp_span_box box = {copy->WidthInBytes, copy->Height, copy->Depth};
    copy->srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy->srcArray = array;
    copy->srcXInBytes = at->x;
    copy->srcY = at->y;
    copy->srcZ = at->z;
    bool fits = holds(s, array, at, &box);
    *at = (struct gp_span_end){.x = 0};
    return fits;
}

bool gpw_array_take_dst(struct gpw_session *s, CUarray array, struct gp_span_end *at,
                        CUDA_MEMCPY3D *copy)
{
    const struct gp_span_box box = {copy->WidthInBytes, copy->Height, copy->Depth};
    copy->dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy->dstArray = array;
    copy->dstXInBytes = at->x;
    copy->dstY = at->y;
    copy->dstZ = at->z;
    bool fits = holds(s, array, at, &box);
    *at = (struct gp_span_end){.x = 0};
    return fits;
}

/* The rows of a message, `bytes` in all. */
static bool rows_of(const struct gp_array_box *at, uint32_t bytes, CUDA_MEMCPY3D *copy)
{
    uint64_t said;
    *copy = (CUDA_MEMCPY3D){.WidthInBytes = at->width, .Height = at->height, .Depth = 1};
    return !__builtin_mul_overflow(at->width, at->height, &said) && said == bytes && bytes;
}

bool gpw_array_from_host(struct gpw_session *s, CUarray array, const struct gp_array_box *at,
                         uint32_t bytes, CUDA_MEMCPY3D *copy)
{
    struct gp_span_end first = {.x = at->x, .y = at->y, .z = at->z};
    if (!rows_of(at, bytes, copy) || !gpw_array_take_dst(s, array, &first, copy))
        return false;
    copy->srcMemoryType = CU_MEMORYTYPE_HOST;
    copy->srcPitch = at->width;
    copy->srcHeight = at->height;
    return true;
}

bool gpw_array_to_host(struct gpw_session *s, CUarray array, const struct gp_array_box *at,
                       uint32_t bytes, CUDA_MEMCPY3D *copy)
{
    struct gp_span_end first = {.x = at->x, .y = at->y, .z = at->z};
    if (!rows_of(at, bytes, copy) || !gpw_array_take_src(s, array, &first, copy))
        return false;
    copy->dstMemoryType = CU_MEMORYTYPE_HOST;
    copy->dstPitch = at->width;
    copy->dstHeight = at->height;
    return true;
}
