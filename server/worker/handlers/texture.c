#include "texture.h"

#include <stdlib.h>

#include "array_extent.h"
#include "budget.h"
#include "gpw_handlers.h"
#include "green.h"
#include "handles.h"
#include "memory.h"
#include "span.h"

struct gpw_texture {
    struct gpw_texture *next;
    CUcontext context;
    uint64_t number;
    bool surface;
    struct gp_resource resource;
    CUarray array; /* the driver's */
    CUmipmappedArray mipmap;
};

static CUcontext current(struct gpw_session *s)
{
    CUcontext context = NULL;
    s->driver->cuCtxGetCurrent(&context);
    return gpw_context_root(s, context);
}

/* Where it is linked, NULL if there is none in the current context. */
static struct gpw_texture **find(struct gpw_session *s, uint64_t number, bool surface)
{
    CUcontext context = current(s);
    for (struct gpw_texture **at = &s->textures; *at; at = &(*at)->next)
        if ((*at)->number == number && (*at)->surface == surface && (*at)->context == context)
            return at;
    return NULL;
}

static void drop(struct gpw_session *s, struct gpw_texture **at)
{
    struct gpw_texture *t = *at;
    *at = t->next;
    free(t);
    gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *t);
}

CUresult gpw_texture_check(struct gpw_session *s, uint64_t number)
{
    return find(s, number, false) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpw_surface_check(struct gpw_session *s, uint64_t number)
{
    return find(s, number, true) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void gpw_textures_context_ended(struct gpw_session *s, CUcontext context)
{
    for (struct gpw_texture **at = &s->textures; *at;)
        if ((*at)->context == context)
            drop(s, at);
        else
            at = &(*at)->next;
}

/* --- made ---------------------------------------------------------------------------------- */

static struct gpw_texture *record_new(struct gpw_session *s)
{
    if (!gpw_budget_take(s, GPW_USE_OBJECTS, sizeof(struct gpw_texture)))
        return NULL;
    struct gpw_texture *t = calloc(1, sizeof *t);
    if (!t)
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *t);
    return t;
}

/* Linked if the driver has made it. */
static CUresult record_keep(struct gpw_session *s, struct gpw_texture *t, CUresult r)
{
    t->context = current(s);
    t->next = s->textures;
    s->textures = t;
    if (r != CUDA_SUCCESS)
        drop(s, &s->textures);
    return r;
}

static uint64_t rows_of(const struct gp_resource *r)
{
    return gp_span_rows(r->pitch, r->width,
                        gp_array_element((CUarray_format)r->format, r->channels), r->height);
}

/* What the driver is told of it; false: it is not the client's, or no resource. */
static bool resource_take(struct gpw_session *s, const struct gpw_texture *t, CUDA_RESOURCE_DESC *d)
{
    const struct gp_resource *r = &t->resource;
    *d = (CUDA_RESOURCE_DESC){.resType = (CUresourcetype)r->type, .flags = r->flags};
    switch (d->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        d->res.array.hArray = t->array;
        return t->array != NULL;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        d->res.mipmap.hMipmappedArray = t->mipmap;
        return t->mipmap != NULL;
    case CU_RESOURCE_TYPE_LINEAR:
        d->res.linear.devPtr = r->address;
        d->res.linear.format = (CUarray_format)r->format;
        d->res.linear.numChannels = r->channels;
        d->res.linear.sizeInBytes = r->bytes;
        return r->bytes && gpw_memory_reach(s, r->address, r->bytes);
    case CU_RESOURCE_TYPE_PITCH2D:
        d->res.pitch2D.devPtr = r->address;
        d->res.pitch2D.format = (CUarray_format)r->format;
        d->res.pitch2D.numChannels = r->channels;
        d->res.pitch2D.width = r->width;
        d->res.pitch2D.height = r->height;
        d->res.pitch2D.pitchInBytes = r->pitch;
        return rows_of(r) && gpw_memory_reach(s, r->address, rows_of(r));
    default:
        return false;
    }
}

CUresult gpw_gp_texture_create(struct gpw_session *s, CUtexObject *object,
                               const struct gp_resource *resource, CUarray array,
                               CUmipmappedArray mipmap, const CUDA_TEXTURE_DESC *desc,
                               uint32_t viewed, const CUDA_RESOURCE_VIEW_DESC *view)
{
    CUDA_RESOURCE_DESC told;
    struct gpw_texture *t = record_new(s);
    if (!t)
        return CUDA_ERROR_OUT_OF_MEMORY;
    t->resource = *resource;
    t->array = array;
    t->mipmap = mipmap;
    CUresult r = resource_take(s, t, &told)
                     ? s->driver->cuTexObjectCreate(object, &told, desc, viewed ? view : NULL)
                     : CUDA_ERROR_INVALID_VALUE;
    t->number = *object;
    return record_keep(s, t, r);
}

CUresult gpw_gp_surface_create(struct gpw_session *s, CUsurfObject *object, CUarray array)
{
    CUDA_RESOURCE_DESC told;
    struct gpw_texture *t = record_new(s);
    if (!t)
        return CUDA_ERROR_OUT_OF_MEMORY;
    t->surface = true;
    t->resource.type = CU_RESOURCE_TYPE_ARRAY;
    t->array = array;
    CUresult r = resource_take(s, t, &told) ? s->driver->cuSurfObjectCreate(object, &told)
                                            : CUDA_ERROR_INVALID_VALUE;
    t->number = *object;
    return record_keep(s, t, r);
}

CUresult gpw_noted_cuTexObjectDestroy(struct gpw_session *s, CUtexObject texObject)
{
    drop(s, find(s, texObject, false));
    return CUDA_SUCCESS;
}

CUresult gpw_noted_cuSurfObjectDestroy(struct gpw_session *s, CUsurfObject surfObject)
{
    drop(s, find(s, surfObject, true));
    return CUDA_SUCCESS;
}

CUresult gpw_cuTexRefSetAddress2D_v3(struct gpw_session *s, CUtexref hTexRef,
                                     const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr dptr,
                                     size_t Pitch)
{
    uint64_t bytes = gp_span_rows(Pitch, desc->Width,
                                  gp_array_element(desc->Format, desc->NumChannels), desc->Height);
    return bytes && gpw_memory_reach(s, dptr, bytes)
               ? s->driver->cuTexRefSetAddress2D_v3(hTexRef, desc, dptr, Pitch)
               : CUDA_ERROR_INVALID_VALUE;
}

/* --- asked --------------------------------------------------------------------------------- */

CUresult gpw_gp_texture_resource(struct gpw_session *s, uint64_t object, uint32_t surface,
                                 struct gp_resource *resource, uint64_t *array, uint64_t *mipmap)
{
    struct gpw_texture **at = find(s, object, surface != 0);
    if (!at)
        return CUDA_ERROR_INVALID_VALUE;
    *resource = (*at)->resource;
    *array = gpw_handle_find(s, GP_HANDLE_ARRAY, (uint64_t)(*at)->array);
    *mipmap = gpw_handle_find(s, GP_HANDLE_MIPMAP, (uint64_t)(*at)->mipmap);
    return CUDA_SUCCESS;
}

CUresult gpw_gp_reference_holds(struct gpw_session *s, CUtexref texture, CUsurfref surface,
                                uint32_t mipmapped, uint64_t *id)
{
    CUarray array = NULL;
    CUmipmappedArray mipmap = NULL;
    if (!texture && !surface)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult r = !texture    ? s->driver->cuSurfRefGetArray(&array, surface)
                 : mipmapped ? s->driver->cuTexRefGetMipmappedArray(&mipmap, texture)
                             : s->driver->cuTexRefGetArray(&array, texture);
    *id = array ? gpw_handle_find(s, GP_HANDLE_ARRAY, (uint64_t)array)
                : gpw_handle_find(s, GP_HANDLE_MIPMAP, (uint64_t)mipmap);
    return r;
}
