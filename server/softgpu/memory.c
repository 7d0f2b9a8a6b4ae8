/* cuMemAlloc and its kin, and what pointers say of themselves. */
#include "ipc.h"
#include "pool.h"
#include "timeslice.h"

CUresult sg_memory_take(const struct sg_extent *like, uint64_t size, uint64_t *address)
{
    struct sg_device *device = like->device;
    if (size > device->memory_size || size > UINT64_MAX - SG_ALIGNMENT)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = (size + SG_ALIGNMENT - 1) / SG_ALIGNMENT * SG_ALIGNMENT;
    if (rounded > device->memory_size - device->memory_used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t begin = sg_arena_take(device->arena, rounded);
    if (!begin)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_extent extent = *like;
    extent.begin = begin;
    extent.end = begin + size;
    extent.id = ++sg.next_id;
    CUresult result = sg_address_add(&extent);
    if (result != CUDA_SUCCESS) {
        sg_arena_give(device->arena, begin);
        return result;
    }
    sg_time_memory(device, (int64_t)rounded);
    *address = begin;
    return CUDA_SUCCESS;
}

CUresult sg_memory_give(uint64_t address)
{
    struct sg_extent extent;
    if (sg_address_find(address, &extent) && extent.begin == address &&
        extent.space == SG_SPACE_IPC) {
        sg_ipc_unmap(&extent);
        return CUDA_SUCCESS;
    }
    if (!sg_address_remove(address, &extent))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t size = extent.end - extent.begin;
    size = (size + SG_ALIGNMENT - 1) / SG_ALIGNMENT * SG_ALIGNMENT;
    sg_time_memory(extent.device, -(int64_t)size);
    sg_arena_give(extent.device->arena, extent.begin);
    if (extent.pool) {
        extent.pool->used -= size;
        sg_pool_unref(extent.pool);
    }
    return CUDA_SUCCESS;
}

void sg_memory_release_context(CUcontext context)
{
    struct sg_extent extent;
    while (sg_address_of_context(context, &extent)) {
        if (extent.space == SG_SPACE_DEVICE)
            sg_memory_give(extent.begin);
        else if (extent.space == SG_SPACE_IPC)
            sg_ipc_unmap(&extent);
        else
            sg_host_give(extent.begin, extent.space);
    }
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!dptr || bytesize == 0)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_capture_unsafe());
    struct sg_extent like = {
        .space = SG_SPACE_DEVICE, .device = context->device, .context = context};
    uint64_t address;
    SG_TRY(sg_memory_take(&like, bytesize, &address));
    *dptr = address;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes)
{
    if (!dptr || !pPitch || !WidthInBytes || !Height ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)) {
        SG_READY();
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t pitch, bytes;
    if (WidthInBytes > SIZE_MAX - SG_ALIGNMENT)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pitch = (WidthInBytes + SG_ALIGNMENT - 1) / SG_ALIGNMENT * SG_ALIGNMENT;
    if (__builtin_mul_overflow(pitch, Height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    SG_TRY(cuMemAlloc_v2(dptr, bytes));
    *pPitch = pitch;
    return CUDA_SUCCESS;
}

/* Freeing waits for the device, as CUDA's does: no kernel may still use the memory. */
void sg_memory_wait(const struct sg_device *device)
{
    for (CUcontext c = sg.contexts; c; c = c->next)
        if (c->alive && c->device == device)
            sg_context_wait(c);
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_extent extent;
    SG_READY();
    if (!dptr)
        return CUDA_SUCCESS;
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_capture_unsafe());
    for (int pass = 0; pass < 2; pass++) {
        /* Twice: another thread may free it while this one waits. */
        if (!sg_address_find(dptr, &extent) || extent.begin != dptr || extent.internal ||
            extent.freed || sg_space_is_host(extent.space) || extent.space == SG_SPACE_MAPPED ||
            (extent.space == SG_SPACE_IPC && !sg_ipc_is_pool(&extent)))
            return CUDA_ERROR_INVALID_VALUE;
        if (pass == 0 && sg_ipc_closed(&extent))
            return CUDA_SUCCESS;
        if (pass == 0)
            sg_memory_wait(extent.device);
    }
    if (extent.space == SG_SPACE_MANAGED)
        return sg_host_give(dptr, SG_SPACE_MANAGED);
    return extent.block ? sg_block_give(extent.block) : sg_memory_give(dptr);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    *free_bytes = context->device->memory_size - context->device->memory_used;
    *total = context->device->memory_size;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_extent extent;
    SG_TRY(sg_context_current(&context));
    if (!sg_address_find(dptr, &extent))
        return CUDA_ERROR_NOT_FOUND;
    if (pbase)
        *pbase = extent.begin;
    if (psize)
        *psize = extent.end - extent.begin;
    return CUDA_SUCCESS;
}

/* ---- pointer attributes ---- */
static CUmemorytype memory_type(const struct sg_extent *extent)
{
    return sg_space_is_host(extent->space) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

/* The attributes that are addresses and handles. */
static CUresult place_of(void *data, CUpointer_attribute attribute, CUdeviceptr ptr,
                         const struct sg_extent *extent)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        /* Memory of pools and of virtual memory management belongs to no context. */
        if (extent->space == SG_SPACE_POOL || extent->space == SG_SPACE_MAPPED ||
            sg_ipc_is_pool(extent))
            return CUDA_ERROR_INVALID_VALUE;
        *(CUcontext *)data = extent->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!sg_space_is_host(extent->space) && extent->space != SG_SPACE_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = extent->begin;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = extent->end - extent->begin;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = extent->pool;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult attribute_of(void *data, CUpointer_attribute attribute, CUdeviceptr ptr,
                             const struct sg_extent *extent)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = memory_type(extent);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return CUDA_ERROR_NOT_SUPPORTED;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned *)data = extent->sync_memops;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = extent->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: /* one memory may be mapped at several addresses */
        *(unsigned long long *)data = extent->physical ? (uintptr_t)extent->physical : extent->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = extent->space == SG_SPACE_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = extent->device->ordinal;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = extent->space == SG_SPACE_DEVICE && !extent->internal;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = extent->space == SG_SPACE_MAPPED && !extent->access
                                ? CU_MEM_ACCESS_FLAGS_PROT_NONE
                                : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return CUDA_SUCCESS;
    default:
        return place_of(data, attribute, ptr, extent);
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent extent;
    if (!data || !sg_address_find(ptr, &extent))
        return CUDA_ERROR_INVALID_VALUE;
    return attribute_of(data, attribute, ptr, &extent);
}

/* What cuPointerGetAttributes says of an address it does not know, or of an
 * attribute that the memory does not have: null, or a device that is none. */
static CUresult attribute_null(void *data, CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        memset(data, 0, 8);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = -2;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        memset(data, 0, 4);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *list, void **data,
                                CUdeviceptr ptr)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent extent;
    if (!numAttributes || !list || !data)
        return CUDA_ERROR_INVALID_VALUE;
    bool known = sg_address_find(ptr, &extent);
    for (unsigned i = 0; i < numAttributes; i++) {
        if (!data[i])
            return CUDA_ERROR_INVALID_VALUE;
        if (!known || attribute_of(data[i], list[i], ptr, &extent) != CUDA_SUCCESS)
            SG_TRY(attribute_null(data[i], list[i]));
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent extent;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !sg_address_find(ptr, &extent))
        return CUDA_ERROR_INVALID_VALUE;
    extent.sync_memops = *(const unsigned *)value != 0;
    sg_address_update(&extent);
    return CUDA_SUCCESS;
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                    CUflushGPUDirectRDMAWritesScope scope)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
        (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
         scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* nobody else writes here */
}
