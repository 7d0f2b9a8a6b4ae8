/* The calls of a group, on the thread that takes messages: NCCL's state of a group is a thread's. */
#include <stdlib.h>

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

/* Work on a stream of another context than the message's is charged to that one's device. */
static void note(struct gpw_session *s, const struct taken *t)
{
    CUcontext here = NULL, there = NULL;
    s->driver->cuCtxGetCurrent(&here);
    there = t->comm->context;
    if (t->stream != CU_STREAM_LEGACY)
        s->driver->cuStreamGetCtx(t->stream, &there);
    if (there == here) {
        mark(s, t->comm, t->stream);
        return;
    }
    s->driver->cuCtxSetCurrent(there);
    mark(s, t->comm, t->stream);
    s->driver->cuCtxSetCurrent(here);
    gpw_gate_resume(s, there, t->stream);
}

static void note_all(struct gpw_session *s, const struct taken *all, uint32_t count)
{
    uint64_t batch = ++s->nccl->batches;
    for (uint32_t i = count; i-- > 0;) { /* the last of each communicator's */
        if (all[i].comm->batch != batch)
            note(s, &all[i]);
        all[i].comm->batch = batch;
    }
}

/* Whoever submits behind it would come before it. */
struct held_back {
    struct gpw_wait wait;
    struct gp_communicator *comm;
};

static bool held_ready(struct gpw_session *s, struct gpw_wait *w)
{
    return gpw_communicator_state(s, ((struct held_back *)w)->comm) != ncclInProgress;
}

static void held_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    s->fences--;
    gpw_communicator_let_go(s, ((struct held_back *)w)->comm);
    free(w);
}

static bool held_poll(struct gpw_session *s, struct gpw_wait *w)
{
    held_cancel(s, w);
    return true;
}

static void hold_back(struct gpw_session *s, struct gp_communicator *comm)
{
    struct held_back *h = calloc(1, sizeof *h);
    if (!h)
        return;
    h->wait = (struct gpw_wait){.what = "a group that NCCL has not submitted",
                                .ready = held_ready,
                                .poll = held_poll,
                                .cancel = held_cancel};
    h->comm = comm;
    comm->waits++;
    s->fences++;
    gpw_wait_add(s, &h->wait);
}

static void fail_all(const struct taken *all, uint32_t count, ncclResult_t why)
{
    for (uint32_t i = 0; i < count; i++)
        if (all[i].comm->failed == ncclSuccess)
            all[i].comm->failed = why;
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
    if (r == ncclSuccess)
        r = submit(s, all, count);
    s->driver->cuCtxSetCurrent(before); /* NCCL goes from device to device */
    if (r != ncclSuccess && r != ncclInProgress) {
        fail_all(all, count, r);
        return;
    }
    note_all(s, all, count);
    for (uint32_t i = 0; r == ncclInProgress && i < count; i++) {
        all[i].comm->settling = true; /* connections have buffers */
        if (!waits)
            hold_back(s, all[i].comm);
    }
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
