/* The calls of a group, on the thread that takes messages: NCCL's state of a group is a thread's. */
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "gate.h"
#include "handles.h"
#include "loop.h"
#include "marks.h"
#include "memory.h"
#include "nccl.h"

/* A call, with what its handles stand for. */
struct taken {
    const struct gp_nccl_call *call;
    struct gp_communicator *comm;
    CUstream stream;
};

static ncclResult_t check_peer(const struct gp_nccl_call *c, const struct gp_communicator *comm)
{
    return c->peer >= 0 && c->peer < comm->ranks ? ncclSuccess : ncclInvalidArgument;
}

/* What NCCL is told to touch must be the session's. */
static ncclResult_t check(struct gpw_session *s, const struct taken *t)
{
    struct gp_nccl_uses uses;
    const struct gp_nccl_call *c = t->call;
    if (t->comm->failed != ncclSuccess)
        return t->comm->failed;
    if (!t->comm->real || gpw_communicator_state(s, t->comm) != ncclSuccess || t->comm->ranks <= 0)
        return ncclInvalidArgument;
    if (!gp_nccl_call_uses(c, t->comm->ranks, t->comm->rank, &uses) ||
        gp_nccl_type_bytes(c->datatype) == 0 || (uses.reduces && c->operation < 0))
        return ncclInvalidArgument;
    if (uses.has_peer && check_peer(c, t->comm) != ncclSuccess)
        return ncclInvalidArgument;
    if ((uses.sends && !gpw_memory_reach(s, c->send, uses.sends)) ||
        (uses.receives && !gpw_memory_reach(s, c->recv, uses.receives)))
        return ncclInvalidArgument;
    return ncclSuccess;
}

/* False: the client names what it does not have. */
static bool take(struct gpw_session *s, const struct gp_nccl_call *c, struct taken *t)
{
    uint64_t comm = 0, stream = 0;
    *t = (struct taken){.call = c};
    if (gpw_handle_get(s, GP_HANDLE_COMMUNICATOR, c->comm, false, &comm) != CUDA_SUCCESS ||
        gpw_handle_get(s, GP_HANDLE_STREAM, c->stream, false, &stream) != CUDA_SUCCESS)
        return false;
    t->comm = (struct gp_communicator *)(uintptr_t)comm;
    t->stream = (CUstream)stream;
    return true;
}

static ncclResult_t submit(struct gpw_session *s, const struct taken *all, uint32_t count)
{
    const struct gpw_nccl_library *n = &s->nccl->library;
    ncclResult_t result = n->ncclGroupStart(), r;
    if (result != ncclSuccess)
        return result;
    for (uint32_t i = 0; i < count && (result == ncclSuccess || result == ncclInProgress); i++) {
        r = gpw_nccl_library_call(n, all[i].call, all[i].comm->real, all[i].stream);
        if (r != ncclSuccess)
            result = r;
    }
    r = n->ncclGroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? r : result;
}

/* Behind its latest work, so that others can see whether it is over. */
static void mark(struct gpw_session *s, struct gp_communicator *c, CUstream stream)
{
    if (!gpw_mark_may(s, stream)) {
        c->captured = true;
        return;
    }
    CUcontext context = NULL;
    s->driver->cuCtxGetCurrent(&context);
    if (c->last && c->last_context != context) {
        gpw_event_give(s, c->last_context, c->last);
        c->last = NULL;
    }
    if (!c->last && gpw_event_take(s, context, &c->last) != CUDA_SUCCESS)
        c->last = NULL;
    c->last_context = context;
    if (c->last)
        s->driver->cuEventRecord(c->last, stream);
}

static CUcontext context_of(struct gpw_session *s, const struct taken *t)
{
    CUcontext context = t->comm->context;
    if (t->stream != CU_STREAM_LEGACY)
        s->driver->cuStreamGetCtx(t->stream, &context);
    return context;
}

static void mark_in(struct gpw_session *s, struct gp_communicator *c, CUcontext context,
                    CUstream stream)
{
    CUcontext before = NULL;
    s->driver->cuCtxGetCurrent(&before);
    s->driver->cuCtxSetCurrent(context);
    mark(s, c, stream);
    s->driver->cuCtxSetCurrent(before);
}

/*
 * A thread of NCCL's puts a group on its streams: always, or while it makes connections, as its
 * version has it. Whoever submits behind it meanwhile would come before it, and what is recorded
 * there would be in front of it.
 */
struct launch {
    struct gpw_wait wait;
    struct gp_communicator *comm;
    CUcontext context;
    uint64_t stream; /* as the client names it */
    int ordinal;     /* of the gate that waits for it; -1: none does */
    bool fences;     /* nothing else is submitted meanwhile */
};

static bool launch_ready(struct gpw_session *s, struct gpw_wait *w)
{
    return gpw_communicator_state(s, ((struct launch *)w)->comm) != ncclInProgress;
}

