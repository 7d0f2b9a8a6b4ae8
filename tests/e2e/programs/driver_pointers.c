/* What pointers of every kind of memory say of themselves, and what is set of them. */
#include "driver.h"

#include <stdbool.h>

#define BYTES ((size_t)1 << 20)

static CUstream stream;

static unsigned asked(CUpointer_attribute which, CUdeviceptr at)
{
    unsigned value = 99;
    CU(cuPointerGetAttribute(&value, which, at));
    return value;
}

static unsigned long long asked_wide(CUpointer_attribute which, CUdeviceptr at)
{
    unsigned long long value = 99;
    CU(cuPointerGetAttribute(&value, which, at));
    return value;
}

/* What is said of all memory alike, inside it as at its begin. */
static void said_of(const char *name, CUdeviceptr at, CUmemorytype type, bool managed)
{
    CUdeviceptr inside = at + 1234;
    EXPECT(asked(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside) == (unsigned)type,
           "the type of %s memory is wrong", name);
    EXPECT(asked(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside) == managed, "%s memory is managed: %u",
           name, asked(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside));
    EXPECT(asked(CU_POINTER_ATTRIBUTE_MAPPED, inside) == 1, "%s memory is not mapped", name);
    EXPECT(asked(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside) == (unsigned)driver_device,
           "%s memory is of another device", name);
    EXPECT(asked_wide(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside) ==
               asked_wide(CU_POINTER_ATTRIBUTE_BUFFER_ID, at),
           "%s memory has several numbers", name);
    EXPECT(asked(CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, inside) <= 1,
           "whether %s memory decompresses is no boolean", name);
}

/* Set and told again; a synchronous set of such memory has been made when it returns. */
static void synchronous(const char *name, CUdeviceptr at, bool first)
{
    const unsigned on = 1, off = 0;
    unsigned word = 0;

    EXPECT(asked(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) == first,
           "%s memory begins with SYNC_MEMOPS %u", name,
           asked(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    CU(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at + 8));
    EXPECT(asked(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) == 1, "%s memory forgot it", name);
    CU(cuMemsetD32(at, 0xabcd, 4));
    EXPECT(cuStreamQuery(NULL) == CUDA_SUCCESS, "a set of %s memory is under way", name);
    CU(cuMemcpy(at + 64, at, 16));
    EXPECT(cuStreamQuery(NULL) == CUDA_SUCCESS, "a copy in %s memory is under way", name);
    CU(cuMemcpy((CUdeviceptr)(size_t)&word, at + 76, sizeof word));
    EXPECT(word == 0xabcd, "the copy in %s memory left %#x", name, word);
    CU(cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    EXPECT(asked(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) == 0, "%s memory keeps it", name);
}

static void plain(void)
{
    const unsigned on = 1;
    CUdeviceptr device, managed;
    void *pinned;

    CU(cuMemAlloc(&device, BYTES));
    CU(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    CU(cuMemAllocHost(&pinned, BYTES));
    said_of("device", device, CU_MEMORYTYPE_DEVICE, false);
    said_of("managed", managed, CU_MEMORYTYPE_DEVICE, true);
    said_of("pinned", (CUdeviceptr)(size_t)pinned, CU_MEMORYTYPE_HOST, false);
    EXPECT(asked_wide(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, device) == 0,
           "device memory has a pool");
    EXPECT(asked_wide(CU_POINTER_ATTRIBUTE_RANGE_SIZE, device + 5) >= BYTES,
           "the range is shorter than the allocation");
    synchronous("device", device, false);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, device));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                                             (CUdeviceptr)(size_t)&on));
    CU(cuMemFree(device));
    CU(cuMemFree(managed));
    CU(cuMemFreeHost(pinned));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device));
}

/* --- pools -------------------------------------------------------------------------------- */

static void pooled(void)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_device};
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    CUmemoryPool first, current, made;
    CUdeviceptr ours, theirs;

    CU(cuDeviceGetDefaultMemPool(&first, driver_device));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(first));
    CU(cuMemGetDefaultMemPool(&current, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    EXPECT(current == first, "the default pool is another one by its location");
    CU(cuMemPoolCreate(&made, &props));
    CU(cuMemAllocAsync(&ours, BYTES, stream));
    CU(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, made));
    CU(cuMemGetMemPool(&current, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    EXPECT(current == made, "the pool that was set is not the location's");
    CU(cuDeviceGetMemPool(&current, driver_device));
    EXPECT(current == made, "the pool that was set is not the device's");
    CU(cuMemAllocAsync(&theirs, BYTES, stream));
    EXPECT(asked_wide(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ours) == (unsigned long long)first,
           "memory from the default pool says another");
    EXPECT(asked_wide(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, theirs + 9) == (unsigned long long)made,
           "memory from the pool that was set says another");
    said_of("pool", theirs, CU_MEMORYTYPE_DEVICE, false);
    CU(cuMemFreeAsync(ours, stream));
    CU(cuMemFreeAsync(theirs, stream));
    CU(cuStreamSynchronize(stream));

    here.id = 99;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemGetMemPool(&current, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    here.id = driver_device;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemGetMemPool(&current, &here, CU_MEM_ALLOCATION_TYPE_INVALID));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetMemPool(NULL, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    here.type = (CUmemLocationType)77;
    CU_GIVES(CUDA_ERROR_NOT_SUPPORTED,
             cuMemGetDefaultMemPool(&current, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemSetMemPool(NULL, CU_MEM_ALLOCATION_TYPE_PINNED, made));
    CU(cuDeviceSetMemPool(driver_device, first));
    CU(cuMemPoolDestroy(made));
}

/* --- mappings ----------------------------------------------------------------------------- */

/* One memory at two addresses is one block. */
static void mapped(void)
{
    CUmemAllocationProp p = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_device}};
    const CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle one, two;
    CUdeviceptr at;
    size_t unit = 0;

    CU(cuMemGetAllocationGranularity(&unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CU(cuMemAddressReserve(&at, 3 * unit, 0, 0, 0));
    CU(cuMemCreate(&one, unit, &p, 0));
    CU(cuMemCreate(&two, unit, &p, 0));
    CU(cuMemMap(at, unit, 0, one, 0));
    CU(cuMemMap(at + unit, unit, 0, two, 0));
    CU(cuMemMap(at + 2 * unit, unit, 0, one, 0));
    CU(cuMemSetAccess(at, 3 * unit, &access, 1));
    unsigned long long blocks[3];
    for (unsigned i = 0; i < 3; i++)
        blocks[i] = asked_wide(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, at + i * unit + 8);
    EXPECT(blocks[0] == blocks[2] && blocks[0] != blocks[1],
           "one memory mapped twice and another are the blocks %llu %llu %llu", blocks[0],
           blocks[2], blocks[1]);
    said_of("mapped", at, CU_MEMORYTYPE_DEVICE, false);
    CU(cuMemUnmap(at, 3 * unit));
    CU(cuMemRelease(one));
    CU(cuMemRelease(two));
    CU(cuMemAddressFree(at, 3 * unit));
}

int main(void)
{
    driver_start();
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    plain();
    pooled();
    mapped();
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_pointers");
}
