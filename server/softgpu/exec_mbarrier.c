/* Barriers in shared memory (mbarrier), which copies tell when they are done. */
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

bool sg_mbarrier_complete(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                          uint64_t address, uint64_t bytes)
{
    uint64_t state;
    void *p = sg_reach(w, in, lane, SG_S_SHARED, address, sizeof(state), sizeof(state));
    if (!p)
        return false;
    memcpy(&state, p, sizeof(state));
    struct barrier b = unpack(state);
    if (!count_bytes(w, in, lane, &b, -(int64_t)bytes))
        return false;
    end_phase(&b);
    state = pack(&b);
    memcpy(p, &state, sizeof(state));
    return true;
}
