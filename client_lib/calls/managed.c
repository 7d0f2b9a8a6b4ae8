/* Managed memory as CUDA has it: what is asked for is checked here and done by memory/managed. */
#include "managed.h"

#include "call.h"
#include "export.h"
#include "gpc_stubs.h"
#include "session.h"
#include "shared.h"

GPC_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    CUdeviceptr made;
    CUresult r = gpc_enter(GP_OP_cuMemAllocManaged, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!dptr || bytesize == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return gpc_leave(CUDA_ERROR_INVALID_VALUE);
    r = gpc_managed_alloc(&made, bytesize, flags);
    if (r == CUDA_SUCCESS)
        *dptr = made;
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                           unsigned int flags)
{
    uint64_t wire;
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, GP_OP_cuStreamAttachMemAsync, hStream);
    if (r == CUDA_SUCCESS)
        r = gpc_route_stream(&on, hStream, &wire);
    if (r != CUDA_SUCCESS)
        return r;
    bool single = flags == CU_MEM_ATTACH_SINGLE;
    if ((flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && !single) ||
        (single && wire == GP_STREAM_LEGACY)) /* one stream, not what orders them all */
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(gpc_managed_attach(dptr, length, flags, wire));
}

/* --- hints ----------------------------------------------------------------------------------- */

CUmemLocation gpc_location_of(CUdevice device)
{
    return device == CU_DEVICE_CPU
               ? (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST}
               : (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

CUresult gpc_as_cuMemAdvise_v2(uint16_t op, CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                               CUmemLocation location)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    return r ? r : gpc_leave(gpc_managed_advise(devPtr, count, advice, &location));
}

CUresult gpc_as_cuMemPrefetchAsync_v2(uint16_t op, CUdeviceptr devPtr, size_t count,
                                      CUmemLocation location, unsigned int flags, CUstream hStream)
{
    uint64_t wire;
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, op, hStream);
    if (r == CUDA_SUCCESS)
        r = gpc_route_stream(&on, hStream, &wire);
    if (r != CUDA_SUCCESS)
        return r;
    return flags ? CUDA_ERROR_INVALID_VALUE
                 : gpc_leave(gpc_managed_prefetch(devPtr, count, &location));
}

/* Which of the locations a range has: the last one whose ranges begin no later. */
static const CUmemLocation *location_at(const CUmemLocation *locations, const size_t *first,
                                        size_t location_count, size_t i)
{
    size_t at = 0;
    while (at + 1 < location_count && first[at + 1] <= i)
        at++;
    return &locations[at];
}

static bool locations_right(const CUmemLocation *locations, const size_t *first, size_t n,
                            size_t count)
{
    if (!locations || !first || n == 0 || n > count || first[0] != 0)
        return false;
    for (size_t i = 1; i < n; i++)
        if (first[i] <= first[i - 1] || first[i] >= count)
            return false;
    return true;
}

/* Contents that are discarded are what they were: that is one of the values that they may have. */
CUresult gpc_managed_batch(const struct gpc_route *on, const CUdeviceptr *at, const size_t *bytes,
                           size_t count, const CUmemLocation *locations, const size_t *first,
                           size_t location_count, unsigned long long flags)
{
    (void)on; /* whose stream is right */
    bool prefetch = locations || first || location_count;
    if (!at || !bytes || count == 0 || flags ||
        (prefetch && !locations_right(locations, first, location_count, count)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = prefetch ? gpc_managed_prefetch(at[i], bytes[i],
                                            location_at(locations, first, location_count, i))
                     : gpc_managed_check(at[i], bytes[i]);
    return r;
}

/* --- what was said ------------------------------------------------------------------------------ */

GPC_EXPORT CUresult cuMemRangeGetAttribute(void *data, size_t dataSize,
                                           CUmem_range_attribute attribute, CUdeviceptr devPtr,
                                           size_t count)
{
    CUresult r = gpc_enter(GP_OP_cuMemRangeGetAttribute, GPC_NEEDS_INIT);
    return r ? r : gpc_managed_attribute(data, dataSize, attribute, devPtr, count);
}

GPC_EXPORT CUresult cuMemRangeGetAttributes(void **data, size_t *dataSizes,
                                            CUmem_range_attribute *attributes, size_t numAttributes,
                                            CUdeviceptr devPtr, size_t count)
{
    CUresult r = gpc_enter(GP_OP_cuMemRangeGetAttributes, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!data || !dataSizes || !attributes || numAttributes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numAttributes && r == CUDA_SUCCESS; i++)
        r = gpc_managed_attribute(data[i], dataSizes[i], attributes[i], devPtr, count);
    return r;
}
