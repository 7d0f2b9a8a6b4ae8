/*
 * The comparison of a setp, as 0 and 1, of the types that programs compare most. What has no loop
 * here, and the second predicate and what a setp combines with, is exec_carry.c's.
 */
#include "exec_float.h"
#include "exec_pure.h"

/* name_##relation for each relation of C, of operands as T. */
#define RELATIONS(n, T, take)                                                                      \
    SG_PURE(eq_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = a == b)                       \
    SG_PURE(lt_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = a < b)                        \
    SG_PURE(le_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = a <= b)                       \
    SG_PURE(gt_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = a > b)                        \
    SG_PURE(ge_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = a >= b)                       \
    SG_PURE(neu_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = a != b)

/* The others, which differ where an operand is NaN. */
#define UNORDERED(n, T, take)                                                                      \
    SG_PURE(ne_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = (a < b) | (a > b))            \
    SG_PURE(equ_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = !((a < b) | (a > b)))        \
    SG_PURE(ltu_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = !(a >= b))                   \
    SG_PURE(leu_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = !(a > b))                    \
    SG_PURE(gtu_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = !(a <= b))                   \
    SG_PURE(geu_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = !(a < b))                    \
    SG_PURE(num_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = (a == a) & (b == b))         \
    SG_PURE(nan_##n, T a = take(s[0][l]); T b = take(s[1][l]); d[l] = (a != a) | (b != b))

RELATIONS(s16, int16_t, (int16_t))
RELATIONS(u16, uint16_t, (uint16_t))
RELATIONS(s32, int32_t, (int32_t))
RELATIONS(u32, uint32_t, (uint32_t))
RELATIONS(s64, int64_t, (int64_t))
RELATIONS(u64, uint64_t, (uint64_t))
RELATIONS(f32, float, sg_as_float)
RELATIONS(f64, double, sg_as_double)
UNORDERED(f32, float, sg_as_float)
UNORDERED(f64, double, sg_as_double)

#define ORDERED_TABLE(n)                                                                           \
    [SG_C_EQ] = eq_##n, [SG_C_LT] = lt_##n, [SG_C_LE] = le_##n, [SG_C_GT] = gt_##n,                \
    [SG_C_GE] = ge_##n
#define INTEGER_TABLE(n) {ORDERED_TABLE(n), [SG_C_NE] = neu_##n}
#define FLOAT_TABLE(n)                                                                             \
    {ORDERED_TABLE(n),     [SG_C_NE] = ne_##n,   [SG_C_EQU] = equ_##n, [SG_C_NEU] = neu_##n,       \
     [SG_C_LTU] = ltu_##n, [SG_C_LEU] = leu_##n, [SG_C_GTU] = gtu_##n, [SG_C_GEU] = geu_##n,       \
     [SG_C_NUM] = num_##n, [SG_C_NAN] = nan_##n}

sg_pure sg_pure_select_compare(const struct sg_insn *in)
{
    static const sg_pure table[][SG_C_NAN + 1] = {
        INTEGER_TABLE(s16), INTEGER_TABLE(u16), INTEGER_TABLE(s32), INTEGER_TABLE(u32),
        INTEGER_TABLE(s64), INTEGER_TABLE(u64), FLOAT_TABLE(f32),   FLOAT_TABLE(f64)};
    static const unsigned char rows[SG_T_COUNT] = {[SG_T_S16] = 1, [SG_T_U16] = 2, [SG_T_B16] = 2,
                                                   [SG_T_S32] = 3, [SG_T_U32] = 4, [SG_T_B32] = 4,
                                                   [SG_T_S64] = 5, [SG_T_U64] = 6, [SG_T_B64] = 6,
                                                   [SG_T_F32] = 7, [SG_T_F64] = 8};
    unsigned row = in->type < SG_T_COUNT ? rows[in->type] : 0;
    return row && in->compare <= SG_C_NAN && !in->ftz ? table[row - 1][in->compare] : NULL;
}
