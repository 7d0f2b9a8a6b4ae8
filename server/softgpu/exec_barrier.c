/* Barriers of a block, and of a cluster of blocks. */
#include "exec_matrix.h"

struct request {
    const uint64_t *id, *count, *predicate; /* count NULL: all threads of the block */
    uint64_t room[3][SG_LANES];
};

static void read_request(struct sg_warp *w, const struct sg_insn *in, struct request *r)
{
    unsigned i = in->mode >= SG_Y_RED_POPC ? 1 : 0;
    bool reduces = i == 1;
    r->id = sg_operand_all(w, &in->x[i++], r->room[0]);
    r->count = r->predicate = NULL;
    if (i + (reduces ? 1u : 0u) < in->operands && in->x[i].kind != SG_O_NONE)
        r->count = sg_operand_all(w, &in->x[i], r->room[1]);
    if (reduces)
        r->predicate = sg_operand_all(w, &in->x[in->operands - 1], r->room[2]);
}

/* The lanes have come to the barrier. */
static void arrive(struct sg_warp *w, const struct sg_insn *in, const struct request *r,
                   uint64_t id, uint32_t lanes)
{
    struct sg_barrier_state *b = &w->block->barriers[id];
    if (!b->used)
        b->expected = r->count ? (uint32_t)r->count[__builtin_ctz(lanes)] : 0;
    b->used = true;
    b->reduces |= r->predicate != NULL;
    w->arrived[id] |= lanes;
    w->predicate[id] &= ~lanes;
    for (unsigned l = 0; l < SG_LANES; l++) {
        if (r->predicate)
            w->predicate[id] |= (uint32_t)(r->predicate[l] & 1) << l & lanes;
        w->lane_barrier[l] = lanes >> l & 1 ? (uint8_t)id : w->lane_barrier[l];
    }
    SG_FOR_LANES(l, lanes)
    w->deposit[l].in = in;
}

SG_HANDLER(sg_do_barrier)
{
    struct request r;
    read_request(w, in, &r);
    for (uint32_t left = mask; left;) {
        unsigned first = (unsigned)__builtin_ctz(left);
        uint64_t id = (uint32_t)r.id[first];
        uint32_t same = 0;
        if (id >= SG_BARRIERS)
            return sg_fault(w, in, first, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                            "barrier %u: there are 16", (unsigned)id);
        for (unsigned l = 0; l < SG_LANES; l++)
            same |= (uint32_t)((uint32_t)r.id[l] == id) << l;
        arrive(w, in, &r, id, same & left);
        left &= ~same;
    }
    if (in->mode == SG_Y_ARRIVE)
        return SG_NEXT;
    sg_warp_split(w, 0, 0);
    w->barrier |= mask;
    return SG_SELECT;
}

bool sg_warpgroup_whole(struct sg_warp *w, const struct sg_insn *in, unsigned lane)
{
    if (w->index / SG_WARPGROUP < w->block->warp_count / SG_WARPGROUP)
        return true;
    sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "wgmma: no warpgroup of four warps");
    return false;
}

/* All four warps have come: what they did before is done. */
SG_HANDLER(sg_do_warpgroup)
{
    struct request r = {.count = r.room[1]};
    if (!sg_warpgroup_whole(w, in, (unsigned)__builtin_ctz(mask)))
        return SG_FAULT;
    for (unsigned l = 0; l < SG_LANES; l++)
        r.room[1][l] = SG_WARPGROUP * SG_LANES;
    arrive(w, in, &r, SG_BARRIERS + w->index / SG_WARPGROUP, mask);
    sg_warp_split(w, 0, 0);
    w->barrier |= mask;
    return SG_SELECT;
}

/* A warp all of whose live lanes have come counts in full. */
static bool is_complete(const struct sg_block *block, unsigned id)
{
    uint32_t count = 0, missing = 0;
    for (uint32_t i = 0; i < block->warp_count; i++) {
        const struct sg_warp *w = &block->warps[i];
        uint32_t absent = w->live & ~w->arrived[id];
        missing += (uint32_t)__builtin_popcount(absent);
        if (w->arrived[id])
            count += absent ? (uint32_t)__builtin_popcount(w->arrived[id]) : SG_LANES;
    }
    uint32_t expected = block->barriers[id].expected;
    return expected ? count >= expected : missing == 0;
}

struct votes {
    uint32_t yes, all;
};

