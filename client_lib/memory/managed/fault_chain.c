#include "fault_chain.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "call.h"
#include "thread_local.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool (*asked_first)(const siginfo_t *, const void *);

int (*gpc_fault_chain_system)(int, const struct sigaction *, struct sigaction *);

static int system_action(const struct sigaction *action, struct sigaction *old)
{
    return gpc_fault_chain_system ? gpc_fault_chain_system(SIGSEGV, action, old)
                                  : sigaction(SIGSEGV, action, old);
}

/* The application's handlers: [0] is what was there before us, and later ones take turns in the
 * others, because a thread may still read the last. */
static struct sigaction links[3];
static unsigned last;

/* Where the thread's handler of this library was entered for a fault: an application's handler
 * that calls the one it has found calls us, with the same fault, from further down the stack. */
static __thread struct {
    const void *context;
    uintptr_t frame;
} entered __attribute__((GPC_TLS_MODEL));

static void default_action(void)
{
    struct sigaction usual;
    memset(&usual, 0, sizeof usual);
    usual.sa_handler = SIG_DFL;
    system_action(&usual, NULL); /* what faulted faults again, and ends the process */
}

static void call(const struct sigaction *link, int number, siginfo_t *info, void *context)
{
    if (link->sa_flags & SA_SIGINFO) {
        link->sa_sigaction(number, info, context);
    } else if (link->sa_handler == SIG_DFL || link->sa_handler == SIG_IGN) {
        default_action();
    } else {
        link->sa_handler(number);
    }
}

static void handle(int number, siginfo_t *info, void *context)
{
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
    bool again = entered.context == context && frame < entered.frame;
    if (again) {
        call(&links[0], number, info, context);
        return;
    }
    if (__atomic_load_n(&asked_first, __ATOMIC_ACQUIRE)(info, context))
        return;
    const struct sigaction *link = &links[__atomic_load_n(&last, __ATOMIC_ACQUIRE)];
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, &link->sa_mask, &before);
    entered.context = context;
    entered.frame = frame;
    call(link, number, info, context); /* which may jump out */
    entered.context = NULL;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static bool is_ours(const struct sigaction *a)
{
    return (a->sa_flags & SA_SIGINFO) && a->sa_sigaction == handle;
}

static void link_add(const struct sigaction *action)
{
    unsigned next = last == 1 ? 2 : 1;
    links[next] = *action;
    __atomic_store_n(&last, next, __ATOMIC_RELEASE);
}

/* On the alternate stack where the thread has one, as handlers that want it do. Other signals of
 * the program's may come meanwhile. Under `lock`. */
static void put_in_front(void)
{
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = handle;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER;
    system_action(&ours, NULL);
}

void gpc_fault_chain_check(void)
{
    struct sigaction found;
    if (system_action(NULL, &found) != 0 || is_ours(&found))
        return;
    pthread_mutex_lock(&lock);
    if (system_action(NULL, &found) == 0 && !is_ours(&found)) {
        link_add(&found);
        put_in_front();
    }
    pthread_mutex_unlock(&lock);
}

void gpc_fault_chain_keep(bool (*serve)(const siginfo_t *info, const void *context))
{
    pthread_mutex_lock(&lock);
    bool first = !asked_first;
    if (first)
        __atomic_store_n(&asked_first, serve, __ATOMIC_RELEASE);
    if (first && system_action(NULL, &links[0]) == 0)
        put_in_front();
    pthread_mutex_unlock(&lock);
    gpc_fault_chain_check();
}

bool gpc_fault_chain_set(const struct sigaction *action, struct sigaction *old)
{
    struct sigaction now;
    /* a sanitizer may be first to call, before libc was asked for its own */
    if (!__atomic_load_n(&asked_first, __ATOMIC_ACQUIRE))
        return false;
    if (system_action(NULL, &now) != 0 || !is_ours(&now))
        return false;
    pthread_mutex_lock(&lock);
    now = links[last];
    if (action)
        link_add(action);
    pthread_mutex_unlock(&lock);
    if (old)
        *old = now;
    return true;
}
