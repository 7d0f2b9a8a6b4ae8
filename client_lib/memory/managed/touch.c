/* The host touches managed memory that is closed to it: wait for the work that may still change
 * it, and bring it here, in pieces that grow as long as touches follow each other. */
#include "call.h"
#include "context.h"
#include "gpc_wire.h"
#include "managed_internal.h"
#include "session.h"

/* One touch brings at most so much, where nobody has said that all of it will be used. */
#define RUN_MOST (UINT64_C(8) << 20)

/* --- waiting ------------------------------------------------------------------------------------ */

/* What a touch has to wait for. */
struct work {
    struct gpc_route on;
    CUstream stream; /* of memory that one stream has */
    CUcontext contexts[GPC_MANAGED_CONTEXTS];
    unsigned count;
    uint64_t epoch;
};

static void work_of(const struct gpc_managed *m, struct work *w)
{
    bool all = m->attached != CU_MEM_ATTACH_SINGLE || m->waited < m->attached_at;
    w->on = gpc_route_in(m->context);
    w->stream = all ? NULL : (CUstream)m->attached_to;
    w->epoch = gpc_managed_epoch();
    w->count = all ? gpc_managed_busy(m, w->contexts) : 0;
}

/* An error is the next call's to report: the program goes on with what is there. */
static void wait_for(const struct work *w)
{
    if (w->stream)
        gpc_wire_cuStreamSynchronize_on(&w->on, w->stream);
    for (unsigned i = 0; i < w->count; i++) {
        const struct gpc_route on = gpc_route_in(w->contexts[i]);
        gpc_wire_cuCtxSynchronize_on(&on);
    }
}

/* Until no work may change it any more. The lock is given up meanwhile, because that work may
 * depend on what other threads have still to submit, and on host functions that touch managed
 * memory; `m` may be gone then: true, look again. */
static bool waited(struct gpc_managed *m)
{
    struct work w;
    if (m->waited >= gpc_managed_touched_at(m))
        return false;
    work_of(m, &w);
    gpc_managed_unlock();
    wait_for(&w);
    gpc_managed_lock();
    gpc_managed_idle(w.contexts, w.count, w.epoch);
    return true;
}

/* --- blocks ------------------------------------------------------------------------------------- */

/* So many blocks from this one on: twice as many as last time where that ended. */
static uint32_t stride_take(struct gpc_managed *m, struct gpc_stride *s, uint32_t block,
                            uint32_t most)
{
    uint64_t limit = RUN_MOST > m->block_bytes ? RUN_MOST / m->block_bytes : 1;
    uint64_t run = s->run && s->next == block ? 2 * (uint64_t)s->run : 1;
    s->run = (uint32_t)(run < limit ? run : limit);
    uint32_t n = s->run < most ? s->run : most;
    s->next = block + n;
    return n;
}

/* How many blocks from this one on are STALE, or are not. */
static uint32_t alike(const struct gpc_managed *m, uint32_t block, bool stale)
{
    uint32_t end = block;
    while (end < m->blocks && (m->state[end] == GPC_BLOCK_STALE) == stale)
        end++;
    return end - block;
}

/* Too many mappings: all of it becomes one. Blocks that are not here yet are brought. */
void gpc_managed_open_whole(struct gpc_managed *m)
{
    for (uint32_t at = 0; at < m->blocks; at++)
        if (m->state[at] == GPC_BLOCK_STALE) {
            uint32_t n = alike(m, at, true);
            gpc_managed_bring_here(m, at, n);
            at += n - 1;
        }
    m->whole = true;
    gpc_managed_set(m, 0, m->blocks, GPC_BLOCK_WRITTEN);
}

static int fetch(struct gpc_managed *m, uint32_t block)
{
    uint32_t most = alike(m, block, true);
    uint32_t n = m->whole ? most : stride_take(m, &m->fetch, block, most);
    /* an error ends the session, whose memory is open from then on */
    return gpc_managed_bring_here(m, block, n) == CUDA_SUCCESS
               ? gpc_managed_set(m, block, n, GPC_BLOCK_SAME)
               : gpc_managed_set(m, 0, m->blocks, GPC_BLOCK_WRITTEN);
}

static int let_write(struct gpc_managed *m, uint32_t block)
{
    uint32_t n = stride_take(m, &m->write, block, alike(m, block, false));
    return gpc_managed_set(m, block, n, GPC_BLOCK_WRITTEN);
}

