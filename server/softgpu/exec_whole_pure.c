/* Pure instructions and comparisons for whole warps. */
#include "exec_whole.h"

static inline void compute(struct sg_warp *w, const struct sg_insn *in, const uint64_t *const *s,
                           uint32_t mask)
{
    uint64_t *d = sg_register(w, &in->x[0]);
    if (mask == SG_ALL_LANES) {
        in->pure(in, s, d);
        return;
    }
    uint64_t result[SG_LANES];
    in->pure(in, s, result);
    sg_whole_write(d, result, mask);
}

#define WITH(count, first)                                                                         \
    static SG_HANDLER(whole_##first##_##count)                                                     \
    {                                                                                              \
        uint64_t room[count][SG_LANES];                                                            \
        const uint64_t *s[SG_SOURCES];                                                             \
        for (unsigned i = 0; i < SG_SOURCES; i++)                                                  \
            s[i] = i < count ? sg_whole_operand(w, &in->x[i + first], room[i]) : s[0];             \
        compute(w, in, s, mask);                                                                   \
        return SG_NEXT;                                                                            \
    }
WITH(1, 1)
WITH(2, 1)
WITH(3, 1)
WITH(4, 1)
WITH(2, 2) /* setp p, a, b: x[1] would be the second predicate */

sg_execute sg_whole_pure(const struct sg_insn *in)
{
    static const sg_execute by_count[] = {whole_1_1, whole_1_2, whole_1_3, whole_1_4};
    if (!in->pure || in->x[0].kind != SG_O_REGISTER)
        return NULL;
    if (in->op == SG_P_SETP)
        return in->combine || in->x[1].kind != SG_O_NONE ? NULL : whole_2_2;
    bool simple = in->op < SG_P_UNPACK && in->type != SG_T_B128;
    return simple && in->sources && in->sources <= SG_SOURCES ? by_count[in->sources - 1] : NULL;
}
