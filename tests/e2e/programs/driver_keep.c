/*
 * Memory that a program tries to keep without its being counted. What it is told is
 * free must say the truth each time, and in the end all of it is free again.
 */
#include "driver.h"

#define MIB ((size_t)1 << 20)
#define PIECES 16

static size_t limit;

static size_t left(void)
{
    size_t bytes, total;
    CU(cuCtxSynchronize());
    CU(cuMemGetInfo(&bytes, &total));
    EXPECT(total == limit, "the total is %zu, the limit %zu", total, limit);
    return bytes;
}

static CUmemAllocationProp property(void)
{
    CUmemAllocationProp p = {0};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return p;
}

/* A pool is destroyed while memory of it is in use. */
static size_t keep_by_pools(CUdeviceptr *kept, size_t piece)
{
    CUmemPoolProps props = {0};
    size_t held = 0;
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = property().location;
    for (int i = 0; i < PIECES; i++) {
        CUmemoryPool pool;
        CU(cuMemPoolCreate(&pool, &props));
        CUresult r = cuMemAllocFromPoolAsync(&kept[i], piece, pool, NULL);
        EXPECT(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY, "the pool: %s", driver_name(r));
        if (r == CUDA_SUCCESS)
            held += piece;
        else
            kept[i] = 0;
        CU(cuStreamSynchronize(NULL));
        CU(cuMemPoolDestroy(pool));
        EXPECT(held <= limit, "%zu bytes are kept, the limit is %zu", held, limit);
        EXPECT(left() <= limit - held, "%zu bytes are kept, and %zu of %zu free", held, left(),
               limit);
    }
    EXPECT(held < PIECES * piece, "no piece was refused");
    return held;
}

static void pools(void)
{
    CUdeviceptr kept[PIECES] = {0};
    size_t before = left(), piece = limit / 5;
    EXPECT(keep_by_pools(kept, piece) >= 3 * piece, "pieces that fit were refused");
    for (int i = 0; i < PIECES; i++)
        if (kept[i])
            CU(cuMemFreeAsync(kept[i], NULL));
    EXPECT(left() == before, "%zu bytes are free again of %zu", left(), before);
}

/* Pages of cuMemAlloc's under a handle of one's own, or pulled out from under it. */
static void pages(void)
{
    CUmemAllocationProp p = property();
    CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    size_t before = left();
    CUdeviceptr at;
    CU(cuMemAlloc(&at, 8 * MIB));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(at, 8 * MIB));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(at, 8 * MIB, &access, 1));
    CU(cuMemCreate(&handle, 2 * MIB, &p, 0));
    CUresult r = cuMemMap(at + 64 * MIB, 2 * MIB, 0, handle, 0); /* where it may yet go */
    EXPECT(r != CUDA_SUCCESS, "a mapping among cuMemAlloc's addresses");
    CU(cuMemRelease(handle));
    CU(cuMemsetD8(at, 1, 8 * MIB));
    CU(cuMemFree(at));
    EXPECT(left() == before, "%zu bytes are free again of %zu", left(), before);
}

/* Mapped, and its handle let go: it is there until it is unmapped. */
static void mappings(void)
{
    CUmemAllocationProp p = property();
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t before = left(), piece = limit / 5 / (2 * MIB) * (2 * MIB);
    int count = 0;
    CU(cuMemAddressReserve(&at, PIECES * piece, 0, 0, 0));
    while (count < PIECES && cuMemCreate(&handle, piece, &p, 0) == CUDA_SUCCESS) {
        CU(cuMemMap(at + (size_t)count++ * piece, piece, 0, handle, 0));
        CU(cuMemRelease(handle));
        EXPECT(left() <= limit - (size_t)count * piece, "%d mappings, and %zu bytes free", count,
               left());
    }
    EXPECT(count >= 4 && (size_t)count * piece <= limit, "%d mappings fit", count);
    for (int i = 0; i < count; i++)
        CU(cuMemUnmap(at + (size_t)i * piece, piece));
    CU(cuMemAddressFree(at, PIECES * piece));
    EXPECT(left() == before, "%zu bytes are free again of %zu", left(), before);
}

int main(void)
{
    driver_start();
    CU(cuDeviceTotalMem(&limit, driver_device));
    for (int round = 0; round < 3; round++) {
        pools();
        pages();
        mappings();
    }
    driver_stop();
    return finish("driver_keep");
}
