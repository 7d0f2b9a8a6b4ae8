/* set: a comparison whose answer is a number, 1.0 or all ones. */
#include "exec_float.h"
#include "exec_pure.h"

static bool combined(bool answer, bool with, unsigned combine)
{
    switch (combine) {
    case 1:
        return answer && with;
    case 2:
        return answer || with;
    case 3:
        return answer != with;
    default:
        return answer;
    }
}

static bool compared(const struct sg_insn *in, uint64_t a, uint64_t b)
{
    const struct sg_format *f = sg_format_of(in->type2);
    unsigned bits = f ? f->bits : sg_bits(in->type2);
    a &= sg_mask_bits(bits);
    b &= sg_mask_bits(bits);
    if (f)
        return sg_float_compare(f, in->ftz ? sg_flush(f, a) : a, in->ftz ? sg_flush(f, b) : b,
                                in->compare);
    bool is_signed = sg_is_signed(in->type2);
    if (is_signed) {
        a = (uint64_t)sg_extend(a, bits);
        b = (uint64_t)sg_extend(b, bits);
    }
    return sg_integer_compare(a, b, is_signed, in->compare);
}

/* What stands for true in the result type (in each half, for pairs). */
static uint64_t truth(unsigned type)
{
    switch (type) {
    case SG_T_F32:
        return 0x3f800000;
    case SG_T_F16:
    case SG_T_F16X2:
        return 0x3c00;
    case SG_T_BF16:
    case SG_T_BF16X2:
        return 0x3f80;
    case SG_T_U16:
    case SG_T_S16:
        return 0xffff;
    default:
        return 0xffffffff;
    }
}

SG_PURE(set_one, bool answer = combined(compared(in, s[0][l], s[1][l]),
                                        in->combine && (s[2][l] & 1), in->combine);
        d[l] = answer ? truth(in->type) : 0)
/* Integer results of a pair are masks of the halves: 0xffff each. */
SG_PURE(set_pair, uint64_t yes = truth(in->type) & 0xffff; uint64_t pair = 0;
        for (unsigned h = 0; h < 32; h += 16)
            pair |= (combined(compared(in, s[0][l] >> h, s[1][l] >> h),
                              in->combine && (s[2][l] & 1), in->combine)
                         ? yes
                         : 0)
                    << h;
        d[l] = pair)

static bool is_pair(unsigned type)
{
    return type == SG_T_F16X2 || type == SG_T_BF16X2;
}

sg_pure sg_pure_select_set(const struct sg_insn *in)
{
    unsigned to = in->type;
    unsigned from = in->type2;
    bool ordinary = from == SG_T_F32 || from == SG_T_F64 || from == SG_T_F16 || from == SG_T_BF16;
    bool number = sg_is_integer(from) || sg_is_bits(from);
    bool whole = to == SG_T_U32 || to == SG_T_S32;
    if (in->combine > 3 || in->compare > SG_C_NAN || in->sources < (in->combine ? 3 : 2))
        return NULL;
    if (is_pair(from))
        return whole || to == from ? set_pair : NULL;
    if (!ordinary && !(number && sg_bits(from) >= 16 && in->compare <= SG_C_GE))
        return NULL;
    if (sg_is_bits(from) && in->compare > SG_C_NE)
        return NULL;
    if (whole || to == SG_T_F32 || to == SG_T_U16 || to == SG_T_S16 || to == SG_T_F16 ||
        to == SG_T_BF16)
        return set_one;
    return NULL;
}
