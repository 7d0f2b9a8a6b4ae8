/* Occupancy: how many blocks a multiprocessor would hold, by the usual limits. */
#include "softgpu.h"

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

int sg_occupancy_blocks(const struct sg_function_info *info, unsigned threads,
                        size_t dynamic_shared)
{
    if (threads == 0 || threads > info->max_threads || threads > SG_MAX_THREADS ||
        dynamic_shared > SG_SHARED_OPTIN ||
        dynamic_shared + info->static_shared_bytes > SG_SHARED_OPTIN)
        return 0;
    uint64_t warps = (threads + 31) / 32;
    uint64_t blocks = SG_BLOCKS_PER_SM;
    uint64_t by_threads = SG_THREADS_PER_SM / (warps * 32);
    uint64_t per_warp = round_up((uint64_t)info->register_count * 32, 256);
    uint64_t by_registers = per_warp ? SG_REGISTERS_PER_SM / (per_warp * warps) : blocks;
    uint64_t shared = round_up(info->static_shared_bytes + dynamic_shared + SG_SHARED_RESERVED,
                               128);
    uint64_t by_shared = SG_SHARED_PER_SM / shared;
    blocks = by_threads < blocks ? by_threads : blocks;
    blocks = by_registers < blocks ? by_registers : blocks;
    return (int)(by_shared < blocks ? by_shared : blocks);
}

/* The function's description, in the current context. sg.lock is held. */
static CUresult info_of(CUfunction handle, const struct sg_function_info **info)
{
    CUcontext context;
    CUfunction function;
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_function_get(handle, context, &function));
    *info = sg_function_info(function->code);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
                                                              int blockSize, size_t dynamicSMemSize,
                                                              unsigned int flags)
{
    SG_LOCKED;
    const struct sg_function_info *info;
    SG_TRY(info_of(func, &info));
    if (!numBlocks || blockSize <= 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
        return CUDA_ERROR_INVALID_VALUE;
    *numBlocks = sg_occupancy_blocks(info, (unsigned)blockSize, dynamicSMemSize);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                                dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize,
                                                   CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int flags)
{
    struct sg_function_info info;
    if (!minGridSize || !blockSize || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)) {
        SG_READY();
        return CUDA_ERROR_INVALID_VALUE;
    }
    {
        SG_LOCKED;
        const struct sg_function_info *found;
        SG_TRY(info_of(func, &found));
        info = *found;
    }
    int limit = (int)info.max_threads, best = 0, best_size = 0, best_blocks = 0;
    if (blockSizeLimit > 0 && blockSizeLimit < limit)
        limit = blockSizeLimit;
    for (int size = (limit + 31) / 32 * 32; size > 0; size -= 32) {
        int threads = size < limit ? size : limit;
        /* The callback is the caller's: no lock is held. */
        size_t shared = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(threads)
                                                   : dynamicSMemSize;
        int blocks = sg_occupancy_blocks(&info, (unsigned)threads, shared);
        if (blocks * threads > best) {
            best = blocks * threads;
            best_size = threads;
            best_blocks = blocks;
        }
    }
    *blockSize = best_size;
    *minGridSize = best_blocks * SG_MULTIPROCESSORS;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func,
                                                     blockSizeToDynamicSMemSize, dynamicSMemSize,
                                                     blockSizeLimit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func,
                                                 int numBlocks, int blockSize)
{
    SG_LOCKED;
    const struct sg_function_info *info;
    SG_TRY(info_of(func, &info));
    if (!dynamicSmemSize || numBlocks <= 0 || blockSize <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t share = SG_SHARED_PER_SM / (unsigned)numBlocks / 128 * 128;
    uint64_t taken = info->static_shared_bytes + SG_SHARED_RESERVED;
    uint64_t most = SG_SHARED_OPTIN - info->static_shared_bytes;
    bool fits = sg_occupancy_blocks(info, (unsigned)blockSize, 0) >= numBlocks;
    uint64_t left = fits && share > taken ? share - taken : 0;
    *dynamicSmemSize = left < most ? left : most;
    return CUDA_SUCCESS;
}

/* Blocks of one cluster, from the launch's attributes; 0: none named. */
static unsigned cluster_size(const CUlaunchConfig *config)
{
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            return config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
                   config->attrs[i].value.clusterDim.z;
    return 0;
}

static CUresult config_blocks(CUfunction func, const CUlaunchConfig *config, int *blocks)
{
    const struct sg_function_info *info;
    SG_TRY(info_of(func, &info));
    if (!config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (threads == 0 || threads > SG_MAX_THREADS)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = sg_occupancy_blocks(info, (unsigned)threads, config->sharedMemBytes);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func,
                                      const CUlaunchConfig *config)
{
    SG_LOCKED;
    int blocks;
    if (!numClusters) {
        SG_READY();
        return CUDA_ERROR_INVALID_VALUE;
    }
    SG_TRY(config_blocks(func, config, &blocks));
    unsigned size = cluster_size(config);
    if (size > 16)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    *numClusters = blocks * SG_MULTIPROCESSORS / (int)(size ? size : 1);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func,
                                            const CUlaunchConfig *config)
{
    SG_LOCKED;
    int blocks;
    if (!clusterSize) {
        SG_READY();
        return CUDA_ERROR_INVALID_VALUE;
    }
    SG_TRY(config_blocks(func, config, &blocks));
    int most = blocks * SG_MULTIPROCESSORS;
    *clusterSize = most < 8 ? most : 8;
    return CUDA_SUCCESS;
}
