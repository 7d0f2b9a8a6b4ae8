/*
 * The innermost loops of a warp's turn: which group of lanes runs, and how it does, instruction
 * after instruction.
 */
#include "exec_whole.h"

static uint32_t guard_mask(const struct sg_warp *w, const struct sg_insn *in)
{
    const uint64_t *p = w->registers + (size_t)in->guard * SG_LANES;
    uint32_t mask = 0;
    for (unsigned l = 0; l < SG_LANES; l++)
        mask |= (uint32_t)(p[l] & 1) << l;
    return in->guard_negated ? ~mask : mask;
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
    if (!sg_same_frame(w, ready, w->lane_frame[__builtin_ctz(ready)]))
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

/* Runs the chosen group until the choice must be made again. */
static bool run_group(struct sg_warp *w)
{
    const struct sg_insn *code = w->block->run->module->code;
    struct sg_run *run = w->block->run;
    bool counts = run->launch->instructions != NULL;
    for (;;) {
        const struct sg_insn *in = &code[w->pc];
        uint32_t mask = w->active;
        w->pc++;
        if (in->guarded) {
            mask &= guard_mask(w, in);
            if (!mask)
                goto next;
        }
        if (counts)
            run->instructions += (unsigned)__builtin_popcount(mask);
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

static bool run_groups(struct sg_warp *w, bool *ran)
{
    while (select_group(w)) {
        *ran = true;
        if (!run_group(w))
            return false;
    }
    return true;
}

static sg_execute execute(const struct sg_insn *in)
{
    switch (in->op) {
    case SG_P_LD:
    case SG_P_LDU:
    case SG_P_ST:
        return sg_whole_access(in);
    case SG_P_ATOM:
    case SG_P_RED:
        return sg_whole_atomic(in);
    case SG_P_SHFL:
    case SG_P_VOTE:
    case SG_P_BAR_WARP:
        return sg_whole_lanes(in);
    default:
        return sg_whole_pure(in);
    }
}

#if SG_LEVEL == 4
#define NAME "AVX-512"
#elif SG_LEVEL == 3
#define NAME "AVX2"
#else
#define NAME "any"
#endif

const struct sg_level sg_level_own = {NAME, sg_pure_select_any, execute, run_groups};