/* Mapped memory that work may change right now: this block alone, and not for long. */
static int open_alone(struct gpc_managed *m, uint32_t block, const struct gpc_touch *t)
{
    gpc_mapped_focus(m, block, t->pc);
    if (m->state[block] == GPC_BLOCK_STALE && gpc_managed_bring_here(m, block, 1) != CUDA_SUCCESS)
        return gpc_managed_set(m, 0, m->blocks, GPC_BLOCK_WRITTEN);
    bool written = t->write || m->state[block] == GPC_BLOCK_WRITTEN;
    return gpc_managed_set(m, block, 1, written ? GPC_BLOCK_WRITTEN : GPC_BLOCK_SAME);
}

/* With a few others. */
static int open_hot(struct gpc_managed *m, uint32_t block, const struct gpc_touch *t)
{
    int r = gpc_hot_open(m, block, t);
    gpc_mapped_for_now();
    return r;
}

static void open_block(struct gpc_managed *m, uint32_t block, const struct gpc_touch *t)
{
    bool write = t->write;
    if (m->twin && gpc_managed_busy_mapped()) {
        if ((gpc_hot_may(m) ? open_hot : open_alone)(m, block, t) != 0)
            gpc_managed_open_whole(m);
        return;
    }
    int r = m->state[block] == GPC_BLOCK_STALE ? fetch(m, block) : 0;
    if (r == 0 && write)
        r = let_write(m, block);
    if (r != 0)
        gpc_managed_open_whole(m);
}

/* Whether the block has to be brought, and not before the work is over: mapped memory is brought at
 * any time. */
static bool is_closed(const struct gpc_managed *m, uint64_t address)
{
    return m && !m->twin && m->state[(address - m->begin) / m->block_bytes] == GPC_BLOCK_STALE;
}

/* Under the lock; the allocation that the address lies in, its block open. NULL: none. */
static struct gpc_managed *open_at(const struct gpc_touch *t)
{
    uint64_t address = t->address;
    struct gpc_managed *m = gpc_managed_find(address);
    while (!t->free && is_closed(m, address)) {
        uint64_t begin = m->begin, now = gpc_managed_touched_at(m);
        if (!waited(m))
            break;
        m = gpc_managed_find(address);
        if (m && m->begin == begin && m->waited < now)
            m->waited = now;
    }
    if (m)
        open_block(m, (uint32_t)((address - m->begin) / m->block_bytes), t);
    return m;
}

bool gpc_managed_touch(const struct gpc_touch *t)
{
    struct gpc_own_calls before;
    gpc_own_calls_begin(&before);
    gpc_managed_lock();
    bool ours = open_at(t) != NULL;
    gpc_managed_unlock();
    gpc_own_calls_end(&before);
    return ours;
}

/* Block after block, from a thread of the application's that is inside a call of ours. */
void *gpc_managed_view(const void *p, uint64_t bytes, bool write)
{
    void *view = (void *)(uintptr_t)p;
    uint64_t at = (uint64_t)(uintptr_t)p;
    if (!gpc_managed_any() || !gpc_faults_may(at) || gpc_thread()->own_calls)
        return view;
    struct gpc_own_calls before;
    gpc_own_calls_begin(&before);
    gpc_managed_lock();
    struct gpc_managed *m = gpc_managed_find(at);
    uint64_t into = m ? at - m->begin : 0;
    bool whole = m && bytes && bytes <= m->bytes - into;
    for (uint64_t step; whole && into < at - m->begin + bytes; into += step) {
        step = m->block_bytes - into % m->block_bytes;
        const struct gpc_touch t = {m->begin + into, write, gpc_thread()->host_function, 0};
        m = open_at(&t);
        whole = m && at >= m->begin && bytes <= m->bytes - (at - m->begin);
    }
    if (whole)
        view = gpc_area_alias(m->area, at);
    gpc_managed_unlock();
    gpc_own_calls_end(&before);
    return view;
}

void gpc_managed_filled(const void *p, uint64_t bytes)
{
    uint64_t at = (uint64_t)(uintptr_t)p;
    if (!gpc_managed_any() || !gpc_faults_may(at))
        return;
    gpc_managed_lock();
    const struct gpc_managed *m = gpc_managed_find(at);
    bool is_mapped = m && m->twin;
    gpc_managed_unlock();
    if (is_mapped)
        gpc_managed_view(p, bytes, true);
}
