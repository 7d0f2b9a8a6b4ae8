/*
 * Stream-ordered allocation. Memory comes from the same arena as cuMemAlloc's
 * and goes back to it when its stream passes the free; pools only count.
 */
#include "pool.h"

#include "ipc.h"

CUmemoryPool sg_pool_create(struct sg_device *device, bool is_default)
{
    CUmemoryPool pool = calloc(1, sizeof(*pool));
    if (!pool || !sg_handle_add(pool, SG_POOL)) {
        free(pool);
        return NULL;
    }
    pool->device = device;
    pool->is_default = is_default;
    pool->refs = 1;
    pool->reuse_flags[CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = 1;
    pool->reuse_flags[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC] = 1;
    pool->reuse_flags[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES] = 1;
    return pool;
}

void sg_pool_unref(CUmemoryPool pool)
{
    if (--pool->refs == 0)
        free(pool);
}

uint64_t sg_waited;

static uint64_t unseen(CUmemoryPool pool)
{
    if (pool->unseen_since != sg_waited)
        pool->unseen = 0;
    pool->unseen_since = sg_waited;
    return pool->unseen;
}

static uint64_t reserved(CUmemoryPool pool)
{
    return pool->used + unseen(pool);
}

void sg_pool_free_in_order(uint64_t address)
{
    struct sg_extent extent;
    CUmemoryPool pool = sg_address_find(address, &extent) ? extent.pool : NULL;
    uint64_t used = pool ? pool->used : 0;
    if (pool)
        pool->refs++;
    sg_memory_give(address);
    if (pool) {
        pool->unseen = unseen(pool) + used - pool->used;
        sg_pool_unref(pool);
    }
}

#define POOL_CHECK(pool)                                                                           \
    SG_LOCKED;                                                                                     \
    SG_READY();                                                                                    \
    if (!sg_handle_is(pool, SG_POOL))                                                              \
    return CUDA_ERROR_INVALID_VALUE

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    SG_LOCKED;
    SG_READY();
    if (!pool || !poolProps ||
        (poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED &&
         poolProps->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ||
        poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
         poolProps->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct sg_device *device = sg_device(poolProps->location.id);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    CUmemoryPool made = sg_pool_create(device, false);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->props = *poolProps;
    *pool = made;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    POOL_CHECK(pool);
    if (pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool->device->pool == pool)
        pool->device->pool = pool->device->default_pool;
    sg_handle_remove(pool);
    sg_pool_unref(pool); /* its memory stays until it is freed */
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    (void)minBytesToKeep; /* nothing is kept beyond what is in use, or may be */
    POOL_CHECK(pool);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    POOL_CHECK(pool);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse_flags[attr] = *(const int *)value != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->release_threshold = *(const cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* only back to the present use */
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const cuuint64_t *)value != 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
            pool->used_high = pool->used;
        else
            pool->reserved_high = reserved(pool);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    POOL_CHECK(pool);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse_flags[attr];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->release_threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = reserved(pool);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = pool->reserved_high;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    POOL_CHECK(pool);
    uint32_t access = pool->access;
    if (!map || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct sg_device *device = map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE
                                       ? sg_device(map[i].location.id)
                                       : NULL;
        if (!device)
            return CUDA_ERROR_INVALID_DEVICE;
        bool none = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
        if (!none && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        if (device == pool->device && none)
            return CUDA_ERROR_INVALID_DEVICE; /* the owner keeps its access */
        access = none ? access & ~(1u << device->ordinal) : access | 1u << device->ordinal;
    }
    pool->access = access;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    POOL_CHECK(memPool);
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_device *device = sg_device(location->id);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    bool open = device == memPool->device || (memPool->access >> device->ordinal & 1);
    *flags = open ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* ---- the device's pools ---- */
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    SG_LOCKED;
    SG_READY();
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pool_out)
        return CUDA_ERROR_INVALID_VALUE;
    *pool_out = device->default_pool;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    SG_LOCKED;
    SG_READY();
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = device->pool;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    POOL_CHECK(pool);
    struct sg_device *device = sg_device(dev);
    if (!device || pool->device != device || pool->imported)
        return device ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    device->pool = pool;
    return CUDA_SUCCESS;
}

/* By location: of devices alone. */
static CUresult location_device(const CUmemLocation *location, CUmemAllocationType type,
                                CUdevice *dev)
{
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (!location || (!managed && type != CU_MEM_ALLOCATION_TYPE_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        *dev = location->id;
        if (!sg_device(*dev))
            return CUDA_ERROR_INVALID_VALUE;
        return managed ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return CUDA_ERROR_NOT_SUPPORTED;
    case CU_MEM_LOCATION_TYPE_NONE:
        return managed ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                CUmemAllocationType type)
{
    CUdevice dev;
    SG_TRY(location_device(location, type, &dev));
    return cuDeviceGetDefaultMemPool(pool_out, dev);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    CUdevice dev;
    SG_TRY(location_device(location, type, &dev));
    return cuDeviceGetMemPool(pool, dev);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    CUdevice dev;
    SG_TRY(location_device(location, type, &dev));
    return cuDeviceSetMemPool(dev, pool);
}

/* ---- allocating ---- */
static CUresult take(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
    struct sg_extent like = {
        .space = SG_SPACE_POOL, .device = pool->device, .context = stream->context, .pool = pool};
    uint64_t address;
    if (pool->imported || (!size && stream->capture))
        return CUDA_ERROR_INVALID_VALUE;
    if (!size) { /* is no error, and no memory */
        *out = 0;
        return CUDA_SUCCESS;
    }
    if (stream->capture) {
        struct sg_op *op;
        SG_TRY(sg_block_alloc(stream->context, pool->device, size, out, &op));
        return sg_capture_add(stream, op);
    }
    SG_TRY(sg_capture_legacy(stream));
    uint64_t rounded = size > SIZE_MAX - SG_ALIGNMENT
                           ? SIZE_MAX
                           : (size + SG_ALIGNMENT - 1) / SG_ALIGNMENT * SG_ALIGNMENT;
    if (pool->props.maxSize && rounded > pool->props.maxSize - pool->used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->refs++;
    CUresult result = sg_memory_take(&like, size, &address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        /* What earlier work will free counts: it is free in the stream's order. */
        sg_context_wait(stream->context);
        result = sg_memory_take(&like, size, &address);
    }
    if (result != CUDA_SUCCESS) {
        sg_pool_unref(pool);
        return result;
    }
    pool->used += rounded;
    uint64_t kept = unseen(pool);
    pool->unseen -= kept < rounded ? kept : rounded;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    if (reserved(pool) > pool->reserved_high)
        pool->reserved_high = reserved(pool);
    *out = address;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    return take(dptr, bytesize, stream->context->device->pool, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream)
{
    POOL_CHECK(pool);
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!dptr)
        return CUDA_ERROR_INVALID_VALUE;
    return take(dptr, bytesize, pool, stream);
}

/* In a capture it becomes a node. */
static CUresult free_block(CUstream stream, CUdeviceptr dptr, struct sg_block *block)
{
    struct sg_op *op;
    if (stream->capture)
        SG_TRY(sg_block_free_captured(stream->context, stream->capture->graph, dptr, &op));
    else
        SG_TRY(sg_block_free(stream->context, block, &op));
    return sg_stream_submit(stream, op);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    SG_LOCKED;
    CUstream stream;
    struct sg_extent extent;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!dptr)
        return CUDA_SUCCESS;
    if (sg_address_find(dptr, &extent) && extent.begin == dptr && extent.block)
        return free_block(stream, dptr, extent.block);
    if (!sg_address_find(dptr, &extent) || extent.begin != dptr || extent.freed ||
        extent.internal ||
        (extent.space != SG_SPACE_POOL && extent.space != SG_SPACE_DEVICE &&
         !sg_ipc_is_pool(&extent)))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        stream->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (sg_ipc_closed(&extent))
        return CUDA_SUCCESS;
    struct sg_op *op = sg_op_new(SG_OP_FREE, stream->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->address = dptr;
    extent.freed = true;
    sg_address_update(&extent);
    CUresult result = sg_stream_submit(stream, op);
    if (result != CUDA_SUCCESS) {
        extent.freed = false;
        sg_address_update(&extent);
    }
    return result;
}
