/*
 * What the handlers of pure instructions share. A handler sees all 32 lanes,
 * sources in the low bits of 64-bit slots (what is above is not to be relied
 * on), and leaves its result zero-extended. No handler traps or faults.
 */
#ifndef SG_EXEC_PURE_H
#define SG_EXEC_PURE_H

#include "exec_level.h"

#include <stdint.h>

/* No lane reads what another one writes: the compiler may do many at once. */
#ifdef __clang__
#define SG_LANEWISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define SG_LANEWISE _Pragma("GCC ivdep")
#endif

/* A handler whose body writes d[l] from s[…][l]; `in` is at hand. All that it reads of a lane it
 * reads before it writes d[l]: the destination may be a source as well. What does not change from
 * lane to lane is copied first, because a write to d might change it for all the compiler knows. */
#define SG_PURE(name, ...)                                                                         \
    static void name(const struct sg_insn *given, const uint64_t *const *lanes, uint64_t *d)       \
    {                                                                                              \
        const struct sg_insn own = *given, *const in = &own;                                       \
        const uint64_t *const s[SG_SOURCES] = {lanes[0], lanes[1], lanes[2], lanes[3]};            \
        (void)in, (void)s;                                                                         \
        SG_LANEWISE                                                                                \
        for (unsigned l = 0; l < SG_LANES; l++) {                                                  \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    }

#define sg_pure_select_integer SG_LEVELLED(sg_pure_select_integer)
#define sg_pure_select_bits SG_LEVELLED(sg_pure_select_bits)
#define sg_pure_select_move SG_LEVELLED(sg_pure_select_move)
#define sg_pure_select_set SG_LEVELLED(sg_pure_select_set)
#define sg_pure_select_compare SG_LEVELLED(sg_pure_select_compare)
#define sg_pure_select_single SG_LEVELLED(sg_pure_select_single)
#define sg_pure_select_double SG_LEVELLED(sg_pure_select_double)
#define sg_pure_select_half SG_LEVELLED(sg_pure_select_half)
#define sg_pure_select_approx SG_LEVELLED(sg_pure_select_approx)
#define sg_pure_select_convert SG_LEVELLED(sg_pure_select_convert)
#define sg_pure_select_any SG_LEVELLED(sg_pure_select_any)

/* One table entry per family; each answers NULL for what PTX does not have. */
sg_pure sg_pure_select_integer(const struct sg_insn *in);
sg_pure sg_pure_select_bits(const struct sg_insn *in);
sg_pure sg_pure_select_move(const struct sg_insn *in);
sg_pure sg_pure_select_set(const struct sg_insn *in);
sg_pure sg_pure_select_single(const struct sg_insn *in); /* f32 */
sg_pure sg_pure_select_double(const struct sg_insn *in); /* f64 */
sg_pure sg_pure_select_half(const struct sg_insn *in);   /* f16, bf16 and their pairs */
sg_pure sg_pure_select_approx(const struct sg_insn *in);
sg_pure sg_pure_select_convert(const struct sg_insn *in);
sg_pure sg_pure_select_compare(const struct sg_insn *in); /* setp of one predicate */
/* Of all of them. */
sg_pure sg_pure_select_any(const struct sg_insn *in);

/* Bit (a, b, c) of the table, for each bit: a sum of the minterms it has. */
static inline uint32_t sg_logic3(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t result = 0;
    for (unsigned i = 0; i < 8; i++) {
        uint32_t wanted = 0 - (table >> i & 1);
        result |= wanted & (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return result;
}

static inline uint64_t sg_mask_bits(unsigned bits)
{
    return bits >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << bits) - 1;
}

/* Bits of one register of the type; pairs count as 32, predicates as 1. */
static inline unsigned sg_bits(unsigned type)
{
    switch (type) {
    case SG_T_PRED:
        return 1;
    case SG_T_U8:
    case SG_T_S8:
    case SG_T_B8:
        return 8;
    case SG_T_U16:
    case SG_T_S16:
    case SG_T_B16:
    case SG_T_F16:
    case SG_T_BF16:
    case SG_T_E4M3X2:
    case SG_T_E5M2X2:
        return 16;
    case SG_T_U32:
    case SG_T_S32:
    case SG_T_B32:
    case SG_T_F32:
    case SG_T_F16X2:
    case SG_T_BF16X2:
    case SG_T_U16X2:
    case SG_T_S16X2:
    case SG_T_TF32:
        return 32;
    case SG_T_U64:
    case SG_T_S64:
    case SG_T_B64:
    case SG_T_F64:
        return 64;
    default:
        return 0;
    }
}

static inline bool sg_is_signed(unsigned type)
{
    return type == SG_T_S8 || type == SG_T_S16 || type == SG_T_S32 || type == SG_T_S64;
}

static inline bool sg_is_integer(unsigned type)
{
    return type == SG_T_U8 || type == SG_T_U16 || type == SG_T_U32 || type == SG_T_U64 ||
           sg_is_signed(type);
}

static inline bool sg_is_bits(unsigned type)
{
    return type == SG_T_B8 || type == SG_T_B16 || type == SG_T_B32 || type == SG_T_B64;
}

/* The value of the type's low bits, sign-extended when it is signed. */
static inline int64_t sg_extend(uint64_t v, unsigned bits)
{
    return bits >= 64 ? (int64_t)v : (int64_t)(v << (64 - bits)) >> (64 - bits);
}

#endif
