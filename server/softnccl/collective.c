/* Collectives that move blocks, and point to point: what goes from whom to whom, in one exchange. */
#include <stdlib.h>
#include <string.h>

#include "softnccl.h"

static struct sn_header header_of(const struct sn_work *w)
{
    return sn_header_make(w->kind, (uint8_t)w->type, 0, w->root, w->count);
}

/* Whether a block goes from one rank to another: which of the sender's, and which of the receiver's
 * it becomes. */
static bool moves(const struct sn_work *w, uint32_t from, uint32_t to, uint32_t *at, uint32_t *into)
{
    *at = *into = 0;
    switch (w->kind) {
    case SN_BROADCAST:
        return from == w->root;
    case SN_ALL_GATHER:
        *into = from;
        return true;
    case SN_ALL_TO_ALL:
        *at = to;
        *into = from;
        return true;
    case SN_GATHER:
        *into = from;
        return to == w->root;
    default: /* SN_SCATTER */
        *at = to;
        return from == w->root;
    }
}

static ncclResult_t run_and_end(struct sn_exchange *x)
{
    ncclResult_t result = sn_exchange_run(x);
    sn_exchange_end(x);
    return result;
}

static ncclResult_t begin(struct sn_exchange *x, ncclComm_t comm)
{
    if (sn_exchange_begin(x, comm))
        return ncclSuccess;
    sn_exchange_end(x);
    return sn_fail(ncclSystemError, "no memory");
}

static ncclResult_t move_blocks(ncclComm_t comm, const struct sn_work *w)
{
    const uint64_t block = w->count * sn_type_size(w->type);
    const char *send = w->send;
    char *recv = w->recv;
    uint32_t at, into, me = comm->rank;
    struct sn_exchange x;
    SN_TRY(begin(&x, comm));
    for (uint32_t i = 0; i < comm->ranks; i++) {
        if (i != me && moves(w, me, i, &at, &into))
            sn_exchange_send(&x, i, header_of(w), send + at * block, block);
        if (i != me && moves(w, i, me, &at, &into))
            sn_exchange_receive(&x, i, header_of(w), recv + into * block, block);
    }
    if (moves(w, me, me, &at, &into))
        memmove(recv + into * block, send + at * block, block);
    return run_and_end(&x);
}

ncclResult_t sn_collective_run(ncclComm_t comm, const struct sn_work *work)
{
    switch (work->kind) {
    case SN_ALL_REDUCE:
    case SN_REDUCE:
    case SN_REDUCE_SCATTER:
        return sn_reduction_run(comm, work);
    default:
        return move_blocks(comm, work);
    }
}

/* ---- point to point ---- */
/* What this rank sends to itself goes to the first such receive that is left, and so on. */
static ncclResult_t to_itself(ncclComm_t comm, const struct sn_work *works, size_t count)
{
    size_t next = 0;
    for (size_t i = 0; i < count; i++) {
        const struct sn_work *s = &works[i];
        if (s->kind != SN_POINT_TO_POINT || s->root != comm->rank || !s->is_send)
            continue;
        while (next < count && (works[next].kind != SN_POINT_TO_POINT ||
                                works[next].root != comm->rank || works[next].is_send))
            next++;
        if (next == count || works[next].count != s->count || works[next].type != s->type)
            return sn_fail(ncclInvalidUsage, "rank %u sends to itself what it does not receive",
                           comm->rank);
        memmove(works[next++].recv, s->send, s->count * sn_type_size(s->type));
    }
    return ncclSuccess;
}

ncclResult_t sn_point_to_point_run(ncclComm_t comm, const struct sn_work *works, size_t count)
{
    struct sn_exchange x;
    SN_TRY(to_itself(comm, works, count));
    SN_TRY(begin(&x, comm));
    for (size_t i = 0; i < count; i++) {
        const struct sn_work *w = &works[i];
        const uint64_t bytes = w->count * sn_type_size(w->type);
        if (w->kind != SN_POINT_TO_POINT || w->root == comm->rank)
            continue;
        /* Each end names the other: the header has neither. */
        struct sn_header header = sn_header_make(w->kind, (uint8_t)w->type, 0, 0, w->count);
        if (w->is_send)
            sn_exchange_send(&x, w->root, header, w->send, bytes);
        else
            sn_exchange_receive(&x, w->root, header, w->recv, bytes);
    }
    return run_and_end(&x);
}
