/*
 * Faults. The application's thread does next to nothing in its signal handler, where it may have
 * little stack and hold any lock of its own: it leaves the address in a slot and sleeps until a
 * thread of this library has opened the memory. There is always one more of those threads than
 * touches under way, so a touch that waits for work keeps no other one waiting that the work may
 * depend on.
 *
 * What is no touch of managed memory is the handler's that was there before (fault_chain.c).
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <ucontext.h>

#include "fault_chain.h"
#include "futex.h"
#include "managed_internal.h"
#include "own_thread.h"
#include "session.h"
#include "thread_local.h"

/* Threads that fault at the same time; more take turns. */
#define SLOTS 64u

enum slot_state { SLOT_UNUSED, SLOT_CLAIMED, SLOT_ASKED, SLOT_TAKEN, SLOT_OURS, SLOT_NOT_OURS };

static struct slot {
    uint32_t state; /* enum slot_state; a futex */
    struct gpc_touch touch;
} slots[SLOTS];
static uint32_t asked; /* counts requests; a futex */
static uint32_t idle;  /* servers that look for one */

static bool slot_change(struct slot *s, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(&s->state, &from, to, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

/* --- servers -------------------------------------------------------------------------------- */

static int server_start(void);

static void serve(struct slot *s)
{
    if (__atomic_sub_fetch(&idle, 1, __ATOMIC_ACQ_REL) == 0)
        server_start(); /* without: the next touch waits for this one */
    bool ours = gpc_managed_touch(&s->touch);
    __atomic_store_n(&s->state, ours ? SLOT_OURS : SLOT_NOT_OURS, __ATOMIC_RELEASE);
    gpc_futex_wake(&s->state, 1);
    __atomic_add_fetch(&idle, 1, __ATOMIC_ACQ_REL);
}

static void *server(void *arg)
{
    for (;;) {
        uint32_t seen = __atomic_load_n(&asked, __ATOMIC_ACQUIRE);
        bool any = false;
        for (unsigned i = 0; i < SLOTS; i++)
            if (slot_change(&slots[i], SLOT_ASKED, SLOT_TAKEN)) {
                serve(&slots[i]);
                any = true;
            }
        if (!any)
            gpc_futex_wait(&asked, seen);
    }
    return arg;
}

int gpc_faults_thread(void *(*run)(void *))
{
    pthread_t thread;
    int r = gp_thread_create(&thread, "faults", NULL, run, NULL);
    if (r == 0)
        pthread_detach(thread);
    return r;
}

static int server_start(void)
{
    __atomic_add_fetch(&idle, 1, __ATOMIC_ACQ_REL);
    int r = gpc_faults_thread(server);
    if (r != 0)
        __atomic_sub_fetch(&idle, 1, __ATOMIC_ACQ_REL);
    return r;
}

/* --- in the thread that faults -------------------------------------------------------------- */

static struct slot *slot_claim(void)
{
    for (;;) {
        for (unsigned i = 0; i < SLOTS; i++)
            if (slot_change(&slots[i], SLOT_UNUSED, SLOT_CLAIMED))
                return &slots[i];
        sched_yield();
    }
}

/* Where it is not said whether it was a write, a write faults twice. */
static bool is_write(const void *context)
{
#ifdef __x86_64__
    const ucontext_t *u = context;
    return (u->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
    return false;
#endif
}

/* Of the instruction; 0 where it is not said. */
static uintptr_t pc_of(const void *context)
{
#ifdef __x86_64__
    const ucontext_t *u = context;
    return (uintptr_t)u->uc_mcontext.gregs[REG_RIP];
#else
    (void)context;
    return 0;
#endif
}

static bool ask(const struct gpc_touch *touch)
{
    struct slot *s = slot_claim();
    s->touch = *touch;
    __atomic_store_n(&s->state, SLOT_ASKED, __ATOMIC_RELEASE);
    __atomic_add_fetch(&asked, 1, __ATOMIC_ACQ_REL);
    gpc_futex_wake(&asked, INT_MAX);
    uint32_t now;
    while ((now = __atomic_load_n(&s->state, __ATOMIC_ACQUIRE)) < SLOT_OURS)
        gpc_futex_wait(&s->state, now);
    __atomic_store_n(&s->state, SLOT_UNUSED, __ATOMIC_RELEASE);
    return now == SLOT_OURS;
}

/* Pages outside of the windows lie between these; so may the application's own. */
static uint64_t low = UINT64_MAX, high;

void gpc_faults_expect(uint64_t begin, uint64_t end)
{
    if (begin < low)
        __atomic_store_n(&low, begin, __ATOMIC_RELAXED);
    if (end > high)
        __atomic_store_n(&high, end, __ATOMIC_RELAXED);
}

/* Others, an entry each; who changes them has managed.c's lock. */
static struct place {
    uint64_t begin, end; /* 0: unused */
} places[GPC_PLACES];
static unsigned places_used; /* entries that were ever used */
static uint32_t given_back;  /* counts */

bool gpc_faults_expect_here(uint64_t begin, uint64_t end)
{
    for (unsigned i = 0; i < GPC_PLACES; i++)
        if (places[i].end == 0) {
            __atomic_store_n(&places[i].begin, begin, __ATOMIC_RELAXED);
            __atomic_store_n(&places[i].end, end, __ATOMIC_RELEASE);
            if (i >= places_used)
                __atomic_store_n(&places_used, i + 1, __ATOMIC_RELEASE);
            return true;
        }
    return false;
}

/* It is open by now. Who finds no entry any more finds the count. */
void gpc_faults_given_back(uint64_t begin)
{
    __atomic_add_fetch(&given_back, 1, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < places_used; i++)
        if (places[i].end != 0 && places[i].begin == begin)
            __atomic_store_n(&places[i].end, 0, __ATOMIC_RELEASE);
}

static bool is_a_place(uint64_t address)
{
    unsigned used = __atomic_load_n(&places_used, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < used; i++)
        if (address < __atomic_load_n(&places[i].end, __ATOMIC_ACQUIRE) &&
            address >= __atomic_load_n(&places[i].begin, __ATOMIC_RELAXED))
            return true;
    return false;
}

bool gpc_faults_may(uint64_t address)
{
    bool own = (address >= __atomic_load_n(&low, __ATOMIC_RELAXED) &&
                address < __atomic_load_n(&high, __ATOMIC_RELAXED)) ||
               is_a_place(address);
    return own ? gpc_session_count() != 0 : gpc_session_of_address(address) != NULL;
}

/* Registered memory may have been given back while the thread was on its way here, and be open: it
 * goes on once, and is not ours if it faults there again. */
static bool goes_on(uint64_t address)
{
    static __thread struct {
        uint64_t address;
        uint32_t given_back;
    } last __attribute__((GPC_TLS_MODEL));
    uint32_t now = __atomic_load_n(&given_back, __ATOMIC_ACQUIRE);
    if (now == 0 || (last.address == address && last.given_back == now))
        return false;
    last.address = address;
    last.given_back = now;
    return true;
}

/* In a forked child there are no sessions, and no such memory. Who jumps there faults whatever is
 * open: it has no code. */
static bool serve_fault(const siginfo_t *info, const void *context)
{
    const struct gpc_touch touch = {.address = (uint64_t)(uintptr_t)info->si_addr,
                                    .write = is_write(context),
                                    .free = gpc_thread_self && gpc_thread_self->host_function,
                                    .pc = pc_of(context)};
    if (info->si_code != SEGV_ACCERR || touch.pc == touch.address)
        return false;
    int error = errno;
    bool ours = gpc_faults_may(touch.address) && ask(&touch);
    errno = error;
    return ours || goes_on(touch.address);
}

/* The first server before the first fault. */
int gpc_faults_watch(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool watched;
    pthread_mutex_lock(&lock);
    int r = watched ? 0 : server_start();
    watched = r == 0;
    pthread_mutex_unlock(&lock);
    if (r == 0)
        gpc_fault_chain_keep(serve_fault);
    return r;
}
