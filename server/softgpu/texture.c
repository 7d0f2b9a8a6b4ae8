/* Texture and surface objects: what was asked for is checked and kept. No PTX here reads them yet. */
#include "array.h"

struct sg_texture {
    struct sg_texture *next; /* in the context */
    uint64_t number;
    bool surface;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC desc;
    CUDA_RESOURCE_VIEW_DESC view;
};

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

void sg_textures_release(CUcontext context)
{
    while (context->textures)
        end(&context->textures);
}

/* --- what may be made -------------------------------------------------------------------- */

#define LINEAR_MAX (UINT64_C(1) << 28) /* elements, MAXIMUM_TEXTURE1D_LINEAR_WIDTH */
#define ADDRESS_ALIGNMENT 512u
#define PITCH_ALIGNMENT 32u
#define FLAGS                                                                                      \
    (CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |                     \
     CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP)

static CUresult memory_check(uint64_t address, uint64_t bytes, const struct sg_device *device)
{
    bool fits = address % ADDRESS_ALIGNMENT == 0 && bytes != GP_SPAN_NONE && bytes &&
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

static CUresult resource_check(const CUDA_RESOURCE_DESC *d, const struct sg_device *device)
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
    return !(d->flags & ~(unsigned)FLAGS) && (unsigned)d->filterMode <= CU_TR_FILTER_MODE_LINEAR &&
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
    SG_TRY(resource_check(pResDesc, context->device));
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
    struct sg_texture **at;
    SG_TRY(look(texObject, false, &at, &at));
    end(at);
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectDestroy(CUsurfObject surfObject)
{
    SG_LOCKED;
    struct sg_texture **at;
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
