/*
 * f32 and f64, correctly rounded. Round to nearest is what the compiler's own
 * arithmetic does, and those loops are plain; the other modes set the thread's
 * rounding mode around volatile operands, which no compiler moves or folds.
 */
#include "exec_float.h"
#include "exec_pure.h"

#include <fenv.h>
#include <math.h>

/* f64 keeps the payload of the last NaN it is given, made quiet, as the card does, and
 * makes a NaN of its own otherwise. Which one the host's sum would keep is up to the
 * compiler, who may swap the operands. */
static inline uint64_t of_double(double v, double a, double b, double c)
{
    if (v == v)
        return sg_of_double(v);
    return c != c   ? sg_of_double(c) | sg_quiet64
           : b != b ? sg_of_double(b) | sg_quiet64
           : a != a ? sg_of_double(a) | sg_quiet64
                    : sg_f64.nan;
}

/* A quotient is a sequence of instructions, and looks at the dividend first. */
static inline uint64_t of_quotient(double v, double a, double b, double c)
{
    return v != v && a != a ? sg_of_double(a) | sg_quiet64 : of_double(v, a, b, c);
}

static inline uint64_t of_float(float v, float a, float b, float c)
{
    (void)a, (void)b, (void)c;
    return sg_of_float(v);
}

static inline uint64_t finish64(const struct sg_insn *in, uint64_t r)
{
    (void)in;
    return r;
}

static inline uint64_t finish32(const struct sg_insn *in, uint64_t r)
{
    if (in->ftz)
        r = sg_flush(&sg_f32, r);
    return in->sat ? sg_saturate(&sg_f32, r) : r;
}

static inline float take32(const struct sg_insn *in, uint64_t v)
{
    return sg_as_float(in->ftz ? sg_flush(&sg_f32, (uint32_t)v) : v);
}

static inline double take64(const struct sg_insn *in, uint64_t v)
{
    (void)in;
    return sg_as_double(v);
}

/* The name's own loop and name##_any, which heeds rounding, .ftz and .sat. */
#define BOTH(name, T, as, of, take, finish, two, three, EXPRESSION)                                \
    SG_PURE(name, T a = as(s[0][l]); T b = two ? as(s[1][l]) : a;                                  \
            T c = three ? as(s[2][l]) : (T)0; (void)b, (void)c; d[l] = of(EXPRESSION, a, b, c))    \
    static void name##_any(const struct sg_insn *in, const uint64_t *const *s, uint64_t *d)        \
    {                                                                                              \
        int mode = sg_fenv_mode(in->rounding);                                                     \
        int before = fegetround();                                                                 \
        for (unsigned l = 0; l < SG_LANES; l++) {                                                  \
            volatile T held[3];                                                                    \
            volatile T result;                                                                     \
            held[0] = take(in, s[0][l]);                                                           \
            held[1] = two ? take(in, s[1][l]) : held[0];                                           \
            held[2] = three ? take(in, s[2][l]) : (T)0;                                            \
            if (mode != before)                                                                    \
                fesetround(mode);                                                                  \
            T a = held[0];                                                                         \
            T b = held[1];                                                                         \
            T c = held[2];                                                                         \
            (void)b, (void)c;                                                                      \
            result = EXPRESSION;                                                                   \
            if (mode != before)                                                                    \
                fesetround(before);                                                                \
            d[l] = finish(in, of(result, held[0], held[1], held[2]));                              \
        }                                                                                          \
    }
