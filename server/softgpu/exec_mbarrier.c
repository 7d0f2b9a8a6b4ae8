/*
 * Barriers in shared memory (mbarrier), and the copies that tell one when they are done. Copies
 * are done at once, which the waits that follow allow.
 */
#include "exec_internal.h"

#include <string.h>

#define COUNT_MOST ((1 << 20) - 1) /* of arrivals, and of bytes either way */

/* The 64 bits that a program must not look into; its tokens are the same. */
struct barrier {
    uint32_t pending, expected;
    int32_t bytes; /* that are still to come */
    uint32_t phase;
};

static struct barrier unpack(uint64_t v)
{
    return (struct barrier){.pending = v & 0xfffff,
                            .expected = v >> 20 & 0xfffff,
                            .bytes = (int32_t)(v >> 40 & 0x1fffff) - (1 << 20),
                            .phase = (uint32_t)(v >> 61)};
}

static uint64_t pack(const struct barrier *b)
{
    return b->pending | (uint64_t)b->expected << 20 | (uint64_t)(b->bytes + (1 << 20)) << 40 |
           (uint64_t)(b->phase & 7) << 61;
}

static void end_phase(struct barrier *b)
{
    if (b->pending || b->bytes)
        return;
    b->phase++;
    b->pending = b->expected;
}

/* What goes beyond a barrier's numbers has no meaning in PTX; here it ends the launch. */
static bool beyond(struct sg_warp *w, const struct sg_insn *in, unsigned lane, const char *what,
                   long long n)
{
    sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "mbarrier: %lld %s", n, what);
    return false;
}

static bool count_bytes(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                        struct barrier *b, int64_t bytes)
{
    int64_t sum = b->bytes + bytes;
    if (sum > COUNT_MOST || sum < -COUNT_MOST)
        return beyond(w, in, lane, "bytes are more than it counts", sum);
    b->bytes = (int32_t)sum;
    return true;
}

static bool arrive(struct sg_warp *w, const struct sg_insn *in, unsigned lane, struct barrier *b,
                   uint32_t count, bool drop)
{
    if (!count || count > b->pending)
        return beyond(w, in, lane, "arrivals, but not as many are pending", count);
    b->pending -= count;
    if (drop)
        b->expected -= count < b->expected ? count : b->expected;
    end_phase(b);
    return true;
}

static bool change(struct sg_warp *w, const struct sg_insn *in, unsigned lane, struct barrier *b,
                   uint64_t value)
{
    uint32_t n = (uint32_t)value;
    switch (in->mode) {
    case SG_Q_INIT:
        if (!n || n > COUNT_MOST)
            return beyond(w, in, lane, "arrivals cannot be expected", n);
        *b = (struct barrier){.pending = n, .expected = n};
        return true;
    case SG_Q_ARRIVE:
    case SG_Q_DROP: {
        bool given = in->x[SG_BARRIER_VALUE].kind != SG_O_NONE;
        return arrive(w, in, lane, b, given ? n : 1, in->mode == SG_Q_DROP);
    }
    case SG_Q_ARRIVE_EXPECT:
    case SG_Q_DROP_EXPECT:
        return count_bytes(w, in, lane, b, n) &&
               arrive(w, in, lane, b, 1, in->mode == SG_Q_DROP_EXPECT);
    case SG_Q_EXPECT:
        return count_bytes(w, in, lane, b, n);
    case SG_Q_COMPLETE:
        if (!count_bytes(w, in, lane, b, -(int64_t)n))
            return false;
        end_phase(b);
        return true;
    default: /* inval; and an arrival of copies that are done, which counts itself in and out */
        return true;
    }
}

static uint64_t answer(const struct sg_insn *in, uint64_t old, uint64_t value)
{
    switch (in->mode) {
    case SG_Q_TEST:
        return unpack(old).phase != unpack(value).phase;
    case SG_Q_TEST_PARITY:
        return (unpack(old).phase & 1) != (value & 1);
    default:
        return old;
    }
}

static bool one_lane(struct sg_warp *w, const struct sg_insn *in, unsigned lane)
{
    uint64_t value = sg_operand_lane(w, &in->x[SG_BARRIER_VALUE], lane), old;
    const struct sg_operand *at = &in->x[SG_BARRIER_AT];
    if (in->mode == SG_Q_PENDING) {
        sg_write(w->frame, &in->x[SG_BARRIER_RESULT], lane, unpack(value).pending);
        return true;
    }
    void *p = sg_reach(w, in, lane, in->space, sg_address_own(at, sg_operand_lane(w, at, lane)),
                       sizeof(old), sizeof(old));
    if (!p)
        return false;
    memcpy(&old, p, sizeof(old));
    struct barrier b = unpack(old);
    if (!change(w, in, lane, &b, value))
        return false;
    uint64_t new = pack(&b);
    memcpy(p, &new, sizeof(new));
    sg_write(w->frame, &in->x[SG_BARRIER_RESULT], lane, answer(in, old, value));
    return true;
}

SG_HANDLER(sg_do_mbarrier)
{
    SG_FOR_LANES(l, mask)
    if (!one_lane(w, in, l))
        return SG_FAULT;
    return SG_NEXT;
}

/* --- copies of many bytes ---------------------------------------------------------------------- */

#define BULK_UNIT 16u

struct bulk {
    uint64_t to, from, barrier;
    uint32_t size;
};

/* The address at the same place of the shared memory of a block of the cluster. */
static uint64_t in_block(uint64_t address, unsigned rank)
{
    uint64_t own = ((uint64_t)1 << SG_CLUSTER_SHIFT) - 1, low = UINT32_MAX;
    return (address & ~low) | (address & own) | (uint64_t)(rank + 1) << SG_CLUSTER_SHIFT;
}

static bool copy_bulk(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                      const struct bulk *c)
{
    unsigned char *to = NULL;
    const unsigned char *from = NULL;
    if (c->size) {
        to = sg_reach(w, in, lane, in->space, c->to, c->size, BULK_UNIT);
        from = to ? sg_reach(w, in, lane, in->mode, c->from, c->size, BULK_UNIT) : NULL;
        if (!from)
            return false;
        memmove(to, from, c->size);
    }
    if (in->space != SG_S_SHARED)
        return true;
    uint64_t state;
    void *p = sg_reach(w, in, lane, SG_S_SHARED, c->barrier, sizeof(state), sizeof(state));
    if (!p)
        return false;
    memcpy(&state, p, sizeof(state));
    struct barrier b = unpack(state);
    if (!count_bytes(w, in, lane, &b, -(int64_t)c->size))
        return false;
    end_phase(&b);
    state = pack(&b);
    memcpy(p, &state, sizeof(state));
    return true;
}

static bool copy_to_blocks(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                           const struct bulk *c, uint32_t blocks)
{
    SG_FOR_LANES(rank, blocks)
    {
        struct bulk one = *c;
        one.to = in_block(c->to, rank);
        one.barrier = in_block(c->barrier, rank);
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
        if (in->space == SG_S_SHARED && in->mode == SG_S_SHARED && w->block->cluster->size == 1)
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
