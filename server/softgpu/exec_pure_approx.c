/*
 * The approximate functions: the C library's in double, rounded once, which is
 * closer than what PTX asks; their special cases as PTX's tables have them.
 */
#include "exec_float.h"
#include "exec_pure.h"

#include <math.h>

static inline double take32(const struct sg_insn *in, uint64_t v)
{
    return sg_as_float(in->ftz ? sg_flush(&sg_f32, (uint32_t)v) : v);
}

static inline uint64_t finish32(const struct sg_insn *in, double v)
{
    uint64_t r = sg_of_float((float)v);
    return in->ftz ? sg_flush(&sg_f32, r) : r;
}

/* C's logarithm of either zero is -inf and of what is below it NaN, its sine of
 * an infinity NaN: all as PTX has them. */
static double function(unsigned op, double a)
{
    switch (op) {
    case SG_P_RCP:
        return 1 / a;
    case SG_P_SQRT:
        return sqrt(a);
    case SG_P_RSQRT:
        return 1 / sqrt(a);
    case SG_P_SIN:
        return sin(a);
    case SG_P_COS:
        return cos(a);
    case SG_P_LG2:
        return log2(a);
    case SG_P_EX2:
        return exp2(a);
    default:
        return tanh(a);
    }
}
SG_PURE(approx_f32, d[l] = finish32(in, function(in->op, take32(in, s[0][l]))))
/* Those that a processor has instructions for. */
SG_PURE(rcp_f32, d[l] = finish32(in, 1 / take32(in, s[0][l])))
SG_PURE(sqrt_f32, d[l] = finish32(in, sqrt(take32(in, s[0][l]))))
SG_PURE(rsqrt_f32, d[l] = finish32(in, 1 / sqrt(take32(in, s[0][l]))))

static double quotient(const struct sg_insn *in, double a, double b)
{
    /* div.approx goes through the reciprocal, which is 0 for so large a divisor. */
    if (in->mode == SG_V_APPROX && fabs(b) > 0x1p126 && !isinf(b))
        return isinf(a) || isnan(a) ? NAN : copysign(0, a) * copysign(1, b);
    return a / b;
}
SG_PURE(divide_f32, d[l] = finish32(in, quotient(in, take32(in, s[0][l]), take32(in, s[1][l]))))

static uint64_t small(const struct sg_insn *in, const struct sg_format *f, uint64_t v)
{
    v &= 0xffff;
    double a = sg_float_to_double(f, in->ftz ? sg_flush(f, v) : v);
    uint64_t r = sg_float_from_double(f, function(in->op, a), SG_R_NEAREST);
    return in->ftz ? sg_flush(f, r) : r;
}
SG_PURE(approx_f16, d[l] = small(in, &sg_f16, s[0][l]))
SG_PURE(approx_bf16, d[l] = small(in, &sg_bf16, s[0][l]))
SG_PURE(approx_f16_pair, d[l] = small(in, &sg_f16, s[0][l]) | small(in, &sg_f16, s[0][l] >> 16)
                                                                  << 16)
SG_PURE(approx_bf16_pair, d[l] = small(in, &sg_bf16, s[0][l]) | small(in, &sg_bf16, s[0][l] >> 16)
                                                                    << 16)

/* The f64 kinds work on the upper half of the pattern alone; the lower half of
 * the result is zero. With .ftz, subnormals on either side are zeros. */
static uint64_t coarse(const struct sg_insn *in, uint64_t v)
{
    const uint64_t upper = UINT64_C(0xffffffff00000000);
    if (in->op == SG_P_RSQRT && !in->ftz) { /* a sequence of instructions that keeps it all */
        double a = sg_as_double(v), root = 1 / sqrt(a);
        return a != a ? v | sg_quiet64 : root != root ? sg_f64.nan : sg_of_double(root);
    }
    v &= upper;
    double r = function(in->op, sg_as_double(in->ftz ? sg_flush(&sg_f64, v) : v));
    if (r != r)
        return UINT64_C(0x7fffffff00000000);
    uint64_t bits = sg_of_double(r) & upper;
    return in->ftz ? sg_flush(&sg_f64, bits) : bits;
}
SG_PURE(approx_f64, d[l] = coarse(in, s[0][l]))

static sg_pure select_small(const struct sg_insn *in)
{
    bool brain = in->type == SG_T_BF16 || in->type == SG_T_BF16X2;
    if (in->op != SG_P_EX2 && in->op != SG_P_TANH)
        return NULL;
    if (in->ftz && (!brain || in->op == SG_P_TANH))
        return NULL;
    switch (in->type) {
    case SG_T_F16:
        return approx_f16;
    case SG_T_F16X2:
        return approx_f16_pair;
    case SG_T_BF16:
        return approx_bf16;
    case SG_T_BF16X2:
        return approx_bf16_pair;
    default:
        return NULL;
    }
}

sg_pure sg_pure_select_approx(const struct sg_insn *in)
{
    if (in->sat || in->relu || in->rounding != SG_R_NEAREST)
        return NULL;
    if (in->op == SG_P_DIV)
        return in->type == SG_T_F32 ? divide_f32 : NULL;
    if (in->type == SG_T_F32 && in->op == SG_P_RCP)
        return rcp_f32;
    if (in->type == SG_T_F32 && (in->op == SG_P_SQRT || in->op == SG_P_RSQRT))
        return in->op == SG_P_SQRT ? sqrt_f32 : rsqrt_f32;
    if (in->type == SG_T_F32)
        return in->op == SG_P_TANH && in->ftz ? NULL : approx_f32;
    if (in->type == SG_T_F64)
        return (in->op == SG_P_RCP && in->ftz) || in->op == SG_P_RSQRT ? approx_f64 : NULL;
    return select_small(in);
}
