#include "exec_float.h"

#include "ptx_op.h"

#include <fenv.h>
#include <math.h>

/* p, emin, width, and the exponent field's range give the patterns. */
#define FORMAT(p, least, width, nan_bits)                                                          \
    {                                                                                              \
        .precision = (p),                                                                          \
        .emin = (least),                                                                           \
        .bits = (width),                                                                           \
        .sign = UINT64_C(1) << ((width) - 1),                                                      \
        .infinity = (UINT64_C(1) << ((width) - 1)) - (UINT64_C(1) << ((p) - 1)),                   \
        .nan = (nan_bits),                                                                         \
        .most = (UINT64_C(1) << ((width) - 1)) - (UINT64_C(1) << ((p) - 1)) - 1,                   \
    }
const struct sg_format sg_f16 = FORMAT(11, -14, 16, 0x7fff);
const struct sg_format sg_bf16 = FORMAT(8, -126, 16, 0x7fff);
const struct sg_format sg_tf32 = FORMAT(11, -126, 19, 0x3ffff); /* f32 less its low 13 bits */
const struct sg_format sg_f32 = FORMAT(24, -126, 32, 0x7fffffff);
const struct sg_format sg_f64 = FORMAT(53, -1022, 64, UINT64_C(0xfff8000000000000));
const struct sg_format sg_e5m2 = FORMAT(3, -14, 8, 0x7f);
/* No infinity: the pattern after the greatest number is the NaN. */
const struct sg_format sg_e4m3 = {.precision = 4,
                                  .emin = -6,
                                  .bits = 8,
                                  .sign = 0x80,
                                  .infinity = 0x7e,
                                  .nan = 0x7f,
                                  .most = 0x7e};

const struct sg_format *sg_format_of(unsigned type)
{
    switch (type) {
    case SG_T_F16:
    case SG_T_F16X2:
        return &sg_f16;
    case SG_T_BF16:
    case SG_T_BF16X2:
        return &sg_bf16;
    case SG_T_TF32:
        return &sg_tf32;
    case SG_T_F32:
        return &sg_f32;
    case SG_T_F64:
        return &sg_f64;
    case SG_T_E4M3X2:
        return &sg_e4m3;
    case SG_T_E5M2X2:
        return &sg_e5m2;
    default:
        return NULL;
    }
}

/* Past the greatest number: it, or infinity where the mode rounds away. */
static uint64_t overflowed(const struct sg_format *f, bool negative, unsigned mode)
{
    bool finite = mode == SG_R_ZERO || (mode == SG_R_DOWN && !negative) ||
                  (mode == SG_R_UP && negative);
    return (negative ? f->sign : 0) | (finite ? f->most : f->infinity);
}

static bool rounds_up(bool odd, bool half, bool rest, bool negative, unsigned mode)
{
    switch (mode) {
    case SG_R_NEAREST:
        return half && (rest || odd);
    case SG_R_AWAY:
        return half;
    case SG_R_DOWN:
        return negative && (half || rest);
    case SG_R_UP:
        return !negative && (half || rest);
    default:
        return false;
    }
}

uint64_t sg_float_round(const struct sg_format *f, bool negative, uint64_t m, int e, bool sticky,
                        unsigned mode)
{
    uint64_t sign = negative ? f->sign : 0;
    if (m == 0)
        return sign;
    int zeros = __builtin_clzll(m);
    m <<= zeros;
    e -= zeros;
    int exponent = e + 63;
    bool normal = exponent >= f->emin;
    int drop = (normal ? exponent : f->emin) - (f->precision - 1) - e;
    uint64_t kept = drop >= 64 ? 0 : m >> drop;
    bool half = drop > 64 ? false : m >> (drop - 1) & 1;
    bool rest = sticky || (drop > 64 ? true : (m & ((UINT64_C(1) << (drop - 1)) - 1)) != 0);
    uint64_t bits = kept;
    if (normal) /* the hidden bit adds one to the exponent field */
        bits += (uint64_t)(exponent - f->emin) << (f->precision - 1);
    /* A carry out of the fraction is what the exponent field needs. */
    bits += rounds_up(kept & 1, half, rest, negative, mode);
    return bits > f->most ? overflowed(f, negative, mode) : sign | bits;
}

uint64_t sg_float_from_double(const struct sg_format *f, double v, unsigned mode)
{
    uint64_t bits = sg_of_double(v);
    bool negative = bits >> 63;
    unsigned field = bits >> 52 & 0x7ff;
    uint64_t m = bits & (UINT64_C(0xfffffffffffff));
    if (field == 0x7ff)
        return m ? f->nan : (negative ? f->sign : 0) | f->infinity;
    if (field)
        m |= UINT64_C(1) << 52;
    return sg_float_round(f, negative, m, (int)(field ? field : 1) - 1075, false, mode);
}