#define SINGLE(name, two, three, e)                                                                \
    BOTH(name##_f32, float, sg_as_float, of_float, take32, finish32, two, three, e)
#define DOUBLE(name, two, three, e)                                                                \
    BOTH(name##_f64, double, sg_as_double, of_double, take64, finish64, two, three, e)

SINGLE(add, 1, 0, a + b)
SINGLE(sub, 1, 0, a - b)
SINGLE(mul, 1, 0, a *b)
SINGLE(div, 1, 0, a / b)
SINGLE(fma, 1, 1, fmaf(a, b, c))
SINGLE(rcp, 0, 0, 1.0f / a)
SINGLE(sqrt, 0, 0, sqrtf(a))
DOUBLE(add, 1, 0, a + b)
DOUBLE(sub, 1, 0, a - b)
DOUBLE(mul, 1, 0, a *b)
BOTH(div_f64, double, sg_as_double, of_quotient, take64, finish64, 1, 0, a / b)
DOUBLE(fma, 1, 1, fma(a, b, c))
DOUBLE(rcp, 0, 0, 1.0 / a)
DOUBLE(sqrt, 0, 0, sqrt(a))

static inline uint64_t flushed(const struct sg_insn *in, const struct sg_format *f, uint64_t v)
{
    v &= sg_mask_bits(f->bits);
    return in->ftz ? sg_flush(f, v) : v;
}
#define FLUSHED(k) flushed(in, f, s[k][l])

/* abs and neg are sums with zero on the card: of f32 any NaN becomes the one, of
 * f64 it becomes quiet and keeps its sign. */
static inline uint64_t with_sign(const struct sg_format *f, uint64_t from, uint64_t bits)
{
    if (!sg_is_nan(f, from))
        return bits;
    return f->bits == 32 ? f->nan : from | sg_quiet64;
}
#define BY_PATTERN(n, format)                                                                      \
    SG_PURE(abs_##n, const struct sg_format *f = &format; uint64_t a = FLUSHED(0);                 \
            d[l] = with_sign(f, a, a & (f->sign - 1)))                                             \
    SG_PURE(neg_##n, const struct sg_format *f = &format; uint64_t a = FLUSHED(0);                 \
            d[l] = with_sign(f, a, a ^ f->sign))                                                   \
    SG_PURE(copysign_##n, const struct sg_format *f = &format;                                     \
            d[l] = (s[0][l] & f->sign) | (s[1][l] & (f->sign - 1)))                                \
    SG_PURE(extreme_##n, const struct sg_format *f = &format; uint64_t r = FLUSHED(0);             \
            for (unsigned k = 1; k < in->sources; k++)                                             \
                r = sg_float_extreme(f, r, FLUSHED(k), in->op == SG_P_MIN, in->mode);              \
            d[l] = r)                                                                              \
    SG_PURE(testp_##n, d[l] = test(&format, s[0][l], in->mode))

/* The commonest of the kind: numbers as integers of their order, -0 before +0. */
static inline int32_t order(uint32_t v)
{
    return v >> 31 ? -(int32_t)(v & 0x7fffffff) - 1 : (int32_t)v;
}
static inline uint32_t lesser(uint32_t a, uint32_t b, bool min)
{
    bool a_nan = (a & 0x7fffffff) > 0x7f800000, b_nan = (b & 0x7fffffff) > 0x7f800000;
    uint32_t r = (order(a) < order(b)) == min ? a : b;
    r = b_nan ? a : a_nan ? b : r;
    return (a_nan & b_nan) ? 0x7fffffff : r;
}
SG_PURE(min_f32, d[l] = lesser((uint32_t)s[0][l], (uint32_t)s[1][l], true))
SG_PURE(max_f32, d[l] = lesser((uint32_t)s[0][l], (uint32_t)s[1][l], false))

static bool test(const struct sg_format *f, uint64_t v, unsigned property)
{
    uint64_t magnitude = v & (f->sign - 1);
    bool subnormal = magnitude != 0 && magnitude >> (f->precision - 1) == 0;
    switch (property) {
    case 0:
        return magnitude < f->infinity;
    case 1:
        return magnitude == f->infinity;
    case 2:
        return magnitude <= f->infinity;
    case 3:
        return magnitude > f->infinity;
    case 4:
        return magnitude < f->infinity && !subnormal; /* zeros count as normal */
    default:
        return subnormal;
    }
}
BY_PATTERN(f32, sg_f32)
BY_PATTERN(f64, sg_f64)

static sg_pure select_pattern(const struct sg_insn *in)
{
    bool single = in->type == SG_T_F32;
    if (in->sat || in->relu || (!single && in->ftz))
        return NULL;
    switch (in->op) {
    case SG_P_ABS:
        return single ? abs_f32 : abs_f64;
    case SG_P_NEG:
        return single ? neg_f32 : neg_f64;
    case SG_P_COPYSIGN:
        return single ? copysign_f32 : copysign_f64;
    case SG_P_TESTP:
        return in->mode > 5 ? NULL : single ? testp_f32 : testp_f64;
    case SG_P_MIN:
    case SG_P_MAX:
        if (in->mode > 3 || in->sources < 2 || in->sources > (single ? 3 : 2) ||
            (!single && in->mode))
            return NULL;
        if (single && in->sources == 2 && !in->mode && !in->ftz)
            return in->op == SG_P_MIN ? min_f32 : max_f32;
        return single ? extreme_f32 : extreme_f64;
    default:
        return NULL;
    }
}

/* The loop of an operation for a type: the plain one, or the one that heeds the modifiers. */
#define EITHER(name, n) (plain ? name##_##n : name##_##n##_any)
#define SELECT(n)                                                                                  \
    static sg_pure select_##n(const struct sg_insn *in, bool plain)                                \
    {                                                                                              \
        switch (in->op) {                                                                          \
        case SG_P_ADD:                                                                             \
            return EITHER(add, n);                                                                 \
        case SG_P_SUB:                                                                             \
            return EITHER(sub, n);                                                                 \
        case SG_P_MUL:                                                                             \
            return EITHER(mul, n);                                                                 \
        case SG_P_MAD:                                                                             \
        case SG_P_FMA:                                                                             \
            return EITHER(fma, n);                                                                 \
        case SG_P_DIV:                                                                             \
            return EITHER(div, n);                                                                 \
        case SG_P_RCP:                                                                             \
            return EITHER(rcp, n);                                                                 \
        case SG_P_SQRT:                                                                            \
            return EITHER(sqrt, n);                                                                \
        default:                                                                                   \
            return select_pattern(in);                                                             \
        }                                                                                          \
    }
SELECT(f32)
SELECT(f64)

sg_pure sg_pure_select_single(const struct sg_insn *in)
{
    bool plain = in->rounding == SG_R_NEAREST && !in->ftz && !in->sat;
    bool saturates = in->op == SG_P_ADD || in->op == SG_P_SUB || in->op == SG_P_MUL ||
                     in->op == SG_P_FMA || in->op == SG_P_MAD;
    if (in->rounding > SG_R_UP || in->relu || (in->sat && !saturates))
        return NULL;
    return select_f32(in, plain);
}

sg_pure sg_pure_select_double(const struct sg_insn *in)
{
    if (in->rounding > SG_R_UP || in->relu || in->sat || in->ftz)
        return NULL;
    return select_f64(in, in->rounding == SG_R_NEAREST);
}
