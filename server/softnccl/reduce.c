/*
 * Reductions, a chunk after the other, so that memory is bounded: each rank sends every other the
 * part of the chunk that the other owns, reduces its own part in the order of ranks (so that a result
 * does not depend on who came first), and where all need the result sends it to all.
 */
#include <stdlib.h>
#include <string.h>

#include "softnccl.h"

#define PART_ELEMENTS (UINT64_C(64) << 10) /* of each owner in a chunk, at most */

struct reduction {
    ncclComm_t comm;
    const struct sn_work *work;
    size_t size;         /* of an element */
    const void *factor;  /* NULL: none */
    unsigned char *mine; /* a part of each rank, with its own at its place */
    unsigned char *out;  /* what is sent, multiplied, where there is a factor */
    uint64_t at, length; /* the chunk, in elements */
};

/* What a rank owns of the chunk: where it begins in the input, and how many elements. */
static uint64_t part_of(const struct reduction *r, uint32_t owner, uint64_t *from)
{
    const uint32_t ranks = r->comm->ranks;
    *from = r->at;
    switch (r->work->kind) {
    case SN_REDUCE:
        return owner == r->work->root ? r->length : 0;
    case SN_REDUCE_SCATTER:
        *from = owner * r->work->count + r->at;
        return r->length;
    default: {
        uint64_t begin = r->length * owner / ranks;
        *from = r->at + begin;
        return r->length * (owner + 1) / ranks - begin;
    }
    }
}

static struct sn_header header_of(const struct sn_work *w)
{
    uint8_t op = w->scaled ? ncclNumOps : (uint8_t)w->op;
    return sn_header_make(w->kind, (uint8_t)w->type, op, w->root, w->count);
}

/* A rank's part, in memory with one for each. */
static unsigned char *place_of(const struct reduction *r, unsigned char *parts, uint32_t rank)
{
    return parts + rank * PART_ELEMENTS * r->size;
}

/* This rank's input for an owner; multiplied if need be, in its place of `parts`. */
static const void *input(const struct reduction *r, uint32_t owner, unsigned char *parts)
{
    uint64_t from, length = part_of(r, owner, &from);
    const char *data = (const char *)r->work->send + from * r->size;
    if (!r->factor)
        return data;
    unsigned char *into = place_of(r, parts, owner);
    sn_type_scale(r->work->type, into, data, r->factor, length);
    return into;
}

static ncclResult_t distribute(struct reduction *r, struct sn_exchange *x)
{
    const uint32_t me = r->comm->rank;
    uint64_t from, own = part_of(r, me, &from);
    for (uint32_t i = 0; i < r->comm->ranks; i++) {
        uint64_t length = part_of(r, i, &from);
        if (i == me)
            continue;
        if (length)
            sn_exchange_send(x, i, header_of(r->work), input(r, i, r->out), length * r->size);
        if (own)
            sn_exchange_receive(x, i, header_of(r->work), place_of(r, r->mine, i), own * r->size);
    }
    return sn_exchange_run(x);
}

/* The result of this rank's part, in the first rank's place. */
static void reduce_own(struct reduction *r)
{
    const uint32_t me = r->comm->rank;
    unsigned char *place = place_of(r, r->mine, me);
    uint64_t from, length = part_of(r, me, &from);
    if (!length)
        return;
    const void *data = input(r, me, r->mine);
    if (data != place)
        memcpy(place, data, length * r->size);
    for (uint32_t i = 1; i < r->comm->ranks; i++)
        sn_type_reduce(r->work->type, r->work->op, r->mine, place_of(r, r->mine, i), length);
    if (r->work->op == ncclAvg)
        sn_type_divide(r->work->type, r->mine, r->comm->ranks, length);
    uint64_t to = r->work->kind == SN_ALL_REDUCE ? from : r->at;
    memcpy((char *)r->work->recv + to * r->size, r->mine, length * r->size);
}

static ncclResult_t share(struct reduction *r, struct sn_exchange *x)
{
    const uint32_t me = r->comm->rank;
    uint64_t from, own = part_of(r, me, &from);
    for (uint32_t i = 0; i < r->comm->ranks; i++) {
        uint64_t length = part_of(r, i, &from);
        if (i == me)
            continue;
        if (own)
            sn_exchange_send(x, i, header_of(r->work), r->mine, own * r->size);
        if (length)
            sn_exchange_receive(x, i, header_of(r->work), (char *)r->work->recv + from * r->size,
                                length * r->size);
    }
    return sn_exchange_run(x);
}

static ncclResult_t run_chunk(struct reduction *r, struct sn_exchange *x)
{
    SN_TRY(distribute(r, x));
    reduce_own(r);
    return r->work->kind == SN_ALL_REDUCE ? share(r, x) : ncclSuccess;
}

static ncclResult_t run_chunks(struct reduction *r, struct sn_exchange *x)
{
    const uint64_t step = r->work->kind == SN_ALL_REDUCE ? PART_ELEMENTS * r->comm->ranks
                                                         : PART_ELEMENTS;
    for (; r->at < r->work->count; r->at += step) {
        r->length = r->work->count - r->at < step ? r->work->count - r->at : step;
        SN_TRY(run_chunk(r, x));
    }
    return ncclSuccess;
}

ncclResult_t sn_reduction_run(ncclComm_t comm, const struct sn_work *work)
{
    struct reduction r = {.comm = comm, .work = work, .size = sn_type_size(work->type)};
    const size_t bytes = comm->ranks * PART_ELEMENTS * r.size;
    struct sn_exchange x;
    ncclResult_t result;
    if (work->scaled)
        r.factor = work->factor.residence == ncclScalarDevice ? work->factor.device
                                                              : work->factor.value;
    bool ready = sn_exchange_begin(&x, comm);
    r.mine = malloc(bytes);
    r.out = work->scaled ? malloc(bytes) : NULL;
    if (!ready || !r.mine || (work->scaled && !r.out))
        result = sn_fail(ncclSystemError, "no memory");
    else
        result = run_chunks(&r, &x);
    sn_exchange_end(&x);
    free(r.mine);
    free(r.out);
    return result;
}
