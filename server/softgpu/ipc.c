/*
 * CUDA's IPC between processes of one machine. An allocation's handle says whose it is and which of
 * its files has the memory, which the other process opens in /proc: that needs the same user, as
 * CUDA does. So does what names an allocation of a pool, with the pool's number; the pool itself is
 * a file that says just that. Events have a table of their own (shared_event.h).
 */
#include "ipc.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory_file.h"
#include "pool.h"
#include "shared_event.h"

#define MAGIC UINT64_C(0x79726f6d656d6773) /* "sgmemory" */

struct name {
    uint64_t magic, offset, size, inode;
    int32_t process, file;
    CUuuid device;
};
_Static_assert(sizeof(struct name) <= CU_IPC_HANDLE_SIZE, "a name is too large for CUDA's");

#define POOL_MAGIC UINT64_C(0x6c6f6f70676773) /* "sggpool" */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

struct pool_name {
    uint64_t magic, id;
    int32_t process;
    CUuuid device;
};
struct pointer_name {
    struct name name;
    uint64_t pool;
};
_Static_assert(sizeof(struct pointer_name) <= sizeof(CUmemPoolPtrExportData),
               "a name is too large for CUDA's");

/* ---- memory ---- */
static CUresult name_of(const struct sg_extent *extent, struct name *name)
{
    struct stat info;
    sg_contexts_wait();
    *name = (struct name){.magic = MAGIC,
                          .size = extent->end - extent->begin,
                          .process = (int32_t)getpid(),
                          .device = extent->device->uuid};
    name->file = sg_arena_share(extent->device->arena, extent->begin, &name->offset);
    if (name->file < 0 || fstat(name->file, &info) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    name->inode = info.st_ino;
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_extent extent;
    struct name name;
    SG_TRY(sg_context_current(&context));
    if (!pHandle || !sg_address_find(dptr, &extent) || extent.space != SG_SPACE_DEVICE ||
        extent.internal)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(name_of(&extent, &name));
    memset(pHandle, 0, sizeof(*pHandle));
    memcpy(pHandle->reserved, &name, sizeof(name));
    return CUDA_SUCCESS;
}

/* The other process's file, if it is still the one that was meant; -1: it is not. */
static int file_open(const struct name *name)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", name->process, name->file);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_ino == name->inode &&
        name->offset < (uint64_t)info.st_size &&
        name->size <= (uint64_t)info.st_size - name->offset)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Of another process, by the same name: opened once, and counted. */
static bool known(const struct name *name, CUmemoryPool pool, struct sg_extent *found)
{
    for (uint64_t at = 0; sg_address_touching(at, UINT64_MAX, found); at = found->end)
        if (found->space == SG_SPACE_IPC && found->id_there == name->inode &&
            found->physical_offset == name->offset && found->pool == pool)
            return true;
    return false;
}

/* Memory of a pool is of no context, and keeps its pool. */
static CUresult map(CUcontext context, CUmemoryPool pool, const struct name *name,
                    CUdeviceptr *pdptr)
{
    struct sg_device *device = sg_device_named(&name->device);
    int fd = device ? file_open(name) : -1;
    if (fd < 0)
        return device ? CUDA_ERROR_MAP_FAILED : CUDA_ERROR_INVALID_VALUE;
    /* files are mapped by whole pages */
    uint64_t skip = name->offset % (uint64_t)sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, name->size + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                    (off_t)(name->offset - skip));
    close(fd);
    if (at == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    struct sg_extent extent = {.begin = (uintptr_t)at + skip,
                               .end = (uintptr_t)at + skip + name->size,
                               .space = SG_SPACE_IPC,
                               .device = device,
                               .context = context,
                               .pool = pool,
                               .id = ++sg.next_id,
                               .id_there = name->inode,
                               .physical_offset = name->offset,
                               .opened = 1};
    CUresult result = sg_address_add(&extent);
    if (result != CUDA_SUCCESS) {
        munmap(at, name->size + skip);
        return result;
    }
    if (pool)
        pool->refs++;
    *pdptr = extent.begin;
    return CUDA_SUCCESS;
}

/* The first time it is mapped, then counted. */
static CUresult open_named(CUcontext context, CUmemoryPool pool, const struct name *name,
                           CUdeviceptr *pdptr)
{
    struct sg_extent extent;
    if (!known(name, pool, &extent))
        return map(context, pool, name, pdptr);
    extent.opened++;
    sg_address_update(&extent);
    *pdptr = extent.begin;
    return CUDA_SUCCESS;
}

