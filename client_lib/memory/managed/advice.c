/* Advice for managed memory and its prefetches: kept for who asks, by block. What the host is
 * said to use next comes in one piece; nothing else depends on it. */
#include <stdlib.h>

#include "managed_internal.h"
#include "session.h"

struct gpc_advice {
    bool read_mostly, by_host;           /* accessed by it */
    uint64_t accessed_by;                /* devices, one bit each */
    CUmemLocation preferred, prefetched; /* INVALID: none */
};
_Static_assert(GP_DEVICES_MAX <= 64, "one word of bits");

/* The range in an allocation, as blocks. */
struct part {
    struct gpc_managed *m;
    uint32_t first, end;
};

static bool part_of(CUdeviceptr at, size_t bytes, struct part *p)
{
    struct gpc_range range;
    if (bytes == 0 || !gpc_range_find(at, &range) || range.kind != GPC_RANGE_MANAGED ||
        bytes > range.size - (at - range.begin) || !(p->m = gpc_managed_find(at)))
        return false;
    uint64_t into = at - p->m->begin;
    p->first = (uint32_t)(into / p->m->block_bytes);
    p->end = (uint32_t)((into + bytes - 1) / p->m->block_bytes) + 1;
    return p->end <= p->m->blocks;
}

CUresult gpc_managed_check(CUdeviceptr at, size_t bytes)
{
    struct part p;
    gpc_managed_lock();
    bool right = part_of(at, bytes, &p);
    gpc_managed_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool is_host(const CUmemLocation *l)
{
    return l->type == CU_MEM_LOCATION_TYPE_HOST || l->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           l->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult check(const CUmemLocation *l)
{
    if (is_host(l))
        return CUDA_SUCCESS;
    if (l->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_device_info(l->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* --- hints -------------------------------------------------------------------------------------- */

static void access_set(struct gpc_advice *a, const CUmemLocation *l, bool on)
{
    if (is_host(l))
        a->by_host = on;
    else if (on)
        a->accessed_by |= UINT64_C(1) << l->id;
    else
        a->accessed_by &= ~(UINT64_C(1) << l->id);
}

static void advise(struct gpc_advice *a, CUmem_advise advice, const CUmemLocation *l)
{
    static const CUmemLocation none = {.type = CU_MEM_LOCATION_TYPE_INVALID};
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        a->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        a->preferred = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ? *l : none;
        break;
    default:
        access_set(a, l, advice == CU_MEM_ADVISE_SET_ACCESSED_BY);
    }
}

/* Those of the allocation's blocks; NULL: no memory. */
static struct gpc_advice *advice_of(struct gpc_managed *m)
{
    if (!m->advice)
        m->advice = calloc(m->blocks, sizeof *m->advice);
    return m->advice;
}

CUresult gpc_managed_advise(CUdeviceptr at, size_t bytes, CUmem_advise advice,
                            const CUmemLocation *location)
{
    bool anywhere = advice == CU_MEM_ADVISE_SET_READ_MOSTLY ||
                    advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY ||
                    advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    CUresult r = anywhere ? CUDA_SUCCESS : check(location);
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        r = CUDA_ERROR_INVALID_VALUE;
    if (r != CUDA_SUCCESS)
        return r;
    struct part p;
    gpc_managed_lock();
    if (!part_of(at, bytes, &p))
        r = CUDA_ERROR_INVALID_VALUE;
    else if (!advice_of(p.m))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = p.first; r == CUDA_SUCCESS && i < p.end; i++)
        advise(&p.m->advice[i], advice, location);
    gpc_managed_unlock();
    return r;
}

CUresult gpc_managed_prefetch(CUdeviceptr at, size_t bytes, const CUmemLocation *location)
{
    struct part p;
    CUresult r = check(location);
    if (r != CUDA_SUCCESS)
        return r;
    gpc_managed_lock();
    if (!part_of(at, bytes, &p))
        r = CUDA_ERROR_INVALID_VALUE;
    else if (!advice_of(p.m))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    else
        p.m->whole = is_host(location);
    for (uint32_t i = p.first; r == CUDA_SUCCESS && i < p.end; i++)
        p.m->advice[i].prefetched = *location;
    gpc_managed_unlock();
    return r;
}

/* --- what they were ------------------------------------------------------------------------------- */

/* What all blocks of the part have in common. */
static struct gpc_advice common(const struct part *p)
{
    static const struct gpc_advice none = {.accessed_by = 0};
    struct gpc_advice all = p->m->advice ? p->m->advice[p->first] : none;
    for (uint32_t i = p->first; p->m->advice && i < p->end; i++) {
        const struct gpc_advice *a = &p->m->advice[i];
        all.read_mostly &= a->read_mostly;
        all.by_host &= a->by_host;
        all.accessed_by &= a->accessed_by;
        if (a->preferred.type != all.preferred.type || a->preferred.id != all.preferred.id)
            all.preferred = none.preferred;
        if (a->prefetched.type != all.prefetched.type || a->prefetched.id != all.prefetched.id)
            all.prefetched = none.prefetched;
    }
    return all;
}

static int device_of(const CUmemLocation *l)
{
    return is_host(l)                               ? CU_DEVICE_CPU
           : l->type == CU_MEM_LOCATION_TYPE_DEVICE ? l->id
                                                    : CU_DEVICE_INVALID;
}

static void accessors(const struct gpc_advice *a, int *to, size_t room)
{
    size_t n = 0;
    if (a->by_host && n < room)
        to[n++] = CU_DEVICE_CPU;
    for (int device = 0; device < GP_DEVICES_MAX && n < room; device++)
        if (a->accessed_by >> device & 1)
            to[n++] = device;
    while (n < room)
        to[n++] = CU_DEVICE_INVALID;
}

static CUresult say(const struct gpc_advice *a, void *data, size_t size,
                    CUmem_range_attribute which)
{
    int *to = data;
    if (which == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && size && size % sizeof *to == 0) {
        accessors(a, to, size / sizeof *to);
        return CUDA_SUCCESS;
    }
    if (size != sizeof *to)
        return CUDA_ERROR_INVALID_VALUE;
    switch (which) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        *to = a->read_mostly;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        *to = device_of(&a->preferred);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *to = device_of(&a->prefetched);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        *to = (int)a->preferred.type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        *to = a->preferred.id;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        *to = (int)a->prefetched.type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        *to = a->prefetched.id;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* `data` may lie in managed memory: it is written without the lock. */
CUresult gpc_managed_attribute(void *data, size_t size, CUmem_range_attribute which, CUdeviceptr at,
                               size_t bytes)
{
    struct part p;
    struct gpc_advice all = {.accessed_by = 0};
    gpc_managed_lock();
    bool right = part_of(at, bytes, &p);
    if (right)
        all = common(&p);
    gpc_managed_unlock();
    return right && data ? say(&all, data, size, which) : CUDA_ERROR_INVALID_VALUE;
}
