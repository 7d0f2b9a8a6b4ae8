/* Occupancy questions that the worker cannot be asked as they are. */
#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_stubs.h"
#include "gpc_wire.h"
#include "module.h"
#include "session.h"
#include "shared.h"

/*
 * The largest block that reaches the most resident threads. A callback says how
 * much dynamic shared memory a block needs, so the search is here, over answers
 * that are kept.
 */
CUresult gpc_as_cuOccupancyMaxPotentialBlockSizeWithFlags(
    uint16_t op, int *minGridSize, int *blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
    unsigned int flags)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!minGridSize || !blockSize)
        return CUDA_ERROR_INVALID_VALUE;
    const struct gp_device_info *d = gpc_device_info(gpc_context_device(gpc_current()));
    int most, best = 0, best_block = 0, best_count = 0;
    struct gpc_kernel *k = gpc_kernel_of(func);
    if (!k)
        return CUDA_ERROR_INVALID_HANDLE;
    CUdevice device = gpc_kernel_device(k);
    r = gpc_attributes_ready(k, device, NULL);
    if (r == CUDA_SUCCESS)
        r = gpc_attribute_get(k, device, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &most);
    if (r != CUDA_SUCCESS)
        return r;
    const int32_t *a = d->attributes;
    int warp = a[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
    int full = a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR];
    if (most > a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK])
        most = a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
    if (blockSizeLimit > 0 && blockSizeLimit < most)
        most = blockSizeLimit;
    for (int aligned = (most + warp - 1) / warp * warp; aligned > 0 && best < full;
         aligned -= warp) {
        int block = aligned < most ? aligned : most, count;
        size_t dynamic = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(block)
                                                    : dynamicSMemSize;
        r = gpc_wire_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&count, func, block,
                                                                          dynamic, flags);
        if (r != CUDA_SUCCESS)
            return r;
        if (count < 0 || count > full) /* of blocks with one thread at least */
            return CUDA_ERROR_UNKNOWN;
        if (count * block > best) {
            best = count * block;
            best_block = block;
            best_count = count;
        }
    }
    *blockSize = best_block;
    *minGridSize = best_count * a[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    return gpc_leave(CUDA_SUCCESS);
}

/* How much of an attribute's value its kind fills: the rest is what the caller's stack
 * had, and must not make of one question many. */
static size_t value_size(CUlaunchAttributeID id)
{
    const CUlaunchAttributeValue *v = NULL;
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        return sizeof v->clusterDim;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return sizeof(int);
    default:
        return sizeof *v;
    }
}

static void attributes_clean(CUlaunchAttribute *to, const CUlaunchAttribute *from, unsigned count)
{
    memset(to, 0, count * sizeof *to);
    for (unsigned i = 0; i < count; i++) {
        to[i].id = from[i].id;
        memcpy(&to[i].value, &from[i].value, value_size(from[i].id));
    }
}

CUresult gpc_occupancy_clusters(int *result, CUfunction func, const CUlaunchConfig *c, bool most)
{
    CUlaunchAttribute attributes[GP_ATTRIBUTES_PER_LAUNCH_MAX];
    if (!result || !c || (c->numAttrs && !c->attrs) || c->numAttrs > GP_ATTRIBUTES_PER_LAUNCH_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    attributes_clean(attributes, c->attrs, c->numAttrs);
    return gpc_wire_gp_occupancy_clusters(func, most, c->gridDimX, c->gridDimY, c->gridDimZ,
                                          c->blockDimX, c->blockDimY, c->blockDimZ,
                                          c->sharedMemBytes, c->numAttrs, attributes, result);
}
