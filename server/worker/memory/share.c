/* Memory that client and worker both have mapped: the arena and pinned buffers. */
#include <stdlib.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "later.h"
#include "memory_internal.h"
#include "module.h"

/* A file of the client's memory: pinning it takes all its pages, whether the client has touched
 * them or not, and its size is known when it is mapped. */
static CUresult share_open(struct gpw_session *s, uint64_t id, uint64_t least, struct gp_share *out)
{
    if (s->transport->accept_share(s->channel, id, out) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    if (out->size < least) {
        r = CUDA_ERROR_INVALID_VALUE;
    } else if (gpw_budget_take(s, GPW_USE_SHARES, 1)) {
        if (gpw_budget_take(s, GPW_USE_PINNED, out->size))
            return CUDA_SUCCESS;
        gpw_budget_give(s, GPW_USE_SHARES, 1);
    }
    s->transport->unshare(s->channel, out);
    return r;
}

static void memory_close(struct gpw_session *s, struct gpw_pinned *p)
{
    if (p->own) {
        gpw_mapped_give(s, p);
        return;
    }
    gpw_budget_give(s, GPW_USE_PINNED, p->share.size);
    gpw_budget_give(s, GPW_USE_SHARES, 1);
    s->transport->unshare(s->channel, &p->share);
}

CUresult gpw_gp_arena_open(struct gpw_session *s, uint64_t share, uint64_t bytes)
{
    struct gpw_memory *m = s->memory;
    if (m->arena_open || !s->transport->accept_share) {
        gpw_session_broken(s, "an arena where there can be none");
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult r = share_open(s, share, bytes, &m->arena);
    m->arena_open = r == CUDA_SUCCESS;
    return r;
}

/* The arena is pinned in parts, each of whole pieces: all of it would take the driver longer than most
 * programs' first copies. At most so many as there are bits. */
static uint64_t arena_part(const struct gp_share *arena)
{
    uint64_t pieces = arena->size / (64 * GP_CHUNK_MAX) + 1;
    return (pieces > 8 ? pieces : 8) * GP_CHUNK_MAX;
}

static void arena_pin(struct gpw_session *s, unsigned part)
{
    struct gpw_memory *m = s->memory;
    uint64_t size = arena_part(&m->arena), begin = part * size, left = m->arena.size - begin;
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuMemHostRegister_v2((char *)m->arena.addr + begin,
                                                 (size_t)(left < size ? left : size),
                                                 CU_MEMHOSTREGISTER_PORTABLE);
    gpw_strict(s, before);
    if (r != CUDA_SUCCESS && !m->arena_refused)
        gpw_log("warn", "the arena cannot be pinned (CUDA error %d): copies are slower", (int)r);
    m->arena_refused |= r != CUDA_SUCCESS;
    m->arena_pinned |= UINT64_C(1) << part;
}

void *gpw_arena_at(struct gpw_session *s, uint64_t offset, uint64_t bytes)
{
    struct gpw_memory *m = s->memory;
    if (!m->arena_open || offset > m->arena.size || bytes > m->arena.size - offset)
        return NULL;
    uint64_t size = arena_part(&m->arena);
    /* needs a context, so not before the first use */
    for (uint64_t part = offset / size; part * size < offset + bytes; part++)
        if (!(m->arena_pinned >> part & 1))
            arena_pin(s, (unsigned)part);
    return (char *)m->arena.addr + offset;
}

CUresult gpw_gpu_page_open(struct gpw_session *s, uint64_t share, uint64_t bytes, bool waits)
{
    struct gpw_gpu_page *page = waits ? &s->memory->completions : &s->memory->event_page;
    if (page->open || !s->transport->accept_share) {
        gpw_session_broken(s, "a page for the GPU's numbers where there can be none");
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (uint32_t i = 0; i < s->device_count; i++) {
        int can = 0;
        CUresult r = s->driver->cuDeviceGetAttribute(
            &can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, s->devices[i]);
        if (r != CUDA_SUCCESS || !can)
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (waits && bytes < GP_COMPLETION_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = share_open(s, share, bytes, &page->share);
    page->open = r == CUDA_SUCCESS;
    if (!waits && gpw_modules_print(s))
        gpw_event_page_print(s);
    return r;
}

/* In the context in which it was registered, whose end undoes that: the client may have none that
 * is current. False: the GPU may still reach it. */
static bool unregister(struct gpw_session *s, const struct gpw_pinned *p)
{
    CUcontext before = NULL;
    if (!gpw_handle_find(s, GP_HANDLE_CONTEXT, (uint64_t)p->context))
        return true;
    s->driver->cuCtxGetCurrent(&before);
    s->driver->cuCtxSetCurrent(p->context);
    CUresult r = s->driver->cuMemHostUnregister(p->share.addr);
    s->driver->cuCtxSetCurrent(before);
    return r == CUDA_SUCCESS || r == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult gpw_gp_pinned_open(struct gpw_session *s, uint64_t share, uint64_t address, uint64_t bytes,
                            uint32_t flags, uint64_t *device_address)
{
    (void)flags;
    if (!s->transport->accept_share) {
        gpw_session_broken(s, "shared memory over a network");
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct gpw_pinned *p = calloc(1, sizeof *p);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->address = address;
    CUresult r = share_open(s, share, bytes, &p->share);
    if (r != CUDA_SUCCESS) {
        free(p);
        return r;
    }
    r = gpw_pinned_register(s, p);
    if (r == CUDA_SUCCESS)
        *device_address = p->device_address;
    return r;
}

CUresult gpw_pinned_register(struct gpw_session *s, struct gpw_pinned *p)
{
    /* a launch may need what is the worker's own, so a capture must not mind */
    bool before = p->own && gpw_strict(s, false);
    CUresult r = p->own ? CUDA_SUCCESS : gpw_forbidden(s);
    if (r == CUDA_SUCCESS)
        r = s->driver->cuMemHostRegister_v2(p->share.addr, p->share.size,
                                            CU_MEMHOSTREGISTER_PORTABLE |
                                                CU_MEMHOSTREGISTER_DEVICEMAP);
    bool registered = r == CUDA_SUCCESS;
    s->driver->cuCtxGetCurrent(&p->context);
    CUdeviceptr device = 0;
    if (r == CUDA_SUCCESS)
        r = s->driver->cuMemHostGetDevicePointer_v2(&device, p->share.addr, 0);
    if (before)
        gpw_strict(s, true);
    if (r != CUDA_SUCCESS) {
        if (!registered || unregister(s, p))
            memory_close(s, p);
        free(p);
        return r;
    }
    p->device_address = device;
    p->next = s->memory->pinned;
    s->memory->pinned = p;
    return CUDA_SUCCESS;
}

/* The GPU may still be at work on it, and the driver waits for all of its work. What it does not
 * let go of stays mapped for as long as the session lives. */
static void pinned_release(struct gpw_session *s, void *arg)
{
    struct gpw_pinned *p = arg;
    if (unregister(s, p))
        memory_close(s, p);
    free(p);
}

static void pinned_idle(struct gpw_session *s, void *arg, CUresult result)
{
    if (result != CUDA_ERROR_DEINITIALIZED)
        gpw_when_none_blocked(s, pinned_release, arg);
}

CUresult gpw_gp_pinned_close(struct gpw_session *s, uint64_t address)
{
    for (struct gpw_pinned **at = &s->memory->pinned; *at; at = &(*at)->next) {
        struct gpw_pinned *p = *at;
        if (p->address != address)
            continue;
        *at = p->next;
        bool before = gpw_strict(s, false);
        if (gpw_after_context(s, pinned_idle, p) != CUDA_SUCCESS)
            pinned_idle(s, p, CUDA_SUCCESS); /* a capture, or an error that ended all work */
        gpw_strict(s, before);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

bool gpw_pinned_on_device(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    for (struct gpw_pinned *p = s->memory->pinned; p; p = p->next)
        if (address >= p->device_address && address - p->device_address <= p->share.size &&
            bytes <= p->share.size - (address - p->device_address))
            return true;
    return false;
}

void *gpw_pinned_find(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    for (struct gpw_pinned *p = s->memory->pinned; p; p = p->next)
        if (address >= p->address && address - p->address <= p->share.size &&
            bytes <= p->share.size - (address - p->address))
            return (char *)p->share.addr + (address - p->address);
    return NULL;
}
