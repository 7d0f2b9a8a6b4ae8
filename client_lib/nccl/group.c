#include "group.h"

#include <stdlib.h>
#include <string.h>

#include "snapshot.h"

struct grouped {
    struct gp_nccl_call call;
    struct ncclComm *comm;
};

/* The calling thread's. */
static __thread struct {
    unsigned depth;
    ncclResult_t failed; /* of its calls, the first that did */
    struct grouped *calls;
    uint32_t count, room;
    struct ncclComm **begun;
    uint32_t begun_count, begun_room;
} group;

/* --- what NCCL checks at once ------------------------------------------------------------- */

static ncclResult_t check(const char *name, const struct gp_nccl_call *c,
                          const struct ncclComm *comm)
{
    struct gp_nccl_uses uses;
    if (gp_nccl_type_bytes(c->datatype) == 0)
        return gpc_nccl_fail(ncclInvalidArgument, "%s: %d is no data type", name, c->datatype);
    if (!gp_nccl_call_uses(c, comm->ranks, comm->rank, &uses))
        return ncclInternalError;
    if (uses.reduces && c->operation < 0)
        return gpc_nccl_fail(ncclInvalidArgument, "%s: %d is no reduction", name, c->operation);
    if (uses.has_peer && comm->ranks && (c->peer < 0 || c->peer >= comm->ranks))
        return gpc_nccl_fail(ncclInvalidArgument, "%s: rank %d of %d ranks", name, c->peer,
                             comm->ranks);
    if ((uses.sends && !c->send) || (uses.receives && !c->recv))
        return gpc_nccl_fail(ncclInvalidArgument, "%s: a buffer is NULL", name);
    return ncclSuccess;
}

/* --- the form of a group ------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + UINT64_C(0x9e3779b97f4a7c15) + (hash << 6) + (hash >> 2);
    return hash * UINT64_C(0xff51afd7ed558ccd);
}

static unsigned magnitude(uint64_t count)
{
    return count ? 64 - (unsigned)__builtin_clzll(count) : 0;
}

/* NCCL chooses its ways by what is done, of what type and how much. */
static uint64_t form_of(const struct grouped *calls, uint32_t count)
{
    uint64_t form = count;
    for (uint32_t i = 0; i < count; i++) {
        const struct gp_nccl_call *c = &calls[i].call;
        form = mix(form, c->comm);
        form = mix(form, (uint64_t)c->function << 48 | (uint64_t)(uint32_t)c->datatype << 40 |
                             (uint64_t)magnitude(c->count) << 32 | (uint32_t)c->peer);
        form = mix(form, (uint32_t)c->operation);
    }
    return form;
}

/* A rank that waits for another one of this process, whose call is still to come, must not hold
 * that up: so it waits where it is called, unless all are in the group. */
static bool is_crowded(const struct grouped *calls, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (calls[i].comm->crowded && calls[i].comm == calls[0].comm)
            continue;
        else
            return false;
    return true;
}

/* --- sending ---------------------------------------------------------------------------------- */

static ncclResult_t settle_calls(const struct grouped *calls, uint32_t count)
{
    const struct ncclComm *last = NULL;
    ncclResult_t result = ncclSuccess, r;
    for (uint32_t i = 0; i < count; i++) {
        struct ncclComm *comm = calls[i].comm;
        if (comm == last)
            continue;
        last = comm;
        r = comm->blocking ? gpc_nccl_settle(comm) : ncclInProgress;
        if (result == ncclSuccess || result == ncclInProgress)
            result = r == ncclSuccess ? result : r;
    }
    return result;
}

/* Calls of one session. */
static ncclResult_t send(const struct grouped *calls, uint32_t count)
{
    const struct gpc_communicator_table *t = gpc_nccl_table();
    uint64_t form = form_of(calls, count);
    bool waits = is_crowded(calls, count) || !gpc_nccl_knows(calls[0].comm, form);
    struct gp_nccl_call *travels = malloc(count * sizeof *travels);
    if (!t || !travels) {
        free(travels);
        return ncclSystemError;
    }
    for (uint32_t i = 0; i < count; i++)
        travels[i] = calls[i].call;
    ncclResult_t r = gpc_nccl_result(t->group(travels, count, waits));
    free(travels);
    if (r == ncclSuccess && waits)
        r = settle_calls(calls, count);
    if (r == ncclSuccess && waits)
        gpc_nccl_learn(calls[0].comm, form);
    return r;
}

static int by_session(const void *a, const void *b)
{
    const struct grouped *const *left = a, *const *right = b;
    uint32_t x = gp_handle_session((*left)->call.comm), y = gp_handle_session((*right)->call.comm);
    return x != y ? (x > y) - (x < y) : (*left > *right) - (*left < *right);
}

