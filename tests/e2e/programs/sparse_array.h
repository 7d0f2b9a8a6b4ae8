/* driver_sparse*.c: arrays whose memory is mapped later, and what their words are. */
#ifndef SPARSE_ARRAY_H
#define SPARSE_ARRAY_H

#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)64 << 10)
#define WORD ((size_t)4)

static CUstream stream;
static CUmemGenericAllocationHandle pool;
static size_t pool_bytes;

/* --- memory and entries ------------------------------------------------------------------------ */

static inline CUmemGenericAllocationHandle memory_of(size_t bytes, unsigned usage)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    CUmemGenericAllocationHandle made;
    p.allocFlags.usage = (unsigned short)usage;
    CU(cuMemCreate(&made, bytes, &p, 0));
    return made;
}

static inline size_t granule(void)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    size_t bytes;
    p.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    CU(cuMemGetAllocationGranularity(&bytes, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return bytes;
}

static inline CUarrayMapInfo mapped(CUmemGenericAllocationHandle memory, size_t offset)
{
    CUarrayMapInfo i = {.resourceType = CU_RESOURCE_TYPE_ARRAY, .offset = offset};
    i.memOperationType = memory ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
    i.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    i.memHandle.memHandle = memory;
    i.deviceBitMask = 1u << driver_device;
    return i;
}

struct tile {
    unsigned x, y, z; /* in tiles */
};

/* One tile of an array; memory 0: nothing. */
static inline CUarrayMapInfo tile_of(CUarray array, const CUDA_ARRAY_SPARSE_PROPERTIES *p,
                                     struct tile at, CUmemGenericAllocationHandle memory,
                                     size_t offset)
{
    CUarrayMapInfo i = mapped(memory, offset);
    i.resource.array = array;
    i.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    i.subresource.sparseLevel.offsetX = at.x * p->tileExtent.width;
    i.subresource.sparseLevel.offsetY = at.y * p->tileExtent.height;
    i.subresource.sparseLevel.offsetZ = at.z * p->tileExtent.depth;
    i.subresource.sparseLevel.extentWidth = p->tileExtent.width;
    i.subresource.sparseLevel.extentHeight = p->tileExtent.height;
    i.subresource.sparseLevel.extentDepth = p->tileExtent.depth;
    return i;
}

static inline CUresult map(CUarrayMapInfo info)
{
    return cuMemMapArrayAsync(&info, 1, stream);
}

static inline CUarray array_of(size_t width, size_t height, size_t depth, unsigned flags)
{
    const CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, CU_AD_FORMAT_UNSIGNED_INT32, 1, flags};
    CUarray array;
    CU(cuArray3DCreate(&array, &d));
    return array;
}

/* --- words ------------------------------------------------------------------------------------- */

static inline unsigned word_of(size_t x, size_t y, size_t z)
{
    return (unsigned)((z << 24) + (y << 12) + x) * 2654435761u | 1;
}

static inline void whole(CUarray array, size_t width, size_t height, size_t depth, unsigned *host,
                         bool up)
{
    CUDA_MEMCPY3D c = {.WidthInBytes = width * WORD, .Height = height, .Depth = depth};
    c.srcMemoryType = up ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
    c.dstMemoryType = up ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
    c.srcHost = c.dstHost = host;
    c.srcArray = c.dstArray = array;
    c.srcPitch = c.dstPitch = width * WORD;
    c.srcHeight = c.dstHeight = height;
    CU(cuMemcpy3DAsync(&c, stream));
    CU(cuStreamSynchronize(stream));
}

static inline void fill(CUarray array, size_t width, size_t height, size_t depth)
{
    unsigned *host = malloc(width * height * depth * WORD);
    REQUIRE(host, "no memory");
    for (size_t i = 0; i < width * height * depth; i++)
        host[i] = word_of(i % width, i / width % height, i / width / height);
    whole(array, width, height, depth, host, true);
    free(host);
}

/* Whether each word is what was written there, if `there` says that its tile is, else 0. */
static inline void expect_tiles(CUarray array, size_t width, size_t height, size_t depth,
                                const CUDA_ARRAY_SPARSE_PROPERTIES *p, const struct tile *there,
                                int count, const char *what)
{
    unsigned *host = malloc(width * height * depth * WORD);
    size_t wrong = 0;
    REQUIRE(host, "no memory");
    memset(host, 0x5a, width * height * depth * WORD);
    whole(array, width, height, depth, host, false);
    for (size_t i = 0; i < width * height * depth; i++) {
        size_t x = i % width, y = i / width % height, z = i / width / height;
        bool is = false;
        for (int n = 0; n < count; n++)
            is |= x / p->tileExtent.width == there[n].x && y / p->tileExtent.height == there[n].y &&
                  z / p->tileExtent.depth == there[n].z;
        wrong += host[i] != (is ? word_of(x, y, z) : 0);
    }
    EXPECT(!wrong, "%s: %zu words are wrong", what, wrong);
    free(host);
}

/* --- the program ------------------------------------------------------------------------------- */

static inline bool device_can(CUdevice_attribute what)
{
    int can = 0;
    CU(cuDeviceGetAttribute(&can, what, driver_device));
    return can;
}

static inline void sparse_start(void)
{
    driver_start();
    REQUIRE(device_can(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED), "no sparse arrays");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pool_bytes = granule();
    pool = memory_of(pool_bytes, CU_MEM_CREATE_USAGE_TILE_POOL);
}

static inline void sparse_stop(void)
{
    CU(cuMemRelease(pool));
    CU(cuStreamDestroy(stream));
    driver_stop();
}

#endif
