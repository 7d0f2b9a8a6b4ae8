#include "memory.h"

#include <stdlib.h>

#include "allocator.h"
#include "gp_errors.h"
#include "gpw_handlers.h"
#include "growth.h"
#include "handles.h"
#include "later.h"
#include "loop.h"
#include "memory_internal.h"
#include "pool.h"
#include "quota.h"
#include "shareable.h"
#include "span.h"

/* The second half of each window is for cuMemAddressReserve. */
#define HEAP_SIZE (GP_WINDOW_SIZE / 2)
/* At most so much more than it was asked for does the allocator take. */
#define GRANULE (UINT64_C(2) << 20)

static bool window_take(void *arg, uint64_t bytes)
{
    struct gpw_window *w = arg;
    return gpw_quota_take(w->session, w->ordinal, bytes);
}

static void window_give(void *arg, uint64_t bytes)
{
    struct gpw_window *w = arg;
    gpw_quota_give(w->session, w->ordinal, bytes);
}

static void window_let_go(void *arg, struct gpw_shareable *one, CUdeviceptr at)
{
    struct gpw_window *w = arg;
    if (one->mapped_at == at)
        one->mapped_at = one->maps = 0;
    gpw_shareable_let_go(w->session, one);
}

int gpw_memory_open(struct gpw_session *s)
{
    s->memory = calloc(1, sizeof *s->memory);
    return s->memory ? 0 : -1;
}

/* The addresses of one device, and who hands them out. */
static CUresult window_open(struct gpw_session *s, uint32_t ordinal, uint64_t want)
{
    struct gpw_window *w = &s->memory->windows[ordinal];
    CUdeviceptr got = 0;
    CUresult r = s->driver->cuMemAddressReserve(&got, GP_WINDOW_SIZE, 0, want, 0);
    if (r != CUDA_SUCCESS) {
        gpw_log("error",
                "device %u: cannot reserve 1 TiB of addresses (CUDA error %d); "
                "is the driver older than 11.2?",
                ordinal, (int)r);
        return r;
    }
    w->session = s;
    w->ordinal = ordinal;
    w->begin = got;
    w->end = got + GP_WINDOW_SIZE;
    w->allocator = gpw_allocator_new(s->driver, s->devices[ordinal], got, got + HEAP_SIZE);
    if (!w->allocator)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct gpw_allocator_limit limit = {window_take, window_give, window_let_go, w};
    gpw_allocator_set_limit(w->allocator, &limit);
    gpw_allocator_follow(w->allocator, &s->at_message);
    w->reserve_next = got + HEAP_SIZE;
    return CUDA_SUCCESS;
}

CUresult gpw_memory_place(struct gpw_session *s, uint64_t base)
{
    if (base < GP_WINDOW_BASE || base % GP_WINDOW_SIZE || base > GP_WINDOW_END ||
        (GP_WINDOW_END - base) / GP_WINDOW_SIZE < s->device_count)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < s->device_count && r == CUDA_SUCCESS; i++)
        r = window_open(s, i, base + i * GP_WINDOW_SIZE);
    return r;
}

void gpw_memory_close(struct gpw_session *s)
{
    struct gpw_memory *m = s->memory;
    for (uint32_t i = 0; m && i < s->device_count; i++)
        gpw_allocator_delete(m->windows[i].allocator);
    if (m)
        gpw_captured_close(s);
    if (m)
        free(m->graph_memory);
    free(m);
    s->memory = NULL;
}

void gpw_memory_window(struct gpw_session *s, uint32_t ordinal, uint64_t *begin, uint64_t *end)
{
    *begin = s->memory->windows[ordinal].begin;
    *end = s->memory->windows[ordinal].end;
}

uint64_t gpw_memory_bytes(const struct gpw_session *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; s->memory && i < s->device_count; i++)
        if (s->memory->windows[i].allocator)
            bytes += gpw_allocator_bytes(s->memory->windows[i].allocator);
    return bytes;
}

