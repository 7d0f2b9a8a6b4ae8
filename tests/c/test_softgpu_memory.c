/* Memory of the soft GPU: allocation, copies, memsets, virtual memory, pools. */
#include "softgpu_check.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void allocation(void)
{
    CUdeviceptr a, b, base;
    size_t free_bytes, total, before, size;
    OK(cuMemGetInfo(&before, &total));
    CHECK(total == 64 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&a, 0));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&a, 65 * MIB));
    OK(cuMemAlloc(&a, 1000));
    CHECK(a % 512 == 0);
    OK(cuMemAlloc(&b, 60 * MIB));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&base, 8 * MIB));
    OK(cuMemGetInfo(&free_bytes, &total));
    CHECK(before - free_bytes == 60 * MIB + 1024);
    OK(cuMemGetAddressRange(&base, &size, a + 999));
    CHECK(base == a && size == 1000);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, a + 1000));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(a + 1));
    OK(cuMemFree(a));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree(a));
    OK(cuMemFree(b));
    OK(cuMemFree(0));
    OK(cuMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == before);
}

/* Many sizes in a mixed order: nothing overlaps and all comes back. */
static void churn(void)
{
    CUdeviceptr at[64] = {0};
    size_t size[64], before, after, total;
    unsigned seed = 12345;
    OK(cuMemGetInfo(&before, &total));
    for (int round = 0; round < 2000; round++) {
        seed = seed * 1103515245u + 12345u;
        unsigned i = seed >> 16 & 63;
        if (at[i]) {
            unsigned char first = 0, last = 0;
            OK(cuMemcpyDtoH(&first, at[i], 1));
            OK(cuMemcpyDtoH(&last, at[i] + size[i] - 1, 1));
            CHECK(first == i && last == i);
            OK(cuMemFree(at[i]));
            at[i] = 0;
        } else {
            size[i] = 1 + (seed >> 8) % 700000;
            OK(cuMemAlloc(&at[i], size[i]));
            OK(cuMemsetD8(at[i], (unsigned char)i, size[i]));
        }
    }
    for (int i = 0; i < 64; i++)
        OK(cuMemFree(at[i]));
    OK(cuMemGetInfo(&after, &total));
    CHECK(before == after);
}

static void copies(void)
{
    CUdeviceptr a, b;
    unsigned char in[4096], out[4096];
    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (unsigned char)(i * 7);
    OK(cuMemAlloc(&a, sizeof(in)));
    OK(cuMemAlloc(&b, sizeof(in)));
    OK(cuMemcpyHtoD(a, in, sizeof(in)));
    OK(cuMemcpyDtoD(b, a, sizeof(in)));
    OK(cuMemcpyDtoH(out, b, sizeof(out)));
    CHECK(memcmp(in, out, sizeof(in)) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(a + 1, in, sizeof(in)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(a, NULL, 16));
    OK(cuMemcpyHtoD(a, in, 0));
    OK(cuMemcpyHtoDAsync(b, out, 16, NULL));
    OK(cuMemcpy((CUdeviceptr)(size_t)out, a, sizeof(out)));
    CHECK(memcmp(in, out, sizeof(in)) == 0);

    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = a,
                          .srcPitch = 64,
                          .srcXInBytes = 3,
                          .srcY = 2,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out,
                          .dstPitch = 16,
                          .WidthInBytes = 10,
                          .Height = 5};
    memset(out, 0, sizeof(out));
    OK(cuMemcpy2D(&flat));
    for (size_t y = 0; y < 5; y++)
        for (size_t x = 0; x < 16; x++)
            CHECK(out[y * 16 + x] == (x < 10 ? in[(y + 2) * 64 + x + 3] : 0));
    flat.dstPitch = 9;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&flat));
    flat.dstPitch = 16;
    flat.Height = 64;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&flat)); /* past the end of a */
    OK(cuMemFree(a));
    OK(cuMemFree(b));
}