static struct votes count_votes(const struct sg_block *block, unsigned id)
{
    struct votes v = {0, 0};
    for (uint32_t i = 0; i < block->warp_count; i++) {
        const struct sg_warp *w = &block->warps[i];
        v.yes += (uint32_t)__builtin_popcount(w->arrived[id] & w->predicate[id]);
        v.all += (uint32_t)__builtin_popcount(w->arrived[id]);
    }
    return v;
}

static void give_votes(struct sg_warp *w, unsigned lane, struct votes v)
{
    const struct sg_insn *in = w->deposit[lane].in;
    struct sg_frame *frame = w->lane_frame[lane];
    switch (in->mode) {
    case SG_Y_RED_POPC:
        sg_write(frame, &in->x[0], lane, v.yes);
        break;
    case SG_Y_RED_AND:
        sg_write(frame, &in->x[0], lane, v.yes == v.all);
        break;
    case SG_Y_RED_OR:
        sg_write(frame, &in->x[0], lane, v.yes != 0);
        break;
    default:
        break;
    }
}

static void let_go(struct sg_block *block, unsigned id)
{
    struct votes v = count_votes(block, id);
    for (uint32_t i = 0; i < block->warp_count; i++) {
        struct sg_warp *w = &block->warps[i];
        uint32_t here = 0;
        for (unsigned l = 0; l < SG_LANES; l++)
            here |= (uint32_t)(w->lane_barrier[l] == id) << l;
        here &= w->barrier;
        w->barrier &= ~here;
        if (block->barriers[id].reduces)
            SG_FOR_LANES(l, here)
        give_votes(w, l, v);
        w->arrived[id] = w->predicate[id] = 0;
    }
    block->barriers[id] = (struct sg_barrier_state){0};
}

bool sg_barrier_release(struct sg_block *block)
{
    bool any = false;
    for (unsigned id = 0; id < SG_ALL_BARRIERS; id++) {
        if (!block->barriers[id].used || !is_complete(block, id))
            continue;
        let_go(block, id);
        any = true;
    }
    return any;
}

SG_HANDLER(sg_do_cluster_barrier)
{
    if (in->mode == 0) {
        w->cluster_arrived |= mask;
        w->block->cluster->used = true;
        return SG_NEXT;
    }
    uint32_t waiting = mask & w->cluster_arrived; /* else it has let go already */
    if (!waiting)
        return SG_NEXT;
    sg_warp_split(w, 0, 0);
    w->cluster |= waiting;
    return SG_SELECT;
}

bool sg_cluster_release(struct sg_cluster *cluster)
{
    if (!cluster->used)
        return false;
    for (uint32_t i = 0; i < cluster->size; i++)
        for (uint32_t j = 0; j < cluster->blocks[i]->warp_count; j++) {
            const struct sg_warp *w = &cluster->blocks[i]->warps[j];
            if (w->live & ~w->cluster_arrived)
                return false;
        }
    for (uint32_t i = 0; i < cluster->size; i++)
        for (uint32_t j = 0; j < cluster->blocks[i]->warp_count; j++) {
            struct sg_warp *w = &cluster->blocks[i]->warps[j];
            w->cluster = w->cluster_arrived = 0;
        }
    cluster->used = false;
    return true;
}

SG_HANDLER(sg_do_mapa)
{
    uint64_t room[2][SG_LANES];
    const uint64_t *a = sg_operand_all(w, &in->x[1], room[0]);
    const uint64_t *rank = sg_operand_all(w, &in->x[2], room[1]);
    SG_FOR_LANES(l, mask)
    {
        uint64_t offset = a[l] & (((uint64_t)1 << SG_CLUSTER_SHIFT) - 1);
        uint64_t r = (uint32_t)rank[l];
        if (r >= w->block->cluster->size)
            return sg_fault(w, in, l, CUDA_ERROR_ILLEGAL_ADDRESS,
                            "mapa: rank %u, in a cluster of %u", (unsigned)r,
                            w->block->cluster->size);
        uint64_t window = in->space == SG_S_SHARED ? 0 : SG_WINDOW_SHARED;
        sg_write(w->frame, &in->x[0], l, window | (r + 1) << SG_CLUSTER_SHIFT | offset);
    }
    return SG_NEXT;
}

SG_HANDLER(sg_do_ctarank)
{
    uint64_t room[SG_LANES];
    const uint64_t *a = sg_operand_all(w, &in->x[1], room);
    SG_FOR_LANES(l, mask)
    {
        uint32_t rank = (uint32_t)a[l] >> SG_CLUSTER_SHIFT;
        sg_write(w->frame, &in->x[0], l, rank ? rank - 1 : w->block->rank);
    }
    return SG_NEXT;
}
