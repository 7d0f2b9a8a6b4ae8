/*
 * Texture and surface references of old programs: variables of a module that a kernel names. A
 * launch takes along what they are bound to (sg_references_hold), so a change counts for later
 * launches alone.
 */
#include "array.h"
#include "ptx_image.h"

/* The handle is a CUtexref or, of the other kind, a CUsurfref. */
struct sg_reference {
    struct sg_reference *next; /* in its module, or context */
    CUmodule module;           /* NULL: a program has made it */
    CUcontext context;
    bool bound;
    struct sg_texture is; /* its number is the variable's address */
    CUarray_format format;
    unsigned channels;
};

static CUresult look(const void *handle, enum sg_kind kind, struct sg_reference **out)
{
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!sg_handle_is(handle, kind))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = (struct sg_reference *)(uintptr_t)handle;
    return CUDA_SUCCESS;
}

/* The reference of a call; `wanted`: a pointer that it needs as well. */
#define TEXREF(wanted)                                                                             \
    SG_LOCKED;                                                                                     \
    struct sg_reference *t;                                                                        \
    SG_TRY(look(hTexRef, SG_TEXREF, &t));                                                          \
    if (!(wanted))                                                                                 \
    return CUDA_ERROR_INVALID_VALUE

static struct sg_reference *reference_new(CUcontext context, bool surface)
{
    struct sg_reference *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->context = context;
    r->is.surface = surface;
    r->format = CU_AD_FORMAT_FLOAT;
    r->channels = 1;
    if (sg_handle_add(r, surface ? SG_SURFREF : SG_TEXREF))
        return r;
    free(r);
    return NULL;
}

static void list_end(struct sg_reference **list)
{
    while (*list) {
        struct sg_reference *r = *list;
        *list = r->next;
        sg_handle_remove(r);
        free(r);
    }
}

void sg_references_release(CUmodule module)
{
    list_end(&module->references);
}

void sg_references_made_release(CUcontext context)
{
    list_end(&context->references);
}

/* --- what kernels are told --------------------------------------------------------------- */

CUresult sg_references_hold(CUmodule module, struct sg_texture **held)
{
    for (const struct sg_reference *r = module->references; r; r = r->next) {
        struct sg_texture *copy = r->bound ? malloc(sizeof *copy) : NULL;
        if (r->bound && !copy)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (!copy)
            continue;
        *copy = r->is;
        copy->next = *held;
        *held = copy;
    }
    return CUDA_SUCCESS;
}

bool sg_image_told_launch(void *launch, uint64_t object, bool surface, struct sg_image *to)
{
    const struct sg_op *op = launch;
    for (const struct sg_texture *t = op->kernel.held; t; t = t->next)
        if (t->number == object && t->surface == surface) {
            SG_LOCKED;
            return sg_texture_told(t, to);
        }
    return sg_image_told(op->context, object, surface, to);
}

/* --- found, made and ended ------------------------------------------------------------------ */

