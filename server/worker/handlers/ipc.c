/* CUDA's IPC: allocations and events that other processes of the lease open by their names. */
#include "ipc.h"

#include <stdlib.h>

#include "gpw_handlers.h"
#include "in_use.h"
#include "later.h"
#include "memory_internal.h"
#include "pool.h"
#include "shareable.h"

/* Where it lies in the memory is said in the name. */
static CUresult share_range(struct gpw_session *s, CUdeviceptr dptr, struct gp_ipc_name *name)
{
    struct gpw_window *w = gpw_window_of(s, dptr);
    struct gpw_pages pages;
    if (!w || !gpw_allocator_pages(w->allocator, dptr, &pages))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = *pages.shareable ? CUDA_SUCCESS
                                  : gpw_shareable_memory(s, pages.handle, w->ordinal, pages.bytes,
                                                         pages.shareable);
    if (r != CUDA_SUCCESS)
        return r;
    gpw_shareable_name(*pages.shareable, name);
    name->offset = pages.offset;
    name->bytes = pages.size;
    return CUDA_SUCCESS;
}

CUresult gpw_ipc_name(struct gpw_session *s, struct gp_ipc_name *name, enum gp_ipc_kind kind,
                      uint64_t what)
{
    struct gpw_shareable *one = NULL;
    CUresult r = kind == GP_IPC_RANGE    ? share_range(s, what, name)
                 : kind == GP_IPC_MEMORY ? gpw_physical_share(s, what, &one)
                 : kind == GP_IPC_POOL   ? gpw_pool_share(s, (CUmemoryPool)what, &one)
                                         : gpw_shareable_event(s, (CUevent)what, &one);
    if (r == CUDA_SUCCESS && one)
        gpw_shareable_name(one, name);
    name->kind = kind;
    return r;
}

/* --- what another process has named ---------------------------------------------------- */

static CUresult map_first(struct gpw_session *s, struct gpw_shareable *one)
{
    CUmemGenericAllocationHandle handle;
    CUresult r = gpw_shareable_open(s, one, &handle);
    if (r != CUDA_SUCCESS)
        return r;
    r = gpw_allocator_map(s->memory->windows[one->ordinal].allocator, handle, one->bytes, one,
                          &one->mapped_at);
    if (r != CUDA_SUCCESS) {
        s->driver->cuMemRelease(handle);
        gpw_shareable_let_go(s, one);
    }
    return r;
}

static CUresult map(struct gpw_session *s, struct gpw_shareable *one,
                    const struct gp_ipc_name *name, CUdeviceptr *dptr)
{
    if (gpw_shareable_is_own(s, name))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (name->bytes == 0 || name->offset > one->bytes || name->bytes > one->bytes - name->offset)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = one->maps ? CUDA_SUCCESS : map_first(s, one);
    if (r != CUDA_SUCCESS)
        return r;
    one->maps++;
    *dptr = one->mapped_at + name->offset;
    return CUDA_SUCCESS;
}

/* What was brought is gone then: it is asked for again the next time. */
static CUresult open_event(struct gpw_session *s, struct gpw_shareable *one, CUevent *event)
{
    CUresult r = s->driver->cuIpcOpenEventHandle(event, one->handle);
    if (one->brought)
        gpw_shareable_drop(s, one);
    return r;
}

static CUresult open_pool(struct gpw_session *s, struct gpw_shareable *one, CUmemoryPool *pool)
{
    CUresult r = gpw_pool_import(s, one->ordinal, pool);
    if (one->brought)
        gpw_shareable_drop(s, one);
    return r;
}

CUresult gpw_ipc_take(struct gpw_session *s, const struct gp_ipc_name *name, enum gp_ipc_kind kind,
                      uint64_t *out, int32_t *device)
{
    struct gpw_shareable *one = gpw_shareable_find(s, name);
    if (!one || one->ended || one->kind != gpw_shareable_kind(kind))
        return CUDA_ERROR_INVALID_VALUE;
    if (kind == GP_IPC_EVENT)
        return open_event(s, one, (CUevent *)out);
    *device = (int32_t)one->ordinal;
    if (kind == GP_IPC_POOL)
        return open_pool(s, one, (CUmemoryPool *)out);
    return kind == GP_IPC_RANGE ? map(s, one, name, (CUdeviceptr *)out)
                                : gpw_physical_open(s, one, (CUmemGenericAllocationHandle *)out);
}

struct unmapping {
    struct gpw_allocator *allocator;
    CUdeviceptr at;
};

static void unmap(struct gpw_session *s, void *arg)
{
    struct unmapping *u = arg;
    (void)s;
    gpw_allocator_unmap(u->allocator, u->at);
    free(u);
}

static void unused(struct gpw_session *s, void *arg, CUresult result)
{
    if (result != CUDA_ERROR_DEINITIALIZED)
        gpw_when_none_blocked(s, unmap, arg);
}

/* The GPU may be at work on it: the driver would wait for that, so this is done behind it. */
CUresult gpw_gp_ipc_unmap(struct gpw_session *s, CUdeviceptr dptr, uint32_t *left)
{
    struct gpw_shareable *one = gpw_shareable_mapped(s, dptr);
    if (!one)
        return CUDA_ERROR_INVALID_VALUE;
    struct unmapping *u = one->maps == 1 ? malloc(sizeof *u) : NULL;
    if (one->maps == 1 && !u)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *left = --one->maps;
    if (!u)
        return CUDA_SUCCESS;
    const struct gpw_window *window = &s->memory->windows[one->ordinal];
    *u = (struct unmapping){window->allocator, one->mapped_at};
    one->mapped_at = 0;
    bool before = gpw_strict(s, false);
    if (gpw_after_users(s, window, false, unused, u) != CUDA_SUCCESS)
        unused(s, u, CUDA_SUCCESS); /* a capture, or no memory */
    gpw_strict(s, before);
    return CUDA_SUCCESS;
}
