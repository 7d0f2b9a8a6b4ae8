/*
 * Arrays whose memory is mapped later: sparse ones tile by tile, with their mip tails, and deferred
 * ones as a whole; what is not mapped reads as zeros.
 */
#include "sparse_array.h"

/* Takes an object, a place for one word, and where. */
static const char ptx[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry fetch(.param .u64 object, .param .u64 to, .param .u32 x, .param .u32 y)\n"
    "{\n  .reg .b32 %r<8>; .reg .b64 %x<4>;\n  ld.param.u64 %x0, [object];\n"
    "  ld.param.u64 %x1, [to];\n  ld.param.u32 %r4, [x];\n  ld.param.u32 %r5, [y];\n"
    "  tex.2d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%x0, {%r4, %r5}];\n"
    "  st.global.b32 [%x1], %r0;\n  ret;\n}\n";

/* --- what is told ------------------------------------------------------------------------------ */

static void tiles(void)
{
    static const CUarray_format formats[] = {
        CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT32};
    for (int i = 0; i < 3 * 3 * 2; i++) {
        unsigned channels = 1u << (i / 3 % 3);
        size_t depth = i < 9 ? 0 : 64, element = ((size_t)1 << i % 3) * channels;
        const CUDA_ARRAY3D_DESCRIPTOR d = {
            512, 512, depth, formats[i % 3], channels, CUDA_ARRAY3D_SPARSE};
        CUDA_ARRAY_SPARSE_PROPERTIES p;
        CUDA_ARRAY3D_DESCRIPTOR told;
        CUarray array;
        CU(cuArray3DCreate(&array, &d));
        CU(cuArray3DGetDescriptor(&told, array));
        EXPECT(told.Flags == CUDA_ARRAY3D_SPARSE, "the flags are %#x", told.Flags);
        CU(cuArrayGetSparseProperties(&p, array));
        size_t bytes = element * p.tileExtent.width * p.tileExtent.height * p.tileExtent.depth;
        EXPECT(bytes == PAGE, "a tile of %zu bytes each is %u x %u x %u", element,
               p.tileExtent.width, p.tileExtent.height, p.tileExtent.depth);
        EXPECT((p.tileExtent.depth == 1) == !depth, "a tile is %u deep", p.tileExtent.depth);
        EXPECT(p.miptailFirstLevel == 0 && (p.flags || p.miptailSize == 0), "an array has a tail");
        CU(cuArrayDestroy(array));
    }
}

/* --- arrays ------------------------------------------------------------------------------------ */

static void flat(void)
{
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    CUarray array = array_of(512, 512, 0, CUDA_ARRAY3D_SPARSE);
    CU(cuArrayGetSparseProperties(&p, array));

    fill(array, 512, 512, 1);
    expect_tiles(array, 512, 512, 1, &p, NULL, 0, "nothing is mapped");
    const struct tile two[] = {{1, 0, 0}, {3, 3, 0}};
    CUarrayMapInfo both[] = {tile_of(array, &p, two[0], pool, 3 * PAGE),
                             tile_of(array, &p, two[1], pool, 5 * PAGE)};
    CU(cuMemMapArrayAsync(both, 2, stream));
    fill(array, 512, 512, 1);
    expect_tiles(array, 512, 512, 1, &p, two, 2, "two tiles");
    CU(map(tile_of(array, &p, two[0], 0, 0)));
    expect_tiles(array, 512, 512, 1, &p, two + 1, 1, "one is taken away");
    CU(map(tile_of(array, &p, two[0], pool, 3 * PAGE)));
    expect_tiles(array, 512, 512, 1, &p, two, 2, "it is back");
    /* a box of four tiles, and one of them anew: memory is taken one tile behind the other */
    CUarrayMapInfo box = tile_of(array, &p, (struct tile){0, 0, 0}, pool, 8 * PAGE);
    box.subresource.sparseLevel.extentWidth *= 2;
    box.subresource.sparseLevel.extentHeight *= 2;
    CU(map(box));
    fill(array, 512, 512, 1);
    CU(map(tile_of(array, &p, (struct tile){2, 0, 0}, pool, 11 * PAGE)));
    unsigned *host = malloc(512 * 512 * WORD);
    REQUIRE(host, "no memory");
    whole(array, 512, 512, 1, host, false);
    EXPECT(host[2 * p.tileExtent.width] == word_of(p.tileExtent.width, p.tileExtent.height, 0),
           "the fourth tile is not the fourth page");
    free(host);
    CU(cuArrayDestroy(array));
}

static void deep(void)
{
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    CUarray array = array_of(96, 96, 48, CUDA_ARRAY3D_SPARSE);
    const struct tile one[] = {{1, 2, 1}};

    CU(cuArrayGetSparseProperties(&p, array));
    CU(map(tile_of(array, &p, one[0], pool, PAGE)));
    fill(array, 96, 96, 48);
    expect_tiles(array, 96, 96, 48, &p, one, 1, "a tile of a volume");
    CU(cuArrayDestroy(array));
}

static void layers(void)
{
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    CUarray array = array_of(256, 256, 3, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_LAYERED);
    const struct tile one[] = {{1, 1, 2}};

    CU(cuArrayGetSparseProperties(&p, array));
    CUarrayMapInfo info = tile_of(array, &p, (struct tile){1, 1, 0}, pool, 0);
    info.subresource.sparseLevel.layer = 2;
    CU(map(info));
    fill(array, 256, 256, 3);
    expect_tiles(array, 256, 256, 3, &p, one, 1, "a tile of a layer");
    info.subresource.sparseLevel.layer = 3;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, map(info));
    CU(cuArrayDestroy(array));
}

