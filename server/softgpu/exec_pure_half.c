/*
 * f16, bf16 and their pairs. A double holds every such number and product;
 * sums go through sg_odd_fma, so that the one rounding is the last.
 */
#include "exec_float.h"
#include "exec_pure.h"

#include <math.h>

static inline uint64_t take(const struct sg_insn *in, const struct sg_format *f, uint64_t v)
{
    v &= 0xffff;
    return in->ftz ? sg_flush(f, v) : v;
}

static uint64_t finish(const struct sg_insn *in, const struct sg_format *f, double v)
{
    uint64_t r = sg_float_from_double(f, v, SG_R_NEAREST);
    if (in->ftz)
        r = sg_flush(f, r);
    if (in->sat)
        return sg_saturate(f, r);
    return in->relu ? sg_relu(f, r) : r;
}

static uint64_t arithmetic(const struct sg_insn *in, const struct sg_format *f, const uint64_t *v)
{
    double a = sg_float_to_double(f, take(in, f, v[0]));
    double b = sg_float_to_double(f, take(in, f, v[1]));
    switch (in->op) {
    case SG_P_ADD:
        return finish(in, f, sg_odd_fma(a, 1, b));
    case SG_P_SUB:
        return finish(in, f, sg_odd_fma(a, 1, -b));
    case SG_P_MUL:
        return finish(in, f, a * b);
    default:
        return finish(in, f, sg_odd_fma(a, b, sg_float_to_double(f, take(in, f, v[2]))));
    }
}

static uint64_t by_pattern(const struct sg_insn *in, const struct sg_format *f, const uint64_t *v)
{
    uint64_t a = take(in, f, v[0]);
    switch (in->op) {
    /* sums with zero on the card: any NaN becomes the one */
    case SG_P_ABS:
        return sg_is_nan(f, a) ? f->nan : a & (f->sign - 1);
    case SG_P_NEG:
        return sg_is_nan(f, a) ? f->nan : a ^ f->sign;
    default:
        break;
    }
    for (unsigned k = 1; k < in->sources; k++)
        a = sg_float_extreme(f, a, take(in, f, v[k]), in->op == SG_P_MIN, in->mode);
    return a;
}

#define ONE_AND_PAIR(name, format, compute)                                                        \
    SG_PURE(name, uint64_t v[3] = {0}; for (unsigned k = 0; k < in->sources; k++) v[k] = s[k][l];  \
            d[l] = compute(in, &format, v))                                                        \
    SG_PURE(                                                                                       \
        name##_pair, uint64_t pair = 0; for (unsigned h = 0; h < 32; h += 16) {                    \
            uint64_t v[3] = {0};                                                                   \
            for (unsigned k = 0; k < in->sources; k++)                                             \
                v[k] = s[k][l] >> h;                                                               \
            pair |= compute(in, &format, v) << h;                                                  \
        } d[l] = pair)
ONE_AND_PAIR(arithmetic_f16, sg_f16, arithmetic)
ONE_AND_PAIR(arithmetic_bf16, sg_bf16, arithmetic)
ONE_AND_PAIR(pattern_f16, sg_f16, by_pattern)
ONE_AND_PAIR(pattern_bf16, sg_bf16, by_pattern)

#define BY_TYPE(name)                                                                              \
    (in->type == SG_T_F16      ? name##_f16                                                        \
     : in->type == SG_T_F16X2  ? name##_f16_pair                                                   \
     : in->type == SG_T_BF16   ? name##_bf16                                                       \
     : in->type == SG_T_BF16X2 ? name##_bf16_pair                                                  \
                               : (sg_pure)0)

sg_pure sg_pure_select_half(const struct sg_insn *in)
{
    bool brain = in->type == SG_T_BF16 || in->type == SG_T_BF16X2;
    if (in->type2 == SG_T_F32) /* add.f32.f16 and the like: of other architectures */
        return NULL;
    if (in->rounding != SG_R_NEAREST || in->sources > 3 || (brain && (in->ftz || in->sat)))
        return NULL;
    switch (in->op) {
    case SG_P_ADD:
    case SG_P_SUB:
    case SG_P_MUL:
        return in->relu || in->sources != 2 ? NULL : BY_TYPE(arithmetic);
    case SG_P_FMA:
        return (in->relu && in->sat) || in->sources != 3 ? NULL : BY_TYPE(arithmetic);
    case SG_P_ABS:
    case SG_P_NEG:
        return in->sat || in->relu || in->sources != 1 ? NULL : BY_TYPE(pattern);
    case SG_P_MIN:
    case SG_P_MAX:
        return in->sat || in->relu || in->mode > 3 || in->sources < 2 ? NULL : BY_TYPE(pattern);
    default:
        return NULL;
    }
}
