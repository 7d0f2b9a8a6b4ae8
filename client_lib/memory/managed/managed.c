/* Which managed memory there is: allocated, freed, its blocks and who may touch it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "call.h"
#include "cancel.h"
#include "context.h"
#include "copy.h"
#include "gpc_wire.h"
#include "managed_internal.h"
#include "memory.h"
#include "peer.h"
#include "remote_host.h"
#include "session.h"
#include "shared.h"
#include "stream.h"

/* A fault brings at least so much; and so many blocks an allocation has at most, because each
 * may be a mapping of its own and the kernel allows 65,530 of them (vm.max_map_count). */
#define BLOCK_LEAST (UINT64_C(16) << 10)
#define BLOCKS_MOST 2048u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int cancel_before;        /* of the thread that has the lock */
static struct gpc_managed **all; /* by address */
static size_t count, room;

void gpc_managed_lock(void)
{
    int cancel = gpc_cancel_off();
    pthread_mutex_lock(&lock);
    cancel_before = cancel;
}

void gpc_managed_unlock(void)
{
    int cancel = cancel_before;
    pthread_mutex_unlock(&lock);
    gpc_cancel_back(cancel);
}

bool gpc_managed_any(void)
{
    return __atomic_load_n(&count, __ATOMIC_ACQUIRE) != 0;
}

void gpc_own_calls_begin(struct gpc_own_calls *before)
{
    struct gpc_thread *t = gpc_thread();
    *before = (struct gpc_own_calls){t->last, t->last_answer, t->may_end, t->own_calls};
    t->own_calls = true;
}

void gpc_own_calls_end(const struct gpc_own_calls *before)
{
    struct gpc_thread *t = gpc_thread();
    t->last = before->last;
    t->last_answer = before->last_answer;
    t->may_end = before->may_end;
    t->own_calls = before->managed;
}

/* --- the table ------------------------------------------------------------------------------- */

