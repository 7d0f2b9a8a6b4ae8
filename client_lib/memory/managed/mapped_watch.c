/* Mapped memory while work is under way: what the host has opened is looked at and brought again as
 * long as it changes, and closed soon or when something was waited for; and when that work is over. */
#include <semaphore.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "call.h"
#include "captures.h"
#include "fault_chain.h"
#include "gpc_wire.h"
#include "managed_internal.h"
#include "session.h"

/* How long a block stays open while work is under way; or, of those that stay open, how long it is
 * until they are looked at again: a small part of the time that nothing has changed for. */
#define OPEN_US 30u
#define PART 32u
#define SCAN_LEAST_US 15u
#define SCAN_MOST_US 40u
#define REFRESH_LEAST_US 15u
#define REFRESH_MOST_US 100u

/* Under managed.c's lock: something is open although work is under way. */
static bool due;
static bool settling;
static bool refreshing;
static sem_t close_soon, settle_soon, refresh_soon;
static uintptr_t last_pc;

void gpc_mapped_close_part(struct gpc_managed *m, uint32_t first, uint32_t end)
{
    if (first == end)
        return;
    gpc_area_protect(m->begin + first * m->block_bytes, gpc_managed_bytes(m, first, end - first),
                     GPC_OPEN_NOT);
    gpc_managed_bring_written(m, first, end);
    gpc_managed_set(m, first, end - first, GPC_BLOCK_STALE);
}

static void close_other(struct gpc_managed *m, void *arg)
{
    (void)arg;
    for (uint32_t i = 0; m->twin && m->open && i < m->blocks; i++)
        if (m->state[i] != GPC_BLOCK_STALE && !gpc_hot_has(m, i))
            gpc_mapped_close_part(m, i, i + 1);
}

void gpc_mapped_close_others(void)
{
    gpc_fault_chain_check();
    gpc_managed_each(close_other, NULL);
}

/* What stays open. */
struct but {
    const struct gpc_managed *m;
    uint32_t block;
};

static void close_one(struct gpc_managed *m, void *arg)
{
    const struct but *but = arg;
    if (!m->twin || !m->open)
        return;
    gpc_fault_chain_check();
    bool stays = m == but->m && m->state[but->block] != GPC_BLOCK_STALE;
    gpc_mapped_close_part(m, 0, stays ? but->block : m->blocks);
    if (stays)
        gpc_mapped_close_part(m, but->block + 1, m->blocks);
}

static void flush_one(struct gpc_managed *m, void *arg)
{
    struct gpc_session *s = gpc_session_of_handle((uint64_t)m->context);
    (void)arg;
    if (m->twin && gpc_session_works(s))
        s->transport->flush(s->channel);
}

/* Not for long, and no more once work is over. */
void gpc_mapped_for_now(void)
{
    if (!due) {
        __atomic_store_n(&due, true, __ATOMIC_RELAXED);
        sem_post(&close_soon);
    }
    if (!settling) {
        settling = true;
        sem_post(&settle_soon);
    }
    if (!refreshing) {
        refreshing = true;
        sem_post(&refresh_soon);
    }
}

/* An instruction may need two blocks at once, so what it has opened just now stays. */
void gpc_mapped_focus(struct gpc_managed *m, uint32_t block, uintptr_t pc)
{
    struct but but = {m, block};
    if (pc == 0 || pc != last_pc)
        gpc_managed_each(close_one, &but);
    last_pc = pc;
    gpc_mapped_for_now();
}

static void close_all(void)
{
    struct but none = {NULL, 0};
    struct gpc_own_calls before;
    gpc_own_calls_begin(&before);
    gpc_managed_lock();
    if (due) {
        last_pc = 0;
        gpc_managed_each(close_one, &none);
        gpc_managed_each(flush_one, NULL);
        /* only now: who finds it false, and sends what must come behind, has not to wait */
        __atomic_store_n(&due, false, __ATOMIC_RELEASE);
    }
    gpc_managed_unlock();
    gpc_own_calls_end(&before);
}

