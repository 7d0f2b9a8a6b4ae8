/* cvt among integers and floating-point formats, and the packing kinds. */
#include "exec_float.h"
#include "exec_pure.h"

#include <math.h>

/* A register wider than the type gets the sign, or zeros. */
static uint64_t settled(const struct sg_insn *in, uint64_t v)
{
    unsigned bits = sg_bits(in->type);
    unsigned width = in->x ? in->x[0].width * 8u : 0;
    if (!sg_is_signed(in->type))
        return v & sg_mask_bits(bits);
    return (uint64_t)sg_extend(v, bits) & sg_mask_bits(width > bits ? width : bits);
}

static int64_t least(unsigned type)
{
    return sg_is_signed(type) ? -(int64_t)(sg_mask_bits(sg_bits(type)) >> 1) - 1 : 0;
}

static uint64_t greatest(unsigned type)
{
    return sg_mask_bits(sg_bits(type)) >> (sg_is_signed(type) ? 1 : 0);
}

/* The source as a magnitude and a sign. */
static uint64_t integer_source(const struct sg_insn *in, uint64_t v, bool *negative)
{
    unsigned bits = sg_bits(in->type2);
    *negative = sg_is_signed(in->type2) && (v >> (bits - 1) & 1);
    uint64_t wide = *negative ? (uint64_t)sg_extend(v, bits) : v & sg_mask_bits(bits);
    return *negative ? 0 - wide : wide;
}

static uint64_t integer_of_integer(const struct sg_insn *in, uint64_t v)
{
    bool negative;
    uint64_t m = integer_source(in, v, &negative);
    if (in->sat && negative && m > 0 - (uint64_t)least(in->type))
        return settled(in, (uint64_t)least(in->type));
    if (in->sat && !negative && m > greatest(in->type))
        return settled(in, greatest(in->type));
    return settled(in, negative ? 0 - m : m);
}

static uint64_t float_finish(const struct sg_insn *in, const struct sg_format *f, uint64_t r)
{
    if (in->ftz && f == &sg_f32)
        r = sg_flush(f, r);
    if (in->sat)
        return sg_saturate(f, r);
    return in->relu ? sg_relu(f, r) : r;
}

static uint64_t float_of_integer(const struct sg_insn *in, const struct sg_format *to, uint64_t v)
{
    bool negative;
    uint64_t m = integer_source(in, v, &negative);
    return float_finish(in, to, sg_float_round(to, negative, m, 0, false, in->rounding));
}

static double float_source(const struct sg_insn *in, const struct sg_format *from, uint64_t v)
{
    v &= sg_mask_bits(from->bits);
    /* On the way to f16 the card flushes nothing: rounded up or down, the least of f32 shows. */
    bool flush = in->ftz && from == &sg_f32 && in->type != SG_T_F16;
    return sg_float_to_double(from, flush ? sg_flush(from, v) : v);
}

static double integral(double v, unsigned mode)
{
    switch (mode) {
    case SG_R_ZERO:
        return trunc(v);
    case SG_R_DOWN:
        return floor(v);
    case SG_R_UP:
        return ceil(v);
    default:
        return rint(v); /* the thread's mode is to nearest */
    }
}

static uint64_t integer_of_float(const struct sg_insn *in, const struct sg_format *from, uint64_t v)
{
    double a = integral(float_source(in, from, v), in->rounding);
    unsigned bits = sg_bits(in->type);
    bool is_signed = sg_is_signed(in->type);
    double end = ldexp(1, (int)(is_signed ? bits - 1 : bits));
    if (a != a) /* 0, but the least number (or 2^63 of u64) where one side has 64 bits */
        return from == &sg_f64 || bits == 64 ? settled(in, UINT64_C(1) << (bits - 1)) : 0;
    if (a >= end)
        return settled(in, greatest(in->type));
    if (a < (is_signed ? -end : 0))
        return settled(in, (uint64_t)least(in->type));
    return settled(in, is_signed ? (uint64_t)(int64_t)a : (uint64_t)a);
}

static uint64_t rounded(const struct sg_insn *in, const struct sg_format *to, double a)
{
    if (to == &sg_f64)
        return sg_of_double(a);
    return sg_float_from_double(to, a, in->mode ? SG_R_NEAREST : in->rounding);
}

