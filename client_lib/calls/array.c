#include "array.h"

#include <pthread.h>
#include <stdlib.h>

#include "call.h"
#include "context.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "session.h"
#include "shared.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of `parts` */

static struct gpc_array *record_of(uint64_t id)
{
    return gpc_handle_shadow((enum gp_handle_kind)gp_handle_kind(id), id);
}

const struct gpc_array *gpc_array_of(CUarray array)
{
    return gpc_handle_shadow(GP_HANDLE_ARRAY, (uint64_t)array);
}

static struct gpc_array *record_new(uint64_t id, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    struct gpc_array *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->context = gpc_context_owner(gpc_current());
    a->extent = gp_array_extent(d->Width, d->Height, d->Depth, d->Format, d->NumChannels);
    gpc_handle_attach(id, a);
    return a;
}

CUresult gpc_array_note(uint64_t made, size_t width, size_t height, size_t depth,
                        CUarray_format format, unsigned channels)
{
    const CUDA_ARRAY3D_DESCRIPTOR d = {.Width = width,
                                       .Height = height,
                                       .Depth = depth,
                                       .Format = format,
                                       .NumChannels = channels};
    if (record_new(made, &d))
        return CUDA_SUCCESS;
    if (gp_handle_kind(made) == GP_HANDLE_MIPMAP)
        gpc_wire_cuMipmappedArrayDestroy((CUmipmappedArray)made);
    else
        gpc_wire_cuArrayDestroy((CUarray)made);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Its record, and its levels and planes with it. */
static void forget(struct gpc_array *a)
{
    for (unsigned i = 0; i < GPC_ARRAY_PARTS; i++)
        if (a->parts[i]) {
            struct gpc_array *part = record_of(a->parts[i]);
            gpc_handle_drop(a->parts[i]);
            gpc_handle_free(part);
        }
    gpc_handle_free(a);
}

/* --- levels and planes ------------------------------------------------------------------ */

typedef CUresult part_get(CUarray *part, uint64_t whole, unsigned index);

static CUresult get_level(CUarray *part, uint64_t whole, unsigned index)
{
    return gpc_wire_cuMipmappedArrayGetLevel(part, (CUmipmappedArray)whole, index);
}

static CUresult get_plane(CUarray *part, uint64_t whole, unsigned index)
{
    return gpc_wire_cuArrayGetPlane(part, (CUarray)whole, index);
}

/* The driver's answer is kept: it is the same array each time. */
static CUresult part_ask(uint64_t whole, unsigned index, part_get *get, uint64_t *id)
{
    CUarray part = NULL;
    CUDA_ARRAY3D_DESCRIPTOR d;
    CUresult r = get(&part, whole, index);
    if (r != CUDA_SUCCESS)
        return r;
    r = gpc_wire_cuArray3DGetDescriptor_v2(&d, part);
    struct gpc_array *a = r ? NULL : record_new((uint64_t)part, &d);
    if (!a) {
        gpc_handle_drop((uint64_t)part);
        return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
    }
    a->is_part = true;
    *id = (uint64_t)part;
    return CUDA_SUCCESS;
}

static CUresult part_of(uint16_t op, enum gp_handle_kind kind, uint64_t whole, unsigned index,
                        part_get *get, CUarray *part)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_array *a = gpc_handle_shadow(kind, whole);
    if (!part)
        return CUDA_ERROR_INVALID_VALUE;
    if (!a)
        return CUDA_ERROR_INVALID_HANDLE;
    if (index >= GPC_ARRAY_PARTS)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!a->parts[index])
        r = part_ask(whole, index, get, &a->parts[index]);
    if (r == CUDA_SUCCESS)
        *part = (CUarray)a->parts[index];
    pthread_mutex_unlock(&lock);
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                             unsigned int level)
{
    return part_of(GP_OP_cuMipmappedArrayGetLevel, GP_HANDLE_MIPMAP, (uint64_t)hMipmappedArray,
                   level, get_level, pLevelArray);
}

GPC_EXPORT CUresult cuArrayGetPlane(CUarray *pPlaneArray, CUarray hArray, unsigned int planeIdx)
{
    return part_of(GP_OP_cuArrayGetPlane, GP_HANDLE_ARRAY, (uint64_t)hArray, planeIdx, get_plane,
                   pPlaneArray);
}

/* --- ends ----------------------------------------------------------------------------- */

/* What may be ended: no level and no plane. */
static CUresult take(uint16_t op, enum gp_handle_kind kind, uint64_t id, struct gpc_array **a)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    *a = gpc_handle_shadow(kind, id);
    return *a && !(*a)->is_part ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult taken(struct gpc_array *a, CUresult r)
{
    if (r == CUDA_SUCCESS)
        forget(a);
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuArrayDestroy(CUarray hArray)
{
    struct gpc_array *a;
    CUresult r = take(GP_OP_cuArrayDestroy, GP_HANDLE_ARRAY, (uint64_t)hArray, &a);
    return r ? r : taken(a, gpc_wire_cuArrayDestroy(hArray));
}

GPC_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    struct gpc_array *a;
    CUresult r = take(GP_OP_cuMipmappedArrayDestroy, GP_HANDLE_MIPMAP, (uint64_t)hMipmappedArray,
                      &a);
    return r ? r : taken(a, gpc_wire_cuMipmappedArrayDestroy(hMipmappedArray));
}

static void ended(uint64_t id, void *shadow, void *context)
{
    struct gpc_array *a = shadow;
    if (!a || a->context != context || a->is_part)
        return;
    gpc_handle_drop(id);
    forget(a);
}

void gpc_array_context_ended(CUcontext context)
{
    gpc_handle_each(GP_HANDLE_MIPMAP, ended, context);
    gpc_handle_each(GP_HANDLE_ARRAY, ended, context);
}