void gpc_mapped_waited(void)
{
    if (__atomic_load_n(&due, __ATOMIC_ACQUIRE) && !gpc_thread()->own_calls)
        close_all();
}

static void pause_for(uint64_t still_ns, unsigned least_us, unsigned most_us)
{
    uint64_t us = still_ns / 1000 / PART;
    usleep(us < least_us ? least_us : us > most_us ? most_us : (unsigned)us);
}

/* Whether blocks stay open, and for how long nothing in them has changed. */
static bool scan(uint64_t *still_ns)
{
    struct gpc_own_calls before;
    gpc_own_calls_begin(&before);
    gpc_managed_lock();
    bool stay = due && gpc_managed_busy_mapped() && gpc_hot_scan(still_ns);
    gpc_managed_unlock();
    gpc_own_calls_end(&before);
    return stay;
}

static void *closer(void *arg)
{
    uint64_t still_ns;
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns: the kernel's own is more than all of OPEN_US */
    for (;;) {
        while (sem_wait(&close_soon) != 0)
            ;
        usleep(OPEN_US);
        while (scan(&still_ns))
            pause_for(still_ns, SCAN_LEAST_US, SCAN_MOST_US);
        close_all();
    }
    return arg;
}

static void *refresher(void *arg)
{
    uint64_t still_ns;
    struct gpc_own_calls before;
    gpc_own_calls_begin(&before);
    prctl(PR_SET_TIMERSLACK, 1000ul);
    for (;;) {
        while (sem_wait(&refresh_soon) != 0)
            ;
        gpc_managed_lock();
        while (gpc_hot_refresh(&still_ns)) {
            gpc_managed_unlock();
            pause_for(still_ns, REFRESH_LEAST_US, REFRESH_MOST_US);
            gpc_managed_lock();
        }
        refreshing = false;
        gpc_managed_unlock();
    }
    return arg;
}

/* --- when work is over ------------------------------------------------------------------------- */

/* Those of the contexts that have nothing under way any more. While a stream captures, nobody can
 * say what it did before that: the next touch asks again. One that the program has ended meanwhile
 * is none over there, which is said to us alone. */
static unsigned idle_ones(CUcontext *contexts, unsigned count)
{
    unsigned n = 0;
    uint64_t captures = gpc_captures_sent_for();
    for (unsigned i = 0; i < count && !gpc_capture_active(); i++) {
        CUresult r = gpc_wire_cuCtxSynchronize_v2(contexts[i]);
        if (captures == gpc_captures_sent_for() && (r < CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
                                                    r > CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD))
            contexts[n++] = contexts[i];
    }
    return n;
}

static void *settler(void *arg)
{
    CUcontext contexts[GPC_MANAGED_CONTEXTS];
    struct gpc_own_calls before;
    gpc_own_calls_begin(&before);
    gpc_thread()->capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    for (;;) {
        while (sem_wait(&settle_soon) != 0)
            ;
        gpc_managed_lock();
        unsigned count = gpc_managed_busy_all(contexts);
        uint64_t epoch = gpc_managed_epoch();
        gpc_managed_unlock();
        count = idle_ones(contexts, count);
        gpc_managed_lock();
        gpc_managed_idle(contexts, count, epoch);
        settling = false;
        gpc_managed_unlock();
    }
    return arg;
}

int gpc_mapped_watch(void)
{
    static bool started;
    int r = gpc_faults_watch();
    if (r != 0 || started)
        return r;
    sem_init(&close_soon, 0, 0);
    sem_init(&settle_soon, 0, 0);
    sem_init(&refresh_soon, 0, 0);
    r = gpc_faults_thread(closer);
    if (r == 0)
        r = gpc_faults_thread(settler);
    if (r == 0)
        r = gpc_faults_thread(refresher);
    started = r == 0;
    return r;
}