/* A NaN as the card converts it: of f64 to less, sign and quietness stay and the payload
 * goes; of f16 to f64 the payload stays; one whose subnormals are flushed, or that becomes
 * a whole number of f64, takes the way that leaves all of it, quiet. */
static bool nan_converted(const struct sg_insn *in, const struct sg_format *from,
                          const struct sg_format *to, uint64_t v, uint64_t *r)
{
    v &= sg_mask_bits(from->bits);
    if (!sg_is_nan(from, v))
        return false;
    uint64_t sign = v & from->sign ? to->sign : 0, quiet = UINT64_C(1) << (to->precision - 2);
    if (from == &sg_f64 && to == &sg_f64)
        *r = v | sg_quiet64;
    else if (from == &sg_f64)
        *r = sign | to->infinity | quiet;
    else if (from == &sg_f16 && to == &sg_f64)
        *r = sign | to->infinity | quiet | (v & 0x3ff) << 42;
    else if (from == &sg_f32 && to == &sg_f64 && in->ftz)
        *r = UINT64_C(0x7fffffffe0000000); /* the one NaN of f32, made longer */
    else
        return false;
    return !in->sat && !in->relu;
}

static uint64_t float_of_float(const struct sg_insn *in, const struct sg_format *from,
                               const struct sg_format *to, uint64_t v)
{
    uint64_t nan;
    if (nan_converted(in, from, to, v, &nan))
        return nan;
    double a = float_source(in, from, v);
    if (in->mode)
        a = integral(a, in->rounding);
    return float_finish(in, to, rounded(in, to, a));
}

SG_PURE(cvt_integer, d[l] = integer_of_integer(in, s[0][l]))
SG_PURE(cvt_to_float, d[l] = float_of_integer(in, sg_format_of(in->type), s[0][l]))
SG_PURE(cvt_to_integer, d[l] = integer_of_float(in, sg_format_of(in->type2), s[0][l]))
SG_PURE(cvt_float,
        d[l] = float_of_float(in, sg_format_of(in->type2), sg_format_of(in->type), s[0][l]))
/* The commonest of all, without a detour. */
SG_PURE(cvt_f64_f32, d[l] = sg_of_double((double)sg_as_float(s[0][l])))
SG_PURE(cvt_f32_f64, double a = sg_as_double(s[0][l]); uint64_t r = sg_of_float((float)a);
        if (a != a) nan_converted(in, &sg_f64, &sg_f32, s[0][l], &r); d[l] = r)
SG_PURE(cvt_f32_s32, d[l] = sg_of_float((float)(int32_t)s[0][l]))
SG_PURE(cvt_f32_u32, d[l] = sg_of_float((float)(uint32_t)s[0][l]))
SG_PURE(cvt_f32_s64, d[l] = sg_of_float((float)(int64_t)s[0][l]))
SG_PURE(cvt_f32_u64, d[l] = sg_of_float((float)s[0][l]))
SG_PURE(cvt_f64_s32, d[l] = sg_of_double((double)(int32_t)s[0][l]))
SG_PURE(cvt_f64_u32, d[l] = sg_of_double((double)(uint32_t)s[0][l]))
SG_PURE(cvt_f64_s64, d[l] = sg_of_double((double)(int64_t)s[0][l]))
SG_PURE(cvt_f64_u64, d[l] = sg_of_double((double)s[0][l]))

/* Into a 32-bit register; NaN becomes 0, and what is beyond the type its nearest end. */
#define SIGNED32(rounded)                                                                          \
    float v = sg_as_float(s[0][l]);                                                                \
    float a = rounded;                                                                             \
    int32_t r = a < 0x1p31f && a >= -0x1p31f ? (int32_t)a : 0;                                     \
    r = a >= 0x1p31f ? INT32_MAX : a < -0x1p31f ? INT32_MIN : r;                                   \
    d[l] = (uint32_t)r
SG_PURE(cvt_s32_f32_rzi, SIGNED32(v))
SG_PURE(cvt_s32_f32_rni, SIGNED32(rintf(v)))
SG_PURE(cvt_s32_f32_rmi, SIGNED32(floorf(v)))
SG_PURE(cvt_s32_f32_rpi, SIGNED32(ceilf(v)))

