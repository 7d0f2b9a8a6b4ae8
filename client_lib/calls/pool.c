/* Memory in stream order, and the pools that it comes from. */
#include <pthread.h>
#include <string.h>

#include "call.h"
#include "captured_copy.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "ipc.h"
#include "memory.h"
#include "ranges.h"
#include "session.h"
#include "shared.h"

/* A graph's memory is known for as long as nothing else is there: its next launch
 * allocates it again. The rest is forgotten before the free is sent: from then on
 * another thread may get the address anew. */
static CUresult free_ordered(const struct gpc_route *on, const struct gpc_range *range,
                             CUstream stream)
{
    bool captures;
    CUresult r = gpc_stream_captures(on, stream, &captures);
    if (r != CUDA_SUCCESS)
        return r;
    /* in a capture it becomes a node, for memory of the same graph only */
    bool forget = !captures && range->kind != GPC_RANGE_GRAPH && gpc_range_forget(range);
    r = gpc_wire_cuMemFreeAsync_on(on, range->begin, stream);
    if (r != CUDA_SUCCESS && forget)
        gpc_range_add(range);
    return r;
}

/* Freeing cuMemAlloc's memory in stream order, or what another process's pool has: what CUDA
 * promises is kept by waiting for everything. */
static CUresult free_plain(const struct gpc_route *on, CUdeviceptr dptr, CUstream stream)
{
    bool captures;
    CUresult r = gpc_stream_captures(on, stream, &captures);
    if (r == CUDA_SUCCESS && captures)
        r = CUDA_ERROR_INVALID_VALUE;
    return r ? r : gpc_memory_free(on, dptr);
}

GPC_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuMemFreeAsync, hStream);
    if (r != CUDA_SUCCESS || dptr == 0)
        return r;
    struct gpc_range range;
    if (!gpc_range_find_at(on.session->index, dptr, &range) || range.begin != dptr ||
        range.kind == GPC_RANGE_IPC)
        return CUDA_ERROR_INVALID_VALUE;
    bool plain = range.kind == GPC_RANGE_DEVICE || range.kind == GPC_RANGE_MANAGED ||
                 range.kind == GPC_RANGE_IMPORTED;
    return gpc_leave(plain ? free_plain(&on, dptr, hStream) : free_ordered(&on, &range, hStream));
}

/* The first three attributes are ints, the others 64-bit counts. */
static size_t pool_value_size(CUmemPool_attribute attr)
{
    return attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? sizeof(int)
                                                                     : sizeof(cuuint64_t);
}

GPC_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    uint64_t wide = 0;
    CUresult r = gpc_enter(GP_OP_cuMemPoolSetAttribute, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&wide, value, pool_value_size(attr));
    return gpc_leave(gpc_wire_cuMemPoolSetAttribute(pool, attr, &wide));
}

GPC_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    uint64_t wide = 0;
    CUresult r = gpc_enter(GP_OP_cuMemPoolGetAttribute, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    r = gpc_wire_cuMemPoolGetAttribute(pool, attr, &wide);
    if (r == CUDA_SUCCESS)
        memcpy(value, &wide, pool_value_size(attr));
    return gpc_leave(r);
}

/* One handle per device and kind for ever: the default pool, and the current one
 * where cuDeviceSetMemPool has not chosen another. Both are read without the lock. */