/* Copies on the device, and between two of them. */
static void between(void)
{
    CUarray from = array_of(256, 256, 0, CUDA_ARRAY3D_SPARSE), to = array_of(256, 256, 0, 0);
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    const struct tile one[] = {{0, 1, 0}};
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                       .srcArray = from,
                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                       .dstArray = to,
                       .WidthInBytes = 256 * WORD,
                       .Height = 256,
                       .Depth = 1};
    CU(cuArrayGetSparseProperties(&p, from));
    CU(map(tile_of(from, &p, one[0], pool, 2 * PAGE)));
    fill(from, 256, 256, 1);
    fill(to, 256, 256, 1);
    CU(cuMemcpy3DAsync(&c, stream));
    expect_tiles(to, 256, 256, 1, &p, one, 1, "copied to an array");
    CUDA_MEMCPY3D back = c;
    back.srcArray = to;
    back.dstArray = from;
    fill(to, 256, 256, 1);
    CU(cuMemcpy3DAsync(&back, stream));
    expect_tiles(from, 256, 256, 1, &p, one, 1, "copied from an array");
    CU(cuArrayDestroy(from));
    CU(cuArrayDestroy(to));
}

/* --- kernels ----------------------------------------------------------------------------------- */

static CUmodule module;
static CUdeviceptr word;

static unsigned run(const char *name, unsigned long long object, unsigned value, unsigned x,
                    unsigned y)
{
    void *parameters[] = {&object, &word, &x, &y};
    CU(cuMemcpyHtoDAsync(word, &value, sizeof value, stream));
    CU(cuLaunchKernel(driver_function(module, name), 1, 1, 1, 1, 1, 1, 0, stream, parameters,
                      NULL));
    CU(cuMemcpyDtoHAsync(&value, word, sizeof value, stream));
    CU(cuStreamSynchronize(stream));
    return value;
}

static void kernels(void)
{
    CUarray array = array_of(256, 256, 0, CUDA_ARRAY3D_SPARSE);
    const CUDA_RESOURCE_DESC what = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array};
    const CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_READ_AS_INTEGER};
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    CUtexObject texture;

    CU(cuModuleLoadData(&module, ptx));
    CU(cuMemAlloc(&word, WORD));
    CU(cuTexObjectCreate(&texture, &what, &how, NULL));
    CU(cuArrayGetSparseProperties(&p, array));
    CU(map(tile_of(array, &p, (struct tile){1, 0, 0}, pool, 0)));
    fill(array, 256, 256, 1);
    EXPECT(run("fetch", texture, 1, 200, 3) == word_of(200, 3, 0), "a texel of a tile is wrong");
    EXPECT(run("fetch", texture, 1, 100, 3) == 0, "a texel of no tile is not 0");
    /* mapped in the order of the stream: the same memory, then in another place */
    CUarrayMapInfo moved[] = {tile_of(array, &p, (struct tile){1, 0, 0}, 0, 0),
                              tile_of(array, &p, (struct tile){0, 1, 0}, pool, 0)};
    CU(cuMemMapArrayAsync(moved, 2, stream));
    EXPECT(run("fetch", texture, 1, 72, 131) == word_of(200, 3, 0),
           "a tile that moved has other texels");
    EXPECT(run("fetch", texture, 1, 200, 3) == 0, "a tile that moved is where it was");
    CU(cuTexObjectDestroy(texture));
    CU(cuArrayDestroy(array));
    CU(cuMemFree(word));
    CU(cuModuleUnload(module));
}

/* --- mipmapped arrays --------------------------------------------------------------------------- */

static CUmipmappedArray mipmap_of(size_t size, size_t depth, unsigned levels, unsigned flags)
{
    const CUDA_ARRAY3D_DESCRIPTOR d = {size, size, depth, CU_AD_FORMAT_UNSIGNED_INT32, 1, flags};
    CUmipmappedArray mipmap;
    CU(cuMipmappedArrayCreate(&mipmap, &d, levels));
    return mipmap;
}

static CUarrayMapInfo in_mipmap(CUarrayMapInfo i, CUmipmappedArray mipmap, unsigned level)
{
    i.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    i.resource.mipmap = mipmap;
    i.subresource.sparseLevel.level = level;
    return i;
}

