/* Arrays whose memory is mapped later: what is refused, and how long mapped memory counts. */
#include "sparse_array.h"

/* --- what is refused ------------------------------------------------------------------------------ */

static void entries_refused(void)
{
    CUarray array = array_of(512, 512, 0, CUDA_ARRAY3D_SPARSE), plain = array_of(64, 64, 0, 0);
    CUmemGenericAllocationHandle other = memory_of(granule(), 0);
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    CU(cuArrayGetSparseProperties(&p, array));
    const CUarrayMapInfo good = tile_of(array, &p, (struct tile){1, 1, 0}, pool, 0);
    CUarrayMapInfo bad[16];
    unsigned n = 0;

    for (unsigned i = 0; i < 16; i++)
        bad[i] = good;
    bad[n++].flags = 1;
    bad[n++].reserved[1] = 1;
    bad[n++].deviceBitMask = 0;
    bad[n++].deviceBitMask = 3u << driver_device;
    bad[n++].memOperationType = (CUmemOperationType)3;
    bad[n++].memHandle.memHandle = other; /* no tile pool */
    bad[n++].offset = pool_bytes;
    bad[n++].offset = 1;
    bad[n++].subresource.sparseLevel.offsetX++;
    bad[n++].subresource.sparseLevel.extentHeight--;
    bad[n++].subresource.sparseLevel.extentDepth = 2;
    bad[n++].subresource.sparseLevel.offsetY = 512;
    bad[n++].subresource.sparseLevel.layer = 1;
    bad[n++].subresource.sparseLevel.level = 1;
    bad[n++].resource.array = plain;
    for (unsigned i = 0; i < n; i++) {
        CUarrayMapInfo both[] = {tile_of(array, &p, (struct tile){0, 0, 0}, pool, 0), bad[i]};
        CUresult r = cuMemMapArrayAsync(both, 2, stream);
        EXPECT(r == CUDA_ERROR_INVALID_VALUE, "entry %u gave %s", i, driver_name(r));
    }
    CUarrayMapInfo one = good;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(NULL, 1, stream));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&one, 0, stream));
    if (!driver_is_native()) {
        fill(array, 512, 512, 1); /* the entry before a bad one was not made */
        expect_tiles(array, 512, 512, 1, &p, NULL, 0, "a list that was refused");
        CU(cuArrayDestroy(plain));
        one.resource.array = plain;
        CU_GIVES(CUDA_ERROR_INVALID_HANDLE, map(one));
    }
    CU(cuMemRelease(other));
    CU(cuArrayDestroy(array));
}

static void shapes_refused(void)
{
    const CUDA_ARRAY3D_DESCRIPTOR all[] = {
        {512, 0, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE},
        {512, 512, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_CUBEMAP},
        {512, 512, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING},
        {512, 512, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_SURFACE_LDST},
    };
    CUarray array;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&array, &all[i]));
}

static void capture_refused(void)
{
    CUarray array = array_of(256, 256, 0, CUDA_ARRAY3D_SPARSE);
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    CUgraph graph = NULL;

    CU(cuArrayGetSparseProperties(&p, array));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
             map(tile_of(array, &p, (struct tile){0, 0, 0}, pool, 0)));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    CU(cuArrayDestroy(array));
}

/* --- what counts ------------------------------------------------------------------------------------ */

static size_t free_bytes(void)
{
    size_t bytes, total;
    CU(cuCtxSynchronize());
    CU(cuMemGetInfo(&bytes, &total));
    return bytes;
}

/* Memory that a part of an array has is there, and counts, without its handle. */
static void kept(size_t before, size_t bytes, const char *what)
{
    char name[64] = "";
    CU(cuDeviceGetName(name, sizeof name, driver_device));
    if (strstr(name, "soft GPU")) /* a real driver's own share of an array moves by other steps */
        EXPECT(before - free_bytes() == bytes, "%s: %zu KiB count, not %zu", what,
               (before - free_bytes()) >> 10, bytes >> 10);
}

static void counted(void)
{
    CUarray array = array_of(512, 256, 0, CUDA_ARRAY3D_SPARSE);
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    const struct tile one[] = {{1, 0, 0}};
    CUcontext own;
    size_t unit = granule(), before = free_bytes();
    CUmemGenericAllocationHandle memory = memory_of(unit, CU_MEM_CREATE_USAGE_TILE_POOL), second;

    CU(cuArrayGetSparseProperties(&p, array));
    CUarrayMapInfo box = tile_of(array, &p, (struct tile){0, 0, 0}, memory, 0);
    box.subresource.sparseLevel.extentWidth *= 3;
    box.subresource.sparseLevel.extentHeight *= 2;
    CU(map(box));
    fill(array, 512, 256, 1);
    CU(cuMemRelease(memory));
    kept(before, unit, "memory that is mapped");
    second = memory_of(unit, CU_MEM_CREATE_USAGE_TILE_POOL);
    CU(map(tile_of(array, &p, one[0], second, 0))); /* in the middle of the first */
    CU(cuMemRelease(second));
    kept(before, 2 * unit, "memory behind other memory");
    CU(map(tile_of(array, &p, one[0], 0, 0)));
    kept(before, unit, "the second one's, taken away");
    box.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    box.memHandle.memHandle = pool; /* nobody looks */
    box.offset = 0;
    CU(map(box));
    kept(before, 0, "all taken away");

    for (int way = 0; way < 2; way++) { /* by its end, and by its context's */
        if (way)
            CU(cuCtxCreate(&own, NULL, 0, driver_device)); /* which counts, too */
        CUarray gone = array_of(512, 256, 0, CUDA_ARRAY3D_SPARSE);
        size_t made = free_bytes();
        memory = memory_of(unit, CU_MEM_CREATE_USAGE_TILE_POOL);
        CUarrayMapInfo info = tile_of(gone, &p, one[0], memory, 0);
        CU(cuMemMapArrayAsync(&info, 1, CU_STREAM_PER_THREAD));
        CU(cuMemRelease(memory));
        kept(made, unit, "memory of an array that will end");
        CU(way ? cuCtxDestroy(own) : cuArrayDestroy(gone));
        CU(cuCtxSetCurrent(driver_context));
        kept(before, 0, "memory of an array that has ended");
    }
    CU(cuArrayDestroy(array));
}

int main(void)
{
    sparse_start();
    entries_refused();
    shapes_refused();
    capture_refused();
    counted();
    sparse_stop();
    return finish("driver_sparse_kept");
}