/* The window of the current context's device. */
static struct gpw_window *current_window(struct gpw_session *s)
{
    CUdevice device;
    if (s->driver->cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return NULL;
    for (uint32_t i = 0; i < s->device_count; i++)
        if (s->devices[i] == device)
            return &s->memory->windows[i];
    return NULL;
}

struct gpw_window *gpw_window_of(struct gpw_session *s, CUdeviceptr address)
{
    for (uint32_t i = 0; i < s->device_count; i++)
        if (address >= s->memory->windows[i].begin && address < s->memory->windows[i].end)
            return &s->memory->windows[i];
    return NULL;
}

/* --- allocations ------------------------------------------------------------------- */

void gpw_memory_trim(struct gpw_session *s, uint32_t ordinal)
{
    if (gpw_streams_blocked(s)) /* it would wait for them */
        return;
    bool before = gpw_strict(s, false);
    gpw_pools_trim(s, ordinal);
    gpw_allocator_trim(s->memory->windows[ordinal].allocator);
    gpw_growth_trim_graphs(s, ordinal);
    gpw_strict(s, before);
}

CUresult gpw_memory_make_room(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    if (gpw_quota_fits(s, ordinal, bytes))
        return CUDA_SUCCESS;
    if (gpw_memory_must_wait(s))
        return GPW_AGAIN;
    gpw_memory_trim(s, ordinal);
    return CUDA_SUCCESS;
}

CUresult gpw_memory_room(struct gpw_session *s, uint64_t bytes)
{
    int ordinal = gpw_current_ordinal(s);
    if (ordinal < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult r = gpw_memory_make_room(s, (uint32_t)ordinal, bytes);
    return r || gpw_quota_fits(s, (uint32_t)ordinal, bytes) ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gpw_cuMemAlloc_v2(struct gpw_session *s, CUdeviceptr *dptr, size_t bytesize)
{
    struct gpw_window *w = current_window(s);
    if (!w)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult r = gpw_forbidden(s);
    if (r == CUDA_SUCCESS)
        r = gpw_memory_make_room(s, w->ordinal, (uint64_t)bytesize + GRANULE);
    if (r == CUDA_SUCCESS)
        r = gpw_allocator_take(w->allocator, bytesize, dptr);
    return r == CUDA_ERROR_OUT_OF_MEMORY && gpw_memory_must_wait(s) ? GPW_AGAIN : r;
}

void gpw_memory_context_ended(struct gpw_session *s, CUcontext context)
{
    CUcontext before = NULL;
    s->driver->cuCtxGetCurrent(&before);
    s->driver->cuCtxSetCurrent(context);
    s->driver->cuCtxSynchronize();
    gpw_waits_poll(s); /* the context's waits are over, its frees among them */
    s->driver->cuCtxSetCurrent(before);
}

bool gpw_memory_is_clients(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    const struct gpw_window *w = gpw_window_of(s, address);
    return w && address >= w->begin + HEAP_SIZE && bytes <= w->end - address;
}

CUresult gpw_memory_share(struct gpw_session *s, uint32_t ordinal, uint32_t peer)
{
    bool before = gpw_strict(s, false);
    CUresult r = gpw_allocator_share(s->memory->windows[ordinal].allocator, s->devices[peer]);
    gpw_strict(s, before);
    return r;
}

/* CUDA's addresses are good on every device for copies and sets, while the driver refuses
 * mapped memory that the current device has no access to. Where there is no way between
 * the two, it is asked all the same and says so. */
static void let_current_device_at(struct gpw_session *s, const struct gpw_window *w)
{
    int current = s->device_count > 1 ? gpw_current_ordinal(s) : -1;
    if (current >= 0 && (uint32_t)current != w->ordinal)
        gpw_memory_share(s, w->ordinal, (uint32_t)current);
}

bool gpw_memory_is_device(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    struct gpw_window *w = gpw_window_of(s, address);
    if (w && address < w->begin + HEAP_SIZE) {
        let_current_device_at(s, w);
        return gpw_allocator_holds(w->allocator, address, bytes);
    }
    /* a module's global, a pool's memory, a mapping of the client's own: the
     * driver knows */
    CUmemorytype type = 0;
    CUdeviceptr base;
    size_t size;
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    bool known = r == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
    if (known)
        r = s->driver->cuMemGetAddressRange_v2(&base, &size, address);
    gpw_strict(s, before);
    if (gp_error_is_sticky((int)r))
        s->over = (int32_t)r;
    if (!known || r != CUDA_SUCCESS)
        return false;
    /* a reservation may hold several mappings side by side: the driver has the
     * last word about their ends */
    if (w)
        return bytes <= w->end - address;
    return address - base <= size && bytes <= size - (address - base);
}

/* --- memory of graphs ---------------------------------------------------------- */

/* What a session may have captured; a range that comes again is the same one. */
#define GRAPH_MEMORY_MAX 65536u

struct gpw_graph_memory {
    uint32_t count, room;
    struct {
        uint64_t address, bytes;
    } at[];
};

static bool graph_memory_grow(struct gpw_memory *m)
{
    struct gpw_graph_memory *g = m->graph_memory;
    if (g && g->count < g->room)
        return true;
    uint32_t room = g ? 2 * g->room : 64;
    if (room > GRAPH_MEMORY_MAX)
        return false;
    struct gpw_graph_memory *more = realloc(g, sizeof *g + room * sizeof g->at[0]);
    if (!more)
        return false;
    if (!g)
        more->count = 0;
    more->room = room;
    m->graph_memory = more;
    return true;
}

CUresult gpw_graph_memory_note(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    struct gpw_memory *m = s->memory;
    for (uint32_t i = 0; m->graph_memory && i < m->graph_memory->count; i++)
        if (m->graph_memory->at[i].address == address) {
            m->graph_memory->at[i].bytes = bytes;
            return CUDA_SUCCESS;
        }
    if (!graph_memory_grow(m))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpw_graph_memory *g = m->graph_memory;
    g->at[g->count].address = address;
    g->at[g->count++].bytes = bytes;
    return CUDA_SUCCESS;
}

bool gpw_graph_memory_begins(struct gpw_session *s, uint64_t address)
{
    const struct gpw_graph_memory *g = s->memory->graph_memory;
    for (uint32_t i = 0; g && i < g->count; i++)
        if (g->at[i].address == address)
            return true;
    return false;
}

static bool is_graph_memory(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    const struct gpw_graph_memory *g = s->memory->graph_memory;
    CUmemorytype type = CU_MEMORYTYPE_DEVICE;
    for (uint32_t i = 0; g && i < g->count; i++)
        if (address >= g->at[i].address && address - g->at[i].address <= g->at[i].bytes &&
            bytes <= g->at[i].bytes - (address - g->at[i].address)) {
            /* the graph may be gone, and its addresses something else's by now */
            s->driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
            return type == CU_MEMORYTYPE_DEVICE;
        }
    return false;
}

bool gpw_memory_reach(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    return bytes == 0 || gpw_memory_is_device(s, address, bytes) ||
           gpw_pinned_on_device(s, address, bytes) || is_graph_memory(s, address, bytes);
}

bool gpw_memory_aim(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    bool nowhere = address >= GP_NOWHERE && bytes <= UINT64_MAX - address;
    return nowhere || gpw_memory_reach(s, address, bytes);
}

CUresult gpw_cuMemGetInfo_v2(struct gpw_session *s, size_t *free_bytes, size_t *total)
{
    int ordinal = gpw_current_ordinal(s);
    if (gpw_memory_must_wait(s))
        return GPW_AGAIN;
    bool before = gpw_strict(s, false); /* the tidying is our need */
    gpw_pools_count(s);
    if (ordinal >= 0)
        gpw_allocator_trim(s->memory->windows[ordinal].allocator);
    gpw_strict(s, before);
    CUresult r = s->driver->cuMemGetInfo_v2(free_bytes, total);
    if (r == CUDA_SUCCESS && ordinal >= 0)
        gpw_quota_info(s, (uint32_t)ordinal, free_bytes, total);
    return r;
}

/* --- virtual memory of the client's own ------------------------------------------ */

CUresult gpw_cuMemAddressReserve(struct gpw_session *s, CUdeviceptr *ptr, size_t size,
                                 size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
    if (size == 0 || flags != 0 || size % (UINT64_C(2) << 20) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpw_window *w = current_window(s);
    if (!w)
        w = &s->memory->windows[0];
    (void)addr; /* a hint, which CUDA may pass over as well */
    uint64_t step = alignment > (UINT64_C(2) << 20) ? alignment : UINT64_C(2) << 20;
    if (step & (step - 1))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t at = (w->reserve_next + step - 1) & ~(step - 1);
    if (at < w->reserve_next || at > w->end || size > w->end - at)
        return CUDA_ERROR_OUT_OF_MEMORY;
    w->reserve_next = at + size;
    *ptr = at;
    return CUDA_SUCCESS;
}

/* The addresses are ours until the session ends; the last one is taken back. */
CUresult gpw_cuMemAddressFree(struct gpw_session *s, CUdeviceptr ptr, size_t size)
{
    struct gpw_window *w = gpw_window_of(s, ptr);
    if (!w || ptr < w->begin + HEAP_SIZE || size == 0 || size > w->end - ptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (ptr + size == w->reserve_next)
        w->reserve_next = ptr;
    return CUDA_SUCCESS;
}
