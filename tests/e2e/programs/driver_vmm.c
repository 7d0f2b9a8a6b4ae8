/* Virtual memory management and memory pools. */
#include <unistd.h>

#include "driver.h"

static CUmemAllocationProp property(void)
{
    CUmemAllocationProp p = {0};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = 0;
    return p;
}

static void virtual_memory(void)
{
    CUmemAllocationProp p = property();
    CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle one, two, never;
    CUdeviceptr address;
    size_t unit = 0;
    unsigned words[4];
    unsigned long long flags = 0;

    CU(cuMemGetAllocationGranularity(&unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    REQUIRE(unit >= 4096 && (unit & (unit - 1)) == 0, "the granularity is %zu", unit);
    CU(cuMemAddressReserve(&address, 4 * unit, 0, 0, 0));
    CU(cuMemCreate(&one, unit, &p, 0));
    CU(cuMemCreate(&two, unit, &p, 0));
    CU(cuMemMap(address, unit, 0, one, 0));
    CU(cuMemMap(address + unit, unit, 0, two, 0));
    CU(cuMemSetAccess(address, 2 * unit, &access, 1));
    CU(cuMemGetAccess(&flags, &p.location, address));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "the access is %llu", flags);
    CUcontext context; /* none is needed to ask */
    CU(cuCtxPopCurrent(&context));
    CU(cuMemGetAccess(&flags, &p.location, address + 2 * unit - 1));
    CU(cuCtxPushCurrent(context));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "without a context it is %llu", flags);
    /* One copy across the seam of the two allocations. */
    CU(cuMemsetD32(address, 0x11, 2 * unit / 4));
    CU(cuMemsetD32(address + unit - 8, 0x22, 4));
    CU(cuMemcpyDtoH(words, address + unit - 8, sizeof words));
    for (int i = 0; i < 4; i++)
        EXPECT(words[i] == 0x22, "word %d at the seam is %#x", i, words[i]);
    /* The first allocation moves to the third place and keeps its data. */
    CU(cuMemUnmap(address, unit));
    CU(cuMemMap(address + 2 * unit, unit, 0, one, 0));
    CU(cuMemSetAccess(address + 2 * unit, unit, &access, 1));
    CU(cuMemcpyDtoH(words, address + 3 * unit - 16, sizeof words));
    EXPECT(words[0] == 0x11 && words[1] == 0x11 && words[2] == 0x22 && words[3] == 0x22,
           "after the move the words are %#x %#x %#x %#x", words[0], words[1], words[2], words[3]);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&never, unit + 1, &p, 0));
    CU(cuMemUnmap(address + unit, unit));
    CU(cuMemUnmap(address + 2 * unit, unit));
    CU(cuMemRelease(one));
    CU(cuMemRelease(two));
    CU(cuMemAddressFree(address, 4 * unit));
}

static void pools(CUstream stream)
{
    CUmemoryPool pool, made, current;
    CUmemPoolProps props = {0};
    CUdeviceptr a, b;
    cuuint64_t threshold = 1 << 20, value = 0;
    unsigned words[4];

    CU(cuDeviceGetDefaultMemPool(&pool, driver_device));
    CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    EXPECT(value == threshold, "the threshold is %llu", (unsigned long long)value);
    CU(cuMemAllocAsync(&a, 1 << 16, stream));
    CU(cuMemsetD32Async(a, 77, 4, stream));
    CU(cuMemcpyDtoHAsync(words, a, sizeof words, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(words[0] == 77 && words[3] == 77, "the pool's memory holds %u and %u", words[0],
           words[3]);
    CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    EXPECT(value >= 1 << 16, "the pool has %llu bytes in use", (unsigned long long)value);
    CU(cuMemFreeAsync(a, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemPoolTrimTo(pool, 0));

    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuMemPoolCreate(&made, &props));
    CU(cuMemAllocFromPoolAsync(&b, 4096, made, stream));
    CU(cuMemsetD8Async(b, 3, 4096, stream));
    CU(cuMemcpyDtoHAsync(words, b, sizeof words, stream));
    CU(cuMemFreeAsync(b, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(words[0] == 0x03030303, "the made pool's memory holds %#x", words[0]);
    CU(cuDeviceSetMemPool(driver_device, made));
    CU(cuDeviceGetMemPool(&current, driver_device));
    EXPECT(current == made, "the device's pool is %p, not %p", (void *)current, (void *)made);
    /* without the pool that was chosen, the device has its default one again */
    CU(cuMemPoolDestroy(made));
    CU(cuDeviceGetMemPool(&current, driver_device));
    EXPECT(current == pool, "the device's pool is %p, not %p", (void *)current, (void *)pool);
    CU(cuMemAllocAsync(&a, 4096, stream));
    CU(cuMemFreeAsync(a, stream));
    CU(cuStreamSynchronize(stream));
}

static void CUDA_CB rest(void *unused)
{
    (void)unused;
    usleep(50000);
}

/* What cuMemFree has freed is out of use, whatever another stream is at. */
static void freed_at_once(CUstream stream)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    CUmemoryPool pool;
    CUdeviceptr a;
    CUstream other;
    cuuint64_t used = 1;

    CU(cuMemPoolCreate(&pool, &props));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CU(cuMemAllocFromPoolAsync(&a, 4096, pool, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuLaunchHostFunc(other, rest, NULL));
    CU(cuMemFree(a));
    CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    /* a driver may go on counting them */
    EXPECT(driver_is_native() || used == 0, "%llu bytes of a pool are in use, all being freed",
           (unsigned long long)used);
    CU(cuStreamDestroy(other));
    CU(cuMemPoolDestroy(pool));
}

int main(void)
{
    CUstream stream;

    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    virtual_memory();
    pools(stream);
    freed_at_once(stream);
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_vmm");
}
