/* The innermost loop: a group of lanes runs, instruction after instruction. */
#include "exec_whole.h"

static uint32_t guard_mask(const struct sg_warp *w, const struct sg_insn *in)
{
    const uint64_t *p = w->registers + (size_t)in->guard * SG_LANES;
    uint32_t mask = 0;
    for (unsigned l = 0; l < SG_LANES; l++)
        mask |= (uint32_t)(p[l] & 1) << l;
    return in->guard_negated ? ~mask : mask;
}

bool sg_whole_group(struct sg_warp *w)
{
    const struct sg_insn *code = w->block->run->module->code;
    uint64_t *counter = w->block->run->launch->instructions;
    for (;;) {
        const struct sg_insn *in = &code[w->pc];
        uint32_t mask = w->active;
        w->pc++;
        if (in->guarded) {
            mask &= guard_mask(w, in);
            if (!mask)
                goto next;
        }
        if (counter)
            *counter += (unsigned)__builtin_popcount(mask);
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

static sg_execute execute(const struct sg_insn *in)
{
    return in->op == SG_P_LD || in->op == SG_P_LDU || in->op == SG_P_ST ? sg_whole_access(in)
                                                                        : sg_whole_pure(in);
}

#if SG_LEVEL == 4
#define NAME "AVX-512"
#elif SG_LEVEL == 3
#define NAME "AVX2"
#else
#define NAME "any"
#endif

const struct sg_level sg_level_own = {NAME, sg_pure_select_any, execute, sg_whole_group};