static CUresult find(CUmodule module, const char *name, bool surface, struct sg_reference **out)
{
    enum sg_global_kind kind = surface ? SG_G_SURFREF : SG_G_TEXREF;
    for (size_t i = 0; i < sg_module_global_count(module->code); i++) {
        const struct sg_global *global = sg_module_global_at(module->code, i);
        if (global->kind != kind || strcmp(global->name, name) != 0)
            continue;
        struct sg_reference *r = module->references;
        while (r && r->is.number != global->address)
            r = r->next;
        if (!r) {
            r = reference_new(module->context, surface);
            if (!r)
                return CUDA_ERROR_OUT_OF_MEMORY;
            r->module = module;
            r->is.number = global->address;
            r->next = module->references;
            module->references = r;
        }
        *out = r;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult reference_get(void **out, CUmodule module, const char *name, bool surface)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_reference *r;
    SG_TRY(sg_context_current(&context));
    if (!sg_handle_is(module, SG_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(find(module, name, surface, &r));
    *out = r;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetTexRef(CUtexref *pTexRef, CUmodule hmod, const char *name)
{
    return reference_get((void **)pTexRef, hmod, name, false);
}

CUresult cuModuleGetSurfRef(CUsurfref *pSurfRef, CUmodule hmod, const char *name)
{
    return reference_get((void **)pSurfRef, hmod, name, true);
}

CUresult cuTexRefCreate(CUtexref *pTexRef)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pTexRef)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_reference *r = reference_new(context, false);
    if (!r)
        return CUDA_ERROR_OUT_OF_MEMORY;
    r->next = context->references;
    context->references = r;
    *pTexRef = (CUtexref)(void *)r;
    return CUDA_SUCCESS;
}

/* A module's goes with it. */
CUresult cuTexRefDestroy(CUtexref hTexRef)
{
    TEXREF(!t->module);
    struct sg_reference **at = &t->context->references;
    while (*at && *at != t)
        at = &(*at)->next;
    if (*at)
        *at = t->next;
    sg_handle_remove(t);
    free(t);
    return CUDA_SUCCESS;
}

/* --- bound ------------------------------------------------------------------------------- */

static CUresult bind(struct sg_reference *t, const CUDA_RESOURCE_DESC *resource)
{
    SG_TRY(sg_resource_check(resource, t->context->device));
    t->is.resource = *resource;
    t->bound = true;
    return CUDA_SUCCESS;
}

static CUresult bind_array(struct sg_reference *t, CUarray array)
{
    CUarray a;
    SG_TRY(sg_array_get(array, &a));
    t->format = a->desc.Format;
    t->channels = a->desc.NumChannels;
    return bind(t, &(CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_ARRAY,
                                         .res = {.array = {.hArray = array}}});
}

CUresult cuTexRefSetArray(CUtexref hTexRef, CUarray hArray, unsigned int Flags)
{
    TEXREF(Flags <= CU_TRSA_OVERRIDE_FORMAT); /* which is meant without being said, too */
    return bind_array(t, hArray);
}

CUresult cuTexRefSetMipmappedArray(CUtexref hTexRef, CUmipmappedArray hMipmappedArray,
                                   unsigned int Flags)
{
    CUmipmappedArray m;
    TEXREF(Flags <= CU_TRSA_OVERRIDE_FORMAT);
    SG_TRY(sg_mipmap_get(hMipmappedArray, &m));
    t->format = m->desc.Format;
    t->channels = m->desc.NumChannels;
    return bind(t, &(CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
                                         .res = {.mipmap = {.hMipmappedArray = hMipmappedArray}}});
}

/* "a byte offset that must be applied to texture fetches", where the address is not aligned. */
CUresult cuTexRefSetAddress_v2(size_t *ByteOffset, CUtexref hTexRef, CUdeviceptr dptr, size_t bytes)
{
    size_t offset = dptr % SG_TEXTURE_ALIGNMENT;
    TEXREF(!offset || (ByteOffset && bytes <= SIZE_MAX - offset));
    SG_TRY(bind(t, &(CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_LINEAR,
                                         .res = {.linear = {.devPtr = dptr - offset,
                                                            .format = t->format,
                                                            .numChannels = t->channels,
                                                            .sizeInBytes = bytes + offset}}}));
    if (ByteOffset)
        *ByteOffset = offset;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress2D_v3(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR *desc,
                                 CUdeviceptr dptr, size_t Pitch)
{
    TEXREF(desc);
    SG_TRY(bind(t, &(CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_PITCH2D,
                                         .res = {.pitch2D = {.devPtr = dptr,
                                                             .format = desc->Format,
                                                             .numChannels = desc->NumChannels,
                                                             .width = desc->Width,
                                                             .height = desc->Height,
                                                             .pitchInBytes = Pitch}}}));
    t->format = desc->Format;
    t->channels = desc->NumChannels;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress2D_v2(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR *desc,
                                 CUdeviceptr dptr, size_t Pitch)
{
    return cuTexRefSetAddress2D_v3(hTexRef, desc, dptr, Pitch);
}

CUresult cuTexRefGetAddress_v2(CUdeviceptr *pdptr, CUtexref hTexRef)
{
    TEXREF(pdptr && t->bound);
    if (t->is.resource.resType == CU_RESOURCE_TYPE_LINEAR)
        *pdptr = t->is.resource.res.linear.devPtr;
    else if (t->is.resource.resType == CU_RESOURCE_TYPE_PITCH2D)
        *pdptr = t->is.resource.res.pitch2D.devPtr;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetArray(CUarray *phArray, CUtexref hTexRef)
{
    TEXREF(phArray && t->bound && t->is.resource.resType == CU_RESOURCE_TYPE_ARRAY);
    *phArray = t->is.resource.res.array.hArray;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmappedArray(CUmipmappedArray *phMipmappedArray, CUtexref hTexRef)
{
    TEXREF(phMipmappedArray && t->bound &&
           t->is.resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY);
    *phMipmappedArray = t->is.resource.res.mipmap.hMipmappedArray;
    return CUDA_SUCCESS;
}

CUresult cuSurfRefSetArray(CUsurfref hSurfRef, CUarray hArray, unsigned int Flags)
{
    SG_LOCKED;
    struct sg_reference *s;
    SG_TRY(look(hSurfRef, SG_SURFREF, &s));
    return Flags ? CUDA_ERROR_INVALID_VALUE : bind_array(s, hArray);
}

CUresult cuSurfRefGetArray(CUarray *phArray, CUsurfref hSurfRef)
{
    SG_LOCKED;
    struct sg_reference *s;
    SG_TRY(look(hSurfRef, SG_SURFREF, &s));
    if (!phArray || !s->bound)
        return CUDA_ERROR_INVALID_VALUE;
    *phArray = s->is.resource.res.array.hArray;
    return CUDA_SUCCESS;
}

/* --- how it reads ---------------------------------------------------------------------------- */

CUresult cuTexRefSetFormat(CUtexref hTexRef, CUarray_format fmt, int NumPackedComponents)
{
    TEXREF(NumPackedComponents > 0 && NumPackedComponents != 3 &&
           gp_array_element(fmt, (unsigned)NumPackedComponents));
    t->format = fmt;
    t->channels = (unsigned)NumPackedComponents;
    if (t->bound && t->is.resource.resType == CU_RESOURCE_TYPE_LINEAR) {
        t->is.resource.res.linear.format = fmt;
        t->is.resource.res.linear.numChannels = t->channels;
    }
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetFormat(CUarray_format *pFormat, int *pNumChannels, CUtexref hTexRef)
{
    TEXREF(pFormat && pNumChannels);
    *pFormat = t->format;
    *pNumChannels = (int)t->channels;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddressMode(CUtexref hTexRef, int dim, CUaddress_mode am)
{
    TEXREF(dim >= 0 && dim < 3 && (unsigned)am <= CU_TR_ADDRESS_MODE_BORDER);
    t->is.desc.addressMode[dim] = am;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetAddressMode(CUaddress_mode *pam, CUtexref hTexRef, int dim)
{
    TEXREF(pam && dim >= 0 && dim < 3);
    *pam = t->is.desc.addressMode[dim];
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetFilterMode(CUtexref hTexRef, CUfilter_mode fm)
{
    TEXREF((unsigned)fm <= CU_TR_FILTER_MODE_LINEAR);
    t->is.desc.filterMode = fm;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetFilterMode(CUfilter_mode *pfm, CUtexref hTexRef)
{
    TEXREF(pfm);
    *pfm = t->is.desc.filterMode;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmapFilterMode(CUtexref hTexRef, CUfilter_mode fm)
{
    TEXREF((unsigned)fm <= CU_TR_FILTER_MODE_LINEAR);
    t->is.desc.mipmapFilterMode = fm;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmapFilterMode(CUfilter_mode *pfm, CUtexref hTexRef)
{
    TEXREF(pfm);
    *pfm = t->is.desc.mipmapFilterMode;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmapLevelBias(CUtexref hTexRef, float bias)
{
    TEXREF(true);
    t->is.desc.mipmapLevelBias = bias;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmapLevelBias(float *pbias, CUtexref hTexRef)
{
    TEXREF(pbias);
    *pbias = t->is.desc.mipmapLevelBias;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmapLevelClamp(CUtexref hTexRef, float minMipmapLevelClamp,
                                     float maxMipmapLevelClamp)
{
    TEXREF(true);
    t->is.desc.minMipmapLevelClamp = minMipmapLevelClamp;
    t->is.desc.maxMipmapLevelClamp = maxMipmapLevelClamp;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmapLevelClamp(float *pminMipmapLevelClamp, float *pmaxMipmapLevelClamp,
                                     CUtexref hTexRef)
{
    TEXREF(pminMipmapLevelClamp && pmaxMipmapLevelClamp);
    *pminMipmapLevelClamp = t->is.desc.minMipmapLevelClamp;
    *pmaxMipmapLevelClamp = t->is.desc.maxMipmapLevelClamp;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetMaxAnisotropy(CUtexref hTexRef, unsigned int maxAniso)
{
    TEXREF(maxAniso <= 16);
    t->is.desc.maxAnisotropy = maxAniso;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMaxAnisotropy(int *pmaxAniso, CUtexref hTexRef)
{
    TEXREF(pmaxAniso);
    *pmaxAniso = (int)t->is.desc.maxAnisotropy;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetBorderColor(CUtexref hTexRef, float *pBorderColor)
{
    TEXREF(pBorderColor);
    memcpy(t->is.desc.borderColor, pBorderColor, sizeof t->is.desc.borderColor);
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetBorderColor(float *pBorderColor, CUtexref hTexRef)
{
    TEXREF(pBorderColor);
    memcpy(pBorderColor, t->is.desc.borderColor, sizeof t->is.desc.borderColor);
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetFlags(CUtexref hTexRef, unsigned int Flags)
{
    TEXREF(!(Flags & ~(unsigned)SG_TEXTURE_FLAGS));
    t->is.desc.flags = Flags;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetFlags(unsigned int *pFlags, CUtexref hTexRef)
{
    TEXREF(pFlags);
    *pFlags = t->is.desc.flags;
    return CUDA_SUCCESS;
}
