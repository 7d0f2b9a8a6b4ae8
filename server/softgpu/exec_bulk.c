/*
 * Copies of many bytes, and reductions of many (cp.async.bulk, cp.reduce.async.bulk), and of few
 * that a barrier counts (st.async, red.async). They are done at once, which the waits that follow
 * allow.
 */
#include "exec_internal.h"

#include <string.h>

#define BULK_UNIT 16u

struct bulk {
    uint64_t to, from, barrier;
    uint32_t size;
};

uint64_t sg_shared_of(uint64_t address, unsigned rank)
{
    uint64_t own = ((uint64_t)1 << SG_CLUSTER_SHIFT) - 1, low = UINT32_MAX;
    return (address & ~low) | (address & own) | (uint64_t)(rank + 1) << SG_CLUSTER_SHIFT;
}

static unsigned source_of(const struct sg_insn *in)
{
    return in->op == SG_P_CP_BULK ? in->mode : SG_S_SHARED;
}

void sg_reduce_bytes(const struct sg_insn *in, unsigned char *to, const unsigned char *from,
                     uint32_t bytes)
{
    uint32_t size = sg_type_size(in->type);
    for (uint32_t i = 0; i + size <= bytes; i += size) {
        uint64_t value = 0;
        memcpy(&value, from + i, size);
        sg_atomic_update(in, in->space == SG_S_GLOBAL, to + i, value, 0);
    }
}

static bool copy_bulk(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                      const struct bulk *c)
{
    unsigned char *to = NULL;
    const unsigned char *from = NULL;
    if (c->size) {
        to = sg_reach(w, in, lane, in->space, c->to, c->size, BULK_UNIT);
        from = to ? sg_reach(w, in, lane, source_of(in), c->from, c->size, BULK_UNIT) : NULL;
        if (!from)
            return false;
        if (in->op == SG_P_RED_BULK)
            sg_reduce_bytes(in, to, from, c->size);
        else
            memmove(to, from, c->size);
    }
    return in->space != SG_S_SHARED || sg_mbarrier_complete(w, in, lane, c->barrier, c->size);
}

static bool copy_to_blocks(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                           const struct bulk *c, uint32_t blocks)
{
    SG_FOR_LANES(rank, blocks)
    {
        struct bulk one = *c;
        one.to = sg_shared_of(c->to, rank);
        one.barrier = sg_shared_of(c->barrier, rank);
        if (!copy_bulk(w, in, lane, &one))
            return false;
    }
    return true;
}

SG_HANDLER(sg_do_copy_bulk)
{
    const struct sg_operand *x = in->x;
    SG_FOR_LANES(l, mask)
    {
        struct bulk c = {
            .to = sg_address_own(&x[SG_COPY_TO], sg_operand_lane(w, &x[SG_COPY_TO], l)),
            .from = sg_address_own(&x[SG_COPY_FROM], sg_operand_lane(w, &x[SG_COPY_FROM], l)),
            .barrier = sg_address_own(&x[SG_COPY_BARRIER],
                                      sg_operand_lane(w, &x[SG_COPY_BARRIER], l)),
            .size = (uint32_t)sg_operand_lane(w, &x[SG_COPY_SIZE], l),
        };
        /* as an H100 does: only blocks of a cluster have shared memory for each other */
        if (in->space == SG_S_SHARED && source_of(in) == SG_S_SHARED &&
            w->block->cluster->size == 1)
            return sg_fault(w, in, l, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                            "cp.async.bulk within shared memory, in no cluster of blocks");
        if (c.size % BULK_UNIT)
            return sg_fault(w, in, l, CUDA_ERROR_MISALIGNED_ADDRESS,
                            "cp.async.bulk of %u bytes, no multiple of %u", c.size, BULK_UNIT);
        bool done = x[SG_COPY_MORE].kind == SG_O_NONE
                        ? copy_bulk(w, in, l, &c)
                        : copy_to_blocks(w, in, l, &c,
                                         sg_operand_lane(w, &x[SG_COPY_MORE], l) & 0xffff);
        if (!done)
            return SG_FAULT;
    }
    return SG_NEXT;
}

SG_HANDLER(sg_do_counted)
{
    const struct sg_operand *at = &in->x[in->vector + 1u];
    bool stores = in->op == SG_P_ST_ASYNC;
    if ((stores ? sg_do_store(w, in, mask) : sg_do_atomic(w, in, mask)) == SG_FAULT)
        return SG_FAULT;
    SG_FOR_LANES(l, mask)
    if (!sg_mbarrier_complete(w, in, l, sg_address_own(at, sg_operand_lane(w, at, l)),
                              (uint64_t)in->vector * sg_type_size(in->type)))
        return SG_FAULT;
    return SG_NEXT;
}
