/* CUDA's IPC: names of memory and events that processes of one lease have in common. A program hands
 * them on, as CUDA's handles or in files of ours that it may send, copy and close like the driver's. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "call.h"
#include "context.h"
#include "export.h"
#include "gpc_wire.h"
#include "ranges.h"
#include "session.h"
#include "shared.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

_Static_assert(sizeof(struct gp_ipc_name) <= CU_IPC_HANDLE_SIZE, "a name is too large for CUDA's");

/* --- names --------------------------------------------------------------------------------- */

/* That never changes; -1: there is none to be had. */
static int file_new(const struct gp_ipc_name *name)
{
    int file = memfd_create("gpupool-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file >= 0 && write(file, name, sizeof *name) == (ssize_t)sizeof *name &&
        fcntl(file, F_ADD_SEALS, SEALS) == 0)
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

/* False: it is no such file. Whatever the descriptor is, this waits for nothing. */
static bool file_read(int file, struct gp_ipc_name *name)
{
    struct stat info;
    return fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == sizeof *name &&
           fcntl(file, F_GET_SEALS) == SEALS &&
           pread(file, name, sizeof *name, 0) == (ssize_t)sizeof *name;
}

static CUresult name_give(const struct gp_ipc_name *name, void *to)
{
    if (name->kind != GP_IPC_MEMORY) {
        memset(to, 0, CU_IPC_HANDLE_SIZE);
        memcpy(to, name, sizeof *name);
        return CUDA_SUCCESS;
    }
    int file = file_new(name);
    if (file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)to = file;
    return CUDA_SUCCESS;
}

static CUresult name_of(enum gp_ipc_kind kind, uint64_t what, struct gp_ipc_name *name)
{
    struct gpc_range range;
    switch (kind) {
    case GP_IPC_MEMORY:
        return gpc_wire_gp_ipc_name_memory(what, name);
    case GP_IPC_RANGE:
        return gpc_range_find(what, &range) && range.kind == GPC_RANGE_DEVICE
                   ? gpc_wire_gp_ipc_name_range(what, name)
                   : CUDA_ERROR_INVALID_VALUE;
    default:
        return gpc_wire_gp_ipc_name_event((CUevent)what, name);
    }
}

CUresult gpc_ipc_give(enum gp_ipc_kind kind, uint64_t what, void *to)
{
    struct gp_ipc_name name;
    CUresult r = name_of(kind, what, &name);
    name.kind = (uint32_t)kind;
    return r ? r : name_give(&name, to);
}

/* --- memory -------------------------------------------------------------------------------- */

/* How often each range has been opened. */
struct opened {
    struct opened *next;
    CUdeviceptr at;
    unsigned times;
};
static struct opened *opened;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct opened **find(CUdeviceptr at)
{
    struct opened **one = &opened;
    while (*one && (*one)->at != at)
        one = &(*one)->next;
    return one;
}

/* The range of what the worker has mapped, in one of the devices' windows. */
static CUresult keep(CUdeviceptr at, uint64_t bytes, CUdevice device)
{
    const struct gp_device_info *d = gpc_device_info(device);
    if (!d || at < d->window_begin || at >= d->window_end || bytes > d->window_end - at)
        return CUDA_ERROR_UNKNOWN;
    struct gpc_range range = {.begin = at,
                              .size = bytes,
                              .kind = GPC_RANGE_IPC,
                              .context = gpc_context_owner(gpc_current()),
                              .device = device};
    return gpc_range_add(&range) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What was opened in a context that has ended is opened no more, and its addresses may be
 * another's. */
static bool is_open(CUdeviceptr at)
{
    struct gpc_range range;
    return gpc_range_find(at, &range) && range.begin == at && range.kind == GPC_RANGE_IPC;
}

/* Under the lock. */
static CUresult note_opened(CUdeviceptr at, uint64_t bytes, CUdevice device)
{
    struct opened **known = find(at);
    if (*known && is_open(at)) {
        (*known)->times++;
        return CUDA_SUCCESS;
    }
    struct opened *one = *known ? *known : calloc(1, sizeof *one);
    if (!one)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = keep(at, bytes, device);
    if (r != CUDA_SUCCESS && !*known) {
        free(one);
        return r;
    }
    one->at = at;
    one->times = r == CUDA_SUCCESS;
    *known = one;
    return r;
}

static CUresult open_range(const struct gp_ipc_name *name, CUdeviceptr *pdptr)
{
    CUdeviceptr at;
    int32_t device;
    uint32_t left;
    pthread_mutex_lock(&lock);
    CUresult r = gpc_wire_gp_ipc_map(name, &at, &device);
    if (r == CUDA_SUCCESS &&
        (r = note_opened(at, name->bytes, gpc_session()->first + device)) != CUDA_SUCCESS)
        gpc_wire_gp_ipc_unmap(at, &left);
    pthread_mutex_unlock(&lock);
    if (r == CUDA_SUCCESS)
        *pdptr = at;
    return r;
}

/* Under the lock. The range goes first: from then on another thread may get its addresses. */
static CUresult close_range_at(CUdeviceptr dptr)
{
    struct gpc_range range;
    struct opened **at = find(dptr), *one = *at;
    uint32_t left;
    if (!one || !gpc_range_find(dptr, &range) || range.begin != dptr || range.kind != GPC_RANGE_IPC)
        return CUDA_ERROR_INVALID_VALUE;
    bool last = --one->times == 0;
    if (last) {
        gpc_range_forget(&range);
        *at = one->next;
        free(one);
    }
    return gpc_wire_gp_ipc_unmap(dptr, &left);
}

GPC_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    CUresult r = gpc_enter(GP_OP_cuIpcCloseMemHandle, GPC_NEEDS_CONTEXT);
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    r = close_range_at(dptr);
    pthread_mutex_unlock(&lock);
    return gpc_leave(r);
}

/* --- what a name stands for ------------------------------------------------------------------ */

static CUresult open_event(const struct gp_ipc_name *name, CUevent *event)
{
    CUevent made;
    CUresult r = gpc_wire_gp_ipc_take_event(&made, name);
    if (r == CUDA_SUCCESS)
        r = gpc_event_submitted(made, CU_EVENT_INTERPROCESS);
    if (r == CUDA_SUCCESS)
        *event = made;
    return r;
}

/* Here and now; what no process of the lease on this server has cannot be mapped. */
static CUresult take_handle(const struct gp_ipc_name *name, void *to)
{
    CUresult r = gpc_wire_gp_ipc_bring(name);
    if (r == CUDA_ERROR_INVALID_VALUE)
        return CUDA_ERROR_MAP_FAILED;
    if (r != CUDA_SUCCESS)
        return r;
    return name->kind == GP_IPC_RANGE ? open_range(name, to) : open_event(name, to);
}

/* Of whatever server it is that has it. */
static CUresult take_memory(const struct gp_ipc_name *name, CUmemGenericAllocationHandle *handle)
{
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; r == CUDA_ERROR_INVALID_VALUE && i < gpc_session_count(); i++) {
        const struct gpc_route on = gpc_route_to(gpc_session_at(i));
        CUmemGenericAllocationHandle made;
        int32_t device;
        if ((r = gpc_wire_gp_ipc_bring_on(&on, name)) != CUDA_SUCCESS ||
            (r = gpc_wire_gp_ipc_take_memory_on(&on, &made, name, &device)) != CUDA_SUCCESS)
            continue;
        *handle = made;
        return gpc_memory_made((uint64_t)made, on.session->first + device);
    }
    return r;
}

CUresult gpc_ipc_take(enum gp_ipc_kind kind, const void *from, void *to)
{
    struct gp_ipc_name name;
    if (kind == GP_IPC_MEMORY && !file_read((int)(intptr_t)from, &name))
        return CUDA_ERROR_INVALID_VALUE;
    if (kind != GP_IPC_MEMORY)
        memcpy(&name, from, sizeof name);
    if (name.magic != GP_IPC_MAGIC || name.kind != (uint32_t)kind)
        return CUDA_ERROR_INVALID_VALUE;
    return kind == GP_IPC_MEMORY ? take_memory(&name, to) : take_handle(&name, to);
}
