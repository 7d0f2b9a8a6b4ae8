/* Mappings of memory at reserved addresses, and into arrays. */
#include <stdlib.h>

#include "array.h"
#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "ranges.h"
#include "session.h"
#include "shared.h"

GPC_EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                             CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult r = gpc_enter(GP_OP_cuMemMap, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    r = gpc_wire_cuMemMap(ptr, size, offset, handle, flags);
    return gpc_leave(r ? r : gpc_memory_keep((uint64_t)handle, ptr, size, GPC_RANGE_MAPPED));
}

GPC_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult r = gpc_enter(GP_OP_cuMemUnmap, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if ((r = gpc_wire_cuMemUnmap(ptr, size)) != CUDA_SUCCESS)
        return gpc_leave(r);
    /* several mappings may go at once */
    struct gpc_range range;
    for (CUdeviceptr at = ptr; at < ptr + size; at += range.size)
        if (!gpc_range_find(at, &range) || range.begin != at || range.kind != GPC_RANGE_MAPPED ||
            !gpc_range_forget(&range))
            break;
    return gpc_leave(CUDA_SUCCESS);
}

/* --- arrays ----------------------------------------------------------------------------- */

/* Entries in one message, and of one call of the driver's. */
#define ENTRIES_MAX 4096u
_Static_assert(ENTRIES_MAX * sizeof(struct gp_array_map) < GP_CHUNK_MAX, "one message");

/* A handle as it travels, of the stream's host. */
static CUresult handle_take(struct gpc_route *on, enum gp_handle_kind kind, uint64_t id)
{
    if (!gpc_handle_live(kind, id))
        return (CUresult)gp_handle_not_live[kind];
    return gpc_route_take(on, gpc_session_of_handle(id)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* A level is mapped through what it is of. */
static CUresult resource_take(struct gpc_route *on, const CUarrayMapInfo *info,
                              struct gp_array_map *to)
{
    if (info->resourceType != CU_RESOURCE_TYPE_ARRAY &&
        info->resourceType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    to->mipmapped = info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    to->resource = to->mipmapped ? (uint64_t)info->resource.mipmap : (uint64_t)info->resource.array;
    const struct gpc_array *a = to->mipmapped ? NULL : gpc_array_of(info->resource.array);
    if (a && a->is_part)
        return CUDA_ERROR_INVALID_VALUE;
    return handle_take(on, to->mipmapped ? GP_HANDLE_MIPMAP : GP_HANDLE_ARRAY, to->resource);
}

static CUresult memory_take(struct gpc_route *on, const CUarrayMapInfo *info,
                            struct gp_array_map *to)
{
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
        return CUDA_SUCCESS; /* whatever memory is named */
    to->memory = info->memHandle.memHandle;
    to->offset = info->offset;
    if (info->memOperationType != CU_MEM_OPERATION_TYPE_MAP ||
        info->memHandleType != CU_MEM_HANDLE_TYPE_GENERIC || !to->memory)
        return CUDA_ERROR_INVALID_VALUE;
    return handle_take(on, GP_HANDLE_ALLOCATION, to->memory);
}

static void part_take(const CUarrayMapInfo *info, struct gp_array_map *to)
{
    to->subresource = info->subresourceType;
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
        to->layer = info->subresource.miptail.layer;
        to->at[0] = info->subresource.miptail.offset;
        to->extent[0] = info->subresource.miptail.size;
        return;
    }
    to->level = info->subresource.sparseLevel.level;
    to->layer = info->subresource.sparseLevel.layer;
    to->at[0] = info->subresource.sparseLevel.offsetX;
    to->at[1] = info->subresource.sparseLevel.offsetY;
    to->at[2] = info->subresource.sparseLevel.offsetZ;
    to->extent[0] = info->subresource.sparseLevel.extentWidth;
    to->extent[1] = info->subresource.sparseLevel.extentHeight;
    to->extent[2] = info->subresource.sparseLevel.extentDepth;
}

/* "This mask must have exactly one bit set, and the corresponding device must match the device
 * associated with the stream." */
static CUresult entry_take(struct gpc_route *on, const CUarrayMapInfo *info,
                           struct gp_array_map *to)
{
    *to = (struct gp_array_map){.resource = 0};
    bool names_device = on->device >= 0 && on->device < 32 &&
                        info->deviceBitMask == 1u << on->device;
    if (!names_device || info->flags || info->reserved[0] || info->reserved[1])
        return CUDA_ERROR_INVALID_VALUE;
    part_take(info, to);
    CUresult r = resource_take(on, info, to);
    return r ? r : memory_take(on, info, to);
}

static CUresult map_some(struct gpc_route *on, const CUarrayMapInfo *list, uint32_t count,
                         CUstream stream)
{
    struct gp_array_map *entries = malloc(count * sizeof *entries);
    CUresult r = entries ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; r == CUDA_SUCCESS && i < count; i++)
        r = entry_take(on, &list[i], &entries[i]);
    if (r == CUDA_SUCCESS)
        r = gpc_wire_gp_array_map_on(on, stream, on->device, count, entries);
    free(entries);
    return r;
}

GPC_EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count,
                                       CUstream hStream)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuMemMapArrayAsync, hStream);
    if (r != CUDA_SUCCESS)
        return r;
    if (!mapInfoList || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned done = 0, some; r == CUDA_SUCCESS && done < count; done += some) {
        some = count - done < ENTRIES_MAX ? count - done : ENTRIES_MAX;
        r = map_some(&on, mapInfoList + done, some, hStream);
    }
    return gpc_leave(r);
}
