/* Conversions of the soft GPU: between floating-point formats, and to and from integers. */
#include "arith_reference.h"

static void check_conversion(const struct layout *from, const struct layout *to, unsigned spread)
{
    uint64_t seed = 99;
    for (unsigned i = 0; i < 3000; i++) {
        uint64_t v = near_one(from, &seed, spread);
        for (unsigned m = 0; m < COUNT(modes); m++) {
            struct sg_insn in = INSN(.op = SG_P_CVT, .type = (uint8_t)to->type,
                                     .type2 = (uint8_t)from->type, .rounding = modes[m]);
            check(RUN1(in, v), rounded(to, signed_value(from, v), modes[m]),
                  "cvt type %u of %u mode %u: %#llx", to->type, from->type, modes[m],
                  (unsigned long long)v);
        }
    }
}

static void test_between_floats(void **state)
{
    (void)state;
    check_conversion(&f32, &f16, 26); /* past both ends of f16 */
    check_conversion(&f32, &bf16, 126);
    check_conversion(&f64, &f16, 26);
    check_conversion(&f64, &bf16, 140);
    check_conversion(&f64, &f32, 152);
    check_conversion(&f16, &f32, 14);
    check_conversion(&f16, &f64, 14);
    check_conversion(&bf16, &f32, 126);
    check_conversion(&bf16, &f16, 26);
    check_conversion(&f32, &f64, 126);
}

static void test_to_tf32(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (unsigned i = 0; i < 3000; i++) {
        uint64_t v = near_one(&f32, &seed, 126);
        struct sg_insn in = INSN(.op = SG_P_CVT, .type = SG_T_TF32, .type2 = SG_T_F32,
                                 .rounding = SG_R_AWAY);
        check(RUN1(in, v), rounded(&tf32, signed_value(&f32, v), SG_R_AWAY) << 13, "cvt.rna.tf32");
        in.rounding = SG_R_NEAREST;
        check(RUN1(in, v), rounded(&tf32, signed_value(&f32, v), SG_R_NEAREST) << 13,
              "cvt.rn.tf32");
    }
}

static void test_every_half(void **state)
{
    (void)state;
    for (uint64_t v = 0; v < 0x7c00; v++) { /* every f16 there is, subnormals too */
        struct sg_insn in = INSN(.op = SG_P_CVT, .type = SG_T_F32, .type2 = SG_T_F16);
        uint64_t wide = RUN1(in, v);
        assert_true(value(&f32, wide) == value(&f16, v));
        in.type = SG_T_F16, in.type2 = SG_T_F32;
        check(RUN1(in, wide), v, "cvt.f16.f32");
    }
}

#define CVT(to, from, ...) INSN(.op = SG_P_CVT, .type = to, .type2 = from, __VA_ARGS__)

static void test_special_conversions(void **state)
{
    (void)state;
    check(RUN1(CVT(SG_T_F16, SG_T_F32), 0x7f800001), 0x7fff, "NaN");
    check(RUN1(CVT(SG_T_F32, SG_T_F64), f64.nan), 0xffc00000, "NaN");
    check(RUN1(CVT(SG_T_F32, SG_T_F64, .rounding = SG_R_UP), twice(INFINITY) | 1), 0x7fc00000,
          "NaN");
    check(RUN1(CVT(SG_T_F16, SG_T_F64), f64.nan), 0xfe00, "NaN");
    check(RUN1(CVT(SG_T_BF16, SG_T_F64), twice(INFINITY) | 1), 0x7fc0, "NaN");
    check(RUN1(CVT(SG_T_F64, SG_T_F16), 0xfc01), UINT64_C(0xfff8040000000000), "NaN");
    check(RUN1(CVT(SG_T_F64, SG_T_F32), 0xff800001), UINT64_C(0xfff8000020000000), "NaN");
    check(RUN1(CVT(SG_T_F64, SG_T_F32, .ftz = true), 0xff800001), UINT64_C(0x7fffffffe0000000),
          "NaN");
    check(RUN1(CVT(SG_T_F64, SG_T_F64, .mode = 1), twice(-INFINITY) | 1),
          UINT64_C(0xfff8000000000001), "NaN");
    check(RUN1(CVT(SG_T_F32, SG_T_F64, .sat = true), f64.nan), 0, "NaN");
    check(RUN1(CVT(SG_T_TF32, SG_T_F32), 0xff800001), 0x7fffe000, "NaN");
    check(RUN1(CVT(SG_T_F16, SG_T_F32, .rounding = SG_R_DOWN, .ftz = true), 0x80000001), 0x8001,
          "cvt.rm.ftz.f16.f32");
    check(RUN1(CVT(SG_T_F32, SG_T_F16), 0x7e00), 0x7fffffff, "NaN");
    check(RUN1(CVT(SG_T_F32, SG_T_F16), 0xfc00), 0xff800000, "-inf");
    check(RUN1(CVT(SG_T_F32, SG_T_BF16), 0xff80), 0xff800000, "-inf");
    check(RUN1(CVT(SG_T_F32, SG_T_F32, .sat = true), single(1.5f)), single(1), "cvt.sat");
    check(RUN1(CVT(SG_T_F32, SG_T_F64, .ftz = true), twice(0x1p-130)), 0, "cvt.ftz");
    check(RUN1(CVT(SG_T_F16, SG_T_F32, .relu = true), single(-3)), 0, "cvt.relu");
}