/* Without a pitch or a height rows and slices follow each other (measured on a real GPU). */
static void packed_copies(void)
{
    CUdeviceptr a;
    unsigned char in[512], out[512];
    void *pinned;
    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (unsigned char)(i * 11);
    OK(cuMemAlloc(&a, sizeof(in)));
    OK(cuMemcpyHtoD(a, in, sizeof(in)));
    OK(cuMemHostAlloc(&pinned, sizeof(in), 0));
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = a,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = out,
                         .WidthInBytes = 64,
                         .Height = 4,
                         .Depth = 2};
    memset(out, 0, sizeof(out));
    OK(cuMemcpy3D(&box));
    CHECK(memcmp(in, out, sizeof(in)) == 0);
    box.Depth = 3;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&box));
    box.Depth = 2;
    box.srcHeight = 3;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&box));
    box.srcHeight = 0;
    box.srcY = UINT64_MAX - 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&box));
    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = a,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = pinned,
                          .WidthInBytes = 64,
                          .Height = 8};
    OK(cuMemcpy2D(&flat));
    CHECK(memcmp(in, pinned, sizeof(in)) == 0);
    flat.srcDevice = a + 64;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&flat));
    flat.srcDevice = a;
    flat.dstPitch = 65; /* the host's end is too short for that */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&flat));
    flat.Height = UINT64_MAX;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&flat));
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree(a));
}

static void memsets(void)
{
    CUdeviceptr a;
    unsigned char out[1024];
    OK(cuMemAlloc(&a, sizeof(out)));
    OK(cuMemsetD32(a, 0x01020304, 256));
    OK(cuMemsetD16(a + 4, 0xaabb, 1));
    OK(cuMemsetD2D8(a + 512, 32, 0x55, 8, 4));
    OK(cuMemcpyDtoH(out, a, sizeof(out)));
    CHECK(out[0] == 4 && out[4] == 0xbb && out[5] == 0xaa && out[6] == 2);
    CHECK(out[512] == 0x55 && out[520] == 4 && out[512 + 96 + 7] == 0x55);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(a + 2, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(a, 0, 257));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(a, 0, (size_t)1 << 62));
    OK(cuMemFree(a));
}

static void host_memory(void)
{
    static char mine[8192];
    void *pinned;
    CUdeviceptr device, managed;
    unsigned type, flags;
    OK(cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemHostGetDevicePointer(&device, pinned, 0));
    OK(cuMemsetD8(device, 9, 4096));
    CHECK(((unsigned char *)pinned)[4095] == 9);
    OK(cuMemHostGetFlags(&flags, pinned));
    CHECK(flags & CU_MEMHOSTALLOC_PORTABLE);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));
    CHECK(type == CU_MEMORYTYPE_HOST);
    OK(cuMemFreeHost(pinned));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
    OK(cuMemHostRegister(mine, sizeof(mine), 0));
    EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(mine + 8, 16, 0));
    OK(cuMemHostUnregister(mine));
    EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(mine));
    OK(cuMemAllocManaged(&managed, 100, CU_MEM_ATTACH_GLOBAL));
    *(volatile char *)(size_t)managed = 5;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
    CHECK(type == 1);
    OK(cuMemFree(managed));
    CUpointer_attribute list[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    int ordinal = 7;
    void *values[] = {&ordinal, &type};
    OK(cuPointerGetAttributes(2, list, values, (CUdeviceptr)(size_t)mine));
    CHECK(ordinal == -2 && type == 0);
}

/* What a stream of another context does with registered memory. */
static struct work {
    CUcontext where;
    char *memory;
    bool go, done, seen;
} work;

static void CUDA_CB use_memory(void *arg)
{
    struct work *w = arg;
    while (!__atomic_load_n(&w->go, __ATOMIC_ACQUIRE))
        sched_yield();
    w->memory[0] = 1;
    __atomic_store_n(&w->done, true, __ATOMIC_RELEASE);
}

static void *unregister(void *arg)
{
    struct work *w = arg;
    OK(cuCtxSetCurrent(w->where));
    OK(cuMemHostUnregister(w->memory));
    w->seen = __atomic_load_n(&w->done, __ATOMIC_ACQUIRE);
    return NULL;
}

