/* A session's communicators: from their beginning to their end. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "growth.h"
#include "loop.h"
#include "nccl.h"
#include "own_thread.h"
#include "quota.h"
#include "ranks.h"

struct gp_communicator *gpw_communicator_new(struct gpw_session *s,
                                             const struct gp_communicator *parent)
{
    struct gpw_nccl *n = s->nccl;
    if (n->count + n->endings >= GPW_COMMUNICATORS_MAX) {
        gpw_nccl_refuse(s, ncclSystemError, "a session has at most %d communicators",
                        GPW_COMMUNICATORS_MAX);
        return NULL;
    }
    struct gp_communicator *c = calloc(1, sizeof *c);
    if (!c) {
        gpw_nccl_refuse(s, ncclSystemError, "no memory for a communicator");
        return NULL;
    }
    c->settling = true;
    c->ordinal = parent ? parent->ordinal : gpw_current_ordinal(s);
    s->driver->cuCtxGetCurrent(&c->context);
    if (parent)
        c->context = parent->context;
    c->next = n->communicators;
    n->communicators = c;
    n->count++;
    return c;
}

static void record_free(struct gpw_session *s, struct gp_communicator *c)
{
    struct gp_communicator **at = &s->nccl->communicators;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    s->nccl->count--;
    if (c->last)
        gpw_event_give(s, c->last_context, c->last);
    free(c->registrations);
    free(c);
}

void gpw_communicator_let_go(struct gpw_session *s, struct gp_communicator *c)
{
    if (--c->waits == 0 && c->gone)
        record_free(s, c);
}

ncclResult_t gpw_communicator_begun(struct gp_communicator *c, ncclResult_t result)
{
    if (result != ncclSuccess && result != ncclInProgress) {
        c->failed = result;
        c->real = NULL;
    }
    return c->failed;
}

static void refuse_memory(struct gpw_session *s, struct gp_communicator *c, uint64_t over)
{
    c->failed = gpw_nccl_refuse(s, ncclSystemError,
                                "the tenant's memory limit has no room for NCCL's buffers: %llu MiB"
                                " are missing",
                                (unsigned long long)(over >> 20) + 1);
}

/* What NCCL took for it, on the device and so of the tenant's limit. */
static void charge(struct gpw_session *s, struct gp_communicator *c)
{
    uint64_t over = 0;
    c->settling = false;
    if (c->ordinal >= 0 && !gpw_quota_settle(s, (uint32_t)c->ordinal, &over))
        refuse_memory(s, c, over);
}

static void learn(struct gpw_session *s, struct gp_communicator *c)
{
    const struct gpw_nccl_library *n = &s->nccl->library;
    int count = 0, rank = 0;
    if (n->ncclCommCount(c->real, &count) == ncclSuccess &&
        n->ncclCommUserRank(c->real, &rank) == ncclSuccess) {
        c->ranks = count;
        c->rank = rank;
    }
}

ncclResult_t gpw_communicator_state(struct gpw_session *s, struct gp_communicator *c)
{
    ncclResult_t now = ncclSuccess;
    if (c->failed != ncclSuccess || !c->real)
        return c->failed;
    ncclResult_t r = s->nccl->library.ncclCommGetAsyncError(c->real, &now);
    if (r != ncclSuccess)
        now = r;
    if (now == ncclInProgress)
        return now;
    c->failed = now;
    if (now == ncclSuccess && c->ranks == 0)
        learn(s, c);
    if (now == ncclSuccess && c->settling)
        charge(s, c);
    return c->failed;
}

ncclResult_t gpw_communicator_usable(struct gpw_session *s, struct gp_communicator *c)
{
    ncclResult_t r = gpw_communicator_state(s, c);
    return r == ncclInProgress || (r == ncclSuccess && !c->real) ? ncclInvalidArgument : r;
}

/* --- the end ----------------------------------------------------------------------------- */

/* NCCL waits in it for kernels and other ranks. */
struct ending {
    struct gpw_wait wait;
    struct gpw_token token;
    gpw_communicator_done *done; /* NULL: nobody waits */
    ncclResult_t (*end)(ncclComm_t comm);
    ncclComm_t real;
    int32_t ordinal;
    ncclResult_t result;
    bool over; /* written by the thread */
};

static void *ending_run(void *arg)
{
    struct ending *e = arg;
    e->result = e->end(e->real);
    __atomic_store_n(&e->over, true, __ATOMIC_RELEASE);
    return NULL;
}

static bool ending_ready(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s;
    return __atomic_load_n(&((struct ending *)w)->over, __ATOMIC_ACQUIRE);
}

static bool ending_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct ending *e = (struct ending *)w;
    if (e->ordinal >= 0)
        gpw_quota_reconcile(s, (uint32_t)e->ordinal);
    if (e->done)
        e->done(s, e->token, e->result == ncclInProgress ? ncclSuccess : e->result);
    s->nccl->endings--;
    free(e);
    return true;
}

/* The thread may still use it; the process is about to end. */
static void ending_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    if (ending_ready(s, w))
        free(w);
}

