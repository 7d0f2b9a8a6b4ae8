/*
 * One warp's turn. A group of lanes runs until it must wait, meets others,
 * parts, or has run long enough. Groups that poll memory are set aside after a
 * while so that what they wait for can happen.
 */
#include "exec_internal.h"

#define TURN_FUEL 4096u /* backward jumps and calls of a turn */
#define TURN_POLLS 64u  /* polling accesses of a group before others go */
#define BREATH 32u      /* backward jumps and calls from one breath to the next */

static uint32_t guard_mask(const struct sg_warp *w, const struct sg_insn *in)
{
    const uint64_t *p = w->registers + (size_t)in->guard * SG_LANES;
    uint32_t mask = 0;
    for (unsigned l = 0; l < SG_LANES; l++)
        mask |= (uint32_t)(p[l] & 1) << l;
    return in->guard_negated ? ~mask : mask;
}

void sg_warp_split(struct sg_warp *w, uint32_t taken, uint32_t target)
{
    SG_FOR_LANES(l, w->active)
    w->lane_pc[l] = taken & (1u << l) ? target : w->pc;
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

/* The deepest call first, then the least pc; equals join. */
static void choose(struct sg_warp *w, uint32_t ready)
{
    uint32_t best = (uint32_t)__builtin_ctz(ready);
    SG_FOR_LANES(l, ready)
    {
        const struct sg_frame *f = w->lane_frame[l], *g = w->lane_frame[best];
        if (f->depth > g->depth || (f->depth == g->depth && w->lane_pc[l] < w->lane_pc[best]))
            best = l;
    }
    w->frame = w->lane_frame[best];
    w->registers = w->frame->registers;
    w->pc = w->lane_pc[best];
    w->active = 0;
    w->merge_pc = UINT32_MAX;
    SG_FOR_LANES(l, ready)
    {
        if (w->lane_frame[l] != w->frame)
            continue;
        if (w->lane_pc[l] == w->pc)
            w->active |= 1u << l;
        else if (w->lane_pc[l] < w->merge_pc)
            w->merge_pc = w->lane_pc[l];
    }
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

/* Runs the chosen group until the choice must be made again. */
static bool run_group(struct sg_warp *w)
{
    const struct sg_module *module = w->block->run->module;
    const struct sg_insn *code = module->code;
    for (;;) {
        const struct sg_insn *in = &code[w->pc];
        uint32_t mask = w->active;
        w->pc++;
        if (in->guarded) {
            mask &= guard_mask(w, in);
            if (!mask)
                goto next;
        }
        if (in->polls && w->polls)
            w->polls--;
        enum sg_step step = in->execute(w, in, mask);
        if (step == SG_SELECT)
            return true;
        if (step == SG_FAULT)
            return false;
    next:
        if (w->pc >= w->merge_pc) {
            sg_warp_split(w, 0, 0);
            return true;
        }
    }
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