static CUmemoryPool default_pools[GP_DEVICES_MAX], current_pools[GP_DEVICES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* to make default ones: each once */

static CUmemoryPool pool_at(CUmemoryPool *pools, CUdevice dev)
{
    return __atomic_load_n(&pools[dev], __ATOMIC_ACQUIRE); /* with pool_set */
}

/* From here on other threads name it to the worker, so it has been sent. */
static void pool_set(CUmemoryPool *pools, CUdevice dev, CUmemoryPool pool)
{
    __atomic_store_n(&pools[dev], pool, __ATOMIC_RELEASE);
}

/* Under `lock`. */
static CUresult default_make(CUdevice dev)
{
    CUmemoryPool made;
    if (pool_at(default_pools, dev))
        return CUDA_SUCCESS;
    CUresult r = gpc_wire_cuDeviceGetDefaultMemPool(&made, dev);
    if (r != CUDA_SUCCESS)
        return r;
    gpc_memory_made((uint64_t)made, dev);
    pool_set(default_pools, dev, made);
    return CUDA_SUCCESS;
}

CUresult gpc_pool_default(CUdevice dev, CUmemoryPool *pool)
{
    CUresult r = CUDA_SUCCESS;
    if (!gpc_device_info(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pool_at(default_pools, dev)) {
        pthread_mutex_lock(&lock);
        r = default_make(dev);
        pthread_mutex_unlock(&lock);
    }
    if (r == CUDA_SUCCESS)
        *pool = pool_at(default_pools, dev);
    return r;
}

bool gpc_pool_is_default(CUmemoryPool pool)
{
    for (int i = 0; pool && i < GP_DEVICES_MAX; i++)
        if (pool_at(default_pools, i) == pool)
            return true;
    return false;
}

GPC_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    CUresult r = gpc_enter(GP_OP_cuDeviceGetDefaultMemPool, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    return pool_out ? gpc_pool_default(dev, pool_out) : CUDA_ERROR_INVALID_VALUE;
}

CUmemoryPool gpc_pool_current(CUdevice dev)
{
    CUmemoryPool chosen = gpc_device_info(dev) ? pool_at(current_pools, dev) : NULL;
    return gpc_handle_live(GP_HANDLE_MEMPOOL, (uint64_t)chosen) ? chosen : NULL;
}

static CUresult current_pool(CUdevice dev, CUmemoryPool *pool)
{
    CUmemoryPool chosen = gpc_pool_current(dev);
    if (!chosen)
        return gpc_pool_default(dev, pool);
    *pool = chosen;
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    CUresult r = gpc_enter(GP_OP_cuDeviceGetMemPool, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    return pool ? current_pool(dev, pool) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult choose_pool(CUdevice dev, CUmemoryPool pool)
{
    if (gpc_pool_is_imported(pool)) /* nothing is allocated from another process's */
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpc_wire_cuDeviceSetMemPool(dev, pool);
    if (r == CUDA_SUCCESS)
        pool_set(current_pools, dev, pool);
    return r;
}

GPC_EXPORT CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    CUresult r = gpc_enter(GP_OP_cuDeviceSetMemPool, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    return gpc_leave(choose_pool(dev, pool));
}

/* --- by location: since CUDA 13 ----------------------------------------------------- */

/* Whose pools are meant; or the error that CUDA gives. */
static CUresult location_enter(uint16_t op, const CUmemLocation *location, CUmemAllocationType type,
                               CUdevice *dev)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (!location || (!managed && type != CU_MEM_ALLOCATION_TYPE_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    bool host = location->type == CU_MEM_LOCATION_TYPE_HOST ||
                location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                (managed && location->type == CU_MEM_LOCATION_TYPE_NONE);
    if (!host && location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    *dev = location->id;
    if (!host && ((uint32_t)*dev >= gpc_device_count()))
        return CUDA_ERROR_INVALID_VALUE;
    return host || managed ? gpc_refuse_because(op, "a pool of host or managed memory")
                           : CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                           CUmemAllocationType type)
{
    CUdevice dev;
    CUresult r = location_enter(GP_OP_cuMemGetDefaultMemPool, location, type, &dev);
    if (r == CUDA_SUCCESS)
        r = pool_out ? gpc_pool_default(dev, pool_out) : CUDA_ERROR_INVALID_VALUE;
    return r;
}

GPC_EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                    CUmemAllocationType type)
{
    CUdevice dev;
    CUresult r = location_enter(GP_OP_cuMemGetMemPool, location, type, &dev);
    if (r == CUDA_SUCCESS)
        r = pool ? current_pool(dev, pool) : CUDA_ERROR_INVALID_VALUE;
    return r;
}

GPC_EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                    CUmemoryPool pool)
{
    CUdevice dev;
    CUresult r = location_enter(GP_OP_cuMemSetMemPool, location, type, &dev);
    return r ? r : gpc_leave(choose_pool(dev, pool));
}
