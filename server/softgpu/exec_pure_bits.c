/* Shifts, fields, counts, permutations and bitwise logic. */
#include "exec_pure.h"

#define BY_WIDTH(X) X(16, int16_t, uint16_t) X(32, int32_t, uint32_t) X(64, int64_t, uint64_t)

/* Amounts are 32-bit and unsigned; the width and more shift everything out. */
#define SHIFTS(n, S, U)                                                                            \
    SG_PURE(shl_##n, uint32_t c = (uint32_t)s[1][l];                                               \
            d[l] = c >= n ? 0 : (U)((uint64_t)(U)s[0][l] << c))                                    \
    SG_PURE(shr_u_##n, uint32_t c = (uint32_t)s[1][l]; d[l] = c >= n ? 0 : (U)s[0][l] >> c)        \
    SG_PURE(shr_s_##n, uint32_t c = (uint32_t)s[1][l];                                             \
            d[l] = (U)((S)s[0][l] >> (c >= n ? n - 1 : c)))                                        \
    SG_PURE(not_##n, d[l] = (U)~s[0][l])                                                           \
    SG_PURE(cnot_##n, d[l] = (U)s[0][l] == 0)                                                      \
    SG_PURE(and_##n, d[l] = (U)(s[0][l] & s[1][l]))                                                \
    SG_PURE(or_##n, d[l] = (U)(s[0][l] | s[1][l]))                                                 \
    SG_PURE(xor_##n, d[l] = (U)(s[0][l] ^ s[1][l]))
BY_WIDTH(SHIFTS)

SG_PURE(not_pred, d[l] = s[0][l] == 0)
SG_PURE(and_pred, d[l] = s[0][l] & s[1][l] & 1)
SG_PURE(or_pred, d[l] = (s[0][l] | s[1][l]) & 1)
SG_PURE(xor_pred, d[l] = (s[0][l] ^ s[1][l]) & 1)

static inline uint64_t funnel(const uint64_t *const *s, unsigned l)
{
    return (uint64_t)(uint32_t)s[1][l] << 32 | (uint32_t)s[0][l];
}
static inline uint32_t funnel_amount(uint64_t c, bool clamp)
{
    uint32_t amount = (uint32_t)c;
    return clamp ? (amount > 32 ? 32 : amount) : amount & 31;
}
SG_PURE(shf_left, uint32_t c = funnel_amount(s[2][l], in->mode & 2);
        d[l] = (uint32_t)((funnel(s, l) << c) >> 32))
SG_PURE(shf_right, uint32_t c = funnel_amount(s[2][l], in->mode & 2);
        d[l] = (uint32_t)(funnel(s, l) >> c))

SG_PURE(popc_32, d[l] = (unsigned)__builtin_popcount((uint32_t)s[0][l]))
SG_PURE(popc_64, d[l] = (unsigned)__builtin_popcountll(s[0][l]))
SG_PURE(clz_32, uint32_t a = (uint32_t)s[0][l]; d[l] = a ? (unsigned)__builtin_clz(a) : 32)
SG_PURE(clz_64, d[l] = s[0][l] ? (unsigned)__builtin_clzll(s[0][l]) : 64)

/* The highest bit that differs from the sign: its place, or how far to shift it. */
SG_PURE(bfind, unsigned bits = sg_bits(in->type);
        uint64_t a = sg_is_signed(in->type) ? (uint64_t)sg_extend(s[0][l], bits)
                                            : s[0][l] & sg_mask_bits(bits);
        if (sg_is_signed(in->type) && (int64_t)a < 0) a = ~a;
        unsigned at = a ? 63 - (unsigned)__builtin_clzll(a) : 0; d[l] = a == 0     ? UINT32_MAX
                                                                        : in->mode ? bits - 1 - at
                                                                                   : at)

static uint64_t reversed(uint64_t v)
{
    v = (v >> 1 & UINT64_C(0x5555555555555555)) | (v & UINT64_C(0x5555555555555555)) << 1;
    v = (v >> 2 & UINT64_C(0x3333333333333333)) | (v & UINT64_C(0x3333333333333333)) << 2;
    v = (v >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f)) | (v & UINT64_C(0x0f0f0f0f0f0f0f0f)) << 4;
    return __builtin_bswap64(v);
}
SG_PURE(brev_32, d[l] = reversed((uint32_t)s[0][l]) >> 32)
SG_PURE(brev_64, d[l] = reversed(s[0][l]))

/* The n-th set bit from `base` on (n > 0 upwards, n < 0 downwards, 0: base's own). */
static uint32_t nth_set(uint32_t mask, uint32_t base, int32_t n)
{
    if (base > 31)
        return UINT32_MAX;
    if (n == INT32_MIN) /* which has no counterpart upwards: what the card answers */
        return 0;
    if (n == 0)
        return mask >> base & 1 ? base : UINT32_MAX;
    int64_t left = n > 0 ? n : -(int64_t)n;
    for (int at = (int)base; at >= 0 && at < 32; at += n > 0 ? 1 : -1)
        if ((mask >> at & 1) && --left == 0)
            return (uint32_t)at;
    return UINT32_MAX;
}
SG_PURE(fns, d[l] = nth_set((uint32_t)s[0][l], (uint32_t)s[1][l], (int32_t)s[2][l]))

/* Bits above the source's own repeat its sign, or the field's top bit when that lies inside. */
static uint64_t field(uint64_t a, unsigned at, unsigned length, unsigned bits, bool is_signed)
{
    a &= sg_mask_bits(bits);
    if (length == 0)
        return 0;
    uint64_t v = at < bits ? a >> at : 0;
    unsigned top = at + length - 1 < bits - 1 ? at + length - 1 : bits - 1;
    uint64_t got = sg_mask_bits(at < bits ? (length < bits - at ? length : bits - at) : 0);
    v &= got;
    if (is_signed && (a >> top & 1))
        v |= ~got;
    return v & sg_mask_bits(bits);
}
/* Of position and length PTX takes eight bits; the card does for 32 bits, and for 64
 * takes all that is there. Neither has more than 255 places. */
static unsigned places(unsigned bits, uint64_t v)
{
    uint32_t n = (uint32_t)v;
    return bits == 64 ? (n < 255 ? n : 255) : n & 0xff;
}
SG_PURE(bfe, unsigned bits = sg_bits(in->type);
        d[l] = field(s[0][l], places(bits, s[1][l]), places(bits, s[2][l]), bits,
                     sg_is_signed(in->type)))
SG_PURE(bfi, unsigned bits = sg_bits(in->type); unsigned at = places(bits, s[2][l]);
        uint64_t put = at < bits ? sg_mask_bits(places(bits, s[3][l])) << at : 0;
        uint64_t from = at < bits ? s[0][l] << at : 0;
        d[l] = ((s[1][l] & ~put) | (from & put)) & sg_mask_bits(bits))

/* The selector nibbles of the special modes, by the low two bits of c. */
static const uint16_t permutations[7][4] = {
    [1] = {0x3210, 0x4321, 0x5432, 0x6543}, [2] = {0x5670, 0x6701, 0x7012, 0x0123},
    [3] = {0x0000, 0x1111, 0x2222, 0x3333}, [4] = {0x3210, 0x3211, 0x3222, 0x3333},
    [5] = {0x0000, 0x1110, 0x2210, 0x3210}, [6] = {0x1010, 0x3232, 0x1010, 0x3232},
};
static uint32_t permuted(uint64_t bytes, uint32_t selector)
{
    uint32_t result = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned pick = selector >> (4 * i) & 0xf;
        uint32_t byte = bytes >> (8 * (pick & 7)) & 0xff;
        if (pick & 8) /* the sign instead of the byte */
            byte = byte & 0x80 ? 0xff : 0;
        result |= byte << (8 * i);
    }
    return result;
}
SG_PURE(prmt, uint32_t c = (uint32_t)s[2][l];
        d[l] = permuted(funnel(s, l), in->mode ? permutations[in->mode][c & 3] : c))

SG_PURE(lop3, d[l] = sg_logic3((uint32_t)s[0][l], (uint32_t)s[1][l], (uint32_t)s[2][l],
                               (uint32_t)s[3][l]))

/* `width` ones from bit `at` on. */
static uint32_t mask_of(uint32_t at, uint32_t width, bool clamp)
{
    if (clamp && at >= 32)
        return 0;
    bool all = clamp && width >= 32;
    at &= 31;
    return (uint32_t)(sg_mask_bits(all ? 32 : width & 31) << at);
}
SG_PURE(bmsk, d[l] = mask_of((uint32_t)s[0][l], (uint32_t)s[1][l], in->mode))

/* The low bits of a, as many as b says, extended. */
static uint32_t extended(uint32_t a, uint32_t count, bool clamp, bool is_signed)
{
    if (clamp && count >= 32)
        return a;
    count &= 31;
    if (count == 0)
        return 0;
    return (uint32_t)(is_signed ? (uint64_t)sg_extend(a, count) : a & sg_mask_bits(count));
}
SG_PURE(szext,
        d[l] = extended((uint32_t)s[0][l], (uint32_t)s[1][l], in->mode, in->type == SG_T_S32))

static bool is_full(unsigned t) /* 32 or 64 bits, a number or bits */
{
    return (sg_is_integer(t) || sg_is_bits(t)) && sg_bits(t) >= 32;
}

static bool is_shiftable(unsigned t)
{
    return (sg_is_integer(t) || sg_is_bits(t)) && sg_bits(t) >= 16;
}

#define PICK(name)                                                                                 \
    (bits == 16 ? name##_16 : bits == 32 ? name##_32 : bits == 64 ? name##_64 : (sg_pure)0)

static sg_pure select_logic(unsigned op, unsigned t)
{
    unsigned bits = sg_is_bits(t) ? sg_bits(t) : 0;
    bool pred = t == SG_T_PRED;
    switch (op) {
    case SG_P_AND:
        return pred ? and_pred : PICK(and);
    case SG_P_OR:
        return pred ? or_pred : PICK(or);
    case SG_P_XOR:
        return pred ? xor_pred : PICK(xor);
    case SG_P_NOT:
        return pred ? not_pred : PICK(not);
    case SG_P_CNOT:
        return PICK(cnot);
    default:
        return NULL;
    }
}

static sg_pure select_shift(unsigned op, unsigned t)
{
    unsigned bits = is_shiftable(t) ? sg_bits(t) : 0;
    if (op == SG_P_SHL)
        return PICK(shl);
    return sg_is_signed(t) ? PICK(shr_s) : PICK(shr_u);
}

static sg_pure select_count(const struct sg_insn *in, unsigned t)
{
    bool wide = sg_bits(t) == 64;
    if (!is_full(t))
        return NULL;
    switch (in->op) {
    case SG_P_POPC:
        return wide ? popc_64 : popc_32;
    case SG_P_CLZ:
        return wide ? clz_64 : clz_32;
    case SG_P_BREV:
        return wide ? brev_64 : brev_32;
    case SG_P_BFIND:
        return sg_is_integer(t) ? bfind : NULL;
    case SG_P_BFE:
        return sg_is_integer(t) ? bfe : NULL;
    case SG_P_BFI:
        return bfi;
    default:
        return NULL;
    }
}

sg_pure sg_pure_select_bits(const struct sg_insn *in)
{
    unsigned t = in->type;
    switch (in->op) {
    case SG_P_AND:
    case SG_P_OR:
    case SG_P_XOR:
    case SG_P_NOT:
    case SG_P_CNOT:
        return select_logic(in->op, t);
    case SG_P_SHL:
    case SG_P_SHR:
        return select_shift(in->op, t);
    case SG_P_SHF:
        return t != SG_T_B32 || in->mode > 3 ? NULL : in->mode & 1 ? shf_right : shf_left;
    case SG_P_FNS:
        return t == SG_T_B32 ? fns : NULL;
    case SG_P_PRMT:
        return t == SG_T_B32 && in->mode < 7 ? prmt : NULL;
    case SG_P_LOP3:
        return t == SG_T_B32 && in->sources == 4 ? lop3 : NULL;
    case SG_P_BMSK:
        return t == SG_T_B32 && in->sources == 2 ? bmsk : NULL;
    case SG_P_SZEXT:
        return (t == SG_T_U32 || t == SG_T_S32) && in->sources == 2 ? szext : NULL;
    default:
        return select_count(in, t);
    }
}
