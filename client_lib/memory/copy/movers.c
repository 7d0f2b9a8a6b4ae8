#include "movers.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "futex.h"
#include "own_thread.h"
#include "transport/support.h"

#define MOVES 64u

/* Whoever changes QUEUED to TAKEN copies. AWAITED is TAKEN, and its owner sleeps. */
enum { MOVE_FREE, MOVE_CLAIMED, MOVE_QUEUED, MOVE_TAKEN, MOVE_AWAITED, MOVE_DONE };

static struct move {
    uint32_t state;       /* a futex */
    void (*work)(void *); /* on `to`; NULL: it is a copy */
    void *to;
    const void *from;
    size_t bytes;
} moves[MOVES];
static uint32_t queued;   /* counts what was; a futex */
static uint32_t sleeping; /* movers that wait for it to change */
static unsigned started;  /* movers; written once, before any is used */

static bool change(struct move *m, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(&m->state, &from, to, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

static void carry_out(const struct move *m)
{
    if (m->work != NULL)
        m->work(m->to);
    else
        memcpy(m->to, m->from, m->bytes);
}

static bool take_one(void)
{
    for (unsigned i = 0; i < MOVES; i++) {
        struct move *m = &moves[i];
        if (!change(m, MOVE_QUEUED, MOVE_TAKEN))
            continue;
        carry_out(m);
        if (__atomic_exchange_n(&m->state, MOVE_DONE, __ATOMIC_ACQ_REL) == MOVE_AWAITED)
            gpc_futex_wake(&m->state, 1);
        return true;
    }
    return false;
}

/* Spins for as long as any thread of ours: the next piece of the same copy comes soon. */
static void wait_for_more(uint32_t seen)
{
    int64_t until = gp_clock_ns() + gp_spin_limit_ns();
    while (__atomic_load_n(&queued, __ATOMIC_ACQUIRE) == seen) {
        if (gp_clock_ns() < until) {
            gp_cpu_relax();
            continue;
        }
        __atomic_add_fetch(&sleeping, 1, __ATOMIC_SEQ_CST);
        gpc_futex_wait(&queued, seen);
        __atomic_sub_fetch(&sleeping, 1, __ATOMIC_SEQ_CST);
        return;
    }
}

static void *mover(void *argument)
{
    for (;;) {
        uint32_t seen = __atomic_load_n(&queued, __ATOMIC_ACQUIRE);
        if (!take_one())
            wait_for_more(seen);
    }
    return argument;
}

unsigned gpc_movers_allowed(void)
{
    cpu_set_t set;
    const char *said = getenv("GPUPOOL_COPY_THREADS");
    unsigned most = GPC_MOVERS_MAX;
    if (said != NULL) {
        char *end;
        unsigned long threads = strtoul(said, &end, 10);
        if (*said >= '0' && *said <= '9' && *end == '\0' && threads >= 1 &&
            threads <= GPC_MOVERS_MAX + 1)
            most = (unsigned)threads - 1;
        else
            gpc_log(GPC_LOG_WARN, "GPUPOOL_COPY_THREADS=%.40s: must be 1 to %u; it is %u", said,
                    GPC_MOVERS_MAX + 1, GPC_MOVERS_MAX + 1);
    }
    unsigned cores = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
    return cores - 1 < most ? cores - 1 : most;
}

/* They take faults: what they copy may be memory that the application guards. */
static void start(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, 0};
    pthread_t thread;
    for (unsigned left = gpc_movers_allowed(); left > 0; left--)
        if (gp_thread_create(&thread, "mover", faults, mover, NULL) == 0) {
            pthread_detach(thread);
            started++;
        }
}

unsigned gpc_movers(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return started;
}

static struct move *claim(void)
{
    for (unsigned i = 0; i < MOVES; i++)
        if (change(&moves[i], MOVE_FREE, MOVE_CLAIMED))
            return &moves[i];
    return NULL;
}

/* Where there is no room for another, it is done here. */
static int begin(void (*work)(void *), void *to, const void *from, size_t bytes)
{
    const struct move now = {.work = work, .to = to, .from = from, .bytes = bytes};
    gpc_movers();
    struct move *m = claim();
    if (m == NULL) {
        carry_out(&now);
        return -1;
    }
    m->work = work;
    m->to = to;
    m->from = from;
    m->bytes = bytes;
    __atomic_store_n(&m->state, MOVE_QUEUED, __ATOMIC_RELEASE);
    __atomic_add_fetch(&queued, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleeping, __ATOMIC_SEQ_CST) > 0)
        gpc_futex_wake(&queued, 1);
    return (int)(m - moves);
}

int gpc_move_begin(void *to, const void *from, size_t bytes)
{
    return begin(NULL, to, from, bytes);
}

int gpc_move_begin_work(void (*work)(void *), void *argument)
{
    return begin(work, argument, NULL, 0);
}

static bool is_done(const struct move *m)
{
    return __atomic_load_n(&m->state, __ATOMIC_ACQUIRE) == MOVE_DONE;
}

void gpc_move_finish(int move)
{
    if (move < 0)
        return;
    struct move *m = &moves[move];
    if (change(m, MOVE_QUEUED, MOVE_TAKEN)) {
        carry_out(m);
    } else {
        while (!is_done(m) && take_one())
            ;
        int64_t until = gp_clock_ns() + gp_spin_limit_ns();
        while (!is_done(m) && gp_clock_ns() < until)
            gp_cpu_relax();
        if (change(m, MOVE_TAKEN, MOVE_AWAITED))
            while (!is_done(m))
                gpc_futex_wait(&m->state, MOVE_AWAITED);
    }
    __atomic_store_n(&m->state, MOVE_FREE, __ATOMIC_RELEASE);
}