static void test_to_integral(void **state)
{
    (void)state;
    static const float integral[4][4] = {
        {2, -2, 4, -1}, {2, -2, 3, -0.f}, {2, -3, 3, -1}, {3, -2, 4, -0.f}};
    static const float given[4] = {2.5f, -2.5f, 3.5f, -0.75f};
    for (unsigned m = 0; m < 4; m++)
        for (unsigned i = 0; i < 4; i++)
            check(RUN1(CVT(SG_T_F32, SG_T_F32, .mode = 1, .rounding = modes[m]), single(given[i])),
                  single(integral[m][i]), "cvt.r%ui.f32.f32 %f", m, (double)given[i]);
}

static void test_from_integers(void **state)
{
    (void)state;
    static const int64_t edges[] = {1,
                                    3,
                                    127,
                                    128,
                                    255,
                                    256,
                                    2049,
                                    2051,
                                    32767,
                                    32768,
                                    65503,
                                    65504,
                                    65519,
                                    65520,
                                    65535,
                                    16777217,
                                    16777219,
                                    2147483647,
                                    4294967295,
                                    9007199254740993,
                                    9223372036854775807};
    static const struct layout *const floats[] = {&f16, &bf16, &f32, &f64};
    for (size_t i = 0; i < COUNT(edges); i++)
        for (unsigned f = 0; f < 4; f++)
            for (unsigned m = 0; m < 4; m++) {
                struct sg_insn in = CVT((uint8_t)floats[f]->type, SG_T_S64, .rounding = modes[m]);
                check(RUN1(in, (uint64_t)edges[i]), rounded(floats[f], (quad)edges[i], modes[m]),
                      "cvt.s64");
                check(RUN1(in, (uint64_t)-edges[i]), rounded(floats[f], -(quad)edges[i], modes[m]),
                      "cvt.s64");
                in.type2 = SG_T_U64;
                uint64_t large = (uint64_t)edges[i] << 1 | 1;
                check(RUN1(in, large), rounded(floats[f], (quad)large, modes[m]), "cvt.u64");
                in.type2 = SG_T_S32;
                quad cut = (quad)(int32_t)edges[i];
                check(RUN1(in, (uint64_t)edges[i]), rounded(floats[f], cut, modes[m]), "cvt.s32");
                in.type2 = SG_T_U8;
                if ((uint8_t)edges[i])
                    check(RUN1(in, (uint64_t)edges[i]),
                          rounded(floats[f], (quad)(uint8_t)edges[i], modes[m]), "cvt.u8");
            }
    check(RUN1(CVT(SG_T_F32, SG_T_S32), 0), 0, "cvt of 0");
    check(RUN1(CVT(SG_T_F32, SG_T_S32, .sat = true), 7), single(1), "cvt.sat.f32.s32");
}

static void test_to_integers(void **state)
{
    (void)state;
#define TO(to, from, m) CVT(to, from, .mode = 1, .rounding = m)
    check(RUN1(TO(SG_T_S32, SG_T_F32, SG_R_ZERO), single(-2.9f)), (uint32_t)-2, "rzi");
    check(RUN1(TO(SG_T_S32, SG_T_F32, SG_R_NEAREST), single(2.5f)), 2, "rni");
    check(RUN1(TO(SG_T_S32, SG_T_F32, SG_R_DOWN), single(-2.1f)), (uint32_t)-3, "rmi");
    check(RUN1(TO(SG_T_U32, SG_T_F32, SG_R_UP), single(2.1f)), 3, "rpi");
    check(RUN1(TO(SG_T_U32, SG_T_F32, SG_R_ZERO), single(-5)), 0, "below u32");
    check(RUN1(TO(SG_T_U32, SG_T_F32, SG_R_ZERO), single(0x1p32f)), 0xffffffff, "above u32");
    check(RUN1(TO(SG_T_S32, SG_T_F32, SG_R_ZERO), single(0x1p31f)), 0x7fffffff, "above s32");
    check(RUN1(TO(SG_T_S32, SG_T_F64, SG_R_ZERO), twice(-0x1p31)), 0x80000000, "least s32");
    check(RUN1(TO(SG_T_S64, SG_T_F64, SG_R_ZERO), twice(INFINITY)), INT64_MAX, "above s64");
    check(RUN1(TO(SG_T_S64, SG_T_F64, SG_R_ZERO), twice(-1e30)), (uint64_t)INT64_MIN, "below s64");
    check(RUN1(TO(SG_T_U64, SG_T_F64, SG_R_ZERO), twice(0x1.8p63)), 0xc000000000000000, "u64");
    check(RUN1(TO(SG_T_S32, SG_T_F32, SG_R_ZERO), 0x7fffffff), 0, "NaN");
    check(RUN1(TO(SG_T_U8, SG_T_F32, SG_R_ZERO), single(300)), 255, "above u8");
    check(RUN1(TO(SG_T_S16, SG_T_F16, SG_R_NEAREST), 0xc500), 0xfffb, "s16 of f16");
}

