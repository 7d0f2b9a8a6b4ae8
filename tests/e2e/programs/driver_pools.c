/*
 * Two processes with one pool: a file descriptor of it, and its allocations one by one. What CUDA's
 * documentation says: the pool is made for it, nothing is allocated from an imported one, which can
 * be no device's own, and the importer frees before the exporter, by cuMemFree or in stream order.
 */
#include "pair.h"

#define LARGE ((size_t)4 << 20)
#define SMALL (WORDS * sizeof(unsigned))
#define FILE_HANDLE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemoryPool pool_of(CUmemAllocationHandleType handles)
{
    CUmemoryPool pool;
    CUmemPoolProps props = {0};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = handles;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.id = driver_device;
    CU(cuMemPoolCreate(&pool, &props));
    return pool;
}

static CUdeviceptr taken(CUmemoryPool pool, size_t bytes, unsigned value)
{
    CUdeviceptr at;
    CU(cuMemAllocFromPoolAsync(&at, bytes, pool, NULL));
    fill(at, value);
    return at;
}

/* --- the first process ------------------------------------------------------------------------ */

/* A pool that was not made for it, and what is no pool's. */
static void unshared(void)
{
    CUmemPoolPtrExportData data;
    CUmemoryPool pool = pool_of(CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr at = taken(pool, SMALL, 1), plain;
    int file = -1;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemPoolExportToShareableHandle(&file, pool, FILE_HANDLE, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, at));
    CU(cuMemFree(at));
    CU(cuMemPoolDestroy(pool));
    CU(cuMemAlloc(&plain, SMALL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, plain));
    CU(cuMemFree(plain));
}

static void give_pointer(int other, CUdeviceptr at)
{
    CUmemPoolPtrExportData data;
    CU(cuMemPoolExportPointer(&data, at));
    send_all(other, &data, sizeof data, -1);
}

/* Where there is another device, it reaches what the pool has and will have. */
static void open_to_another(CUmemoryPool pool, CUdeviceptr had)
{
    CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = !driver_device},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUcontext there;
    int count = 0, can = 0;
    CU(cuDeviceGetCount(&count));
    if (count > 1)
        CU(cuDeviceCanAccessPeer(&can, !driver_device, driver_device));
    if (!can)
        return;
    CU(cuMemPoolSetAccess(pool, &access, 1));
    CUdeviceptr new = taken(pool, LARGE, 1);
    CU(cuDevicePrimaryCtxRetain(&there, !driver_device));
    CU(cuCtxSetCurrent(there));
    fill(had, 0x3000);
    fill(new, 0x3001);
    CU(cuDevicePrimaryCtxRelease(!driver_device));
    CU(cuCtxSetCurrent(driver_context));
    expect(had, 0x3000, "what the other device has written");
    expect(new, 0x3001, "what the other device has written");
    CU(cuMemFree(new));
}

static void first(int other)
{
    CUmemPoolPtrExportData data;
    CUmemoryPool pool = pool_of(FILE_HANDLE), found = NULL;
    CUdeviceptr large = taken(pool, LARGE, 0x1000), small = taken(pool, SMALL, 0x2000);
    int types = 0, file = -1;
    unshared();
    open_to_another(pool, large);
    fill(large, 0x1000);
    CU(cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
                            driver_device));
    EXPECT(types & FILE_HANDLE, "the device's pools are not exported as files: %#x", types);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, large)); /* not exported yet */
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemPoolExportToShareableHandle(&file, pool, FILE_HANDLE, 1));
    CU(cuMemPoolExportToShareableHandle(&file, pool, FILE_HANDLE, 0));
    CU(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, large));
    EXPECT(found == pool, "the memory is of pool %p, not %p", (void *)found, (void *)pool);
    send_all(other, "!", 1, file);
    close(file);
    give_pointer(other, large);
    give_pointer(other, small);
    await(other); /* it has written, and freed the large one */
    expect(large, 0x1001, "what the other process has written");
    expect(small, 0x2001, "what the other process has written");
    CU(cuMemFreeAsync(large, NULL));
    await(other); /* and the small one */
    CU(cuMemFree(small));
    CU(cuCtxSynchronize());
    CU(cuMemPoolDestroy(pool));
}

/* --- the second process ----------------------------------------------------------------------- */

static void expect_no_allocation(CUmemoryPool imported)
{
    CUdeviceptr at;
    CUmemoryPool own;
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&at, SMALL, imported, NULL));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(driver_device, imported));
    CU(cuDeviceGetMemPool(&own, driver_device));
    EXPECT(own != imported, "another process's pool is the device's");
}

/* Of another pool than the one that has it, and what is no pointer at all. */
static void expect_refused(CUmemoryPool imported, const CUmemPoolPtrExportData *right)
{
    CUmemPoolPtrExportData forged;
    CUmemoryPool own = pool_of(FILE_HANDLE);
    CUdeviceptr at;
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuMemPoolImportPointer(&at, own, (CUmemPoolPtrExportData *)(uintptr_t)right));
    memset(&forged, 0x5a, sizeof forged);
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemPoolImportPointer(&at, imported, &forged));
    CU(cuMemPoolDestroy(own));
}

static void expect_of_pool(CUdeviceptr at, CUmemoryPool pool)
{
    CUmemoryPool found = NULL;
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_device};
    CU(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
    EXPECT(found == pool, "the memory is of pool %p, not %p", (void *)found, (void *)pool);
    CU(cuMemPoolGetAccess(&flags, pool, &here));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "the access is %d", (int)flags);
}

static void second(int other)
{
    CUmemPoolPtrExportData large, small;
    CUmemoryPool pool;
    CUdeviceptr at, there;
    CUstream stream;
    char word;
    int file = receive_all(other, &word, 1);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)file, FILE_HANDLE, 1));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)other, FILE_HANDLE, 0));
    CU(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)file, FILE_HANDLE, 0));
    close(file);
    receive_all(other, &large, sizeof large);
    receive_all(other, &small, sizeof small);
    expect_no_allocation(pool);
    expect_refused(pool, &large);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemPoolImportPointer(&at, pool, &large));
    CU(cuMemPoolImportPointer(&there, pool, &small));
    expect_of_pool(at, pool);
    expect(at, 0x1000, "another process's memory");
    expect(there, 0x2000, "another process's memory");
    fill(there, 0x2001);
    CU(cuMemsetD32Async(at, 0x1001, WORDS, stream));
    CU(cuMemFreeAsync(at, stream));
    CU(cuStreamSynchronize(stream));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(at, stream));
    tell(other);
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(there));
    CU(cuMemFree(there));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemFree(there));
    tell(other);
    CU(cuMemPoolDestroy(pool));
    CU(cuStreamDestroy(stream));
}

int main(int argc, char **argv)
{
    return pair_run(argc, argv, first, second, "driver_pools");
}
