/* Moves, packs, selections, address conversions. */
#include "exec_pure.h"

SG_PURE(move_8, d[l] = (uint8_t)s[0][l])
SG_PURE(move_16, d[l] = (uint16_t)s[0][l])
SG_PURE(move_32, d[l] = (uint32_t)s[0][l])
SG_PURE(move_64, d[l] = s[0][l])
SG_PURE(move_pred, d[l] = s[0][l] & 1)

/* s[0] is the lowest part. */
static void pack(const struct sg_insn *in, const uint64_t *const *s, uint64_t *d)
{
    unsigned width = sg_bits(in->type) / in->sources, sources = in->sources;
    uint64_t mask = sg_mask_bits(width);
    for (unsigned l = 0; l < SG_LANES; l++) {
        uint64_t whole = 0;
        for (unsigned i = 0; i < sources; i++)
            whole |= (s[i][l] & mask) << (i * width);
        d[l] = whole;
    }
}

#define SELECTIONS(n, U)                                                                           \
    SG_PURE(selp_##n, d[l] = (U)(s[2][l] & 1 ? s[0][l] : s[1][l]))                                 \
    SG_PURE(slct_s_##n, d[l] = (U)((int32_t)s[2][l] >= 0 ? s[0][l] : s[1][l]))                     \
    /* c >= 0 as a number: -0 is, NaN is not; .ftz makes of a small c a zero */                    \
    SG_PURE(slct_f_##n, uint32_t c = (uint32_t)s[2][l];                                            \
            bool least = c <= 0x7f800000 || c == 0x80000000 ||                                     \
                         (in->ftz && c > 0x80000000 && c < 0x80800000);                            \
            d[l] = (U)(least ? s[0][l] : s[1][l]))
SELECTIONS(16, uint16_t)
SELECTIONS(32, uint32_t)
SELECTIONS(64, uint64_t)

/* Offsets into a window become generic addresses and back; global and constant
 * ones are the same number either way. */
static inline uint64_t window_of(const struct sg_insn *in)
{
    return in->space == SG_S_SHARED  ? SG_WINDOW_SHARED
           : in->space == SG_S_LOCAL ? SG_WINDOW_LOCAL
           : in->space == SG_S_PARAM ? SG_WINDOW_PARAM
                                     : 0;
}
SG_PURE(to_generic, d[l] = window_of(in) ? (s[0][l] & SG_OFFSET_MASK) | window_of(in) : s[0][l])
SG_PURE(from_generic, d[l] = window_of(in) ? s[0][l] & SG_OFFSET_MASK : s[0][l])
SG_PURE(is_in_window, d[l] = (s[0][l] & ~SG_OFFSET_MASK) == window_of(in))
SG_PURE(is_global, uint64_t w = s[0][l] & ~SG_OFFSET_MASK; d[l] = w == 0 || w == SG_WINDOW_HEAP)
/* Constants live among the globals, where nothing tells them apart. */
SG_PURE(is_constant, d[l] = 0)

static sg_pure select_window_test(unsigned space)
{
    switch (space) {
    case SG_S_GLOBAL:
        return is_global;
    case SG_S_SHARED:
    case SG_S_LOCAL:
    case SG_S_PARAM:
        return is_in_window;
    case SG_S_CONST:
        return is_constant;
    default:
        return NULL;
    }
}

#define PICK(name)                                                                                 \
    (bits == 16 ? name##_16 : bits == 32 ? name##_32 : bits == 64 ? name##_64 : (sg_pure)0)

static sg_pure select_move(unsigned t)
{
    unsigned bits = sg_bits(t);
    return bits == 1 ? move_pred : bits == 8 ? move_8 : PICK(move);
}

sg_pure sg_pure_select_move(const struct sg_insn *in)
{
    unsigned bits = sg_bits(in->type);
    switch (in->op) {
    case SG_P_MOV:
        return select_move(in->type);
    case SG_P_PACK:
        return in->sources >= 2 && in->sources <= 8 && bits >= 16 && bits % in->sources == 0 ? pack
                                                                                             : NULL;
    case SG_P_SELP:
        return PICK(selp);
    case SG_P_SLCT:
        return in->type2 == SG_T_S32 ? PICK(slct_s) : in->type2 == SG_T_F32 ? PICK(slct_f) : NULL;
    case SG_P_CVTA:
        if (bits != 64 || !select_window_test(in->space))
            return NULL;
        return in->mode ? from_generic : to_generic;
    case SG_P_ISSPACEP:
        return select_window_test(in->space);
    default:
        return NULL;
    }
}
