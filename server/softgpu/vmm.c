/*
 * Virtual memory management: addresses are reserved without rights, physical
 * memory is a memfd, mapping puts one into the other.
 */
#include "array.h"
#include "ipc.h"
#include "memory_file.h"
#include "timeslice.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x6c61636973796870) /* "physical" */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct sg_physical {
    struct sg_device *device;
    int fd;
    uint64_t size;
    int refs; /* the handle's own references and each mapping */
    int handles;
    CUmemAllocationProp prop;
    bool imported;        /* it counts in the process that has made it */
    unsigned char *pages; /* all of it, where arrays have some; NULL: not mapped for them yet */
};

/* Behind the pages in the file of memory that can be exported: who gets the file knows it by
 * that. */
struct trailer {
    uint64_t magic, size;
    CUuuid device;
};

/* Address ranges that are reserved, linked; few. */
struct reservation {
    struct reservation *next;
    uint64_t begin, size;
};
static struct reservation *reservations;

void sg_physical_unref(struct sg_physical *physical)
{
    if (--physical->refs)
        return;
    if (!physical->imported)
        sg_time_memory(physical->device, -(int64_t)physical->size);
    if (physical->pages)
        munmap(physical->pages, physical->size);
    close(physical->fd);
    free(physical);
}

static CUresult prop_check(const CUmemAllocationProp *prop, struct sg_device **device)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_NOT_SUPPORTED;
    *device = sg_device(prop->location.id);
    return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    SG_READY();
    struct sg_device *device;
    if (!granularity || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(prop_check(prop, &device));
    *granularity = SG_GRANULARITY;
    return CUDA_SUCCESS;
}

/* ---- addresses ---- */
/* Asks for `at` exactly, else for any place with the alignment. */
static void *reserve_space(uint64_t at, uint64_t size, uint64_t alignment)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (at && at % SG_GRANULARITY == 0 && at + size <= (uint64_t)1 << 47 && at + size > at) {
        void *there = mmap((void *)(uintptr_t)at, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1,
                           0);
        if (there == (void *)(uintptr_t)at)
            return there;
        if (there != MAP_FAILED)
            munmap(there, size);
    }
    uint64_t padded;
    if (__builtin_add_overflow(size, alignment, &padded))
        return NULL;
    char *space = mmap(NULL, padded, PROT_NONE, flags, -1, 0);
    if (space == MAP_FAILED)
        return NULL;
    uint64_t skip = (alignment - (uintptr_t)space % alignment) % alignment;
    if (skip)
        munmap(space, skip);
    if (padded - skip > size)
        munmap(space + skip + size, padded - skip - size);
    return space + skip;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    SG_LOCKED;
    SG_READY();
    if (!ptr || flags || !size || size % SG_GRANULARITY || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (size > (uint64_t)1 << 47)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct reservation *made = malloc(sizeof(*made));
    alignment = alignment < SG_GRANULARITY ? SG_GRANULARITY : alignment;
    void *space = made ? reserve_space(addr, size, alignment) : NULL;
    if (!space) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct reservation){reservations, (uintptr_t)space, size};
    reservations = made;
    *ptr = made->begin;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent mapped;
    struct reservation **link = &reservations;
    while (*link && (*link)->begin != ptr)
        link = &(*link)->next;
    if (!*link || (*link)->size != size || sg_address_touching(ptr, ptr + size, &mapped))
        return CUDA_ERROR_INVALID_VALUE;
    struct reservation *gone = *link;
    *link = gone->next;
    munmap((void *)(uintptr_t)gone->begin, gone->size);
    free(gone);
    return CUDA_SUCCESS;
}

static bool reserved(uint64_t begin, uint64_t size)
{
    for (struct reservation *r = reservations; r; r = r->next)
        if (begin >= r->begin && begin - r->begin < r->size && size <= r->size - (begin - r->begin))
            return true;
    return false;
}

