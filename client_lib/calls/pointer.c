/* What a pointer is: answered from the ranges that this process was given. */
#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "managed.h"
#include "memory.h"
#include "ranges.h"
#include "session.h"

/* What is the same of all memory that is ours. */
static CUresult of_all(void *data, CUpointer_attribute which)
{
    switch (which) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: /* of the GPU host's kernel */
        return CUDA_ERROR_NOT_SUPPORTED;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* A device's default pool gets its handle when somebody asks. */
static CUresult pool_of(CUmemoryPool *pool, const struct gpc_range *range)
{
    bool pooled = range->kind == GPC_RANGE_POOL || range->kind == GPC_RANGE_IMPORTED;
    *pool = pooled ? (CUmemoryPool)range->from : NULL;
    return pooled && !*pool ? gpc_pool_default(range->device, pool) : CUDA_SUCCESS;
}

static bool is_exportable(CUdevice device)
{
    const struct gp_device_info *d = gpc_device_info(device);
    return d && d->attributes[CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] == 1;
}

/* What depends on the memory that the address is in. */
static CUresult of_range(void *data, CUpointer_attribute which, CUdeviceptr ptr,
                         const struct gpc_range *range)
{
    bool host = gpc_range_is_host(range);
    bool managed = range->kind == GPC_RANGE_MANAGED ||
                   (range->kind == GPC_RANGE_GLOBAL && gpc_managed_has(range->begin));
    bool reachable = !host || range->kind == GPC_RANGE_SHARED || !range->registered;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (range->kind == GPC_RANGE_POOL || range->kind == GPC_RANGE_GRAPH ||
            range->kind == GPC_RANGE_MAPPED || range->kind == GPC_RANGE_IMPORTED)
            return CUDA_ERROR_INVALID_VALUE;
        *(CUcontext *)data = range->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (!reachable)
            return CUDA_ERROR_INVALID_VALUE;
        /* pinned memory over a network has its own, once a kernel is given it (mapped.c) */
        *(CUdeviceptr *)data = range->device_address ? range->device_address + (ptr - range->begin)
                                                     : ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host && !managed)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)ptr;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(int *)data = managed;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = range->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: /* one memory may be mapped at several addresses */
        *(unsigned long long *)data = range->kind == GPC_RANGE_MAPPED ? range->from : range->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return pool_of(data, range);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(int *)data = range->sync;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = range->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = range->begin;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = range->size;
        return CUDA_SUCCESS;
    default:
        return of_all(data, which);
    }
}

/* One attribute. `range` is NULL for an address that is none of ours. */
static CUresult attribute(void *data, CUpointer_attribute which, CUdeviceptr ptr,
                          const struct gpc_range *range)
{
    if (which == CU_POINTER_ATTRIBUTE_MAPPED) {
        *(int *)data = range != NULL;
        return CUDA_SUCCESS;
    }
    if (range && which == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
        *(int *)data = range->kind == GPC_RANGE_DEVICE && is_exportable(range->device);
        return CUDA_SUCCESS;
    }
    if (range)
        return of_range(data, which, ptr, range);
    return which == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
                   which == CU_POINTER_ATTRIBUTE_IS_MANAGED
               ? of_all(data, which)
               : CUDA_ERROR_INVALID_VALUE;
}

/* How many bytes an attribute is, for the answers about pointers that are none. */
static size_t attribute_size(CUpointer_attribute which)
{
    switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    default:
        return 8;
    }
}

GPC_EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attr, CUdeviceptr ptr)
{
    CUresult r = gpc_enter(GP_OP_cuPointerGetAttribute, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_range range;
    return attribute(data, attr, ptr, gpc_range_find(ptr, &range) ? &range : NULL);
}

/* What a synchronous copy or set may have left under way is over when it is set. */
static CUresult set_sync(const struct gpc_range *range, bool sync)
{
    CUcontext context = range->context ? range->context : gpc_current();
    if (!gpc_range_set_sync(range, sync))
        return CUDA_ERROR_INVALID_VALUE; /* freed meanwhile */
    if (!sync || !context)
        return CUDA_SUCCESS;
    const struct gpc_route on = gpc_route_in(context);
    return gpc_wire_cuStreamSynchronize_on(&on, CU_STREAM_LEGACY);
}

GPC_EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                          CUdeviceptr ptr)
{
    CUresult r = gpc_enter(GP_OP_cuPointerSetAttribute, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_range range;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !gpc_range_find(ptr, &range))
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(set_sync(&range, *(const unsigned *)value != 0));
}

GPC_EXPORT CUresult cuPointerGetAttributes(unsigned int numAttributes,
                                           CUpointer_attribute *attributes, void **data,
                                           CUdeviceptr ptr)
{
    CUresult r = gpc_enter(GP_OP_cuPointerGetAttributes, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!attributes || !data || numAttributes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_range range;
    bool found = gpc_range_find(ptr, &range);
    for (unsigned i = 0; i < numAttributes; i++) {
        if (!data[i])
            return CUDA_ERROR_INVALID_VALUE;
        /* what does not apply is a null value here, and no error */
        memset(data[i], 0, attribute_size(attributes[i]));
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = CU_DEVICE_INVALID;
        attribute(data[i], attributes[i], ptr, found ? &range : NULL);
    }
    return CUDA_SUCCESS;
}
