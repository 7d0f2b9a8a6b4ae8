/* Host memory that the device reaches: allocated, registered, managed. */
#include "softgpu.h"

#include <sys/mman.h>
#include <sys/random.h>

/* Where managed variables are. */
#define MANAGED_BEGIN (UINT64_C(1) << 46)
#define MANAGED_SIZE (UINT64_C(1) << 40)

/* Anonymous pages, registered; gone with its context. */
static CUresult host_take(CUcontext context, size_t size, enum sg_space space, unsigned flags,
                          void **out)
{
    if (size > (size_t)1 << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t begin = (uint64_t)(uintptr_t)pages;
    struct sg_extent extent = {.begin = begin,
                               .end = begin + size,
                               .space = space,
                               .device = context->device,
                               .context = context,
                               .id = ++sg.next_id,
                               .flags = flags};
    CUresult result = sg_address_add(&extent);
    if (result != CUDA_SUCCESS) {
        munmap(pages, size);
        return result;
    }
    *out = pages;
    return CUDA_SUCCESS;
}

CUresult sg_host_give(uint64_t address, enum sg_space space)
{
    struct sg_extent extent;
    if (!sg_address_find(address, &extent) || extent.begin != address || extent.space != space)
        return CUDA_ERROR_INVALID_VALUE;
    sg_address_remove(address, NULL);
    if (space != SG_SPACE_REGISTERED && !extent.internal) /* a module's pages go with it */
        munmap((void *)(uintptr_t)extent.begin, extent.end - extent.begin);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                     CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!pp || !bytesize || (Flags & ~known))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_capture_unsafe());
    return host_take(context, bytesize, SG_SPACE_HOST, Flags, pp);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void *p)
{
    SG_LOCKED;
    SG_READY();
    CUcontext context;
    if (!p)
        return CUDA_SUCCESS;
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_capture_unsafe());
    struct sg_extent extent;
    if (!sg_address_find((uintptr_t)p, &extent) || extent.space != SG_SPACE_HOST ||
        extent.begin != (uintptr_t)p)
        return CUDA_ERROR_INVALID_VALUE;
    sg_contexts_wait();
    return sg_host_give((uintptr_t)p, SG_SPACE_HOST);
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                     CU_MEMHOSTREGISTER_READ_ONLY;
    uint64_t begin = (uintptr_t)p, end;
    if (Flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!p || !bytesize || (Flags & ~known) || __builtin_add_overflow(begin, bytesize, &end))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_extent other;
    if (sg_address_touching(begin, end, &other))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct sg_extent extent = {.begin = begin,
                               .end = end,
                               .space = SG_SPACE_REGISTERED,
                               .device = context->device,
                               .context = context,
                               .id = ++sg.next_id,
                               .flags = Flags};
    return sg_address_add(&extent);
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
    return cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void *p)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_extent extent;
    SG_TRY(sg_context_current(&context));
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    sg_contexts_wait(); /* also if its context is gone: the caller is about to unmap it */
    if (!sg_address_find((uintptr_t)p, &extent) || extent.space != SG_SPACE_REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (extent.begin != (uintptr_t)p)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_host_give((uintptr_t)p, SG_SPACE_REGISTERED);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_extent extent;
    SG_TRY(sg_context_current(&context));
    if (!pdptr || Flags || !sg_address_find((uintptr_t)p, &extent) ||
        !(sg_space_is_host(extent.space) || extent.space == SG_SPACE_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    *pdptr = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_extent extent;
    SG_TRY(sg_context_current(&context));
    if (!pFlags || !sg_address_find((uintptr_t)p, &extent) || extent.space != SG_SPACE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    /* With unified addresses all of it is mapped. */
    *pFlags = extent.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

/* Far from where a kernel puts what processes map: a client has to have the same addresses. */
static void *place_for_managed(void)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return NULL;
    return (void *)(uintptr_t)(MANAGED_BEGIN + random % MANAGED_SIZE / 4096 * 4096);
}

/* Pages for a module's managed variables, of which only these are memory for CUDA. */
CUresult sg_managed_take(size_t size, uint64_t *address)
{
    void *pages = mmap(place_for_managed(), size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = (uintptr_t)pages;
    return CUDA_SUCCESS;
}

CUresult sg_managed_variable(CUcontext context, uint64_t address, size_t size)
{
    struct sg_extent extent = {.begin = address,
                               .end = address + size,
                               .space = SG_SPACE_MANAGED,
                               .device = context->device,
                               .context = context,
                               .id = ++sg.next_id,
                               .flags = CU_MEM_ATTACH_GLOBAL,
                               .internal = true};
    return sg_address_add(&extent);
}

void sg_managed_give(uint64_t address, size_t size)
{
    munmap((void *)(uintptr_t)address, size);
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    SG_LOCKED;
    CUcontext context;
    void *pages;
    SG_TRY(sg_context_current(&context));
    if (!dptr || !bytesize || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_capture_unsafe());
    SG_TRY(host_take(context, bytesize, SG_SPACE_MANAGED, flags, &pages));
    *dptr = (uintptr_t)pages;
    return CUDA_SUCCESS;
}

/* Hints about managed memory change nothing here: it is where it is. */
static CUresult managed_check(CUdeviceptr address, size_t bytes)
{
    CUcontext context;
    struct sg_extent extent;
    SG_TRY(sg_context_current(&context));
    if (!bytes || !sg_address_find(address, &extent) || extent.space != SG_SPACE_MANAGED ||
        bytes > extent.end - address)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t bytes, CUmem_advise advice,
                        CUmemLocation location)
{
    (void)location;
    SG_LOCKED;
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) {
        SG_READY();
        return CUDA_ERROR_INVALID_VALUE;
    }
    return managed_check(devPtr, bytes);
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t bytes, CUmem_advise advice, CUdevice device)
{
    return cuMemAdvise_v2(devPtr, bytes, advice,
                          (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device});
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t bytes, CUmemLocation location,
                               unsigned int flags, CUstream hStream)
{
    (void)location;
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    return managed_check(devPtr, bytes);
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t bytes, CUdevice dstDevice, CUstream hStream)
{
    return cuMemPrefetchAsync_v2(
        devPtr, bytes, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dstDevice}, 0,
        hStream);
}
