#include "array.h"

CUresult sg_array_get(CUarray handle, CUarray *out)
{
    if (!sg_handle_is(handle, SG_ARRAY))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = handle;
    return CUDA_SUCCESS;
}

CUresult sg_mipmap_get(CUmipmappedArray handle, CUmipmappedArray *out)
{
    if (!sg_handle_is(handle, SG_MIPMAP))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = handle;
    return CUDA_SUCCESS;
}

/* --- what may be made -------------------------------------------------------------------- */

#define SHAPES                                                                                     \
    (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |                     \
     CUDA_ARRAY3D_TEXTURE_GATHER)
#define LAYERS_MAX 2048u

static bool upto(size_t width, size_t width_max, size_t height, size_t height_max, size_t depth,
                 size_t depth_max)
{
    return width <= width_max && height <= height_max && depth <= depth_max;
}

static bool cube_fits(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    bool layered = d->Flags & CUDA_ARRAY3D_LAYERED;
    return d->Width == d->Height && d->Depth && d->Depth % 6 == 0 && (layered || d->Depth == 6) &&
           upto(d->Width, 32768, d->Height, 32768, d->Depth, LAYERS_MAX - LAYERS_MAX % 6);
}

/* The dimensions that the driver's documentation gives for each kind of array. */
static bool shape_fits(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    if (!d->Width || ((d->Flags & CUDA_ARRAY3D_TEXTURE_GATHER) && (!d->Height || d->Depth)))
        return false;
    if (d->Flags & CUDA_ARRAY3D_CUBEMAP)
        return cube_fits(d);
    if (d->Flags & CUDA_ARRAY3D_LAYERED)
        return d->Depth && upto(d->Width, 32768, d->Height, 32768, d->Depth, LAYERS_MAX);
    if (d->Depth)
        return d->Height && upto(d->Width, 16384, d->Height, 16384, d->Depth, 16384);
    return upto(d->Width, 131072, d->Height, 65536, 0, 0);
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    if (d->Flags & ~((unsigned)SHAPES | SG_MAPPED_LATER) || !shape_fits(d) || !sg_backing_fits(d))
        return CUDA_ERROR_INVALID_VALUE;
    if (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4)
        return CUDA_ERROR_INVALID_VALUE;
    return gp_array_element(d->Format, 1) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* --- made and ended --------------------------------------------------------------------- */

/* `tiles`: where its bytes are, if it has no memory of its own. */
static CUresult make(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *d,
                     const struct sg_tiles *tiles, CUarray *out)
{
    CUarray a = calloc(1, sizeof *a);
    const struct sg_extent like = {
        .space = SG_SPACE_DEVICE, .device = context->device, .context = context, .internal = true};
    if (!a || !sg_handle_add(a, SG_ARRAY)) {
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    a->context = context;
    a->desc = *d;
    a->extent = gp_array_extent(d->Width, d->Height, d->Depth, d->Format, d->NumChannels);
    CUresult result = CUDA_SUCCESS;
    if (tiles)
        a->tiles = *tiles;
    else
        result = sg_memory_take(&like, gp_array_bytes(&a->extent), &a->data);
    if (result != CUDA_SUCCESS) {
        sg_handle_remove(a);
        free(a);
        return result;
    }
    a->next = context->arrays;
    context->arrays = a;
    *out = a;
    return CUDA_SUCCESS;
}

/* An array of its own, whose memory is mapped later. */
static CUresult make_later(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *d, CUarray *out)
{
    struct sg_tiles tiles;
    struct sg_backing *backing;
    SG_TRY(sg_backing_make(d, 0, &tiles, &backing));
    CUresult result = make(context, d, &tiles, out);
    if (result == CUDA_SUCCESS)
        (*out)->backing = backing;
    else
        sg_backing_free(backing);
    return result;
}

static void end(CUarray a)
{
    CUarray *at = &a->context->arrays;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    if (!a->tiles.pages)
        sg_memory_give(a->data);
    else if (!a->mipmap)
        sg_backing_free(a->backing);
    sg_handle_remove(a);
    free(a);
}

static void end_mipmap(CUmipmappedArray m)
{
    CUmipmappedArray *at = &m->context->mipmaps;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    for (unsigned i = 0; i < m->count; i++)
        end(m->levels[i]);
    sg_backing_free(m->backing);
    sg_handle_remove(m);
    free(m);
}

void sg_arrays_release(CUcontext context)
{
    while (context->mipmaps)
        end_mipmap(context->mipmaps);
    while (context->arrays)
        end(context->arrays);
}

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!out || !d)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_capture_unsafe());
    SG_TRY(check(d));
    return d->Flags & SG_MAPPED_LATER ? make_later(context, d, out) : make(context, d, NULL, out);
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    SG_LOCKED;
    return create(pHandle, pAllocateArray);
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    SG_LOCKED;
    if (!pAllocateArray)
        return create(pHandle, NULL);
    const CUDA_ARRAY3D_DESCRIPTOR d = {.Width = pAllocateArray->Width,
                                       .Height = pAllocateArray->Height,
                                       .Format = pAllocateArray->Format,
                                       .NumChannels = pAllocateArray->NumChannels};
    return create(pHandle, &d);
}