/* ---- physical memory ---- */
/* Nobody who has it can cut it, or an access of others would be a signal. */
static bool file_end(int fd, const struct sg_device *device, uint64_t size)
{
    const struct trailer trailer = {MAGIC, size, device->uuid};
    return pwrite(fd, &trailer, sizeof(trailer), (off_t)size) == (ssize_t)sizeof(trailer) &&
           fcntl(fd, F_ADD_SEALS, SEALS) == 0;
}

static int file_make(const struct sg_device *device, uint64_t size, bool exportable)
{
    int fd = memfd_create("gpupool-soft-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && ftruncate(fd, (off_t)size) == 0 && (!exportable || file_end(fd, device, size)))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Takes over the file, also when it fails. */
static CUresult physical_add(const struct sg_physical *like, CUmemGenericAllocationHandle *handle)
{
    struct sg_physical *physical = like->fd >= 0 ? calloc(1, sizeof(*physical)) : NULL;
    if (!physical || !sg_handle_add(physical, SG_PHYSICAL)) {
        if (like->fd >= 0)
            close(like->fd);
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *physical = *like;
    physical->refs = physical->handles = 1;
    *handle = (uintptr_t)physical;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    SG_LOCKED;
    SG_READY();
    struct sg_device *device;
    if (!handle || flags || !size || size % SG_GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(prop_check(prop, &device));
    if (size > device->memory_size - device->memory_used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct sg_physical like = {
        .device = device,
        .size = size,
        .prop = *prop,
        .fd = file_make(device, size, prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE)};
    SG_TRY(physical_add(&like, handle));
    sg_time_memory(device, (int64_t)size);
    return CUDA_SUCCESS;
}

#define PHYSICAL_CHECK(name, handle)                                                               \
    SG_LOCKED;                                                                                     \
    SG_READY();                                                                                    \
    struct sg_physical *name = (struct sg_physical *)(uintptr_t)(handle);                          \
    if (!sg_handle_is(name, SG_PHYSICAL))                                                          \
    return CUDA_ERROR_INVALID_VALUE

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    PHYSICAL_CHECK(physical, handle);
    if (--physical->handles == 0)
        sg_handle_remove(physical);
    sg_physical_unref(physical);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle)
{
    PHYSICAL_CHECK(physical, handle);
    if (!prop)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = physical->prop;
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType,
                                      unsigned long long flags)
{
    PHYSICAL_CHECK(physical, handle);
    if (!shareableHandle || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        physical->prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareableHandle = fd;
    return CUDA_SUCCESS;
}

/* Whatever file it is, this waits for nothing. */
static bool file_read(int fd, struct trailer *trailer)
{
    struct stat info;
    const off_t more = sizeof(*trailer);
    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > more &&
           gp_memory_file_sealed(fd, SEALS) &&
           pread(fd, trailer, sizeof(*trailer), info.st_size - more) == more &&
           trailer->magic == MAGIC && trailer->size == (uint64_t)(info.st_size - more) &&
           trailer->size % SG_GRANULARITY == 0;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType)
{
    SG_LOCKED;
    SG_READY();
    struct trailer trailer;
    int fd = (int)(intptr_t)osHandle;
    if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !file_read(fd, &trailer))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_device *device = sg_device_named(&trailer.device);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_physical like = {
        .device = device,
        .size = trailer.size,
        .imported = true,
        .prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal}},
        .fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)};
    return physical_add(&like, handle);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent extent;
    if (!handle || !sg_address_find((uintptr_t)addr, &extent) || extent.space != SG_SPACE_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    if (extent.physical->handles++ == 0 && !sg_handle_add(extent.physical, SG_PHYSICAL)) {
        extent.physical->handles--;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    extent.physical->refs++;
    *handle = (uintptr_t)extent.physical;
    return CUDA_SUCCESS;
}

/* ---- pages of arrays ---- */
struct sg_physical *sg_physical_ref(struct sg_physical *physical)
{
    physical->refs++;
    return physical;
}

CUresult sg_physical_pages(CUmemGenericAllocationHandle handle, const struct sg_device *device,
                           uint64_t offset, uint64_t bytes, struct sg_physical **physical,
                           unsigned char **at)
{
    struct sg_physical *p = (struct sg_physical *)(uintptr_t)handle;
    if (!sg_handle_is(p, SG_PHYSICAL) || p->device != device ||
        !(p->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) || offset % SG_PAGE ||
        offset > p->size || bytes > p->size - offset)
        return CUDA_ERROR_INVALID_VALUE;
    if (!p->pages) {
        void *all = mmap(NULL, p->size, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
        if (all == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        p->pages = all;
    }
    *physical = p;
    *at = p->pages + offset;
    return CUDA_SUCCESS;
}

/* ---- mapping ---- */
CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    PHYSICAL_CHECK(physical, handle);
    if (flags || !size || ptr % SG_GRANULARITY || size % SG_GRANULARITY || offset != 0 ||
        size > physical->size || !reserved(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_extent extent = {.begin = ptr,
                               .end = ptr + size,
                               .space = SG_SPACE_MAPPED,
                               .device = physical->device,
                               .id = ++sg.next_id,
                               .physical = physical,
                               .physical_offset = offset};
    SG_TRY(sg_address_add(&extent));
    if (mmap((void *)(uintptr_t)ptr, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd,
             (off_t)offset) == MAP_FAILED) {
        sg_address_remove(ptr, NULL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->refs++;
    return CUDA_SUCCESS;
}

/* The range must be whole mappings, one after the other. Calls `each` on them. */
static CUresult whole_mappings(CUdeviceptr ptr, size_t size,
                               CUresult (*each)(struct sg_extent *, const void *), const void *data)
{
    struct sg_extent extent;
    uint64_t at = ptr, end;
    if (!size || __builtin_add_overflow(ptr, size, &end))
        return CUDA_ERROR_INVALID_VALUE;
    for (; at < end; at = extent.end)
        if (!sg_address_find(at, &extent) || extent.begin != at || extent.end > end ||
            extent.space != SG_SPACE_MAPPED)
            return CUDA_ERROR_INVALID_VALUE;
    for (at = ptr; at < end; at = extent.end) {
        sg_address_find(at, &extent);
        SG_TRY(each(&extent, data));
    }
    return CUDA_SUCCESS;
}

static CUresult unmap(struct sg_extent *extent, const void *unused)
{
    (void)unused;
    sg_streams_lose(extent->begin, extent->end);
    sg_address_remove(extent->begin, NULL);
    /* The addresses stay reserved. */
    if (mmap((void *)(uintptr_t)extent->begin, extent->end - extent->begin, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return CUDA_ERROR_OPERATING_SYSTEM;
    sg_physical_unref(extent->physical);
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    SG_LOCKED;
    SG_READY();
    sg_kernels_wait(); /* a real driver waits for nothing at all */
    return whole_mappings(ptr, size, unmap, NULL);
}

/* A bit for each device that is given access, and that it is taken from. */
struct access {
    uint32_t given, taken;
};

static CUresult set_access(struct sg_extent *extent, const void *data)
{
    const struct access *access = data;
    uint32_t devices = (extent->access & ~access->taken) | access->given;
    int rights = devices ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (mprotect((void *)(uintptr_t)extent->begin, extent->end - extent->begin, rights) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    extent->access = devices;
    sg_address_update(extent);
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent first;
    if (!desc || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_address_find(ptr, &first) || first.space != SG_SPACE_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    /* Read-only is refused: a kernel's write would be a signal here and not an error. */
    struct access access = {0, 0};
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (!sg_device(desc[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
        if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            access.given |= 1u << desc[i].location.id;
        else if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
            access.taken |= 1u << desc[i].location.id;
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return whole_mappings(ptr, size, set_access, &access);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent extent;
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !sg_address_find(ptr, &extent) || extent.space != SG_SPACE_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_device(location->id))
        return CUDA_ERROR_INVALID_DEVICE;
    bool open = extent.access >> location->id & 1;
    *flags = open ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
