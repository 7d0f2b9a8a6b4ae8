/* Virtual memory management: physical memory counts from its creation until it is both
 * released and nowhere mapped any more, as the driver keeps it. */
#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "memory_internal.h"
#include "quota.h"
#include "shareable.h"

struct physical {
    struct physical *next;
    CUmemGenericAllocationHandle real;
    uint64_t bytes;
    int ordinal;                     /* HOST: the host's */
    unsigned references;             /* handles and mappings */
    struct gpw_shareable *shareable; /* NULL: no other process has it */
};
#define HOST (-1)

struct mapping {
    struct mapping *next;
    CUdeviceptr at;
    uint64_t size;
    struct physical *physical;
};

static struct physical *find(struct gpw_session *s, CUmemGenericAllocationHandle real)
{
    struct physical *p = s->memory->physicals;
    while (p && p->real != real)
        p = p->next;
    return p;
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

static void drop(struct gpw_session *s, struct physical *p)
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
    struct physical *p = find(s, handle);
    if (p)
        drop(s, p);
    return CUDA_SUCCESS;
}

/* A handle of the allocator's pages would keep them beyond their free, uncounted: so it is of
 * the client's own addresses (`own` in the spec). */
CUresult gpw_noted_cuMemRetainAllocationHandle(struct gpw_session *s,
                                               CUmemGenericAllocationHandle handle, void *addr)
{
    struct physical *p = find(s, handle);
    (void)s, (void)addr;
    if (p)
        p->references++;
    return CUDA_SUCCESS;
}

CUresult gpw_noted_cuMemMap(struct gpw_session *s, CUdeviceptr ptr, size_t size, size_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct physical *p = find(s, handle);
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
        drop(s, m->physical);
        free(m);
    }
    return CUDA_SUCCESS;
}

/* --- memory that several processes have ---------------------------------------------- */

CUresult gpw_physical_share(struct gpw_session *s, CUmemGenericAllocationHandle handle,
                            struct gpw_shareable **out)
{
    struct physical *p = find(s, handle);
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
    struct physical *p = find(s, handle);
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
