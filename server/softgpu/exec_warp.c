/*
 * One warp's turn. A group of lanes runs until it must wait, meets others,
 * parts, or has run long enough. Groups that poll memory are set aside after a
 * while so that what they wait for can happen.
 */
#include "exec_internal.h"
#include "exec_level.h"

#define TURN_FUEL 4096u /* backward jumps and calls of a turn */
#define TURN_POLLS 64u  /* polling accesses of a group before others go */
#define BREATH 32u      /* backward jumps and calls from one breath to the next */

void sg_warp_split(struct sg_warp *w, uint32_t taken, uint32_t target)
{
    uint32_t active = w->active, pc = w->pc, *lane_pc = w->lane_pc;
    for (unsigned l = 0; l < SG_LANES; l++) {
        uint32_t next = taken >> l & 1 ? target : pc;
        lane_pc[l] = active >> l & 1 ? next : lane_pc[l];
    }
}

void sg_warp_exit(struct sg_warp *w, uint32_t lanes)
{
    SG_FOR_LANES(l, lanes)
    sg_frame_unwind(w, l);
    w->live &= ~lanes;
    w->deferred &= ~lanes;
}

static void breathe(const struct sg_warp *w)
{
    const struct sg_launch *l = w->block->run->launch;
    if (l->breathe)
        l->breathe(l->breathe_context);
}

bool sg_warp_tired(struct sg_warp *w)
{
    if (w->fuel) {
        w->fuel--;
        if (w->fuel % BREATH == 0)
            breathe(w);
        if (w->polls)
            return false;
    }
    w->deferred |= w->active;
    w->polls = TURN_POLLS;
    if (!w->fuel)
        w->yield = true;
    return true;
}

static bool same_frame(const struct sg_warp *w, uint32_t ready, const struct sg_frame *frame)
{
    uintptr_t differs = 0;
    for (unsigned l = 0; l < SG_LANES; l++)
        differs |= ready >> l & 1 ? (uintptr_t)w->lane_frame[l] ^ (uintptr_t)frame : 0;
    return differs == 0;
}

/* Those of the deepest frame; where two are as deep, of the one with the least pc. */
static uint32_t deepest(const struct sg_warp *w, uint32_t ready)
{
    uint32_t best = (uint32_t)__builtin_ctz(ready), lanes = 0;
    SG_FOR_LANES(l, ready)
    {
        const struct sg_frame *f = w->lane_frame[l], *g = w->lane_frame[best];
        if (f->depth > g->depth || (f->depth == g->depth && w->lane_pc[l] < w->lane_pc[best]))
            best = l;
    }
    SG_FOR_LANES(l, ready)
    lanes |= (uint32_t)(w->lane_frame[l] == w->lane_frame[best]) << l;
    return lanes;
}

/* The deepest call first, then the least pc; equals join. */
static void choose(struct sg_warp *w, uint32_t ready)
{
    if (!same_frame(w, ready, w->lane_frame[__builtin_ctz(ready)]))
        ready = deepest(w, ready);
    w->frame = w->lane_frame[__builtin_ctz(ready)];
    w->registers = w->frame->registers;
    uint32_t least = UINT32_MAX, next = UINT32_MAX, active = 0;
    uint32_t pc[SG_LANES];
    for (unsigned l = 0; l < SG_LANES; l++) {
        pc[l] = ready >> l & 1 ? w->lane_pc[l] : UINT32_MAX;
        least = pc[l] < least ? pc[l] : least;
    }
    for (unsigned l = 0; l < SG_LANES; l++) {
        active |= (uint32_t)(pc[l] == least) << l;
        uint32_t beyond = pc[l] == least ? UINT32_MAX : pc[l];
        next = beyond < next ? beyond : next;
    }
    w->pc = least;
    w->active = active;
    w->merge_pc = next;
}

static bool select_group(struct sg_warp *w)
{
    if (w->sync && !sg_lanes_release(w))
        return false;
    uint32_t ready = sg_warp_ready(w);
    if (!ready || w->yield)
        return false;
    uint32_t eager = ready & ~w->deferred;
    if (!eager)
        return false; /* all spin: other warps first */
    choose(w, eager);
    return true;
}

bool sg_warp_turn(struct sg_warp *w)
{
    /* Who was set aside stays so until the others have had their turn. */
    if (!(sg_warp_ready(w) & ~w->deferred))
        w->deferred = 0;
    w->yield = false;
    w->fuel = TURN_FUEL;
    w->polls = TURN_POLLS;
    bool ran = false, (*run_group)(struct sg_warp *) = sg_levels()[0]->run_group;
    breathe(w);
    while (select_group(w)) {
        ran = true;
        if (!run_group(w))
            return false;
    }
    if (w->block->run->result != CUDA_SUCCESS)
        return false;
    /* A turn that ends with nothing but pollers may have led nowhere. */
    uint32_t ready = sg_warp_ready(w);
    w->ran = ran;
    if (ran && (w->yield || !ready || (ready & ~w->deferred)))
        w->block->progressed = true;
    return true;
}
