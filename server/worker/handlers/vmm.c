/* Virtual memory management: physical memory counts from its creation until it is both
 * released and nowhere mapped any more, as the driver keeps it. */
#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "mapped_array.h"
#include "memory_internal.h"
#include "quota.h"
#include "shareable.h"

struct physical {
    struct physical *next;
    CUmemGenericAllocationHandle real;
    uint64_t bytes;
    int ordinal;                     /* HOST: the host's */
    unsigned references;             /* handles, mappings, parts of arrays */
    struct gpw_shareable *shareable; /* NULL: no other process has it */
};
#define HOST (-1)

struct mapping {
    struct mapping *next;
    CUdeviceptr at;
    uint64_t size;
    struct physical *physical;
};

struct physical *gpw_physical_find(struct gpw_session *s, CUmemGenericAllocationHandle real)
{
    struct physical *p = s->memory->physicals;
    while (p && p->real != real)
        p = p->next;
    return p;
}

void gpw_physical_keep(struct physical *p)
{
    p->references++;
}

static CUresult take(struct gpw_session *s, int ordinal, uint64_t bytes)
{
    bool fits = false;
    CUresult r = ordinal == HOST ? CUDA_SUCCESS : gpw_memory_make_room(s, (uint32_t)ordinal, bytes);
    if (r == CUDA_SUCCESS)
        fits = ordinal == HOST ? gpw_budget_take(s, GPW_USE_HOST, bytes)
                               : gpw_quota_take(s, (uint32_t)ordinal, bytes);
    return r != CUDA_SUCCESS || fits ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

static void give(struct gpw_session *s, int ordinal, uint64_t bytes)
{
    if (ordinal == HOST)
        gpw_budget_give(s, GPW_USE_HOST, bytes);
    else
        gpw_quota_give(s, (uint32_t)ordinal, bytes);
}

void gpw_physical_drop(struct gpw_session *s, struct physical *p)
{
    if (--p->references)
        return;
    struct physical **at = &s->memory->physicals;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    if (p->shareable)
        gpw_shareable_let_go(s, p->shareable);
    else
        give(s, p->ordinal, p->bytes);
    free(p);
}

CUresult gpw_cuMemCreate(struct gpw_session *s, CUmemGenericAllocationHandle *handle, size_t size,
                         const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUmemAllocationProp own = *prop;
    int ordinal = own.location.id;
    if (!gpw_location_take(s, &own.location))
        return CUDA_ERROR_INVALID_DEVICE;
    own.win32HandleMetaData = NULL;
    if (own.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        ordinal = HOST;
    struct physical *p = malloc(sizeof *p);
    CUresult r = p ? take(s, ordinal, size) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS) {
        free(p);
        return r;
    }
    r = s->driver->cuMemCreate(handle, size, &own, flags);
    if (r != CUDA_SUCCESS) {
        give(s, ordinal, size);
        free(p);
        return r;
    }
    *p = (struct physical){s->memory->physicals, *handle, size, ordinal, 1, NULL};
    s->memory->physicals = p;
    return r;
}

CUresult gpw_noted_cuMemRelease(struct gpw_session *s, CUmemGenericAllocationHandle handle)
{
    struct physical *p = gpw_physical_find(s, handle);
    if (p)
        gpw_physical_drop(s, p);
    return CUDA_SUCCESS;
}

/* A handle of the allocator's pages would keep them beyond their free, uncounted: so it is of
 * the client's own addresses (`own` in the spec). */
CUresult gpw_noted_cuMemRetainAllocationHandle(struct gpw_session *s,
                                               CUmemGenericAllocationHandle handle, void *addr)
{
    struct physical *p = gpw_physical_find(s, handle);
    (void)s, (void)addr;
    if (p)
        p->references++;
    return CUDA_SUCCESS;
}

CUresult gpw_noted_cuMemMap(struct gpw_session *s, CUdeviceptr ptr, size_t size, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct physical *p = gpw_physical_find(s, handle);
    struct mapping *m = p ? malloc(sizeof *m) : NULL;
    (void)offset, (void)flags;
    if (p && !m) {
        s->driver->cuMemUnmap(ptr, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!p)
        return CUDA_SUCCESS;
    *m = (struct mapping){s->memory->mappings, ptr, size, p};
    s->memory->mappings = m;
    p->references++;
    return CUDA_SUCCESS;
}

CUresult gpw_noted_cuMemUnmap(struct gpw_session *s, CUdeviceptr ptr, size_t size)
{
    for (struct mapping **at = &s->memory->mappings; *at;) {
        struct mapping *m = *at;
        if (m->at < ptr || m->at - ptr >= size) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        gpw_physical_drop(s, m->physical);
        free(m);
    }
    return CUDA_SUCCESS;
}

/* --- memory of arrays ------------------------------------------------------------------- */

/* Whether it is mapped as a whole, which the driver says by saying how much that is. */
static bool is_whole(struct gpw_session *s, const CUarrayMapInfo *info, CUdevice device)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    if (info->resourceType == CU_RESOURCE_TYPE_ARRAY)
        return !s->driver->cuArrayGetMemoryRequirements(&needs, info->resource.array, device);
    return !s->driver->cuMipmappedArrayGetMemoryRequirements(&needs, info->resource.mipmap, device);
}

static void part_take(const struct gp_array_map *e, CUarrayMapInfo *info)
{
    info->subresourceType = (CUarraySparseSubresourceType)e->subresource;
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
        info->subresource.miptail.layer = e->layer;
        info->subresource.miptail.offset = e->at[0];
        info->subresource.miptail.size = e->extent[0];
        return;
    }
    info->subresource.sparseLevel.level = e->level;
    info->subresource.sparseLevel.layer = e->layer;
    info->subresource.sparseLevel.offsetX = (unsigned)e->at[0];
    info->subresource.sparseLevel.offsetY = (unsigned)e->at[1];
    info->subresource.sparseLevel.offsetZ = (unsigned)e->at[2];
    info->subresource.sparseLevel.extentWidth = (unsigned)e->extent[0];
    info->subresource.sparseLevel.extentHeight = (unsigned)e->extent[1];
    info->subresource.sparseLevel.extentDepth = (unsigned)e->extent[2];
}

