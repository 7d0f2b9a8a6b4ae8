/* CUDA's IPC: names of memory, events and pools that processes of one lease have in common. A program
 * hands them on, as CUDA's handles or in files of ours that it may send, copy and close like the
 * driver's. */
#include "ipc.h"

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
#include "handle.h"
#include "memory_file.h"
#include "session.h"
#include "shared.h"
#include "spare.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

_Static_assert(sizeof(struct gp_ipc_name) <= CU_IPC_HANDLE_SIZE, "a name is too large for CUDA's");

/* What a CUmemPoolPtrExportData holds: an allocation's name, and whose pool it is of. */
struct pointer_name {
    struct gp_ipc_name name;
    uint8_t pool[sizeof(((struct gp_ipc_name *)0)->token)];
};
_Static_assert(sizeof(struct pointer_name) <= sizeof(CUmemPoolPtrExportData),
               "a name is too large for CUDA's");

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
           gp_memory_file_sealed(file, SEALS) &&
           pread(file, name, sizeof *name, 0) == (ssize_t)sizeof *name;
}

static CUresult name_give(const struct gp_ipc_name *name, void *to)
{
    if (name->kind != GP_IPC_MEMORY && name->kind != GP_IPC_POOL) {
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

/* --- pools ---------------------------------------------------------------------------------- */

/* Those that have been exported or imported, by their tokens. */
struct named_pool {
    struct named_pool *next;
    CUmemoryPool pool;
    bool imported;
    uint8_t token[sizeof(((struct pointer_name *)0)->pool)];
};
static struct named_pool *named_pools;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;

/* Under the lock: without those that have been destroyed. */
static struct named_pool *pool_find(CUmemoryPool pool)
{
    struct named_pool **at = &named_pools, *found = NULL;
    while (*at) {
        struct named_pool *one = *at;
        if (!gpc_handle_live(GP_HANDLE_MEMPOOL, (uint64_t)one->pool)) {
            *at = one->next;
            free(one);
            continue;
        }
        if (one->pool == pool)
            found = one;
        at = &one->next;
    }
    return found;
}

static bool pool_known(CUmemoryPool pool, struct named_pool *to)
{
    pthread_mutex_lock(&pools_lock);
    const struct named_pool *one = pool_find(pool);
    if (one)
        *to = *one;
    pthread_mutex_unlock(&pools_lock);
    return one != NULL;
}

static CUresult pool_note(CUmemoryPool pool, const struct gp_ipc_name *name, bool imported)
{
    pthread_mutex_lock(&pools_lock);
    struct named_pool *one = pool_find(pool);
    bool known = one || (one = calloc(1, sizeof *one));
    if (known && !one->pool) {
        *one = (struct named_pool){named_pools, pool, imported, {0}};
        memcpy(one->token, name->token, sizeof one->token);
        named_pools = one;
    }
    pthread_mutex_unlock(&pools_lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool gpc_pool_is_imported(CUmemoryPool pool)
{
    struct named_pool known;
    return pool_known(pool, &known) && known.imported;
}

static CUresult pool_name(CUmemoryPool pool, struct gp_ipc_name *name)
{
    if (gpc_pool_is_imported(pool))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpc_wire_gp_ipc_name_pool(pool, name);
    return r ? r : pool_note(pool, name, false);
}

/* Of a pool that has been exported, as CUDA wants it. */
static CUresult pointer_give(CUdeviceptr at, CUmemPoolPtrExportData *to)
{
    struct gpc_range range;
    struct named_pool pool;
    struct pointer_name own;
    if (!gpc_range_find(at, &range) || range.begin != at || range.kind != GPC_RANGE_POOL ||
        !pool_known((CUmemoryPool)range.from, &pool))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpc_wire_gp_ipc_name_range(at, &own.name);
    if (r != CUDA_SUCCESS)
        return r;
    own.name.kind = GP_IPC_POINTER;
    memcpy(own.pool, pool.token, sizeof own.pool);
    memset(to, 0, sizeof *to);
    memcpy(to, &own, sizeof own);
    return CUDA_SUCCESS;
}

/* --- giving --------------------------------------------------------------------------------- */

static CUresult name_of(enum gp_ipc_kind kind, uint64_t what, struct gp_ipc_name *name)
{
    struct gpc_range range;
    switch (kind) {
    case GP_IPC_MEMORY:
        return gpc_wire_gp_ipc_name_memory(what, name);
    case GP_IPC_POOL:
        return pool_name((CUmemoryPool)what, name);
    case GP_IPC_RANGE:
        if (!gpc_range_find(what, &range) || range.kind != GPC_RANGE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        gpc_spare_named(&range);
        return gpc_wire_gp_ipc_name_range(what, name);
    default:
        return gpc_wire_gp_ipc_name_event((CUevent)what, name);
    }
}

static bool used; /* set once, before the first name is known to anybody */

bool gpc_ipc_used(void)
{
    return __atomic_load_n(&used, __ATOMIC_RELAXED);
}

CUresult gpc_ipc_give(enum gp_ipc_kind kind, uint64_t what, void *to)
{
    struct gp_ipc_name name;
    __atomic_store_n(&used, true, __ATOMIC_RELAXED);
    if (kind == GP_IPC_POINTER)
        return pointer_give(what, to);
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

/* The program's device that the worker speaks of; -1: none that it sees. */
static CUdevice device_of(const struct gpc_session *s, int32_t ordinal)
{
    return ordinal < 0 ? -1 : gpc_device_of(s, (uint32_t)ordinal);
}

/* The range of what the worker has mapped, in one of the devices' windows. */
static CUresult keep(const struct gpc_range *range)
{
    const struct gp_device_info *d = gpc_device_info(range->device);
    if (!d)
        return CUDA_ERROR_MAP_FAILED;
    if (range->begin < d->window_begin || range->begin >= d->window_end ||
        range->size > d->window_end - range->begin)
        return CUDA_ERROR_UNKNOWN;
    return gpc_range_add(range) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What was opened in a context that has ended is opened no more, and its addresses may be
 * another's. */
static bool is_open(CUdeviceptr at, enum gpc_range_kind kind, struct gpc_range *range)
{
    return gpc_range_find(at, range) && range->begin == at && range->kind == kind;
}

/* Under the lock. */
static CUresult note_opened(const struct gpc_range *range)
{
    CUdeviceptr at = range->begin;
    struct opened **known = find(at);
    struct gpc_range before;
    if (*known && is_open(at, range->kind, &before)) {
        (*known)->times++;
        return CUDA_SUCCESS;
    }
    struct opened *one = *known ? *known : calloc(1, sizeof *one);
    if (!one)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = keep(range);
    if (r != CUDA_SUCCESS && !*known) {
        free(one);
        return r;
    }
    one->at = at;
    one->times = r == CUDA_SUCCESS;
    *known = one;
    return r;
}

/* `like` says what it is to be, but for where it lies. */
static CUresult open_range(const struct gpc_route *on, const struct gp_ipc_name *name,
                           const struct gpc_range *like, CUdeviceptr *pdptr)
{
    struct gpc_range range = *like;
    CUdeviceptr at;
    int32_t ordinal;
    uint32_t left;
    pthread_mutex_lock(&lock);
    CUresult r = gpc_wire_gp_ipc_map_on(on, name, &at, &ordinal);
    if (r == CUDA_SUCCESS) {
        range.begin = at;
        range.size = name->bytes;
        range.device = device_of(on->session, ordinal);
        r = note_opened(&range);
        if (r != CUDA_SUCCESS)
            gpc_wire_gp_ipc_unmap_on(on, at, &left);
    }
    pthread_mutex_unlock(&lock);
    if (r == CUDA_SUCCESS)
        *pdptr = at;
    return r;
}

/* Under the lock. The range goes first: from then on another thread may get its addresses. */
static CUresult close_range_at(const struct gpc_route *on, CUdeviceptr dptr,
                               enum gpc_range_kind kind)
{
    struct gpc_range range;
    struct opened **at = find(dptr), *one = *at;
    uint32_t left;
    if (!one || !is_open(dptr, kind, &range))
        return CUDA_ERROR_INVALID_VALUE;
    bool last = --one->times == 0;
    if (last) {
        gpc_range_forget(&range);
        *at = one->next;
        free(one);
    }
    return gpc_wire_gp_ipc_unmap_on(on, dptr, &left);
}

CUresult gpc_ipc_close(const struct gpc_route *on, CUdeviceptr dptr, enum gpc_range_kind kind)
{
    pthread_mutex_lock(&lock);
    CUresult r = close_range_at(on, dptr, kind);
    pthread_mutex_unlock(&lock);
    return r;
}

void gpc_ipc_drop(const struct gpc_route *on, CUdeviceptr dptr)
{
    uint32_t left;
    pthread_mutex_lock(&lock);
    struct opened **at = find(dptr), *one = *at;
    unsigned times = one ? one->times : 0;
    if (one) {
        *at = one->next;
        free(one);
    }
    while (times--)
        gpc_wire_gp_ipc_unmap_on(on, dptr, &left);
    pthread_mutex_unlock(&lock);
}

GPC_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    CUresult r = gpc_enter(GP_OP_cuIpcCloseMemHandle, GPC_NEEDS_CONTEXT);
    return r ? r : gpc_leave(gpc_ipc_close(NULL, dptr, GPC_RANGE_IPC));
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

static CUresult open_allocation(const struct gp_ipc_name *name, CUdeviceptr *pdptr)
{
    const struct gpc_route here = gpc_route_to(gpc_session());
    const struct gpc_range like = {.kind = GPC_RANGE_IPC,
                                   .context = gpc_context_owner(gpc_current())};
    return open_range(&here, name, &like, pdptr);
}

/* Here and now; what no process of the lease on this server has cannot be mapped. */
static CUresult take_handle(const struct gp_ipc_name *name, void *to)
{
    CUresult r = gpc_wire_gp_ipc_bring(name);
    if (r == CUDA_ERROR_INVALID_VALUE)
        return CUDA_ERROR_MAP_FAILED;
    if (r != CUDA_SUCCESS)
        return r;
    return name->kind == GP_IPC_RANGE ? open_allocation(name, to) : open_event(name, to);
}

static CUresult take_memory(const struct gpc_route *on, const struct gp_ipc_name *name,
                            CUmemGenericAllocationHandle *handle)
{
    CUmemGenericAllocationHandle made;
    int32_t ordinal;
    CUresult r = gpc_wire_gp_ipc_take_memory_on(on, &made, name, &ordinal);
    if (r != CUDA_SUCCESS)
        return r;
    CUdevice device = device_of(on->session, ordinal);
    if (device < 0) {
        gpc_wire_cuMemRelease_on(on, made);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *handle = made;
    return gpc_memory_made((uint64_t)made, device);
}

static CUresult take_pool(const struct gpc_route *on, const struct gp_ipc_name *name,
                          CUmemoryPool *pool)
{
    CUmemoryPool made;
    int32_t ordinal;
    CUresult r = gpc_wire_gp_ipc_take_pool_on(on, &made, name, &ordinal);
    if (r != CUDA_SUCCESS)
        return r;
    CUdevice device = device_of(on->session, ordinal);
    r = device < 0 ? CUDA_ERROR_INVALID_DEVICE : pool_note(made, name, true);
    if (r != CUDA_SUCCESS) {
        gpc_wire_cuMemPoolDestroy_on(on, made);
        return r;
    }
    *pool = made;
    return gpc_memory_made((uint64_t)made, device);
}

/* Of whatever server it is that has it. */
static CUresult take_file(const struct gp_ipc_name *name, void *to)
{
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; r == CUDA_ERROR_INVALID_VALUE && i < gpc_session_count(); i++) {
        const struct gpc_route on = gpc_route_to(gpc_session_at(i));
        r = gpc_wire_gp_ipc_bring_on(&on, name);
        if (r == CUDA_SUCCESS)
            r = name->kind == GP_IPC_POOL ? take_pool(&on, name, to) : take_memory(&on, name, to);
    }
    return r;
}

CUresult gpc_ipc_take(enum gp_ipc_kind kind, const void *from, void *to)
{
    struct gp_ipc_name name;
    __atomic_store_n(&used, true, __ATOMIC_RELAXED);
    bool file = kind == GP_IPC_MEMORY || kind == GP_IPC_POOL;
    if (file && !file_read((int)(intptr_t)from, &name))
        return CUDA_ERROR_INVALID_VALUE;
    if (!file)
        memcpy(&name, from, sizeof name);
    if (name.magic != GP_IPC_MAGIC || name.kind != (uint32_t)kind)
        return CUDA_ERROR_INVALID_VALUE;
    return file ? take_file(&name, to) : take_handle(&name, to);
}

/* CUDA says of no other error than this that a pointer may not be imported, as one of this
 * process's own. */
static CUresult take_pointer(CUmemoryPool pool, struct gp_ipc_name *name, CUdeviceptr *to)
{
    const struct gpc_route on = gpc_route_to(gpc_session_of_handle((uint64_t)pool));
    const struct gpc_range like = {.kind = GPC_RANGE_IMPORTED,
                                   .from = (uint64_t)pool,
                                   .context = gpc_context_owner(gpc_current())};
    name->kind = GP_IPC_RANGE;
    CUresult r = gpc_wire_gp_ipc_bring_on(&on, name);
    if (r == CUDA_SUCCESS)
        r = open_range(&on, name, &like, to);
    return r == CUDA_ERROR_INVALID_CONTEXT ? CUDA_ERROR_INVALID_VALUE : r;
}

GPC_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool,
                                           CUmemPoolPtrExportData *shareData)
{
    struct pointer_name theirs;
    struct named_pool known;
    CUresult r = gpc_enter(GP_OP_cuMemPoolImportPointer, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!ptr_out || !shareData || !pool_known(pool, &known) || !known.imported)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&theirs, shareData, sizeof theirs);
    if (theirs.name.magic != GP_IPC_MAGIC || theirs.name.kind != GP_IPC_POINTER ||
        memcmp(theirs.pool, known.token, sizeof known.token) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(take_pointer(pool, &theirs.name, ptr_out));
}