bool sg_ipc_closed(struct sg_extent *extent)
{
    if (extent->space != SG_SPACE_IPC || extent->opened == 1)
        return false;
    extent->opened--;
    sg_address_update(extent);
    return true;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    SG_LOCKED;
    CUcontext context;
    struct name name;
    SG_TRY(sg_context_current(&context));
    memcpy(&name, handle.reserved, sizeof(name));
    if (!pdptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || name.magic != MAGIC || !name.size)
        return CUDA_ERROR_INVALID_VALUE;
    if (name.process == (int32_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    return open_named(context, NULL, &name, pdptr);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

void sg_ipc_unmap(const struct sg_extent *extent)
{
    uint64_t begin = extent->begin - extent->begin % (uint64_t)sysconf(_SC_PAGESIZE);
    sg_address_remove(extent->begin, NULL);
    if (extent->pool)
        sg_pool_unref(extent->pool);
    munmap((void *)(uintptr_t)begin, extent->end - begin);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent extent;
    if (!sg_address_find(dptr, &extent) || extent.begin != dptr || extent.space != SG_SPACE_IPC ||
        extent.pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (sg_ipc_closed(&extent))
        return CUDA_SUCCESS;
    sg_contexts_wait();
    if (sg_address_find(dptr, &extent) && extent.begin == dptr && extent.space == SG_SPACE_IPC)
        sg_ipc_unmap(&extent);
    return CUDA_SUCCESS;
}

/* ---- pools ---- */

/* A file that never changes; -1: there is none to be had. */
static int pool_file(const struct pool_name *name)
{
    int fd = memfd_create("softgpu-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && write(fd, name, sizeof(*name)) == (ssize_t)sizeof(*name) &&
        fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool pool_file_read(int fd, struct pool_name *name)
{
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == sizeof(*name) &&
           gp_memory_file_sealed(fd, SEALS) &&
           pread(fd, name, sizeof(*name), 0) == (ssize_t)sizeof(*name) && name->magic == POOL_MAGIC;
}

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
                                          CUmemAllocationHandleType handleType,
                                          unsigned long long flags)
{
    SG_LOCKED;
    SG_READY();
    if (!handle_out || flags || !sg_handle_is(pool, SG_POOL) || pool->imported ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pool->props.handleTypes != handleType)
        return CUDA_ERROR_INVALID_VALUE;
    if (!pool->id) {
        pool->id = ++sg.next_id;
        pool->process = (int32_t)getpid();
    }
    const struct pool_name name = {POOL_MAGIC, pool->id, pool->process, pool->device->uuid};
    int fd = pool_file(&name);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)handle_out = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                            CUmemAllocationHandleType handleType,
                                            unsigned long long flags)
{
    SG_LOCKED;
    SG_READY();
    struct pool_name name;
    if (!pool_out || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !pool_file_read((int)(intptr_t)handle, &name))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_device *device = sg_device_named(&name.device);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool made = sg_pool_create(device, false);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->imported = true;
    made->process = name.process;
    made->id = name.id;
    *pool_out = made;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent extent;
    struct pointer_name own;
    if (!shareData_out || !sg_address_find(ptr, &extent) || extent.begin != ptr ||
        extent.space != SG_SPACE_POOL || extent.block || extent.freed || !extent.pool->id)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(name_of(&extent, &own.name));
    own.pool = extent.pool->id;
    memset(shareData_out, 0, sizeof(*shareData_out));
    memcpy(shareData_out, &own, sizeof(own));
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool,
                                CUmemPoolPtrExportData *shareData)
{
    SG_LOCKED;
    SG_READY();
    struct pointer_name theirs;
    if (!ptr_out || !shareData || !sg_handle_is(pool, SG_POOL) || !pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&theirs, shareData, sizeof(theirs));
    if (theirs.name.magic != MAGIC || !theirs.name.size || theirs.pool != pool->id ||
        theirs.name.process != pool->process || pool->process == (int32_t)getpid())
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = open_named(NULL, pool, &theirs.name, ptr_out);
    return result == CUDA_ERROR_MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : result;
}

/* ---- events ---- */
CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)
{
    SG_LOCKED;
    SG_READY();
    if (!sg_handle_is(event, SG_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pHandle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!event->shared)
        return CUDA_ERROR_INVALID_HANDLE;
    sg_shared_event_name(event->shared, pHandle);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!phEvent)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_shared_event *shared = sg_shared_event_open(&handle);
    if (!shared)
        return CUDA_ERROR_INVALID_HANDLE;
    return sg_event_make(context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, shared, phEvent);
}