/* What no client of ours writes: numbers of a level that CUDA has no room for. */
static bool part_fits(const struct gp_array_map *e)
{
    bool fits = e->mipmapped <= 1;
    for (int i = 0; fits && e->subresource != CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL && i < 3;
         i++)
        fits = e->at[i] <= UINT32_MAX && e->extent[i] <= UINT32_MAX;
    return fits;
}

static CUresult memory_of(struct gpw_session *s, const struct gp_array_map *e, CUarrayMapInfo *info,
                          struct physical **physical)
{
    uint64_t real = 0;
    *physical = NULL;
    info->memOperationType = e->memory ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
    CUresult r = gpw_handle_get(s, GP_HANDLE_ALLOCATION, e->memory, true, &real);
    if (r != CUDA_SUCCESS || !e->memory)
        return r;
    info->memHandle.memHandle = real;
    info->offset = e->offset;
    *physical = gpw_physical_find(s, real);
    return *physical && e->offset < (*physical)->bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult entry_take(struct gpw_session *s, const struct gpw_array_change *c, uint32_t i,
                           CUdevice device)
{
    const struct gp_array_map *e = &c->entries[i];
    CUarrayMapInfo *info = &c->infos[i];
    uint64_t real;
    if (!part_fits(e)) {
        gpw_session_broken(s, "a part of an array that cannot be");
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult r = gpw_handle_get(s, e->mipmapped ? GP_HANDLE_MIPMAP : GP_HANDLE_ARRAY, e->resource,
                                false, &real);
    if (r != CUDA_SUCCESS)
        return r;
    if (e->mipmapped) {
        info->resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
        info->resource.mipmap = (CUmipmappedArray)real;
    } else {
        info->resourceType = CU_RESOURCE_TYPE_ARRAY;
        info->resource.array = (CUarray)real;
    }
    part_take(e, info);
    info->deviceBitMask = 1u << device;
    c->whole[i] = is_whole(s, info, device);
    return memory_of(s, e, info, &c->physicals[i]);
}

CUresult gpw_gp_array_map(struct gpw_session *s, CUstream stream, CUdevice device, uint32_t count,
                          const struct gp_array_map *entries)
{
    CUdevice real;
    CUresult r = gpw_device_take(s, device, &real);
    if (r != CUDA_SUCCESS || !count)
        return r ? r : CUDA_ERROR_INVALID_VALUE;
    const struct gpw_array_change change = {.stream = stream,
                                            .count = count,
                                            .entries = entries,
                                            .infos = calloc(count, sizeof(CUarrayMapInfo)),
                                            .physicals = calloc(count, sizeof(struct physical *)),
                                            .whole = calloc(count, sizeof(bool))};
    if (!change.infos || !change.physicals || !change.whole)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; r == CUDA_SUCCESS && i < count; i++)
        r = entry_take(s, &change, i, real);
    if (r == CUDA_SUCCESS)
        r = gpw_mapped_arrays_change(s, &change);
    free(change.infos);
    free(change.physicals);
    free(change.whole);
    return r;
}

/* --- memory that several processes have ---------------------------------------------- */

CUresult gpw_physical_share(struct gpw_session *s, CUmemGenericAllocationHandle handle,
                            struct gpw_shareable **out)
{
    struct physical *p = gpw_physical_find(s, handle);
    if (!p || p->ordinal == HOST)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = p->shareable ? CUDA_SUCCESS
                              : gpw_shareable_memory(s, handle, (uint32_t)p->ordinal, p->bytes,
                                                     &p->shareable);
    *out = p->shareable;
    return r;
}

/* The driver may know its own memory again, by the handle that is there. */
static CUresult note_opened(struct gpw_session *s, struct gpw_shareable *one,
                            CUmemGenericAllocationHandle handle)
{
    struct physical *p = gpw_physical_find(s, handle);
    if (p) {
        p->references++;
        one->uses--;
        return CUDA_SUCCESS;
    }
    p = malloc(sizeof *p);
    if (!p) {
        s->driver->cuMemRelease(handle);
        gpw_shareable_let_go(s, one);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *p = (struct physical){s->memory->physicals, handle, one->bytes, (int)one->ordinal, 1, one};
    s->memory->physicals = p;
    return CUDA_SUCCESS;
}

CUresult gpw_physical_open(struct gpw_session *s, struct gpw_shareable *one,
                           CUmemGenericAllocationHandle *handle)
{
    CUresult r = gpw_shareable_open(s, one, handle);
    return r ? r : note_opened(s, one, *handle);
}
