/* Texture and surface objects: what was asked for is checked, kept, and told to kernels. */
#include "array.h"
#include "ptx_image.h"

static struct sg_texture **find(CUcontext context, uint64_t number, bool surface)
{
    for (struct sg_texture **at = &context->textures; *at; at = &(*at)->next)
        if ((*at)->number == number && (*at)->surface == surface)
            return at;
    return NULL;
}

static void end(struct sg_texture **at)
{
    struct sg_texture *o = *at;
    *at = o->next;
    free(o);
}

void sg_textures_release(struct sg_texture **list)
{
    while (*list)
        end(list);
}

/* --- what may be made -------------------------------------------------------------------- */

#define LINEAR_MAX (UINT64_C(1) << 28) /* elements, MAXIMUM_TEXTURE1D_LINEAR_WIDTH */
#define PITCH_ALIGNMENT 32u

static CUresult memory_check(uint64_t address, uint64_t bytes, const struct sg_device *device)
{
    bool fits = address % SG_TEXTURE_ALIGNMENT == 0 && bytes != GP_SPAN_NONE && bytes &&
                sg_address_open(address, bytes, device);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult linear_check(const CUDA_RESOURCE_DESC *d, const struct sg_device *device)
{
    uint32_t element = gp_array_element(d->res.linear.format, d->res.linear.numChannels);
    if (!element || d->res.linear.numChannels == 3 ||
        d->res.linear.sizeInBytes / element > LINEAR_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    return memory_check(d->res.linear.devPtr, d->res.linear.sizeInBytes, device);
}

static CUresult pitch_check(const CUDA_RESOURCE_DESC *d, const struct sg_device *device)
{
    uint32_t element = gp_array_element(d->res.pitch2D.format, d->res.pitch2D.numChannels);
    if (!element || d->res.pitch2D.numChannels == 3 ||
        d->res.pitch2D.pitchInBytes % PITCH_ALIGNMENT)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = gp_span_rows(d->res.pitch2D.pitchInBytes, d->res.pitch2D.width, element,
                                  d->res.pitch2D.height);
    return memory_check(d->res.pitch2D.devPtr, bytes, device);
}

CUresult sg_resource_check(const CUDA_RESOURCE_DESC *d, const struct sg_device *device)
{
    CUarray array;
    CUmipmappedArray mipmap;
    if (d->flags)
        return CUDA_ERROR_INVALID_VALUE;
    switch (d->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return sg_array_get(d->res.array.hArray, &array);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return sg_mipmap_get(d->res.mipmap.hMipmappedArray, &mipmap);
    case CU_RESOURCE_TYPE_LINEAR:
        return linear_check(d, device);
    case CU_RESOURCE_TYPE_PITCH2D:
        return pitch_check(d, device);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool is_array(const CUDA_RESOURCE_DESC *d)
{
    return d->resType == CU_RESOURCE_TYPE_ARRAY || d->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
}

static bool desc_fits(const CUDA_TEXTURE_DESC *d)
{
    for (int i = 0; i < 3; i++)
        if ((unsigned)d->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER)
            return false;
    return !(d->flags & ~(unsigned)SG_TEXTURE_FLAGS) &&
           (unsigned)d->filterMode <= CU_TR_FILTER_MODE_LINEAR &&
           (unsigned)d->mipmapFilterMode <= CU_TR_FILTER_MODE_LINEAR;
}

/* --- made ---------------------------------------------------------------------------------- */

static CUresult make(CUcontext context, const struct sg_texture *like, unsigned long long *number)
{
    struct sg_texture *o = malloc(sizeof *o);
    if (!o)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *o = *like;
    o->number = ++sg.next_id;
    o->next = context->textures;
    context->textures = o;
    *number = o->number;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                           const CUDA_TEXTURE_DESC *pTexDesc,
                           const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pTexObject || !pResDesc || !pTexDesc || !desc_fits(pTexDesc))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_resource_check(pResDesc, context->device));
    struct sg_texture like = {.resource = *pResDesc, .desc = *pTexDesc};
    if (pResViewDesc && is_array(pResDesc)) /* linear memory has none, and a driver says nothing */
        like.view = *pResViewDesc;
    return make(context, &like, pTexObject);
}

CUresult cuSurfObjectCreate(CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc)
{
    SG_LOCKED;
    CUcontext context;
    CUarray array;
    SG_TRY(sg_context_current(&context));
    if (!pSurfObject || !pResDesc || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY || pResDesc->flags)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_array_get(pResDesc->res.array.hArray, &array));
    const struct sg_texture like = {.resource = *pResDesc, .surface = true};
    return make(context, &like, pSurfObject);
}

/* --- asked and ended ------------------------------------------------------------------------- */

static CUresult look(uint64_t number, bool surface, const void *to, struct sg_texture ***at)
{
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    *at = find(context, number, surface);
    return *at && to ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuTexObjectDestroy(CUtexObject texObject)
{
    SG_LOCKED;
    struct sg_texture **at = NULL;
    SG_TRY(look(texObject, false, &at, &at));
    end(at);
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectDestroy(CUsurfObject surfObject)
{
    SG_LOCKED;
    struct sg_texture **at = NULL;
    SG_TRY(look(surfObject, true, &at, &at));
    end(at);
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject)
{
    SG_LOCKED;
    struct sg_texture **at;
    SG_TRY(look(texObject, false, pResDesc, &at));
    *pResDesc = (*at)->resource;
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUsurfObject surfObject)
{
    SG_LOCKED;
    struct sg_texture **at;
    SG_TRY(look(surfObject, true, pResDesc, &at));
    *pResDesc = (*at)->resource;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *pTexDesc, CUtexObject texObject)
{
    SG_LOCKED;
    struct sg_texture **at;
    SG_TRY(look(texObject, false, pTexDesc, &at));
    *pTexDesc = (*at)->desc;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *pResViewDesc,
                                        CUtexObject texObject)
{
    SG_LOCKED;
    struct sg_texture **at;
    SG_TRY(look(texObject, false, pResViewDesc, &at));
    *pResViewDesc = (*at)->view; /* all zeros for one without */
    return CUDA_SUCCESS;
}

/* --- what kernels see ------------------------------------------------------------------------- */

/* false: of a format in blocks or planes, or of bits that are no whole bytes. */
static bool format_told(CUarray_format format, unsigned channels, struct sg_image *to)
{
    static const struct {
        CUarray_format format;
        uint8_t channels, bytes, channel;
        bool unit;
    } formats[] = {
        {CU_AD_FORMAT_UNSIGNED_INT8, 0, 1, SG_CH_UNSIGNED, false},
        {CU_AD_FORMAT_UNSIGNED_INT16, 0, 2, SG_CH_UNSIGNED, false},
        {CU_AD_FORMAT_UNSIGNED_INT32, 0, 4, SG_CH_UNSIGNED, false},
        {CU_AD_FORMAT_SIGNED_INT8, 0, 1, SG_CH_SIGNED, false},
        {CU_AD_FORMAT_SIGNED_INT16, 0, 2, SG_CH_SIGNED, false},
        {CU_AD_FORMAT_SIGNED_INT32, 0, 4, SG_CH_SIGNED, false},
        {CU_AD_FORMAT_HALF, 0, 2, SG_CH_FLOAT, false},
        {CU_AD_FORMAT_FLOAT, 0, 4, SG_CH_FLOAT, false},
        {CU_AD_FORMAT_UNORM_INT8X1, 1, 1, SG_CH_UNSIGNED, true},
        {CU_AD_FORMAT_UNORM_INT8X2, 2, 1, SG_CH_UNSIGNED, true},
        {CU_AD_FORMAT_UNORM_INT8X4, 4, 1, SG_CH_UNSIGNED, true},
        {CU_AD_FORMAT_UNORM_INT16X1, 1, 2, SG_CH_UNSIGNED, true},
        {CU_AD_FORMAT_UNORM_INT16X2, 2, 2, SG_CH_UNSIGNED, true},
        {CU_AD_FORMAT_UNORM_INT16X4, 4, 2, SG_CH_UNSIGNED, true},
        {CU_AD_FORMAT_SNORM_INT8X1, 1, 1, SG_CH_SIGNED, true},
        {CU_AD_FORMAT_SNORM_INT8X2, 2, 1, SG_CH_SIGNED, true},
        {CU_AD_FORMAT_SNORM_INT8X4, 4, 1, SG_CH_SIGNED, true},
        {CU_AD_FORMAT_SNORM_INT16X1, 1, 2, SG_CH_SIGNED, true},
        {CU_AD_FORMAT_SNORM_INT16X2, 2, 2, SG_CH_SIGNED, true},
        {CU_AD_FORMAT_SNORM_INT16X4, 4, 2, SG_CH_SIGNED, true},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].format == format) {
            to->channels = (uint8_t)(formats[i].channels ? formats[i].channels : channels);
            to->channel_bytes = formats[i].bytes;
            to->channel = formats[i].channel;
            to->unit = formats[i].unit;
            return true;
        }
    return false;
}

static struct sg_image_level level_told(const struct CUarray_st *a)
{
    return (struct sg_image_level){.address = a->data,
                                   .row = a->extent.width,
                                   .slice = sg_array_slice(a),
                                   .width = (uint32_t)a->desc.Width,
                                   .height = (uint32_t)a->extent.height,
                                   .depth = (uint32_t)a->extent.depth,
                                   .tiles = a->tiles.pages ? &a->tiles : NULL};
}

static bool array_told(CUarray a, struct sg_image *to)
{
    to->levels = 1;
    to->level[0] = level_told(a);
    to->layered = a->desc.Flags & CUDA_ARRAY3D_LAYERED;
    to->cube = a->desc.Flags & CUDA_ARRAY3D_CUBEMAP;
    return format_told(a->desc.Format, a->desc.NumChannels, to);
}

/* All levels, or those of the view; layers of a view are not told apart. */
static bool mipmap_told(CUmipmappedArray m, const CUDA_RESOURCE_VIEW_DESC *view,
                        struct sg_image *to)
{
    unsigned first = view->firstMipmapLevel, last = view->lastMipmapLevel;
    bool all = view->format == CU_RES_VIEW_FORMAT_NONE && !first && !last;
    if (all)
        last = m->count - 1;
    if (first > last || last >= m->count || !array_told(m->levels[first], to))
        return false;
    to->levels = last - first + 1;
    for (unsigned i = 0; i < to->levels; i++)
        to->level[i] = level_told(m->levels[first + i]);
    return true;
}

static bool line_told(const CUDA_RESOURCE_DESC *d, struct sg_image *to)
{
    if (!format_told(d->res.linear.format, d->res.linear.numChannels, to))
        return false;
    uint64_t element = (uint64_t)to->channels * to->channel_bytes;
    to->line = true;
    to->levels = 1;
    to->level[0] = (struct sg_image_level){.address = d->res.linear.devPtr,
                                           .width = (uint32_t)(d->res.linear.sizeInBytes / element),
                                           .height = 1,
                                           .depth = 1};
    return true;
}

static bool rows_told(const CUDA_RESOURCE_DESC *d, struct sg_image *to)
{
    to->levels = 1;
    to->level[0] = (struct sg_image_level){.address = d->res.pitch2D.devPtr,
                                           .row = d->res.pitch2D.pitchInBytes,
                                           .width = (uint32_t)d->res.pitch2D.width,
                                           .height = (uint32_t)d->res.pitch2D.height,
                                           .depth = 1};
    return format_told(d->res.pitch2D.format, d->res.pitch2D.numChannels, to);
}

static bool resource_told(const struct sg_texture *o, struct sg_image *to)
{
    const CUDA_RESOURCE_DESC *d = &o->resource;
    CUarray array;
    CUmipmappedArray mipmap;
    switch (d->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        return sg_array_get(d->res.array.hArray, &array) == CUDA_SUCCESS && array_told(array, to);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return sg_mipmap_get(d->res.mipmap.hMipmappedArray, &mipmap) == CUDA_SUCCESS &&
               mipmap_told(mipmap, &o->view, to);
    case CU_RESOURCE_TYPE_LINEAR:
        return line_told(d, to);
    default:
        return rows_told(d, to);
    }
}

bool sg_texture_told(const struct sg_texture *texture, struct sg_image *to)
{
    const CUDA_TEXTURE_DESC *d = &texture->desc;
    memset(to, 0, sizeof *to);
    if (!resource_told(texture, to))
        return false;
    for (int i = 0; i < 3; i++)
        to->edge[i] = (uint8_t)d->addressMode[i];
    to->linear = d->filterMode == CU_TR_FILTER_MODE_LINEAR;
    to->mip_linear = d->mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
    to->unit = to->unit || !(d->flags & CU_TRSF_READ_AS_INTEGER);
    to->normalized = d->flags & CU_TRSF_NORMALIZED_COORDINATES;
    to->srgb = d->flags & CU_TRSF_SRGB;
    to->bias = d->mipmapLevelBias;
    to->least = d->minMipmapLevelClamp;
    to->most = d->maxMipmapLevelClamp;
    if (!to->line) /* outside of which is zero */
        memcpy(to->border, d->borderColor, sizeof to->border);
    return true;
}

bool sg_image_told(void *context, uint64_t object, bool surface, struct sg_image *to)
{
    SG_LOCKED;
    struct sg_texture **at = find(context, object, surface);
    return at && sg_texture_told(*at, to);
}
