/* cuInit, and the life of the process around it. */
#include "process.h"

#include <pthread.h>

#include "activity.h"
#include "activity_table.h"
#include "call.h"
#include "cancel.h"
#include "export.h"
#include "observe.h"
#include "session.h"
#include "stats.h"

enum { STATE_NEW, STATE_OPENING, STATE_READY, STATE_FORKED, STATE_ENDED };

static int state = STATE_NEW;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

CUresult gpc_process_state(bool in_context)
{
    switch (__atomic_load_n(&state, __ATOMIC_ACQUIRE)) {
    case STATE_READY: {
        const struct gpc_session *s = in_context ? gpc_session() : NULL;
        return s ? (CUresult)__atomic_load_n(&s->sticky, __ATOMIC_RELAXED) : CUDA_SUCCESS;
    }
    case STATE_ENDED:
        return CUDA_ERROR_DEINITIALIZED;
    default:
        return CUDA_ERROR_NOT_INITIALIZED;
    }
}

/* CUDA does not survive a fork; the parent's session must not notice its child. */
static void in_child(void)
{
    /* also where another thread was inside cuInit: its locks are held for ever here */
    if (state == STATE_READY || state == STATE_OPENING)
        state = STATE_FORKED;
    gpc_sessions_forget();
    gpc_observe_no_more(GPC_OBSERVER_ACTIVITY); /* whose locks may be held as well */
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    init_lock = fresh;
}

/* Not later: whoever forks may do so as soon as another thread holds init_lock. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* Under init_lock, once; and again after a failure. */
static CUresult open_sessions(void)
{
    __atomic_store_n(&state, STATE_OPENING, __ATOMIC_RELEASE);
    CUresult r = gpc_sessions_open();
    if (r == CUDA_SUCCESS && (GPC_OBSERVED(GPC_OBSERVER_TIMELINE) || gpc_activity_wanted()))
        gpc_activity_start(); /* without it the timeline is the host's alone */
    __atomic_store_n(&state, r == CUDA_SUCCESS ? STATE_READY : STATE_NEW, __ATOMIC_RELEASE);
    return r;
}

GPC_EXPORT CUresult cuInit(unsigned int Flags)
{
    gpc_count(GP_OP_cuInit);
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (now == STATE_READY)
        return CUDA_SUCCESS;
    if (now == STATE_FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (now == STATE_ENDED)
        return CUDA_ERROR_DEINITIALIZED;
    int cancel = gpc_cancel_off();
    pthread_mutex_lock(&init_lock);
    CUresult r = state == STATE_NEW ? open_sessions() : CUDA_SUCCESS;
    pthread_mutex_unlock(&init_lock);
    gpc_cancel_back(cancel);
    return r;
}

/* The runtime's own clean-up may come after this and gets DEINITIALIZED. What exit() in a handler of a
 * signal has interrupted may hold any lock of a channel's: then its end alone tells the worker. */
__attribute__((destructor)) static void at_exit(void)
{
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == STATE_FORKED)
        return;
    bool inside = gpc_thread()->inside;
    if (GPC_OBSERVED(GPC_OBSERVER_TIMELINE) && !inside)
        gpc_activity_flush(true, NULL);
    __atomic_store_n(&state, STATE_ENDED, __ATOMIC_RELEASE); /* other threads may be at work */
    if (!inside)
        gpc_sessions_goodbye();
    gpc_stats_write(gpc_sessions_transport());
}