static void launch_forget(struct gpw_session *s, struct launch *l)
{
    s->fences -= l->fences;
    l->comm->launching--;
    gpw_communicator_let_go(s, l->comm);
    free(l);
}

static void launch_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    launch_forget(s, (struct launch *)w);
}

/* Its stream and its context may have ended, where nothing fenced it. */
static bool launch_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct launch *l = (struct launch *)w;
    uint64_t stream = 0;
    bool lives = gpw_handle_find(s, GP_HANDLE_CONTEXT, (uint64_t)l->context) != 0 &&
                 gpw_handle_get(s, GP_HANDLE_STREAM, l->stream, false, &stream) == CUDA_SUCCESS;
    if (lives && l->comm->real)
        mark_in(s, l->comm, l->context, (CUstream)stream);
    gpw_gate_launched(s, l->ordinal, l->context, lives ? &(CUstream){(CUstream)stream} : NULL);
    launch_forget(s, l);
    return true;
}

static void launch_begin(struct gpw_session *s, const struct taken *t, bool waits)
{
    struct launch *l = calloc(1, sizeof *l);
    if (!l)
        return;
    l->wait = (struct gpw_wait){.what = "a group that NCCL has not submitted",
                                .ready = launch_ready,
                                .poll = launch_poll,
                                .cancel = launch_cancel};
    l->comm = t->comm;
    l->context = context_of(s, t);
    l->stream = t->call->stream;
    l->fences = !waits;
    l->ordinal = gpw_gate_launching(s, l->context);
    l->comm->waits++;
    l->comm->launching++;
    l->comm->captured |= !gpw_mark_may(s, t->stream);
    s->fences += l->fences;
    gpw_wait_add(s, &l->wait);
}

/* Work on a stream of another context than the message's is charged to that one's device. */
static void note(struct gpw_session *s, const struct taken *t)
{
    CUcontext here = NULL, there = context_of(s, t);
    s->driver->cuCtxGetCurrent(&here);
    if (there != here)
        gpw_gate_resume(s, there, t->stream);
}

static void note_all(struct gpw_session *s, const struct taken *all, uint32_t count, bool launched,
                     bool waits)
{
    uint64_t batch = ++s->nccl->batches;
    for (uint32_t i = count; i-- > 0;) { /* the last of each communicator's */
        struct gp_communicator *c = all[i].comm;
        if (c->batch == batch)
            continue;
        c->batch = batch;
        note(s, &all[i]);
        if (launched)
            mark_in(s, c, context_of(s, &all[i]), all[i].stream);
        else
            launch_begin(s, &all[i], waits);
        c->settling |= !launched && waits; /* connections have buffers */
    }
}

static void fail_all(const struct taken *all, uint32_t count, ncclResult_t why)
{
    for (uint32_t i = 0; i < count; i++)
        if (all[i].comm->failed == ncclSuccess)
            all[i].comm->failed = why;
}

/* Other processes' ranks, how far this one comes. */
static void tell(struct gpw_session *s, const struct taken *all, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct gp_communicator *c = all[i].comm;
        uint32_t key;
        memcpy(&key, c->key, sizeof key);
        if (!c->keyed || c->ranks < 2 || all[i].call->function >= GP_NCCL_Send)
            continue;
        c->collectives++;
        if (i + 1 == count || all[i + 1].comm != c)
            gpw_gate_collective(s, key, c->collectives);
    }
}

static void run(struct gpw_session *s, const struct taken *all, uint32_t count, bool waits)
{
    CUcontext before = NULL;
    ncclResult_t r = ncclSuccess;
    for (uint32_t i = 0; i < count && r == ncclSuccess; i++)
        if ((r = check(s, &all[i])) != ncclSuccess)
            gpw_nccl_refuse(s, r,
                            "call %u of a group of %u is refused: its communicator, buffers "
                            "or values are not what they may be",
                            i, count);
    s->driver->cuCtxGetCurrent(&before);
    if (r == ncclSuccess) {
        tell(s, all, count);
        r = submit(s, all, count);
    }
    s->driver->cuCtxSetCurrent(before); /* NCCL goes from device to device */
    if (r != ncclSuccess && r != ncclInProgress) {
        fail_all(all, count, r);
        return;
    }
    note_all(s, all, count, r == ncclSuccess, waits);
}

void gpw_nccl_run(struct gpw_session *s, const struct gp_nccl_call *calls, uint32_t count,
                  bool waits)
{
    struct taken *all = count <= GP_NCCL_CALLS_MAX ? calloc(count, sizeof *all) : NULL;
    bool known = all != NULL;
    for (uint32_t i = 0; known && i < count; i++)
        known = take(s, &calls[i], &all[i]);
    if (known)
        run(s, all, count, waits);
    else
        gpw_session_broken(s, "a group of collectives that no client sends");
    free(all);
}
