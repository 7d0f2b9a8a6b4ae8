/*
 * Integer arithmetic. Sums and products are formed in unsigned types wide
 * enough that nothing overflows, then cut to the type.
 */
#include "exec_pure.h"

/* Per type: T its C type, W an unsigned type that holds twice its width. */
__extension__ typedef unsigned __int128 wide128;
__extension__ typedef __int128 signed128;

#define SIGNED_OR_NOT(X)                                                                           \
    X(u16, uint16_t, uint32_t, uint32_t, uint16_t)                                                 \
    X(s16, int16_t, int32_t, uint32_t, uint16_t)                                                   \
    X(u32, uint32_t, uint64_t, uint64_t, uint32_t)                                                 \
    X(s32, int32_t, int64_t, uint64_t, uint32_t)                                                   \
    X(u64, uint64_t, wide128, wide128, uint64_t)                                                   \
    X(s64, int64_t, signed128, wide128, uint64_t)

/* T value type, D double width of the same signedness, W unsigned double width,
 * U unsigned of the width. Signed products of D never overflow: 2^(2n-2) at most. */
#define ARITHMETIC(n, T, D, W, U)                                                                    \
    SG_PURE(add_##n, d[l] = (U)((U)s[0][l] + (U)s[1][l]))                                            \
    SG_PURE(sub_##n, d[l] = (U)((U)s[0][l] - (U)s[1][l]))                                            \
    SG_PURE(mul_lo_##n, d[l] = (U)((W)(U)s[0][l] * (U)s[1][l]))                                      \
    SG_PURE(mul_hi_##n, d[l] = (U)((W)((D)(T)s[0][l] * (D)(T)s[1][l]) >> (8 * sizeof(T))))           \
    SG_PURE(mad_lo_##n, d[l] = (U)((U)((W)(U)s[0][l] * (U)s[1][l]) + (U)s[2][l]))                    \
    SG_PURE(mad_hi_##n,                                                                              \
            d[l] = (U)((U)((W)((D)(T)s[0][l] * (D)(T)s[1][l]) >> (8 * sizeof(T))) + (U)s[2][l]))     \
    SG_PURE(min_##n, d[l] = (U)((T)s[0][l] < (T)s[1][l] ? (T)s[0][l] : (T)s[1][l]))                  \
    SG_PURE(max_##n, d[l] = (U)((T)s[0][l] > (T)s[1][l] ? (T)s[0][l] : (T)s[1][l]))                  \
    SG_PURE(sad_##n, T a = (T)s[0][l]; T b = (T)s[1][l];                                             \
            d[l] = (U)((U)s[2][l] + (a < b ? (U)((U)b - (U)a) : (U)((U)a - (U)b))))                  \
    /* The remainder of the least value by -1 is 0, its quotient itself. By zero PTX               \
     * leaves both open; the card gives all ones. */ \
    SG_PURE(div_##n, T a = (T)s[0][l]; T b = (T)s[1][l]; d[l] = b == 0 ? (U) ~(U)0                   \
                                                                : b == (T) - 1 && (T) - 1 < (T)1     \
                                                                    ? (U)(0 - (U)a)                  \
                                                                    : (U)(a / b))                    \
    SG_PURE(rem_##n, T a = (T)s[0][l]; T b = (T)s[1][l]; d[l] = b == 0 ? (U) ~(U)0                   \
                                                                : b == (T) - 1 && (T) - 1 < (T)1     \
                                                                    ? 0                              \
                                                                    : (U)(a % b))
SIGNED_OR_NOT(ARITHMETIC)

#define WIDENING(n, T, D, W)                                                                       \
    SG_PURE(mul_wide_##n, d[l] = (W)((D)(T)s[0][l] * (D)(T)s[1][l]))                               \
    SG_PURE(mad_wide_##n, d[l] = (W)((W)((D)(T)s[0][l] * (D)(T)s[1][l]) + (W)s[2][l]))
WIDENING(u16, uint16_t, uint32_t, uint32_t)
WIDENING(s16, int16_t, int32_t, uint32_t)
WIDENING(u32, uint32_t, uint64_t, uint64_t)
WIDENING(s32, int32_t, int64_t, uint64_t)

#define MONADIC(n, T, U)                                                                           \
    SG_PURE(abs_##n, T a = (T)s[0][l]; d[l] = (U)(a < 0 ? (U)(0 - (U)a) : (U)a))                   \
    SG_PURE(neg_##n, d[l] = (U)(0 - (U)s[0][l]))
MONADIC(s16, int16_t, uint16_t)
MONADIC(s32, int32_t, uint32_t)
MONADIC(s64, int64_t, uint64_t)

static uint64_t clamp32(int64_t v)
{
    return (uint32_t)(int32_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
}
SG_PURE(add_sat, d[l] = clamp32((int64_t)(int32_t)s[0][l] + (int32_t)s[1][l]))
SG_PURE(sub_sat, d[l] = clamp32((int64_t)(int32_t)s[0][l] - (int32_t)s[1][l]))
SG_PURE(mad_hi_sat, int64_t p = (int64_t)(int32_t)s[0][l] * (int32_t)s[1][l];
        d[l] = clamp32((p >> 32) + (int32_t)s[2][l]))
SG_PURE(min_relu, int32_t a = (int32_t)s[0][l]; int32_t b = (int32_t)s[1][l];
        int32_t m = a < b ? a : b; d[l] = (uint32_t)(m < 0 ? 0 : m))
SG_PURE(max_relu, int32_t a = (int32_t)s[0][l]; int32_t b = (int32_t)s[1][l];
        int32_t m = a > b ? a : b; d[l] = (uint32_t)(m < 0 ? 0 : m))

/* 24-bit operands; hi is bits 16..47 of the 48-bit product. */
#define UNSIGNED24(k) ((int64_t)(s[k][l] & 0xffffff))
#define SIGNED24(k) sg_extend(s[k][l], 24)
#define BY24(n, V)                                                                                 \
    SG_PURE(mul24_lo_##n, d[l] = (uint32_t)(V(0) * V(1)))                                          \
    SG_PURE(mul24_hi_##n, d[l] = (uint32_t)((uint64_t)(V(0) * V(1)) >> 16))                        \
    SG_PURE(mad24_lo_##n, d[l] = (uint32_t)((uint32_t)(V(0) * V(1)) + (uint32_t)s[2][l]))          \
    SG_PURE(mad24_hi_##n,                                                                          \
            d[l] = (uint32_t)((uint32_t)((uint64_t)(V(0) * V(1)) >> 16) + (uint32_t)s[2][l]))
BY24(u32, UNSIGNED24)
BY24(s32, SIGNED24)
SG_PURE(mad24_hi_sat, d[l] = clamp32((SIGNED24(0) * SIGNED24(1) >> 16) + (int32_t)s[2][l]))

/* Pairs: each half on its own. */
#define PAIR(name, T, EXPRESSION)                                                                  \
    SG_PURE(                                                                                       \
        name, uint32_t pair = 0; for (unsigned h = 0; h < 32; h += 16) {                           \
            T a = (T)(s[0][l] >> h);                                                               \
            T b = (T)(s[1][l] >> h);                                                               \
            pair |= (uint32_t)(uint16_t)(EXPRESSION) << h;                                         \
        } d[l] = pair)
PAIR(add_pair, uint16_t, a + b)
PAIR(min_pair_u, uint16_t, a < b ? a : b)
PAIR(max_pair_u, uint16_t, a > b ? a : b)
PAIR(min_pair_s, int16_t, a < b ? a : b)
PAIR(max_pair_s, int16_t, a > b ? a : b)
PAIR(min_pair_relu, int16_t, a < 0 || b < 0 ? 0 : a < b ? a : b)
PAIR(max_pair_relu, int16_t, a < 0 && b < 0 ? 0 : a > b ? a : b)

static int64_t part(uint64_t word, unsigned index, unsigned bits, bool is_signed)
{
    uint64_t v = word >> (index * bits) & sg_mask_bits(bits);
    return is_signed ? sg_extend(v, bits) : (int64_t)v;
}
SG_PURE(dp4a, int64_t sum = (int64_t)(uint32_t)s[2][l];
        for (unsigned i = 0; i < 4; i++) sum += part(s[0][l], i, 8, in->type == SG_T_S32) *
                                                part(s[1][l], i, 8, in->type2 == SG_T_S32);
        d[l] = (uint32_t)sum)
SG_PURE(dp2a, int64_t sum = (int64_t)(uint32_t)s[2][l];
        for (unsigned i = 0; i < 2; i++)
            sum += part(s[0][l], i, 16, in->type == SG_T_S32) *
                   part(s[1][l], i + (in->mode ? 2 : 0), 8, in->type2 == SG_T_S32);
        d[l] = (uint32_t)sum)

/* |a - b| of each byte, or c and their sum. */
static uint32_t differences(const struct sg_insn *in, uint64_t a, uint64_t b, uint32_t c)
{
    bool is_signed = in->type == SG_T_S32;
    int64_t most = !in->sat ? 255 : in->type2 == SG_T_S32 ? 127 : 255;
    uint32_t bytes = 0;
    for (unsigned i = 0; i < 4; i++) {
        int64_t v = part(a, i, 8, is_signed) - part(b, i, 8, is_signed);
        v = v < 0 ? -v : v;
        v = v > most ? most : v;
        bytes |= (uint32_t)v << (8 * i);
        c += (uint32_t)v;
    }
    return in->mode ? c : bytes;
}
SG_PURE(vabsdiff4, d[l] = differences(in, s[0][l], s[1][l], (uint32_t)s[2][l]))

#define BY_TYPE(name)                                                                              \
    (t == SG_T_U16   ? name##_u16                                                                  \
     : t == SG_T_S16 ? name##_s16                                                                  \
     : t == SG_T_U32 ? name##_u32                                                                  \
     : t == SG_T_S32 ? name##_s32                                                                  \
     : t == SG_T_U64 ? name##_u64                                                                  \
     : t == SG_T_S64 ? name##_s64                                                                  \
                     : (sg_pure)0)
#define BY_NARROW(name)                                                                            \
    (t == SG_T_U16   ? name##_u16                                                                  \
     : t == SG_T_S16 ? name##_s16                                                                  \
     : t == SG_T_U32 ? name##_u32                                                                  \
     : t == SG_T_S32 ? name##_s32                                                                  \
                     : (sg_pure)0)
#define BY_SIGNED(name)                                                                            \
    (t == SG_T_S16   ? name##_s16                                                                  \
     : t == SG_T_S32 ? name##_s32                                                                  \
     : t == SG_T_S64 ? name##_s64                                                                  \
                     : (sg_pure)0)

static sg_pure select_product(const struct sg_insn *in, unsigned t)
{
    bool mad = in->op == SG_P_MAD;
    if (in->sat)
        return mad && in->mode == SG_H_HI && t == SG_T_S32 ? mad_hi_sat : NULL;
    switch (in->mode) {
    case SG_H_LO:
        return mad ? BY_TYPE(mad_lo) : BY_TYPE(mul_lo);
    case SG_H_HI:
        return mad ? BY_TYPE(mad_hi) : BY_TYPE(mul_hi);
    case SG_H_WIDE:
        return mad ? BY_NARROW(mad_wide) : BY_NARROW(mul_wide);
    default:
        return NULL;
    }
}

static sg_pure select_by24(const struct sg_insn *in, unsigned t)
{
    bool hi = in->mode == SG_H_HI;
    if (in->mode > SG_H_HI || (t != SG_T_U32 && t != SG_T_S32))
        return NULL;
    if (in->sat)
        return in->op == SG_P_MAD24 && hi && t == SG_T_S32 ? mad24_hi_sat : NULL;
    if (in->op == SG_P_MUL24)
        return t == SG_T_S32 ? (hi ? mul24_hi_s32 : mul24_lo_s32)
                             : (hi ? mul24_hi_u32 : mul24_lo_u32);
    return t == SG_T_S32 ? (hi ? mad24_hi_s32 : mad24_lo_s32) : (hi ? mad24_hi_u32 : mad24_lo_u32);
}

static sg_pure select_extreme(const struct sg_insn *in, unsigned t)
{
    bool min = in->op == SG_P_MIN;
    if (in->mode)
        return NULL;
    if (t == SG_T_S16X2 && in->relu)
        return min ? min_pair_relu : max_pair_relu;
    if (t == SG_T_S32 && in->relu)
        return min ? min_relu : max_relu;
    if (in->relu)
        return NULL;
    if (t == SG_T_S16X2)
        return min ? min_pair_s : max_pair_s;
    if (t == SG_T_U16X2)
        return min ? min_pair_u : max_pair_u;
    return min ? BY_TYPE(min) : BY_TYPE(max);
}

static bool is_dot_type(unsigned t)
{
    return t == SG_T_U32 || t == SG_T_S32;
}

sg_pure sg_pure_select_integer(const struct sg_insn *in)
{
    unsigned t = in->type;
    switch (in->op) {
    case SG_P_ADD:
        if (in->sat)
            return t == SG_T_S32 ? add_sat : NULL;
        return t == SG_T_U16X2 || t == SG_T_S16X2 ? add_pair : BY_TYPE(add);
    case SG_P_SUB:
        if (in->sat)
            return t == SG_T_S32 ? sub_sat : NULL;
        return BY_TYPE(sub);
    case SG_P_MUL:
    case SG_P_MAD:
        return select_product(in, t);
    case SG_P_MUL24:
    case SG_P_MAD24:
        return select_by24(in, t);
    case SG_P_DIV:
        return BY_TYPE(div);
    case SG_P_REM:
        return BY_TYPE(rem);
    case SG_P_ABS:
        return BY_SIGNED(abs);
    case SG_P_NEG:
        return BY_SIGNED(neg);
    case SG_P_MIN:
    case SG_P_MAX:
        return select_extreme(in, t);
    case SG_P_SAD:
        return BY_TYPE(sad);
    case SG_P_DP4A:
        return is_dot_type(t) && is_dot_type(in->type2) ? dp4a : NULL;
    case SG_P_VABSDIFF4:
        return is_dot_type(t) && is_dot_type(in->type2) && in->sources == 3 ? vabsdiff4 : NULL;
    case SG_P_DP2A:
        return is_dot_type(t) && is_dot_type(in->type2) ? dp2a : NULL;
    default:
        return NULL;
    }
}
