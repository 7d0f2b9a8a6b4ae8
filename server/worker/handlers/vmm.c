/* Virtual memory management: physical memory counts from its creation until it is both
 * released and nowhere mapped any more, as the driver keeps it. */
#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "memory_internal.h"
#include "quota.h"

struct physical {
    struct physical *next;
    CUmemGenericAllocationHandle real;
    uint64_t bytes;
    int ordinal; /* HOST: the host's */
    unsigned references; /* handles and mappings */
};
#define HOST (-1)

struct mapping {
    struct mapping *next;
    CUdeviceptr at;
    uint64_t size;
    struct physical *physical;
};

static struct physical *physicals;
static struct mapping *mappings;

static struct physical *find(CUmemGenericAllocationHandle real)
{
    struct physical *p = physicals;
    while (p && p->real != real)
        p = p->next;
    return p;
}

static CUresult take(struct gpw_session *s, int ordinal, uint64_t bytes)
{
    bool fits = false;
    CUresult r = ordinal == HOST ? CUDA_SUCCESS
                                 : gpw_memory_make_room(s, (uint32_t)ordinal, bytes);
    if (r == CUDA_SUCCESS)
        fits = ordinal == HOST ? gpw_budget_take(GPW_BUDGET_HOST, bytes)
                               : gpw_quota_take(s, (uint32_t)ordinal, bytes);
    return r != CUDA_SUCCESS || fits ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

static void give(struct gpw_session *s, int ordinal, uint64_t bytes)
{
    if (ordinal == HOST)
        gpw_budget_give(GPW_BUDGET_HOST, bytes);
    else
        gpw_quota_give(s, (uint32_t)ordinal, bytes);
}

static void drop(struct gpw_session *s, struct physical *p)
{
    if (--p->references)
        return;
    struct physical **at = &physicals;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
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
    *p = (struct physical){physicals, *handle, size, ordinal, 1};
    physicals = p;
    return r;
}

CUresult gpw_cuMemRelease(struct gpw_session *s, CUmemGenericAllocationHandle handle)
{
    CUresult r = s->driver->cuMemRelease(handle);
    struct physical *p = find(handle);
    if (r == CUDA_SUCCESS && p)
        drop(s, p);
    return r;
}

CUresult gpw_cuMemRetainAllocationHandle(struct gpw_session *s,
                                         CUmemGenericAllocationHandle *handle, void *addr)
{
    /* a handle of the allocator's pages would keep them beyond their free, uncounted */
    if (!gpw_memory_is_clients(s, (uint64_t)(uintptr_t)addr, 1))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = s->driver->cuMemRetainAllocationHandle(handle, addr);
    struct physical *p = r == CUDA_SUCCESS ? find(*handle) : NULL;
    if (p)
        p->references++;
    return r;
}

CUresult gpw_cuMemMap(struct gpw_session *s, CUdeviceptr ptr, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (!gpw_memory_is_clients(s, ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *m = malloc(sizeof *m);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = s->driver->cuMemMap(ptr, size, offset, handle, flags);
    struct physical *p = r == CUDA_SUCCESS ? find(handle) : NULL;
    if (!p) {
        free(m);
        return r;
    }
    *m = (struct mapping){mappings, ptr, size, p};
    mappings = m;
    p->references++;
    return r;
}

CUresult gpw_cuMemUnmap(struct gpw_session *s, CUdeviceptr ptr, size_t size)
{
    if (!gpw_memory_is_clients(s, ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = s->driver->cuMemUnmap(ptr, size);
    for (struct mapping **at = &mappings; r == CUDA_SUCCESS && *at;) {
        struct mapping *m = *at;
        if (m->at < ptr || m->at - ptr >= size) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        drop(s, m->physical);
        free(m);
    }
    return r;
}

#define ACCESS_MAX 64

CUresult gpw_cuMemSetAccess(struct gpw_session *s, CUdeviceptr ptr, size_t size,
                            const CUmemAccessDesc *desc, size_t count)
{
    CUmemAccessDesc own[ACCESS_MAX];
    if (count > ACCESS_MAX || !gpw_memory_is_clients(s, ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        own[i] = desc[i];
        if (!gpw_location_take(s, &own[i].location))
            return CUDA_ERROR_INVALID_DEVICE;
    }
    return s->driver->cuMemSetAccess(ptr, size, own, count);
}

CUresult gpw_cuMemGetAccess(struct gpw_session *s, unsigned long long *flags,
                            const CUmemLocation *location, CUdeviceptr ptr)
{
    CUmemLocation own = *location;
    if (!gpw_location_take(s, &own))
        return CUDA_ERROR_INVALID_DEVICE;
    return s->driver->cuMemGetAccess(flags, &own, ptr);
}

CUresult gpw_cuMemGetAllocationGranularity(struct gpw_session *s, size_t *granularity,
                                           const CUmemAllocationProp *prop,
                                           CUmemAllocationGranularity_flags option)
{
    CUmemAllocationProp own = *prop;
    if (!gpw_location_take(s, &own.location))
        return CUDA_ERROR_INVALID_DEVICE;
    return s->driver->cuMemGetAllocationGranularity(granularity, &own, option);
}

CUresult gpw_cuMemGetAllocationPropertiesFromHandle(struct gpw_session *s,
                                                    CUmemAllocationProp *prop,
                                                    CUmemGenericAllocationHandle handle)
{
    CUresult r = s->driver->cuMemGetAllocationPropertiesFromHandle(prop, handle);
    if (r == CUDA_SUCCESS)
        gpw_location_give(s, &prop->location);
    return r;
}