/* Who unregisters memory may unmap it: no context's work reads it any more. */
static void unregistered_elsewhere(void)
{
    pthread_t thread;
    CUstream stream;
    work.memory = aligned_alloc(4096, 4096);
    OK(cuMemHostRegister(work.memory, 4096, CU_MEMHOSTREGISTER_PORTABLE));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchHostFunc(stream, use_memory, &work));
    CUcontext before;
    OK(cuCtxGetCurrent(&before));
    OK(cuCtxCreate(&work.where, NULL, 0, 0));
    OK(cuCtxSetCurrent(before));
    CHECK(pthread_create(&thread, NULL, unregister, &work) == 0);
    usleep(50000); /* for it to come to the wait, or to go wrong */
    __atomic_store_n(&work.go, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    CHECK(work.seen);
    OK(cuStreamDestroy(stream));
    OK(cuCtxDestroy(work.where));
    OK(cuCtxSetCurrent(before));
    free(work.memory);
}

static void virtual_memory(void)
{
    CUdeviceptr at, other, fixed = (CUdeviceptr)0x200000000000;
    CUmemGenericAllocationHandle one, two, again;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t unit, before, after, total;
    unsigned char bytes[16];
    OK(cuMemGetInfo(&before, &total));
    OK(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(unit == 2 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&at, unit + 1, 0, 0, 0));
    OK(cuMemAddressReserve(&at, 4 * unit, 0, fixed, 0));
    CHECK(at == fixed);
    OK(cuMemAddressReserve(&other, unit, 0, fixed, 0)); /* taken: another place */
    CHECK(other != fixed);
    OK(cuMemCreate(&one, unit, &prop, 0));
    OK(cuMemCreate(&two, unit, &prop, 0));
    OK(cuMemGetInfo(&after, &total));
    CHECK(before - after == 2 * unit);
    OK(cuMemMap(at, unit, 0, one, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(at, unit, 0, two, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(at, 1, unit)); /* no access yet */
    OK(cuMemMap(at + unit, unit, 0, two, 0));
    OK(cuMemSetAccess(at, 2 * unit, &access, 1));
    OK(cuMemsetD8(at, 7, 2 * unit)); /* one memset over both */
    OK(cuMemRetainAllocationHandle(&again, (void *)(size_t)at));
    CHECK(again == one);
    OK(cuMemRelease(again));
    OK(cuMemRelease(one));
    OK(cuMemRelease(two));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(two));
    OK(cuMemcpyDtoH(bytes, at + unit - 8, 16)); /* across the border */
    for (int i = 0; i < 16; i++)
        CHECK(bytes[i] == 7);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(at, 4 * unit)); /* still mapped */
    OK(cuMemUnmap(at, 2 * unit));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(at, unit));
    OK(cuMemAddressFree(at, 4 * unit));
    OK(cuMemAddressFree(other, unit));
    OK(cuMemGetInfo(&after, &total));
    CHECK(before == after);
}

static void pools(void)
{
    CUmemoryPool pool, own;
    CUdeviceptr a, b;
    cuuint64_t used, threshold = 1 << 20;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemAllocAsync(&a, 1000, NULL));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 1024);
    OK(cuMemPoolCreate(&own, &props));
    OK(cuMemAllocFromPoolAsync(&b, 500, own, NULL));
    OK(cuMemFreeAsync(a, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(a, NULL));
    OK(cuMemPoolDestroy(own)); /* b lives on */
    OK(cuMemsetD8(b, 1, 500));
    OK(cuMemFreeAsync(b, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(own));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pool));
}

/* What is no map is looked at and refused, whatever its bytes are. */
static void tensor_maps(void)
{
    CUtensorMap map;
    memset(&map, 0xff, sizeof(map));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(&map, NULL));
}

int main(void)
{
    setenv("GPUPOOL_SOFT_MEMORY", "64MiB", 1);
    softgpu_begin();
    allocation();
    churn();
    copies();
    packed_copies();
    memsets();
    host_memory();
    unregistered_elsewhere();
    virtual_memory();
    pools();
    OK(cuDevicePrimaryCtxReset(0));
    tensor_maps();
    return 0;
}