static CUarrayMapInfo tail_of(CUmipmappedArray mipmap, unsigned layer, size_t size,
                              CUmemGenericAllocationHandle memory, size_t offset)
{
    CUarrayMapInfo i = mapped(memory, offset);
    i.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    i.resource.mipmap = mipmap;
    i.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    i.subresource.miptail.layer = layer;
    i.subresource.miptail.size = size;
    return i;
}

static void tails(unsigned layered)
{
    size_t depth = layered ? 2 : 0;
    CUmipmappedArray mipmap = mipmap_of(512, depth, 10, CUDA_ARRAY3D_SPARSE | layered);
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    CUarray level;

    CU(cuMipmappedArrayGetSparseProperties(&p, mipmap));
    REQUIRE(p.miptailFirstLevel > 0 && p.miptailFirstLevel < 10 && p.miptailSize &&
                p.miptailSize % PAGE == 0 && 2 * p.miptailSize < pool_bytes / 2,
            "the tail begins at level %u and has %llu bytes", p.miptailFirstLevel, p.miptailSize);
    const unsigned tail = p.miptailFirstLevel;
    const struct tile one[] = {{1, 0, 0}};
    unsigned layer = layered && !(p.flags & CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL) ? 1 : 0;
    CU(map(in_mipmap(tile_of(NULL, &p, one[0], pool, 0), mipmap, 1)));
    CU(cuMipmappedArrayGetLevel(&level, mipmap, 1));
    fill(level, 256, 256, 1);
    expect_tiles(level, 256, 256, 1, &p, one, 1, "a tile of a level");

    CU(cuMipmappedArrayGetLevel(&level, mipmap, tail));
    size_t size = (size_t)512 >> tail, slices = depth ? depth : 1;
    fill(level, size, size, slices);
    expect_tiles(level, size, size, slices, &p, NULL, 0, "a tail that is not mapped");
    CU(map(tail_of(mipmap, layer, p.miptailSize, pool, pool_bytes / 2)));
    fill(level, size, size, slices);
    const struct tile there[] = {{0, 0, layer}};
    expect_tiles(level, size, size, slices, &p, there, 1, "a tail");
    CU(cuMipmappedArrayGetLevel(&level, mipmap, 9));
    fill(level, 1, 1, slices);
    expect_tiles(level, 1, 1, slices, &p, there, 1, "the end of a tail");
    CU(map(tail_of(mipmap, layer, p.miptailSize, 0, 0)));
    expect_tiles(level, 1, 1, slices, &p, NULL, 0, "a tail that is taken away");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             map(in_mipmap(tile_of(NULL, &p, (struct tile){0, 0, 0}, pool, 0), mipmap, tail)));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, map(tail_of(mipmap, layer, p.miptailSize + PAGE, pool, 0)));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, map(tail_of(mipmap, layer, PAGE / 2, pool, 0)));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&p, level));
    CUarrayMapInfo part = tile_of(level, &p, (struct tile){0, 0, 0}, pool, 0);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, map(part));
    CU(cuMipmappedArrayDestroy(mipmap));
}

/* --- mapped as a whole --------------------------------------------------------------------------- */

static void deferred(void)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    CUDA_ARRAY_SPARSE_PROPERTIES p = {.tileExtent = {1000, 1000, 1000}};
    CUarray array = array_of(300, 200, 0, CUDA_ARRAY3D_DEFERRED_MAPPING);
    const struct tile all[] = {{0, 0, 0}};

    CU(cuArrayGetMemoryRequirements(&needs, array, driver_device));
    REQUIRE(needs.size >= 300 * 200 * WORD && needs.alignment && needs.size <= pool_bytes,
            "an array needs %zu bytes, aligned to %zu", needs.size, needs.alignment);
    CUarrayMapInfo info = mapped(pool, needs.alignment);
    info.resource.array = array;
    CU(map(info));
    fill(array, 300, 200, 1);
    expect_tiles(array, 300, 200, 1, &p, all, 1, "an array that was mapped");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&p, array));
    CU(cuArrayDestroy(array));

    CUmipmappedArray mipmap = mipmap_of(256, 0, 5, CUDA_ARRAY3D_DEFERRED_MAPPING);
    CU(cuMipmappedArrayGetMemoryRequirements(&needs, mipmap, driver_device));
    info = mapped(pool, 0);
    info.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    info.resource.mipmap = mipmap;
    CU(map(info));
    for (unsigned i = 0; i < 5; i++) {
        CU(cuMipmappedArrayGetLevel(&array, mipmap, i));
        fill(array, 256 >> i, 256 >> i, 1);
    }
    for (unsigned i = 0; i < 5; i++) {
        CU(cuMipmappedArrayGetLevel(&array, mipmap, i));
        expect_tiles(array, 256 >> i, 256 >> i, 1, &p, all, 1, "a level that was mapped");
    }
    CU(cuMipmappedArrayDestroy(mipmap));
}

int main(void)
{
    sparse_start();
    tiles();
    flat();
    deep();
    layers();
    between();
    kernels();
    tails(0);
    tails(CUDA_ARRAY3D_LAYERED);
    if (device_can(CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED))
        deferred();
    sparse_stop();
    return finish("driver_sparse");
}