/* Index of the first one that ends behind the address. */
static size_t after(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (all[middle]->begin + all[middle]->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct gpc_managed *gpc_managed_behind(uint64_t address)
{
    size_t i = after(address);
    return i < count ? all[i] : NULL;
}

struct gpc_managed *gpc_managed_find(uint64_t address)
{
    struct gpc_managed *m = gpc_managed_behind(address);
    return m && m->begin <= address ? m : NULL;
}

void gpc_managed_each(void (*each)(struct gpc_managed *m, void *arg), void *arg)
{
    for (size_t i = 0; i < count; i++)
        each(all[i], arg);
}

CUresult gpc_managed_add(struct gpc_managed *m)
{
    size_t i = after(m->begin);
    if (i < count && all[i]->begin < m->begin + m->bytes)
        return CUDA_ERROR_UNKNOWN; /* a worker that gives the same memory twice */
    if (count == room) {
        size_t more = room ? 2 * room : 64;
        struct gpc_managed **grown = realloc(all, more * sizeof(struct gpc_managed *));
        if (!grown)
            return CUDA_ERROR_OUT_OF_MEMORY;
        all = grown;
        room = more;
    }
    if (m->kind == GPC_MANAGED_ALLOCATED && gpc_area_map(m->area, m->begin, m->bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memmove(all + i + 1, all + i, (count - i) * sizeof(struct gpc_managed *));
    all[i] = m;
    gpc_managed_note_open();
    __atomic_store_n(&count, count + 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

void gpc_managed_remove(struct gpc_managed *m)
{
    size_t i = after(m->begin);
    gpc_hot_forget(m);
    memmove(all + i, all + i + 1, (count - i - 1) * sizeof(struct gpc_managed *));
    __atomic_store_n(&count, count - 1, __ATOMIC_RELEASE);
    if (m->kind == GPC_MANAGED_ALLOCATED)
        gpc_area_unmap(m->area, m->begin, m->bytes);
    else
        (m->kind == GPC_MANAGED_REGISTERED ? gpc_area_give_back : gpc_area_end)(m->area);
    if (m->kind == GPC_MANAGED_REGISTERED || m->kind == GPC_MANAGED_VARIABLE)
        gpc_faults_given_back(m->begin);
    if (m->twin)
        munmap(m->twin, m->bytes);
    free(m->advice);
    free(m->parts);
    free(m);
}

/* --- blocks ---------------------------------------------------------------------------------- */

uint64_t gpc_managed_bytes(const struct gpc_managed *m, uint32_t first, uint32_t n)
{
    uint64_t from = first * m->block_bytes, bytes = n * m->block_bytes;
    return bytes < m->bytes - from ? bytes : m->bytes - from;
}

int gpc_managed_set(struct gpc_managed *m, uint32_t first, uint32_t n, enum gpc_block state)
{
    static const enum gpc_open how[] = {
        [GPC_BLOCK_WRITTEN] = GPC_OPEN_WRITE,
        [GPC_BLOCK_SAME] = GPC_OPEN_READ,
        [GPC_BLOCK_STALE] = GPC_OPEN_NOT,
    };
    int r = gpc_area_protect(m->begin + first * m->block_bytes, gpc_managed_bytes(m, first, n),
                             how[state]);
    if (r != 0)
        return r;
    memset(m->state + first, state, n);
    if (n == m->blocks || state != GPC_BLOCK_STALE)
        m->open = state != GPC_BLOCK_STALE;
    if (m->open)
        gpc_managed_note_open();
    return 0;
}

bool gpc_managed_bring_there(struct gpc_managed *m, uint32_t first, uint32_t n)
{
    if (m->twin) {
        gpc_mapped_bring_there(m, first, n); /* at once: nothing has to wait for it */
        return false;
    }
    struct gpc_route on = gpc_route_in(m->context);
    uint64_t at = m->begin + first * m->block_bytes, end = at + gpc_managed_bytes(m, first, n);
    uint64_t from, to;
    struct gpc_span s;
    bool any = false;
    for (; gpc_area_touched(m->area, at, end, &from, &to); at = to)
        for (; gpc_parts_next(m, from, to, &s); from = s.end)
            any |= gpc_copy_own(&on, s.begin, gpc_area_alias(m->area, s.begin), s.end - s.begin,
                                m->own, true) == CUDA_SUCCESS;
    return any;
}

CUresult gpc_managed_bring_here(struct gpc_managed *m, uint32_t first, uint32_t n)
{
    if (m->twin)
        return gpc_mapped_bring_here(m, first, n);
    uint64_t at = m->begin + first * m->block_bytes;
    return gpc_managed_bring_span(m, (struct gpc_span){at, at + gpc_managed_bytes(m, first, n)});
}

CUresult gpc_managed_bring_span(struct gpc_managed *m, struct gpc_span span)
{
    struct gpc_route on = gpc_route_in(m->context);
    struct gpc_span s;
    CUresult r = CUDA_SUCCESS;
    for (uint64_t at = span.begin; r == CUDA_SUCCESS && gpc_parts_next(m, at, span.end, &s);
         at = s.end)
        r = gpc_copy_own(&on, s.begin, gpc_area_alias(m->area, s.begin), s.end - s.begin, m->own,
                         false);
    return r;
}

/* --- allocations ----------------------------------------------------------------------------- */

static uint64_t block_bytes_for(uint64_t bytes, uint64_t page)
{
    uint64_t block = page > BLOCK_LEAST ? page : BLOCK_LEAST;
    while (bytes / block >= BLOCKS_MOST)
        block *= 2;
    return block;
}

struct gpc_managed *gpc_managed_record(CUdeviceptr at, uint64_t bytes, uint64_t page,
                                       unsigned flags)
{
    uint64_t block = block_bytes_for(bytes, page), blocks = (bytes + block - 1) / block;
    struct gpc_managed *m = calloc(1, sizeof *m + blocks); /* all WRITTEN, and untouched */
    if (!m)
        return NULL;
    m->begin = at;
    m->bytes = bytes;
    m->context = gpc_context_owner(gpc_current());
    m->flags = m->attached = flags;
    m->open = true;
    m->block_bytes = block;
    m->blocks = (uint32_t)blocks;
    return m;
}

/* Whether what a worker gave may be: pages of its device's window that nobody has. */
static bool place_right(CUdeviceptr at, uint64_t bytes, uint64_t page,
                        const struct gp_device_info *d)
{
    return d && at % page == 0 && at >= d->window_begin && at < d->window_end &&
           bytes <= d->window_end - at && !gpc_range_meets(at, bytes);
}

/* Zeros, as what nobody has touched is zeros here; work that follows waits for them. */
static CUresult clear_there(const struct gpc_managed *m)
{
    const struct gpc_route on = gpc_route_in(m->context);
    CUresult r = gpc_wire_cuMemsetD8Async_on(&on, m->begin, 0, m->bytes, m->own);
    return r ? r : gpc_stream_fence(&on, m->own);
}

/* Open here what the worker gave. */
static CUresult open_here(CUdeviceptr at, uint64_t bytes, uint64_t page, unsigned flags)
{
    const struct gp_device_info *d = gpc_device_info(gpc_context_device(gpc_current()));
    struct gpc_route on = gpc_route_in(gpc_current());
    if (!place_right(at, bytes, page, d))
        return CUDA_ERROR_UNKNOWN;
    struct gpc_managed *m = gpc_managed_record(at, bytes, page, flags);
    CUresult r = m ? gpc_lane_own(&on, &m->own) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        r = clear_there(m);
    if (r == CUDA_SUCCESS) {
        gpc_managed_lock();
        m->area = gpc_area_of(d);
        r = m->area ? gpc_managed_add(m) : CUDA_ERROR_OUT_OF_MEMORY;
        gpc_managed_unlock();
    }
    if (r != CUDA_SUCCESS)
        free(m);
    return r;
}

CUresult gpc_managed_alloc(CUdeviceptr *at, size_t bytes, unsigned flags)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), whole;
    CUdeviceptr got;
    struct gpc_own_calls before;
    if (__builtin_add_overflow(bytes, page - 1, &whole) || gpc_faults_watch() != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    whole -= whole % page;
    gpc_own_calls_begin(&before);
    CUresult r = gpc_wire_cuMemAlloc_v2(&got, whole);
    if (r == CUDA_SUCCESS) {
        r = open_here(got, whole, page, flags);
        if (r == CUDA_SUCCESS && (r = gpc_memory_keep(0, got, bytes, GPC_RANGE_MANAGED)) != 0)
            gpc_managed_drop(got);
        if (r != CUDA_SUCCESS)
            gpc_wire_cuMemFree_v2(got);
    }
    gpc_own_calls_end(&before);
    if (r == CUDA_SUCCESS)
        *at = got;
    return r;
}

/* Behind the message, but under the lock: memory that the worker gives anew there is opened only
 * when this is closed. */
CUresult gpc_managed_free(const struct gpc_route *on, CUdeviceptr at)
{
    struct gpc_own_calls before;
    gpc_own_calls_begin(&before);
    gpc_managed_lock();
    struct gpc_managed *m = gpc_managed_find(at);
    CUresult r = gpc_wire_cuMemFree_v2_on(on, at);
    if (m && r != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        gpc_managed_remove(m);
    gpc_managed_unlock();
    gpc_own_calls_end(&before);
    return r;
}

void gpc_managed_drop(CUdeviceptr at)
{
    gpc_managed_lock();
    struct gpc_managed *m = gpc_managed_find(at);
    if (m && m->begin == at)
        gpc_managed_remove(m);
    gpc_managed_unlock();
}

/* Work that came before may still touch it: that is waited for as before. */
CUresult gpc_managed_attach(CUdeviceptr at, size_t bytes, unsigned flags, uint64_t stream)
{
    struct gpc_range range;
    if (!gpc_range_find(at, &range) || range.kind != GPC_RANGE_MANAGED || range.begin != at ||
        (bytes && bytes != range.size))
        return CUDA_ERROR_INVALID_VALUE;
    gpc_managed_lock();
    struct gpc_managed *m = gpc_managed_find(at);
    if (m) {
        gpc_managed_note_open();
        m->attached = flags;
        m->attached_to = stream;
        m->attached_at = m->epoch = gpc_managed_epoch();
    }
    gpc_managed_unlock();
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What was attached to the stream is again as it was allocated. */
static void detach(struct gpc_managed *m, void *arg)
{
    const uint64_t *stream = arg;
    if (m->attached != CU_MEM_ATTACH_SINGLE || m->attached_to != *stream)
        return;
    gpc_managed_note_open();
    m->attached = m->flags;
    m->attached_at = m->epoch = gpc_managed_epoch();
}

void gpc_managed_stream_ended(uint64_t stream)
{
    if (!gpc_managed_any())
        return;
    gpc_managed_lock();
    gpc_managed_each(detach, &stream);
    gpc_managed_unlock();
}