double sg_float_to_double(const struct sg_format *f, uint64_t v)
{
    if (f->bits == 64)
        return sg_as_double(v);
    if (f->bits == 32)
        return sg_as_float(v);
    if (f == &sg_bf16)
        return sg_as_float(v << 16);
    uint64_t magnitude = v & (f->sign - 1);
    bool negative = v & f->sign;
    if (magnitude > f->most)
        return magnitude > f->infinity ? NAN : negative ? -INFINITY : INFINITY;
    int field = (int)(magnitude >> (f->precision - 1));
    uint64_t m = magnitude & ((UINT64_C(1) << (f->precision - 1)) - 1);
    if (field)
        m |= UINT64_C(1) << (f->precision - 1);
    int e = f->emin - (f->precision - 1) + (field ? field - 1 : 0);
    double scale = sg_as_double((uint64_t)(e + 1023) << 52);
    return negative ? -((double)m * scale) : (double)m * scale;
}

double sg_odd_fma(double a, double b, double c)
{
    double p = a * b; /* exact */
    double sum = p + c;
    if (!(fabs(sum) <= 0x1p1000)) /* infinite or NaN: three 24-bit numbers reach no further */
        return sum;
    double back = sum - p;
    double rest = (p - (sum - back)) + (c - back);
    uint64_t bits = sg_of_double(sum);
    if (rest == 0 || (bits & 1))
        return sum;
    bits += (rest < 0) == (sum < 0) ? 1 : UINT64_MAX;
    return sg_as_double(bits);
}

uint64_t sg_saturate(const struct sg_format *f, uint64_t v)
{
    uint64_t one = (uint64_t)(1 - f->emin) << (f->precision - 1);
    if (sg_is_nan(f, v) || (v & f->sign))
        return 0;
    return v > one ? one : v;
}

uint64_t sg_relu(const struct sg_format *f, uint64_t v)
{
    return sg_is_nan(f, v) ? f->nan : v & f->sign ? 0 : v;
}

/* Orders patterns as numbers, -0 before +0. */
static int64_t ordered(const struct sg_format *f, uint64_t v)
{
    int64_t magnitude = (int64_t)(v & (f->sign - 1));
    return v & f->sign ? -magnitude - 1 : magnitude;
}

uint64_t sg_float_extreme(const struct sg_format *f, uint64_t a, uint64_t b, bool min,
                          unsigned mode)
{
    uint64_t sign = (a ^ b) & f->sign;
    bool a_nan = sg_is_nan(f, a);
    bool b_nan = sg_is_nan(f, b);
    if (a_nan && b_nan && f == &sg_f64) /* the other formats have one NaN */
        return b | sg_quiet64;
    if (a_nan && (b_nan || (mode & 1)))
        return f->nan;
    if (b_nan && (mode & 1))
        return f->nan;
    if (mode & 2) {
        a &= f->sign - 1;
        b &= f->sign - 1;
    }
    uint64_t r = a_nan   ? b
                 : b_nan ? a
                 : min   ? (ordered(f, a) < ordered(f, b) ? a : b)
                         : (ordered(f, a) > ordered(f, b) ? a : b);
    return mode & 2 ? r | sign : r;
}

static bool by_order(int order, unsigned compare)
{
    switch (compare) {
    case SG_C_EQ:
    case SG_C_EQU:
        return order == 0;
    case SG_C_NE:
    case SG_C_NEU:
        return order != 0;
    case SG_C_LT:
    case SG_C_LTU:
        return order < 0;
    case SG_C_LE:
    case SG_C_LEU:
        return order <= 0;
    case SG_C_GT:
    case SG_C_GTU:
        return order > 0;
    case SG_C_GE:
    case SG_C_GEU:
        return order >= 0;
    default:
        return compare == SG_C_NUM;
    }
}

bool sg_float_compare(const struct sg_format *f, uint64_t a, uint64_t b, unsigned compare)
{
    if (sg_is_nan(f, a) || sg_is_nan(f, b))
        return compare >= SG_C_EQU && compare != SG_C_NUM;
    if (((a | b) & (f->sign - 1)) == 0) /* zeros of either sign are equal */
        return by_order(0, compare);
    int64_t x = ordered(f, a);
    int64_t y = ordered(f, b);
    return by_order((x > y) - (x < y), compare);
}

bool sg_integer_compare(uint64_t a, uint64_t b, bool is_signed, unsigned compare)
{
    int order = is_signed ? ((int64_t)a > (int64_t)b) - ((int64_t)a < (int64_t)b)
                          : (a > b) - (a < b);
    return by_order(order, compare);
}

int sg_fenv_mode(unsigned mode)
{
    switch (mode) {
    case SG_R_ZERO:
        return FE_TOWARDZERO;
    case SG_R_DOWN:
        return FE_DOWNWARD;
    case SG_R_UP:
        return FE_UPWARD;
    default:
        return FE_TONEAREST;
    }
}