CUresult cuArrayDestroy(CUarray hArray)
{
    SG_LOCKED;
    CUcontext context;
    CUarray a;
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_capture_unsafe());
    for (int pass = 0; pass < 2; pass++) { /* another thread may end it while this one waits */
        SG_TRY(sg_array_get(hArray, &a));
        if (a->mipmap)
            return CUDA_ERROR_INVALID_HANDLE;
        if (pass == 0)
            sg_memory_wait(a->context->device);
    }
    end(a);
    return CUDA_SUCCESS;
}

/* --- mipmapped arrays -------------------------------------------------------------------- */

static size_t half(size_t size, unsigned level)
{
    return size && !(size >> level) ? 1 : size >> level;
}

CUDA_ARRAY3D_DESCRIPTOR sg_level_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
    CUDA_ARRAY3D_DESCRIPTOR own = *d;
    own.Width = half(d->Width, level);
    own.Height = half(d->Height, level);
    if (!(d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
        own.Depth = half(d->Depth, level);
    return own;
}

/* "Clamped to the range [1, 1 + floor(log2(max(width, height, depth)))]"; layers do not count. */
static unsigned clamped(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    bool layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    size_t most = d->Width > d->Height ? d->Width : d->Height;
    if (!layers && d->Depth > most)
        most = d->Depth;
    unsigned all = 1;
    while (most >>= 1)
        all++;
    return levels < 1 ? 1 : levels < all ? levels : all;
}

static CUresult make_levels(CUmipmappedArray m, unsigned count)
{
    struct sg_tiles tiles[SG_LEVELS_MAX];
    bool later = m->desc.Flags & SG_MAPPED_LATER;
    if (later)
        SG_TRY(sg_backing_make(&m->desc, count, tiles, &m->backing));
    for (; m->count < count; m->count++) {
        const CUDA_ARRAY3D_DESCRIPTOR d = sg_level_of(&m->desc, m->count);
        CUarray *level = &m->levels[m->count];
        SG_TRY(make(m->context, &d, later ? &tiles[m->count] : NULL, level));
        (*level)->mipmap = m;
        (*level)->backing = m->backing;
    }
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pHandle || !pMipmappedArrayDesc)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_capture_unsafe());
    SG_TRY(check(pMipmappedArrayDesc));
    CUmipmappedArray m = calloc(1, sizeof *m);
    if (!m || !sg_handle_add(m, SG_MIPMAP)) {
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->context = context;
    m->desc = *pMipmappedArrayDesc;
    m->next = context->mipmaps;
    context->mipmaps = m;
    CUresult result = make_levels(m, clamped(&m->desc, numMipmapLevels));
    if (result == CUDA_SUCCESS)
        *pHandle = m;
    else
        end_mipmap(m);
    return result;
}

CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                  unsigned int level)
{
    SG_LOCKED;
    CUcontext context;
    CUmipmappedArray m;
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_mipmap_get(hMipmappedArray, &m));
    if (!pLevelArray || level >= m->count)
        return CUDA_ERROR_INVALID_VALUE;
    *pLevelArray = m->levels[level];
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    SG_LOCKED;
    CUcontext context;
    CUmipmappedArray m;
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_capture_unsafe());
    SG_TRY(sg_mipmap_get(hMipmappedArray, &m));
    sg_memory_wait(m->context->device);
    SG_TRY(sg_mipmap_get(hMipmappedArray, &m)); /* as with an array */
    end_mipmap(m);
    return CUDA_SUCCESS;
}

/* --- asked ------------------------------------------------------------------------------ */

static CUresult array_asked(const void *to, CUarray handle, CUarray *out)
{
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_array_get(handle, out));
    return to ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    SG_LOCKED;
    CUarray a;
    SG_TRY(array_asked(pArrayDescriptor, hArray, &a));
    *pArrayDescriptor = a->desc;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    SG_LOCKED;
    CUarray a;
    SG_TRY(array_asked(pArrayDescriptor, hArray, &a));
    if (a->desc.Depth)
        return CUDA_ERROR_INVALID_VALUE; /* has no place for it */
    *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR){.Width = a->desc.Width,
                                                .Height = a->desc.Height,
                                                .Format = a->desc.Format,
                                                .NumChannels = a->desc.NumChannels};
    return CUDA_SUCCESS;
}

/* Nothing here is of several planes. */
CUresult cuArrayGetPlane(CUarray *pPlaneArray, CUarray hArray, unsigned int planeIdx)
{
    SG_LOCKED;
    CUarray a;
    (void)planeIdx;
    SG_TRY(array_asked(pPlaneArray, hArray, &a));
    return CUDA_ERROR_INVALID_VALUE;
}
