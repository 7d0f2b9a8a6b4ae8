/*
 * Stream-ordered allocation. The driver's pools grow by chunks that are larger than
 * what is asked for, so a chunk is reserved on the board before the driver is asked,
 * and what the pool has really taken is counted afterwards. When no whole chunk is
 * left under the limit, the allocation comes from our own allocator, to the byte.
 * So does all memory of a pool that other processes may have: it is charged, named
 * and mapped as memory of cuMemAlloc is (ipc/shareable.h), and the driver is told
 * nothing of it.
 */
#include "pool.h"

#include <stdlib.h>

#include "allocator.h"
#include "freed.h"
#include "gpw_handlers.h"
#include "growth.h"
#include "memory_internal.h"
#include "quota.h"
#include "shareable.h"

#define CHUNK (UINT64_C(32) << 20)
#define GRANULE (UINT64_C(2) << 20)

struct pool {
    struct pool *next;
    CUmemoryPool real;
    uint32_t ordinal;
    uint64_t counted;     /* on the board */
    bool destroyed;       /* by the client: it ends when nothing of it is in use */
    bool shareable;       /* its memory is our allocator's */
    bool imported;        /* another process's: it has no memory */
    uint64_t trim_behind; /* a trim waits for the frees up to this one; 0: none does */
    size_t trim_keep;
};

/* NULL: it is a device's own, of which nothing has been allocated, or none. */
static struct pool *pool_find(struct gpw_session *s, CUmemoryPool real)
{
    struct pool *p = s->memory->pools;
    while (p && p->real != real)
        p = p->next;
    return p;
}

static struct pool *pool_note(struct gpw_session *s, CUmemoryPool real, uint32_t ordinal)
{
    struct pool *p = pool_find(s, real);
    if (!p && (p = malloc(sizeof *p))) {
        *p = (struct pool){.next = s->memory->pools, .real = real, .ordinal = ordinal};
        s->memory->pools = p;
    }
    return p;
}

static uint64_t pool_size(struct gpw_session *s, const struct pool *p, CUmemPool_attribute what)
{
    cuuint64_t bytes = 0;
    s->driver->cuMemPoolGetAttribute(p->real, what, &bytes);
    return bytes;
}

/* Of what was reserved for a growth, keep what the pool has taken. False: it took more,
 * and that is over the limit. */
