/* Mappings of memory at reserved addresses. */
#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "ranges.h"

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
