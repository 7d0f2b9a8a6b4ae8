/*
 * One warp's turn. A group of lanes runs until it must wait, meets others,
 * parts, or has run long enough. Groups that poll memory are set aside after a
 * while so that what they wait for can happen.
 */
#include "exec_grid.h"
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
    struct sg_frame *frame = w->lane_frame[__builtin_ctz(lanes)];
    if (!frame->parent && sg_same_frame(w, lanes, frame)) {
        sg_frame_leave(w, frame, lanes);
        SG_FOR_LANES(l, lanes)
        w->lane_frame[l] = NULL;
    } else {
        SG_FOR_LANES(l, lanes)
        sg_frame_unwind(w, l);
    }
    w->live &= ~lanes;
    w->deferred &= ~lanes;
}

bool sg_warp_tired(struct sg_warp *w)
{
    if (w->fuel) {
        w->fuel--;
        if (w->fuel % BREATH == 0)
            sg_crew_breathe(w->block->run);
        if (w->polls)
            return false;
    }
    w->deferred |= w->active;
    w->polls = TURN_POLLS;
    if (!w->fuel)
        w->yield = true;
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
    bool ran = false;
    sg_crew_breathe(w->block->run);
    if (!sg_levels()[0]->run_groups(w, &ran))
        return false;
    if (sg_grid_failed(w->block->run->grid))
        return false;
    /* A turn that ends with nothing but pollers may have led nowhere. */
    uint32_t ready = sg_warp_ready(w);
    w->ran = ran;
    if (ran && (w->yield || !ready || (ready & ~w->deferred)))
        w->block->progressed = true;
    return true;
}