static bool pool_count(struct gpw_session *s, struct pool *p, uint64_t reserved)
{
    uint64_t now = pool_size(s, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    uint64_t have = p->counted + reserved;
    if (now > have && !gpw_quota_take(s, p->ordinal, now - have)) {
        p->counted = have;
        return false;
    }
    if (now < have)
        gpw_quota_give(s, p->ordinal, have - now);
    p->counted = now;
    return true;
}

/* Destroy it for the driver as well, and forget it. */
static CUresult pool_end(struct gpw_session *s, struct pool **at)
{
    struct pool *p = *at;
    CUresult r = s->driver->cuMemPoolDestroy(p->real);
    if (r == CUDA_SUCCESS) {
        gpw_quota_give(s, p->ordinal, p->counted);
        *at = p->next;
        free(p);
    }
    return r;
}

/* Whether nothing of it is anybody's any more. What is freed in a stream's order is used no more,
 * but stays reserved until the stream has come by, and drivers die later of memory that outlives
 * its pool. */
static bool pool_empties(struct gpw_session *s, const struct pool *p)
{
    return pool_size(s, p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0 &&
           s->driver->cuMemPoolTrimTo(p->real, 0) == CUDA_SUCCESS &&
           pool_size(s, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0;
}

void gpw_pools_count(struct gpw_session *s)
{
    for (struct pool **at = &s->memory->pools; *at;) {
        pool_count(s, *at, 0);
        if (!(*at)->destroyed || !pool_empties(s, *at) || pool_end(s, at) != CUDA_SUCCESS)
            at = &(*at)->next;
    }
}

void gpw_pools_trim(struct gpw_session *s, uint32_t ordinal)
{
    if (s->memory->trims_pools)
        return;
    s->memory->trims_pools = true;
    for (struct pool *p = s->memory->pools; p; p = p->next)
        if (p->ordinal == ordinal && p->counted) {
            s->driver->cuMemPoolTrimTo(p->real, 0);
            pool_count(s, p, 0);
        }
    s->memory->trims_pools = false;
}

/* From our own allocator, as cuMemAlloc does. */
static CUresult take_exactly(struct gpw_session *s, uint32_t ordinal, size_t bytes,
                             CUdeviceptr *dptr)
{
    CUresult r = gpw_memory_make_room(s, ordinal, bytes + GRANULE);
    return r ? r : gpw_allocator_take(s->memory->windows[ordinal].allocator, bytes, dptr);
}

static CUresult take(struct gpw_session *s, struct pool *p, size_t bytes, CUstream stream,
                     CUdeviceptr *dptr)
{
    /* where the driver puts its pools, that of another host of this client may, too:
     * only the first session's may stay there (proto/wire/snapshot.h) */
    if (s->index > 0 || p->shareable)
        return bytes > UINT64_MAX / 2 ? CUDA_ERROR_OUT_OF_MEMORY
                                      : take_exactly(s, p->ordinal, bytes, dptr);
    uint64_t room = pool_size(s, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) -
                    pool_size(s, p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    if (bytes > UINT64_MAX / 2)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    uint64_t growth = rounded > CHUNK ? rounded : CHUNK;
    if (room >= CHUNK && room - CHUNK >= rounded)
        growth = 0; /* it need not grow */
    if (!gpw_quota_fits(s, p->ordinal, growth) ||
        (growth && !gpw_quota_take(s, p->ordinal, growth)))
        return take_exactly(s, p->ordinal, bytes, dptr);
    CUresult r = s->driver->cuMemAllocFromPoolAsync(dptr, bytes, p->real, stream);
    if (pool_count(s, p, growth) || r != CUDA_SUCCESS)
        return r;
    /* the driver took more than a chunk: not this time */
    s->driver->cuMemFreeAsync(*dptr, stream);
    s->driver->cuStreamSynchronize(stream);
    gpw_pools_trim(s, p->ordinal);
    return take_exactly(s, p->ordinal, bytes, dptr);
}

/* No capture forbids it in CUDA, but ours may ask for pages, and trim. */
static CUresult take_relaxed(struct gpw_session *s, struct pool *p, size_t bytes, CUstream stream,
                             CUdeviceptr *dptr)
{
    bool before = gpw_strict(s, false);
    CUresult r = p ? take(s, p, bytes, stream, dptr) : CUDA_ERROR_OUT_OF_MEMORY;
    gpw_strict(s, before);
    return r;
}

static bool is_capturing(struct gpw_session *s, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return s->driver->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A node of a graph, or an error of the driver's. */
static CUresult captured(struct gpw_session *s, CUresult r, const CUdeviceptr *dptr, size_t bytes)
{
    return r == CUDA_SUCCESS ? gpw_graph_memory_note(s, *dptr, bytes) : r;
}

/* Whose memory is in the pool: a pool is one that was made here, or one of a device's own.
 * -1: no device's. */
static int pool_ordinal(struct gpw_session *s, CUmemoryPool real)
{
    const struct pool *p = pool_find(s, real);
    if (p)
        return (int)p->ordinal;
    for (uint32_t i = 0; i < s->device_count; i++) {
        CUmemoryPool own;
        if (s->driver->cuDeviceGetDefaultMemPool(&own, s->devices[i]) == CUDA_SUCCESS &&
            own == real)
            return (int)i;
    }
    return -1;
}

static CUresult alloc_by_driver(struct gpw_session *s, CUdeviceptr *dptr, size_t bytes,
                                CUmemoryPool pool, CUstream stream)
{
    return pool ? s->driver->cuMemAllocFromPoolAsync(dptr, bytes, pool, stream)
                : s->driver->cuMemAllocAsync(dptr, bytes, stream);
}

CUresult gpw_pool_alloc(struct gpw_session *s, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
                        CUstream stream)
{
    CUmemoryPool real = pool;
    const struct pool *given = pool_find(s, pool);
    if (given && given->imported)
        return CUDA_ERROR_INVALID_VALUE;
    int ordinal = pool ? pool_ordinal(s, pool) : gpw_current_ordinal(s);
    bool capturing = is_capturing(s, stream);
    if (capturing)
        gpw_growth_in_graphs(s); /* it is a node, whose memory is counted when the graph has it */
    if (capturing && pool && ordinal != gpw_current_ordinal(s))
        return CUDA_ERROR_NOT_SUPPORTED; /* a launch is charged to one device */
    if (ordinal < 0)                     /* nobody could be charged */
        return pool ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0 || capturing ||
        (!pool && s->driver->cuDeviceGetMemPool(&real, s->devices[ordinal]) != CUDA_SUCCESS))
        return captured(s, alloc_by_driver(s, dptr, bytes, pool, stream), dptr, bytes);
    return take_relaxed(s, pool_note(s, real, (uint32_t)ordinal), bytes, stream, dptr);
}

struct free_later {
    struct gpw_allocator *allocator;
    CUdeviceptr address;
};

static void free_now(struct gpw_session *s, void *arg, CUresult result)
{
    struct free_later *f = arg;
    (void)result;
    s->memory->ordered_frees--;
    gpw_allocator_give(f->allocator, f->address);
    free(f);
}

CUresult gpw_cuMemFreeAsync(struct gpw_session *s, CUdeviceptr dptr, CUstream hStream)
{
    for (uint32_t i = 0; i < s->device_count; i++) {
        struct gpw_window *w = &s->memory->windows[i];
        if (dptr < w->begin || dptr >= w->end)
            continue;
        /* a capture frees what it has allocated, which is not here */
        if (!gpw_allocator_size(w->allocator, dptr) || is_capturing(s, hStream))
            return CUDA_ERROR_INVALID_VALUE;
        struct free_later *f = malloc(sizeof *f);
        if (!f)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *f = (struct free_later){w->allocator, dptr};
        s->memory->ordered_frees++;
        CUresult r = gpw_after_stream(s, hStream, free_now, f);
        if (r != CUDA_SUCCESS) {
            s->memory->ordered_frees--;
            free(f);
        }
        return r;
    }
    CUresult r = s->driver->cuMemFreeAsync(dptr, hStream);
    if (r == CUDA_SUCCESS)
        gpw_freed_note(s, hStream);
    return r;
}

/* For the driver it is one of this process alone. */
static CUresult make(struct gpw_session *s, const CUmemPoolProps *props, uint32_t ordinal,
                     struct pool **out)
{
    CUmemoryPool real;
    CUresult r = s->driver->cuMemPoolCreate(&real, props);
    if (r != CUDA_SUCCESS)
        return r;
    *out = pool_note(s, real, ordinal);
    if (*out)
        return CUDA_SUCCESS;
    s->driver->cuMemPoolDestroy(real);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gpw_cuMemPoolCreate(struct gpw_session *s, CUmemoryPool *pool,
                             const CUmemPoolProps *poolProps)
{
    CUmemPoolProps props = *poolProps;
    struct pool *p;
    int ordinal = props.location.id;
    if (!gpw_location_take(s, &props.location))
        return CUDA_ERROR_INVALID_DEVICE;
    if (props.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED; /* nobody's limit would hold */
    if (props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_NOT_SUPPORTED; /* the host that may touch it is another one */
    bool shareable = props.handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (props.handleTypes != CU_MEM_HANDLE_TYPE_NONE && !shareable)
        return CUDA_ERROR_NOT_SUPPORTED;
    props.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    props.win32SecurityAttributes = NULL;
    CUresult r = make(s, &props, (uint32_t)ordinal, &p);
    if (r != CUDA_SUCCESS)
        return r;
    p->shareable = shareable;
    *pool = p->real;
    return CUDA_SUCCESS;
}

CUresult gpw_pool_import(struct gpw_session *s, uint32_t ordinal, CUmemoryPool *pool)
{
    const CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = s->devices[ordinal]}};
    struct pool *p;
    CUresult r = make(s, &props, ordinal, &p);
    if (r != CUDA_SUCCESS)
        return r;
    p->imported = true;
    *pool = p->real;
    return CUDA_SUCCESS;
}

CUresult gpw_pool_share(struct gpw_session *s, CUmemoryPool pool, struct gpw_shareable **out)
{
    const struct pool *p = pool_find(s, pool);
    return p && p->shareable ? gpw_shareable_pool(s, pool, p->ordinal, out)
                             : CUDA_ERROR_INVALID_VALUE;
}

/* What of the pool comes from our own allocator, or is mapped there, is no less open. */
CUresult gpw_noted_cuMemPoolSetAccess(struct gpw_session *s, CUmemoryPool pool,
                                      const CUmemAccessDesc *map, size_t count)
{
    int ordinal = pool_ordinal(s, pool);
    CUresult r = CUDA_SUCCESS;
    bool before = gpw_strict(s, false);
    for (size_t i = 0; ordinal >= 0 && r == CUDA_SUCCESS && i < count; i++)
        if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            r = gpw_allocator_share(s->memory->windows[ordinal].allocator, map[i].location.id);
    gpw_strict(s, before);
    return r;
}

static bool is_default(struct gpw_session *s, const struct pool *p)
{
    CUmemoryPool own;
    return s->driver->cuDeviceGetDefaultMemPool(&own, s->devices[p->ordinal]) == CUDA_SUCCESS &&
           own == p->real;
}

/* A device whose pool is destroyed has its default pool again. */
static void leave(struct gpw_session *s, const struct pool *p)
{
    CUdevice device = s->devices[p->ordinal];
    CUmemoryPool now, own;
    if (s->driver->cuDeviceGetMemPool(&now, device) == CUDA_SUCCESS && now == p->real &&
        s->driver->cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS)
        s->driver->cuDeviceSetMemPool(device, own);
}

CUresult gpw_cuMemPoolDestroy(struct gpw_session *s, CUmemoryPool pool)
{
    struct pool **at = &s->memory->pools;
    while (*at && (*at)->real != pool)
        at = &(*at)->next;
    struct pool *p = *at;
    if (!p)
        return s->driver->cuMemPoolDestroy(pool);
    gpw_shareable_gone(s, GPW_SHARES_POOL, pool);
    if (is_default(s, p))
        return s->driver->cuMemPoolDestroy(pool); /* which refuses it */
    leave(s, p);
    if (pool_empties(s, p))
        return pool_end(s, at);
    /* What of it is in use stays until it is freed, and counts as long. */
    p->destroyed = true;
    return CUDA_SUCCESS;
}

/* CUDA has waited for the frees before: what they give back is trimmed, too. Nobody waits for this
 * here, so it is done when they are over. */
CUresult gpw_cuMemPoolTrimTo(struct gpw_session *s, CUmemoryPool pool, size_t minBytesToKeep)
{
    struct pool *p = pool_find(s, pool);
    uint64_t last = gpw_memory_last_free(s);
    if (p && gpw_memory_frees_under_way(s, last)) {
        if (!p->trim_behind || minBytesToKeep < p->trim_keep)
            p->trim_keep = minBytesToKeep;
        p->trim_behind = last;
        return CUDA_SUCCESS;
    }
    CUresult r = s->driver->cuMemPoolTrimTo(pool, minBytesToKeep);
    if (r == CUDA_SUCCESS)
        gpw_pools_count(s);
    return r;
}

void gpw_pools_freed(struct gpw_session *s)
{
    bool trimmed = false;
    for (struct pool *p = s->memory->pools; p; p = p->next) {
        if (!p->trim_behind || gpw_memory_frees_under_way(s, p->trim_behind))
            continue;
        p->trim_behind = 0;
        trimmed |= s->driver->cuMemPoolTrimTo(p->real, p->trim_keep) == CUDA_SUCCESS;
    }
    if (trimmed)
        gpw_pools_count(s);
}