static void test_between_integers(void **state)
{
    (void)state;
    check(RUN1(CVT(SG_T_U32, SG_T_S8), 0x180), 0xffffff80, "u32 of s8");
    check(RUN1(CVT(SG_T_S64, SG_T_S32), 0x80000000), 0xffffffff80000000, "s64 of s32");
    check(RUN1(CVT(SG_T_U64, SG_T_U32), 0xffffffff80000000), 0x80000000, "u64 of u32");
    check(RUN1(CVT(SG_T_U8, SG_T_S32, .sat = true), (uint32_t)-3), 0, "u8.sat");
    check(RUN1(CVT(SG_T_S8, SG_T_S32, .sat = true), 200), 127, "s8.sat");
    check(RUN1(CVT(SG_T_S8, SG_T_S32, .sat = true), (uint32_t)-200), 0x80, "s8.sat");
    check(RUN1(CVT(SG_T_S32, SG_T_U64, .sat = true), UINT64_MAX), INT32_MAX, "s32.sat.u64");
    struct sg_operand wide = {.kind = SG_O_REGISTER, .width = 4};
    check(RUN1(CVT(SG_T_S8, SG_T_S32, .x = &wide), 0x80), 0xffffff80, "s8 in a wider register");
}

static void test_packs(void **state)
{
    (void)state;
#define PACK(to, from, ...) INSN(.op = SG_P_CVT_PACK, .type = to, .type2 = from, __VA_ARGS__)
    check(RUN2(PACK(SG_T_F16X2, SG_T_F32), single(1), single(2)), 0x3c004000, "cvt.f16x2");
    check(RUN2(PACK(SG_T_BF16X2, SG_T_F32, .relu = true), single(1), single(-2)), 0x3f800000,
          "cvt.relu.bf16x2");
    check(RUN2(PACK(SG_T_F16X2, SG_T_F32, .rounding = SG_R_ZERO), single(1e9f), single(2)),
          0x7bff4000, "cvt.rz.f16x2");
    check(RUN2(PACK(SG_T_E4M3X2, SG_T_F32, .sat = true), single(1000), single(-1.0625f)), 0x7eb8,
          "cvt.e4m3x2");
    check(RUN2(PACK(SG_T_E4M3X2, SG_T_F32, .sat = true), 0x7fc00000, single(448)), 0x7f7e,
          "cvt.e4m3x2 of NaN");
    check(RUN2(PACK(SG_T_E5M2X2, SG_T_F32, .sat = true), single(-1e9f), single(1.25f)), 0xfb3d,
          "cvt.e5m2x2");
    check(RUN1(CVT(SG_T_F16X2, SG_T_E4M3X2), 0x7eb8), 0x5f00bc00, "cvt.f16x2.e4m3x2");
    check(RUN1(CVT(SG_T_F16X2, SG_T_E5M2X2), 0x7cfb), 0x7c00fb00, "cvt.f16x2.e5m2x2");
    check(RUN1(CVT(SG_T_E5M2X2, SG_T_F16X2, .sat = true), 0x7c003d00), 0x7b3d, "cvt.e5m2x2.f16x2");
    check(RUN2(PACK(SG_T_S16, SG_T_S32), 40000, (uint32_t)-2), 0x7ffffffe, "cvt.pack.s16");
    check(RUN3(CVT(SG_T_S8, SG_T_S32), 300, (uint32_t)-2, 1), 0x17ffe, "cvt.pack.s8");
    check(RUN3(PACK(SG_T_U8, SG_T_S32), 300, (uint32_t)-2, 0xabcd1234), 0x1234ff00, "cvt.pack.u8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_floats), cmocka_unit_test(test_to_tf32),
        cmocka_unit_test(test_every_half),     cmocka_unit_test(test_special_conversions),
        cmocka_unit_test(test_to_integral),    cmocka_unit_test(test_from_integers),
        cmocka_unit_test(test_to_integers),    cmocka_unit_test(test_between_integers),
        cmocka_unit_test(test_packs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
