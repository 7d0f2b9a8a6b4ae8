/* A driver that only keeps books, for tests of the worker's allocator: what is mapped where. After
 * cmocka's headers. */
#ifndef ALLOCATOR_DRIVER_H
#define ALLOCATOR_DRIVER_H

#include "allocator.h"

#define MIB (UINT64_C(1) << 20)
#define GRANULE (2 * MIB)
#define WINDOW (UINT64_C(0x600000000000))
#define SMALLEST 512u

/* --- the driver ---------------------------------------------------------------- */

#define MAPPINGS_MAX 64

static struct {
    struct mapping {
        CUdeviceptr at;
        size_t size;
        CUmemGenericAllocationHandle pages;
    } mapped[MAPPINGS_MAX];
    unsigned count;
    unsigned created; /* not released */
    uint64_t used, total;
    CUmemGenericAllocationHandle last;
    size_t sizes[256]; /* by handle */
    CUresult map_fails, access_fails;
    bool exports_nothing; /* though the device says that it does */
    unsigned exportable;  /* of what was created */
} gpu;

static CUresult gpu_create(CUmemGenericAllocationHandle *pages, size_t size,
                           const CUmemAllocationProp *prop, unsigned long long flags)
{
    assert_int_equal(size % GRANULE, 0);
    assert_int_equal(prop->location.id, 5);
    assert_int_equal(flags, 0);
    if (prop->requestedHandleTypes && gpu.exports_nothing)
        return CUDA_ERROR_NOT_SUPPORTED;
    gpu.exportable += prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (size > gpu.total - gpu.used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pages = ++gpu.last;
    assert_true(gpu.last < 256);
    gpu.sizes[gpu.last] = size;
    gpu.used += size;
    gpu.created++;
    return CUDA_SUCCESS;
}

static CUresult gpu_release(CUmemGenericAllocationHandle pages)
{
    assert_true(pages <= gpu.last && gpu.sizes[pages] != 0);
    gpu.used -= gpu.sizes[pages];
    gpu.sizes[pages] = 0;
    gpu.created--;
    return CUDA_SUCCESS;
}

static CUresult gpu_map(CUdeviceptr at, size_t size, size_t offset,
                        CUmemGenericAllocationHandle pages, unsigned long long flags)
{
    assert_int_equal(offset + flags, 0);
    assert_int_equal(gpu.sizes[pages], size);
    for (unsigned i = 0; i < gpu.count; i++)
        assert_true(at >= gpu.mapped[i].at + gpu.mapped[i].size || at + size <= gpu.mapped[i].at);
    if (gpu.map_fails != CUDA_SUCCESS)
        return gpu.map_fails;
    assert_true(gpu.count < MAPPINGS_MAX);
    gpu.mapped[gpu.count++] = (struct mapping){at, size, pages};
    return CUDA_SUCCESS;
}

static CUresult gpu_unmap(CUdeviceptr at, size_t size)
{
    for (unsigned i = 0; i < gpu.count; i++)
        if (gpu.mapped[i].at == at && gpu.mapped[i].size == size) {
            gpu.mapped[i] = gpu.mapped[--gpu.count];
            return CUDA_SUCCESS;
        }
    fail_msg("what is unmapped was not mapped");
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult gpu_access(CUdeviceptr at, size_t size, const CUmemAccessDesc *access, size_t count)
{
    (void)at, (void)size;
    assert_int_equal(count, 1);
    assert_int_equal(access->flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return gpu.access_fails;
}

static CUresult gpu_attribute(int *value, CUdevice_attribute what, CUdevice device)
{
    *value = device == 5 && what == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    return CUDA_SUCCESS;
}

static const struct gpw_driver driver = {
    .cuDeviceGetAttribute = gpu_attribute,
    .cuMemCreate = gpu_create,
    .cuMemRelease = gpu_release,
    .cuMemMap = gpu_map,
    .cuMemUnmap = gpu_unmap,
    .cuMemSetAccess = gpu_access,
};

static bool is_mapped(CUdeviceptr at, uint64_t size)
{
    for (unsigned i = 0; i < gpu.count; i++)
        if (at >= gpu.mapped[i].at && at + size <= gpu.mapped[i].at + gpu.mapped[i].size)
            return true;
    return false;
}

/* --- what every test does --------------------------------------------------------- */

static struct gpw_allocator *a;

static void begin(uint64_t memory, uint64_t window)
{
    gpu = (__typeof__(gpu)){.total = memory};
    a = gpw_allocator_new(&driver, 5, WINDOW, WINDOW + window);
    assert_non_null(a);
}

/* Nothing may be left in the driver. */
static void end(void)
{
    gpw_allocator_delete(a);
    assert_int_equal(gpu.count, 0);
    assert_int_equal(gpu.created, 0);
    assert_int_equal(gpu.used, 0);
}

#endif