static bool ending_start(struct gpw_session *s, struct ending *e)
{
    pthread_t thread;
    if (gp_thread_create(&thread, "nccl", NULL, ending_run, e) != 0)
        return false;
    pthread_detach(thread);
    gpw_wait_add(s, &e->wait);
    return true;
}

/* The real one, on a thread. False: there is no room for one. */
static bool real_end(struct gpw_session *s, struct gp_communicator *c, bool aborts,
                     struct gpw_token token, gpw_communicator_done *done)
{
    const struct gpw_nccl_library *n = &s->nccl->library;
    struct ending *e = calloc(1, sizeof *e);
    if (!e)
        return false;
    e->wait = (struct gpw_wait){.what = "a communicator's end",
                                .ready = ending_ready,
                                .poll = ending_poll,
                                .cancel = ending_cancel};
    e->token = token;
    e->done = done;
    e->end = aborts ? n->ncclCommAbort : n->ncclCommDestroy;
    e->real = c->real;
    e->ordinal = c->ordinal;
    if (!ending_start(s, e)) {
        free(e);
        return false;
    }
    c->real = NULL;
    s->nccl->endings++;
    return true;
}

static void record_end(struct gpw_session *s, struct gp_communicator *c)
{
    c->gone = true;
    if (c->waits == 0)
        record_free(s, c);
}

ncclResult_t gpw_communicator_end(struct gpw_session *s, struct gp_communicator *c, bool aborts,
                                  struct gpw_token token, gpw_communicator_done *done)
{
    ncclResult_t state = gpw_communicator_state(s, c);
    bool none = !c->real;
    gpw_ranks_left(s, c);
    bool ends = none || real_end(s, c, aborts || state != ncclSuccess, token, done);
    c->real = NULL;
    record_end(s, c);
    if (none)
        done(s, token, ncclSuccess);
    return ends ? ncclSuccess
                : gpw_nccl_refuse(s, ncclSystemError, "no thread to end a communicator");
}

/* A kernel that waits for a rank that is gone ends when its communicator is aborted. */
static void fail_check(struct gpw_session *s, struct gp_communicator *c)
{
    ncclResult_t state = gpw_communicator_state(s, c);
    if (!c->real || state == ncclSuccess || state == ncclInProgress)
        return;
    const char *(*why)(ncclComm_t comm) = s->nccl->library.ncclGetLastError;
    gpw_nccl_refuse(s, state, "rank %d of %d has failed (NCCL error %d): %.150s", c->rank, c->ranks,
                    (int)state,
                    c->given_up ? "a process that had a rank of it has ended"
                    : why       ? why(c->real)
                                : "");
    real_end(s, c, true, (struct gpw_token){0}, NULL);
}

void gpw_nccl_tick(struct gpw_session *s)
{
    gpw_ranks_tick(s);
    struct gp_communicator *c = s->nccl ? s->nccl->communicators : NULL;
    for (; c; c = c->next)
        fail_check(s, c);
}

/* --- what others ask ---------------------------------------------------------------------- */

bool gpw_communicator_pending(struct gpw_session *s, struct gp_communicator *c)
{
    if (c->launching)
        return true;
    if (!c->last || s->driver->cuEventQuery(c->last) == CUDA_ERROR_NOT_READY)
        return c->captured || c->last;
    gpw_event_give(s, c->last_context, c->last);
    c->last = NULL;
    return c->captured;
}

bool gpw_nccl_pending(struct gpw_session *s)
{
    struct gp_communicator *c = s->nccl ? s->nccl->communicators : NULL;
    while (c && !gpw_communicator_pending(s, c))
        c = c->next;
    return c != NULL;
}

bool gpw_nccl_crowded(const struct gpw_session *s)
{
    const struct gp_communicator *c = s->nccl ? s->nccl->communicators : NULL;
    while (c && !c->crowded)
        c = c->next;
    return c != NULL;
}

/* It may wait for a rank that never comes, so it must not keep the limit from holding. */
bool gpw_nccl_give_up(struct gpw_session *s, uint32_t ordinal, uint64_t over)
{
    bool found = false;
    struct gp_communicator *c = s->nccl ? s->nccl->communicators : NULL;
    for (; c; c = c->next) {
        if (!c->real || !c->settling || c->failed != ncclSuccess || c->ordinal != (int32_t)ordinal)
            continue;
        refuse_memory(s, c, over);
        found = true;
    }
    return found;
}

void gpw_nccl_context_ended(struct gpw_session *s, CUcontext context)
{
    struct gp_communicator *c = s->nccl ? s->nccl->communicators : NULL;
    for (; c; c = c->next) {
        if (c->last_context == context)
            c->last = NULL; /* the event goes with it */
        if (c->context != context)
            continue;
        c->context = NULL;
        if (c->failed == ncclSuccess)
            c->failed = gpw_nccl_refuse(s, ncclUnhandledCudaError,
                                        "the context of rank %d of %d has ended", c->rank,
                                        c->ranks);
    }
}