/* A message for each session, the calls of each in their order. */
static ncclResult_t send_sorted(const struct grouped *calls, uint32_t count)
{
    ncclResult_t result = ncclSuccess, r;
    struct grouped *sorted = malloc(count * sizeof *sorted);
    const struct grouped **order = malloc(count * sizeof *order);
    for (uint32_t i = 0; sorted && order && i < count; i++)
        order[i] = &calls[i];
    if (sorted && order)
        qsort(order, count, sizeof *order, by_session);
    else
        result = ncclSystemError;
    for (uint32_t i = 0; result != ncclSystemError && i < count; i++)
        sorted[i] = *order[i];
    for (uint32_t at = 0, end; result != ncclSystemError && at < count; at = end) {
        uint32_t session = gp_handle_session(sorted[at].call.comm);
        for (end = at; end < count && gp_handle_session(sorted[end].call.comm) == session;)
            end++;
        r = send(sorted + at, end - at);
        result = r == ncclSuccess ? result : r;
    }
    free(sorted);
    free(order);
    return result;
}

static ncclResult_t settle_begun(void)
{
    ncclResult_t result = ncclSuccess, r;
    for (uint32_t i = 0; i < group.begun_count; i++) {
        r = group.begun[i]->blocking ? gpc_nccl_settle(group.begun[i]) : ncclInProgress;
        if (result == ncclSuccess || result == ncclInProgress)
            result = r == ncclSuccess ? result : r;
    }
    return result;
}

static ncclResult_t group_run(void)
{
    ncclResult_t begun = settle_begun(), sent = ncclSuccess;
    bool may = group.failed == ncclSuccess && (begun == ncclSuccess || begun == ncclInProgress);
    if (may && group.count)
        sent = send_sorted(group.calls, group.count);
    ncclResult_t result = group.failed != ncclSuccess ? group.failed
                          : begun != ncclSuccess      ? begun
                                                      : sent;
    free(group.calls); /* the thread may end, and have no other */
    free(group.begun);
    memset(&group, 0, sizeof group);
    return result;
}

/* --- the calls ---------------------------------------------------------------------------------- */

/* Room for one more; false: there is none. */
static bool grow(void **list, uint32_t count, uint32_t *room, size_t size)
{
    if (count < *room)
        return true;
    uint32_t more = *room ? 2 * *room : 16;
    void *grown = realloc(*list, more * size);
    if (!grown)
        return false;
    *list = grown;
    *room = more;
    return true;
}

static ncclResult_t add(const struct gp_nccl_call *call, struct ncclComm *comm, CUstream stream)
{
    if (group.count == GP_NCCL_CALLS_MAX)
        return gpc_nccl_fail(ncclInvalidUsage, "a group has at most %d calls here",
                             GP_NCCL_CALLS_MAX);
    if (!grow((void **)&group.calls, group.count, &group.room, sizeof *group.calls))
        return gpc_nccl_fail(ncclSystemError, "no memory for a group");
    struct grouped *g = &group.calls[group.count++];
    *g = (struct grouped){*call, comm};
    g->call.comm = (uintptr_t)comm->id;
    g->call.stream = (uintptr_t)stream;
    return ncclSuccess;
}

/* What a call of an open group says is also what its end says. */
static ncclResult_t called(ncclResult_t r)
{
    if (group.depth && r != ncclSuccess && group.failed == ncclSuccess)
        group.failed = r;
    return group.depth || r != ncclSuccess ? r : group_run();
}

ncclResult_t gpc_nccl_collective(const char *name, const struct gp_nccl_call *call,
                                 struct ncclComm *comm, CUstream stream)
{
    ncclResult_t r = gpc_nccl_check(name, comm);
    if (r == ncclSuccess)
        r = check(name, call, comm);
    return called(r == ncclSuccess ? add(call, comm, stream) : r);
}

ncclResult_t gpc_nccl_group_begun(struct ncclComm *comm)
{
    if (!grow((void **)&group.begun, group.begun_count, &group.begun_room, sizeof *group.begun))
        return called(gpc_nccl_fail(ncclSystemError, "no memory for a group"));
    group.begun[group.begun_count++] = comm;
    return called(ncclSuccess);
}

void gpc_nccl_group_forget(const struct ncclComm *comm)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < group.begun_count; i++)
        if (group.begun[i] != comm)
            group.begun[kept++] = group.begun[i];
    group.begun_count = kept;
    kept = 0;
    for (uint32_t i = 0; i < group.count; i++)
        if (group.calls[i].comm != comm)
            group.calls[kept++] = group.calls[i];
    group.count = kept;
}

ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group.depth == 0)
        return gpc_nccl_fail(ncclInvalidUsage, "ncclGroupEnd: not in a group");
    return --group.depth ? ncclSuccess : group_run();
}
