/*
 * CUDA's IPC between processes of one machine. An allocation's handle says whose it is and which of
 * its files has the memory, which the other process opens in /proc: that needs the same user, as
 * CUDA does. Events have a table of their own (shared_event.h).
 */
#include "ipc.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared_event.h"

#define MAGIC UINT64_C(0x79726f6d656d6773) /* "sgmemory" */

struct name {
    uint64_t magic, offset, size, inode;
    int32_t process, file;
    CUuuid device;
};
_Static_assert(sizeof(struct name) <= CU_IPC_HANDLE_SIZE, "a name is too large for CUDA's");

/* ---- memory ---- */
CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_extent extent;
    SG_TRY(sg_context_current(&context));
    if (!pHandle || !sg_address_find(dptr, &extent) || extent.space != SG_SPACE_DEVICE ||
        extent.internal)
        return CUDA_ERROR_INVALID_VALUE;
    sg_contexts_wait();
    struct name name = {.magic = MAGIC,
                        .size = extent.end - extent.begin,
                        .process = (int32_t)getpid(),
                        .device = extent.device->uuid};
    struct stat info;
    name.file = sg_arena_share(extent.device->arena, extent.begin, &name.offset);
    if (name.file < 0 || fstat(name.file, &info) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    name.inode = info.st_ino;
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
static bool known(const struct name *name, struct sg_extent *found)
{
    for (uint64_t at = 0; sg_address_touching(at, UINT64_MAX, found); at = found->end)
        if (found->space == SG_SPACE_IPC && found->id_there == name->inode &&
            found->physical_offset == name->offset)
            return true;
    return false;
}

static CUresult map(CUcontext context, const struct name *name, CUdeviceptr *pdptr)
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
                               .id = ++sg.next_id,
                               .id_there = name->inode,
                               .physical_offset = name->offset,
                               .opened = 1};
    CUresult result = sg_address_add(&extent);
    if (result == CUDA_SUCCESS)
        *pdptr = extent.begin;
    else
        munmap(at, name->size + skip);
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    SG_LOCKED;
    CUcontext context;
    struct sg_extent extent;
    struct name name;
    SG_TRY(sg_context_current(&context));
    memcpy(&name, handle.reserved, sizeof(name));
    if (!pdptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || name.magic != MAGIC || !name.size)
        return CUDA_ERROR_INVALID_VALUE;
    if (name.process == (int32_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!known(&name, &extent))
        return map(context, &name, pdptr);
    extent.opened++;
    sg_address_update(&extent);
    *pdptr = extent.begin;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

void sg_ipc_unmap(const struct sg_extent *extent)
{
    uint64_t begin = extent->begin - extent->begin % (uint64_t)sysconf(_SC_PAGESIZE);
    sg_address_remove(extent->begin, NULL);
    munmap((void *)(uintptr_t)begin, extent->end - begin);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    SG_LOCKED;
    SG_READY();
    struct sg_extent extent;
    if (!sg_address_find(dptr, &extent) || extent.begin != dptr || extent.space != SG_SPACE_IPC)
        return CUDA_ERROR_INVALID_VALUE;
    if (--extent.opened) {
        sg_address_update(&extent);
        return CUDA_SUCCESS;
    }
    sg_contexts_wait();
    if (sg_address_find(dptr, &extent) && extent.begin == dptr && extent.space == SG_SPACE_IPC)
        sg_ipc_unmap(&extent);
    return CUDA_SUCCESS;
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