/* Without .sat. The destination's width is the same in all lanes. */
static void cvt_integer_bare(const struct sg_insn *in, const uint64_t *const *s, uint64_t *d)
{
    bool from_signed = sg_is_signed(in->type2), to_signed = sg_is_signed(in->type);
    unsigned from = 64 - sg_bits(in->type2), to = 64 - sg_bits(in->type);
    uint64_t keep_from = sg_mask_bits(sg_bits(in->type2)), keep = settled(in, UINT64_MAX);
    const uint64_t *a = s[0];
    SG_LANEWISE
    for (unsigned l = 0; l < SG_LANES; l++) {
        uint64_t v = from_signed ? (uint64_t)((int64_t)(a[l] << from) >> from) : a[l] & keep_from;
        d[l] = (to_signed ? (uint64_t)((int64_t)(v << to) >> to) : v) & keep;
    }
}
/* Moves, which leave a NaN as it is. */
SG_PURE(cvt_f32_bf16, d[l] = (s[0][l] & 0xffff) << 16)
SG_PURE(cvt_f32_f32, d[l] = (uint32_t)s[0][l])
SG_PURE(cvt_f64_f64, d[l] = s[0][l])

/* f32 less its low 13 bits, which read as zero. */
/* .rna rounds the magnitude in place: of a NaN the upper bits stay. */
static uint64_t tf32_away(uint64_t v)
{
    bool finite = (v & 0x7fffffff) < sg_f32.infinity;
    return (finite ? v + 0x1000 : v) & 0xffffe000;
}
SG_PURE(cvt_tf32_away, d[l] = tf32_away((uint32_t)s[0][l]))
SG_PURE(cvt_tf32, uint64_t r = sg_float_from_double(&sg_tf32, sg_as_float(s[0][l]), in->rounding);
        if (sg_is_nan(&sg_tf32, r)) r = sg_f32.nan & ~UINT64_C(0x1fff);
        else r = (in->relu ? sg_relu(&sg_tf32, r) : r) << 13; d[l] = r)

/* One part of a pair; .satfinite (always, for the 8-bit formats) has no infinity. */
static uint64_t part(const struct sg_insn *in, const struct sg_format *to, double a)
{
    uint64_t r = sg_float_from_double(to, a, in->rounding);
    bool finite = in->sat || to->bits == 8;
    if (finite && (r & (to->sign - 1)) == to->infinity)
        r = (r & to->sign) | to->most;
    return in->relu ? sg_relu(to, r) : r;
}
SG_PURE(cvt_pack_float, const struct sg_format *to = sg_format_of(in->type);
        d[l] = part(in, to, sg_as_float(s[0][l])) << to->bits | part(in, to, sg_as_float(s[1][l])))
SG_PURE(
    cvt_pair, const struct sg_format *to = sg_format_of(in->type);
    const struct sg_format *from = sg_format_of(in->type2);
    d[l] = part(in, to, sg_float_to_double(from, s[0][l] & sg_mask_bits(from->bits))) |
           part(in, to, sg_float_to_double(from, s[0][l] >> from->bits & sg_mask_bits(from->bits)))
               << to->bits)

static uint64_t clamped(unsigned type, uint64_t v)
{
    int64_t a = (int32_t)v;
    int64_t low = least(type);
    int64_t high = (int64_t)greatest(type);
    return (uint64_t)(a < low ? low : a > high ? high : a) & sg_mask_bits(sg_bits(type));
}
SG_PURE(cvt_pack_integer, unsigned bits = sg_bits(in->type);
        uint64_t r = clamped(in->type, s[0][l]) << bits | clamped(in->type, s[1][l]);
        d[l] = in->sources == 3 ? (uint32_t)(s[2][l] << (2 * bits) | r) : r)

static bool is_eight(unsigned type)
{
    return type == SG_T_E4M3X2 || type == SG_T_E5M2X2;
}

static sg_pure select_pack(const struct sg_insn *in)
{
    unsigned to = in->type;
    bool half = to == SG_T_F16X2 || to == SG_T_BF16X2;
    bool number = sg_is_integer(to) && sg_bits(to) <= 16;
    if (in->type2 == SG_T_F32 && in->sources == 2 && (half || is_eight(to)))
        return in->rounding == SG_R_NEAREST || (half && in->rounding == SG_R_ZERO) ? cvt_pack_float
                                                                                   : NULL;
    if (in->type2 == SG_T_S32 && number && in->sources == (sg_bits(to) == 16 ? 2 : 3))
        return cvt_pack_integer;
    return NULL;
}

