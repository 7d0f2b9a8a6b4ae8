/* Texture and surface objects and references: descriptors that name arrays become the client's own
 * names of them, and back. */
#include "call.h"
#include "export.h"
#include "gpc_wire.h"

/* --- what is read -------------------------------------------------------------------------- */

/* False: CUDA does not know such a resource. */
static bool resource_take(const CUDA_RESOURCE_DESC *d, struct gp_resource *r)
{
    *r = (struct gp_resource){.type = d->resType, .flags = d->flags};
    switch (d->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return true;
    case CU_RESOURCE_TYPE_LINEAR:
        r->address = d->res.linear.devPtr;
        r->format = d->res.linear.format;
        r->channels = d->res.linear.numChannels;
        r->bytes = d->res.linear.sizeInBytes;
        return true;
    case CU_RESOURCE_TYPE_PITCH2D:
        r->address = d->res.pitch2D.devPtr;
        r->format = d->res.pitch2D.format;
        r->channels = d->res.pitch2D.numChannels;
        r->width = d->res.pitch2D.width;
        r->height = d->res.pitch2D.height;
        r->pitch = d->res.pitch2D.pitchInBytes;
        return true;
    default:
        return false;
    }
}

static void resource_give(const struct gp_resource *r, uint64_t array, uint64_t mipmap,
                          CUDA_RESOURCE_DESC *d)
{
    *d = (CUDA_RESOURCE_DESC){.resType = (CUresourcetype)r->type, .flags = r->flags};
    if (d->resType == CU_RESOURCE_TYPE_ARRAY)
        d->res.array.hArray = (CUarray)array;
    else if (d->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        d->res.mipmap.hMipmappedArray = (CUmipmappedArray)mipmap;
    else if (d->resType == CU_RESOURCE_TYPE_LINEAR) {
        d->res.linear.devPtr = r->address;
        d->res.linear.format = (CUarray_format)r->format;
        d->res.linear.numChannels = r->channels;
        d->res.linear.sizeInBytes = r->bytes;
    } else {
        d->res.pitch2D.devPtr = r->address;
        d->res.pitch2D.format = (CUarray_format)r->format;
        d->res.pitch2D.numChannels = r->channels;
        d->res.pitch2D.width = r->width;
        d->res.pitch2D.height = r->height;
        d->res.pitch2D.pitchInBytes = r->pitch;
    }
}

/* --- objects ------------------------------------------------------------------------------- */

GPC_EXPORT CUresult cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                                      const CUDA_TEXTURE_DESC *pTexDesc,
                                      const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
    static const CUDA_RESOURCE_VIEW_DESC none;
    struct gp_resource resource;
    CUresult r = gpc_enter(GP_OP_cuTexObjectCreate, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!pTexObject || !pResDesc || !pTexDesc || !resource_take(pResDesc, &resource))
        return CUDA_ERROR_INVALID_VALUE;
    bool array = pResDesc->resType == CU_RESOURCE_TYPE_ARRAY;
    bool mipmap = pResDesc->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    if ((array && !pResDesc->res.array.hArray) || (mipmap && !pResDesc->res.mipmap.hMipmappedArray))
        return CUDA_ERROR_INVALID_HANDLE;
    return gpc_leave(
        gpc_wire_gp_texture_create(pTexObject, &resource, array ? pResDesc->res.array.hArray : NULL,
                                   mipmap ? pResDesc->res.mipmap.hMipmappedArray : NULL, pTexDesc,
                                   pResViewDesc != NULL, pResViewDesc ? pResViewDesc : &none));
}

GPC_EXPORT CUresult cuSurfObjectCreate(CUsurfObject *pSurfObject,
                                       const CUDA_RESOURCE_DESC *pResDesc)
{
    CUresult r = gpc_enter(GP_OP_cuSurfObjectCreate, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!pSurfObject || !pResDesc || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY || pResDesc->flags)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(gpc_wire_gp_surface_create(pSurfObject, pResDesc->res.array.hArray));
}

static CUresult resource_of(uint16_t op, CUDA_RESOURCE_DESC *to, uint64_t object, bool surface)
{
    struct gp_resource resource;
    uint64_t array, mipmap;
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!to)
        return CUDA_ERROR_INVALID_VALUE;
    r = gpc_wire_gp_texture_resource(object, surface, &resource, &array, &mipmap);
    if (r == CUDA_SUCCESS)
        resource_give(&resource, array, mipmap, to);
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject)
{
    return resource_of(GP_OP_cuTexObjectGetResourceDesc, pResDesc, texObject, false);
}

GPC_EXPORT CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc,
                                                CUsurfObject surfObject)
{
    return resource_of(GP_OP_cuSurfObjectGetResourceDesc, pResDesc, surfObject, true);
}

/* --- references ---------------------------------------------------------------------------- */

static CUresult held_by(uint16_t op, CUtexref texture, CUsurfref surface, bool mipmapped, void **to)
{
    uint64_t id;
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!to)
        return CUDA_ERROR_INVALID_VALUE;
    if (!texture && !surface)
        return CUDA_ERROR_INVALID_HANDLE;
    r = gpc_wire_gp_reference_holds(texture, surface, mipmapped, &id);
    if (r == CUDA_SUCCESS)
        *to = (void *)(uintptr_t)id;
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuTexRefGetArray(CUarray *phArray, CUtexref hTexRef)
{
    return held_by(GP_OP_cuTexRefGetArray, hTexRef, NULL, false, (void **)phArray);
}

GPC_EXPORT CUresult cuTexRefGetMipmappedArray(CUmipmappedArray *phMipmappedArray, CUtexref hTexRef)
{
    return held_by(GP_OP_cuTexRefGetMipmappedArray, hTexRef, NULL, true, (void **)phMipmappedArray);
}

GPC_EXPORT CUresult cuSurfRefGetArray(CUarray *phArray, CUsurfref hSurfRef)
{
    return held_by(GP_OP_cuSurfRefGetArray, NULL, hSurfRef, false, (void **)phArray);
}
