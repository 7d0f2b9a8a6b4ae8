/* Advice for managed memory and prefetches: taken, told again, and of no effect on what it has. */
#include <stdint.h>

#include "driver.h"

#define BYTES ((size_t)1 << 20)

#undef cuMemAdvise
#undef cuMemPrefetchAsync
CUresult cuMemAdvise(CUdeviceptr at, size_t bytes, CUmem_advise advice, CUdevice device);
CUresult cuMemPrefetchAsync(CUdeviceptr at, size_t bytes, CUdevice to, CUstream stream);

static CUdeviceptr at;
static const CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};

static int say(CUmem_range_attribute which, size_t from, size_t bytes)
{
    int value = -77;
    CU(cuMemRangeGetAttribute(&value, sizeof value, which, at + from, bytes));
    return value;
}

#define SAYS(expected, which, from, bytes)                                                         \
    do {                                                                                           \
        int said = say(CU_MEM_RANGE_ATTRIBUTE_##which, from, bytes);                               \
        EXPECT(said == (expected), "%s is %d, expected %d", #which, said, (int)(expected));        \
    } while (0)

static void advice(void)
{
    const CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_device};
    int accessors[3], mostly = -1;
    SAYS(0, READ_MOSTLY, 0, BYTES);
    SAYS(CU_DEVICE_INVALID, PREFERRED_LOCATION, 0, BYTES);
    CU(cuMemAdvise_v2(at, BYTES / 2, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
    SAYS(1, READ_MOSTLY, 0, BYTES / 2);
    SAYS(0, READ_MOSTLY, 0, BYTES);
    SAYS(0, READ_MOSTLY, BYTES / 2, BYTES / 2);
    CU(cuMemAdvise_v2(at, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
    SAYS(CU_DEVICE_CPU, PREFERRED_LOCATION, 0, BYTES);
    SAYS(CU_MEM_LOCATION_TYPE_HOST, PREFERRED_LOCATION_TYPE, 0, BYTES);
    CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, driver_device));
    SAYS(driver_device, PREFERRED_LOCATION, 0, BYTES);
    SAYS(CU_MEM_LOCATION_TYPE_DEVICE, PREFERRED_LOCATION_TYPE, 0, BYTES);
    SAYS(driver_device, PREFERRED_LOCATION_ID, 0, BYTES);
    CU(cuMemAdvise(at, BYTES, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, driver_device));
    SAYS(CU_DEVICE_INVALID, PREFERRED_LOCATION, 0, BYTES);
    CU(cuMemAdvise_v2(at, BYTES, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
    void *data[] = {accessors, &mostly};
    size_t sizes[] = {sizeof accessors, sizeof mostly};
    CUmem_range_attribute which[] = {CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
                                     CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY};
    CU(cuMemRangeGetAttributes(data, sizes, which, 2, at, BYTES));
    EXPECT(accessors[0] == driver_device && accessors[1] == CU_DEVICE_INVALID &&
               accessors[2] == CU_DEVICE_INVALID,
           "accessed by %d %d %d", accessors[0], accessors[1], accessors[2]);
    CU(cuMemAdvise_v2(at, BYTES, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device));
    CU(cuMemRangeGetAttributes(data, sizes, which, 1, at, BYTES));
    EXPECT(accessors[0] == CU_DEVICE_INVALID, "accessed by %d", accessors[0]);
}

static void prefetches(void)
{
    const CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_device};
    CUmemLocation locations[] = {device, host};
    CUdeviceptr ranges[] = {at, at + BYTES / 2};
    size_t sizes[] = {BYTES / 2, BYTES / 2}, first[] = {0, 1};
    CU(cuMemPrefetchAsync_v2(at, BYTES, device, 0, NULL));
    CU(cuCtxSynchronize());
    SAYS(driver_device, LAST_PREFETCH_LOCATION, 0, BYTES);
    SAYS(CU_MEM_LOCATION_TYPE_DEVICE, LAST_PREFETCH_LOCATION_TYPE, 0, BYTES);
    SAYS(driver_device, LAST_PREFETCH_LOCATION_ID, 0, BYTES);
    CU(cuMemPrefetchAsync(at, BYTES, CU_DEVICE_CPU, NULL));
    CU(cuCtxSynchronize());
    SAYS(CU_DEVICE_CPU, LAST_PREFETCH_LOCATION, 0, BYTES);
    CU(cuMemPrefetchBatchAsync(ranges, sizes, 2, locations, first, 2, 0, CU_STREAM_PER_THREAD));
    CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    SAYS(driver_device, LAST_PREFETCH_LOCATION, 0, BYTES / 2);
    SAYS(CU_DEVICE_CPU, LAST_PREFETCH_LOCATION, BYTES / 2, BYTES / 2);
}

/* What is discarded may have any contents until it is written again. */
static void discards(volatile int *p)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_device};
    CUdeviceptr ranges[] = {at};
    size_t sizes[] = {BYTES}, first[] = {0};
    CU(cuMemDiscardBatchAsync(ranges, sizes, 1, 0, CU_STREAM_PER_THREAD));
    CU(cuMemDiscardAndPrefetchBatchAsync(ranges, sizes, 1, &location, first, 1, 0,
                                         CU_STREAM_PER_THREAD));
    CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    p[3] = 8;
    EXPECT(p[3] == 8, "written behind it: %d", p[3]);
}

static void refused(void)
{
    const CUmemLocation none = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 99};
    CUdeviceptr plain, ranges[] = {at};
    size_t sizes[] = {BYTES}, first[] = {1};
    CUmemLocation location = host;
    int value;
    CU(cuMemAlloc(&plain, BYTES));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemAdvise_v2(plain, 64, CU_MEM_ADVISE_SET_READ_MOSTLY, host));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAdvise_v2(at, BYTES, (CUmem_advise)99, host));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(at, 0, host, 0, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(at, BYTES, host, 1, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync_v2(at, BYTES, none, 0, NULL));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(ranges, sizes, 1, &location, first,
                                                               1, 0, CU_STREAM_PER_THREAD));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemRangeGetAttribute(&value, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, BYTES));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 64));
    CU(cuMemFree(plain));
}

int main(void)
{
    driver_start();
    CU(cuMemAllocManaged(&at, BYTES, CU_MEM_ATTACH_GLOBAL));
    int *p = (int *)(uintptr_t)at;
    p[0] = 5;
    advice();
    prefetches();
    EXPECT(p[0] == 5, "what it has is %d", p[0]);
    discards(p);
    refused();
    CU(cuMemFree(at));
    driver_stop();
    return finish("driver_managed_hints");
}