/* Plain floating-point kinds on both sides. */
static sg_pure select_float(const struct sg_insn *in)
{
    unsigned to = in->type;
    unsigned from = in->type2;
    bool bare = !in->ftz && !in->sat && !in->relu && !in->mode;
    bool narrow = to == SG_T_F16 || to == SG_T_BF16;
    if (in->mode && to != from)
        return NULL;
    if (in->relu && (!narrow || in->sat))
        return NULL;
    if (in->sat && to == SG_T_BF16)
        return NULL;
    if (bare && to == SG_T_F64 && from == SG_T_F32)
        return cvt_f64_f32;
    if (bare && to == from && (to == SG_T_F32 || to == SG_T_F64))
        return to == SG_T_F32 ? cvt_f32_f32 : cvt_f64_f64;
    if (bare && to == SG_T_F32 && from == SG_T_BF16)
        return cvt_f32_bf16;
    if (bare && to == SG_T_F32 && from == SG_T_F64 && in->rounding == SG_R_NEAREST)
        return cvt_f32_f64;
    return cvt_float;
}

static sg_pure select_from_integer(const struct sg_insn *in)
{
    static const sg_pure bare[2][SG_T_COUNT] = {
        {[SG_T_S32] = cvt_f32_s32,
         [SG_T_U32] = cvt_f32_u32,
         [SG_T_S64] = cvt_f32_s64,
         [SG_T_U64] = cvt_f32_u64},
        {[SG_T_S32] = cvt_f64_s32,
         [SG_T_U32] = cvt_f64_u32,
         [SG_T_S64] = cvt_f64_s64,
         [SG_T_U64] = cvt_f64_u64},
    };
    bool wide = in->type == SG_T_F64, plain = !in->ftz && !in->sat;
    if (in->relu || (in->sat && in->type == SG_T_BF16))
        return NULL;
    if (!plain || in->rounding != SG_R_NEAREST || (!wide && in->type != SG_T_F32))
        return cvt_to_float;
    return bare[wide][in->type2] ? bare[wide][in->type2] : cvt_to_float;
}

static sg_pure select_to_integer(const struct sg_insn *in)
{
    bool narrow = !in->x || in->x[0].width <= 4;
    if (in->type != SG_T_S32 || in->type2 != SG_T_F32 || in->ftz || !narrow)
        return cvt_to_integer;
    switch (in->rounding) {
    case SG_R_ZERO:
        return cvt_s32_f32_rzi;
    case SG_R_DOWN:
        return cvt_s32_f32_rmi;
    case SG_R_UP:
        return cvt_s32_f32_rpi;
    default:
        return cvt_s32_f32_rni;
    }
}

static bool is_plain_float(unsigned t)
{
    return t == SG_T_F16 || t == SG_T_BF16 || t == SG_T_F32 || t == SG_T_F64;
}

sg_pure sg_pure_select_convert(const struct sg_insn *in)
{
    unsigned to = in->type;
    unsigned from = in->type2;
    bool brief = (is_eight(from) && to == SG_T_F16X2) || (is_eight(to) && from == SG_T_F16X2);
    if (in->sources != 1)
        return select_pack(in);
    if (brief)
        return in->rounding == SG_R_NEAREST ? cvt_pair : NULL;
    if (to == SG_T_TF32)
        return from == SG_T_F32 && !in->sat && in->rounding != SG_R_DOWN && in->rounding != SG_R_UP
                   ? (in->rounding == SG_R_AWAY && !in->relu ? cvt_tf32_away : cvt_tf32)
                   : NULL;
    if (in->op != SG_P_CVT || in->rounding > SG_R_UP)
        return NULL;
    if (is_plain_float(to) && is_plain_float(from))
        return select_float(in);
    if (is_plain_float(to) && sg_is_integer(from))
        return select_from_integer(in);
    if (in->relu || !sg_is_integer(to))
        return NULL;
    if (is_plain_float(from))
        return select_to_integer(in);
    if (!sg_is_integer(from) || in->ftz)
        return NULL;
    return in->sat ? cvt_integer : cvt_integer_bare;
}
