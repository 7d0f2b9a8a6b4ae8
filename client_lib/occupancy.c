/* Occupancy questions that the worker cannot be asked as they are. */
#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "module.h"
#include "session.h"

/*
 * The largest block that reaches the most resident threads. A callback says how
 * much dynamic shared memory a block needs, so the search is here, over answers
 * that are kept.
 */
static CUresult potential(uint16_t op, int *minGridSize, int *blockSize, CUfunction func,
                          CUoccupancyB2DSize size_of, size_t fixed, int limit, unsigned flags)
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
    r = gpc_attribute_get(k, gpc_kernel_device(k), CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &most);
    if (r != CUDA_SUCCESS)
        return r;
    const int32_t *a = d->attributes;
    int warp = a[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
    int full = a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR];
    if (limit > 0 && limit < most)
        most = limit;
    for (int aligned = (most + warp - 1) / warp * warp; aligned > 0 && best < full; aligned -= warp) {
        int block = aligned < most ? aligned : most, count;
        size_t dynamic = size_of ? size_of(block) : fixed;
        r = gpc_wire_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&count, func, block,
                                                                         dynamic, flags);
        if (r != CUDA_SUCCESS)
            return r;
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

GPC_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize,
                                                     CUfunction func,
                                                     CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                     size_t dynamicSMemSize, int blockSizeLimit)
{
    return potential(GP_OP_cuOccupancyMaxPotentialBlockSize, minGridSize, blockSize, func,
                     blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, 0);
}

GPC_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(
    int *minGridSize, int *blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
    unsigned int flags)
{
    return potential(GP_OP_cuOccupancyMaxPotentialBlockSizeWithFlags, minGridSize, blockSize, func,
                     blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, flags);
}

static CUresult clusters(uint16_t op, int *result, CUfunction func, const CUlaunchConfig *c,
                         bool most)
{
    static const CUlaunchAttribute none[1];
    CUresult r = gpc_enter(op, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!result || !c || (c->numAttrs && !c->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(gpc_wire_gp_occupancy_clusters(
        func, most, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
        c->blockDimZ, c->sharedMemBytes, c->numAttrs, c->numAttrs ? c->attrs : none, result));
}

GPC_EXPORT CUresult cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func,
                                                 const CUlaunchConfig *config)
{
    return clusters(GP_OP_cuOccupancyMaxActiveClusters, numClusters, func, config, false);
}

GPC_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func,
                                                       const CUlaunchConfig *config)
{
    return clusters(GP_OP_cuOccupancyMaxPotentialClusterSize, clusterSize, func, config, true);
}
