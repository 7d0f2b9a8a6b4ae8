/* Floating-point instructions of the soft GPU: arithmetic, roots and approximations. */
#include "arith_reference.h"

static void check_against(const struct layout *f, uint8_t op, unsigned sources, unsigned spread,
                          unsigned mode_count)
{
    uint64_t seed = 42 + op;
    for (unsigned i = 0; i < 1500; i++) {
        uint64_t v[3];
        for (unsigned k = 0; k < 3; k++)
            v[k] = near_one(f, &seed, spread);
        quad a = signed_value(f, v[0]), b = signed_value(f, v[1]), c = signed_value(f, v[2]);
        quad exact = op == SG_P_ADD   ? a + b
                     : op == SG_P_SUB ? a - b
                     : op == SG_P_MUL ? a * b
                     : op == SG_P_DIV ? a / b
                     : op == SG_P_RCP ? 1 / a
                                      : a * b + c;
        if (exact == 0)
            continue;
        for (unsigned m = 0; m < mode_count; m++) {
            struct sg_insn in = INSN(.op = op, .type = (uint8_t)f->type, .rounding = modes[m]);
            check(run(in, sources, v[0], v[1], v[2]), rounded(f, exact, modes[m]),
                  "op %u type %u mode %u: %#llx %#llx %#llx", op, f->type, modes[m],
                  (unsigned long long)v[0], (unsigned long long)v[1], (unsigned long long)v[2]);
        }
    }
}

static void test_rounded(void **state)
{
    (void)state;
    static const struct {
        const struct layout *f;
        unsigned spread, modes;
    } table[] = {{&f16, 14, 1}, {&bf16, 24, 1}, {&f32, 18, 4}, {&f64, 2, 4}};
    for (size_t t = 0; t < COUNT(table); t++) {
        check_against(table[t].f, SG_P_ADD, 2, table[t].spread, table[t].modes);
        check_against(table[t].f, SG_P_SUB, 2, table[t].spread, table[t].modes);
        check_against(table[t].f, SG_P_MUL, 2, table[t].spread, table[t].modes);
        check_against(table[t].f, SG_P_FMA, 3, table[t].spread, table[t].modes);
    }
    check_against(&f32, SG_P_MAD, 3, 18, 4);
    check_against(&f32, SG_P_DIV, 2, 100, 4);
    check_against(&f64, SG_P_DIV, 2, 600, 4);
    check_against(&f32, SG_P_RCP, 1, 100, 4);
    check_against(&f64, SG_P_RCP, 1, 900, 4);
}

/* The floor of the root, by squaring it and the next number up. */
static void check_root(const struct layout *f)
{
    uint64_t seed = 7;
    for (unsigned i = 0; i < 1500; i++) {
        uint64_t v = near_one(f, &seed, 60) & (sign_of(f) - 1);
        struct sg_insn in = INSN(.op = SG_P_SQRT, .type = (uint8_t)f->type, .rounding = SG_R_DOWN);
        quad a = value(f, v);
        uint64_t r = RUN1(in, v);
        quad low = value(f, r), high = value(f, r + 1);
        assert_true(low * low <= a && a < high * high);
        bool exact = low * low == a;
        in.rounding = SG_R_UP;
        check(RUN1(in, v), r + !exact, "sqrt.rp");
        in.rounding = SG_R_ZERO;
        check(RUN1(in, v), r, "sqrt.rz");
        quad middle = (low + high) / 2; /* never a root itself */
        in.rounding = SG_R_NEAREST;
        check(RUN1(in, v), r + (middle * middle < a), "sqrt.rn");
    }
}

static void test_roots(void **state)
{
    (void)state;
    check_root(&f32);
    check_root(&f64);
}

#define F32(o, ...) INSN(.op = o, .type = SG_T_F32, __VA_ARGS__)

/* Of f64 the last NaN stays, made quiet; of a quotient the first. */
static void test_long_nans(void)
{
    const uint64_t a = UINT64_C(0xfff8000000000005), b = UINT64_C(0x7ff0000000000001);
    const uint64_t a_quiet = a, b_quiet = b | UINT64_C(1) << 51;
    static const uint8_t roundings[] = {SG_R_NEAREST, SG_R_ZERO, SG_R_DOWN, SG_R_UP};
    for (size_t i = 0; i < COUNT(roundings); i++) {
#define F64(o) INSN(.op = o, .type = SG_T_F64, .rounding = roundings[i])
        check(RUN2(F64(SG_P_ADD), a, b), b_quiet, "add.f64 of NaNs");
        check(RUN2(F64(SG_P_SUB), b, a), a_quiet, "sub.f64 of NaNs");
        check(RUN2(F64(SG_P_MUL), b, twice(2)), b_quiet, "mul.f64 of a NaN");
        check(RUN2(F64(SG_P_MUL), twice(2), a), a_quiet, "mul.f64 of a NaN");
        check(RUN2(F64(SG_P_DIV), a, b), a_quiet, "div.f64 of NaNs");
        check(RUN2(F64(SG_P_DIV), b, a), b_quiet, "div.f64 of NaNs");
        check(RUN3(F64(SG_P_FMA), a, b, twice(1)), b_quiet, "fma.f64 of NaNs");
        check(RUN3(F64(SG_P_FMA), a, twice(1), b), b_quiet, "fma.f64 of NaNs");
        check(RUN3(F64(SG_P_FMA), twice(1), b, a), a_quiet, "fma.f64 of NaNs");
#undef F64
    }
    check(RUN1(INSN(.op = SG_P_ABS, .type = SG_T_F64), a), a_quiet, "abs.f64 of NaN");
    check(RUN1(INSN(.op = SG_P_NEG, .type = SG_T_F64), a), a_quiet, "neg.f64 of NaN");
    check(RUN1(INSN(.op = SG_P_NEG, .type = SG_T_F64), b), b_quiet, "neg.f64 of NaN");
}

static void test_special_values(void **state)
{
    (void)state;
    const uint64_t inf = 0x7f800000, nan = 0x7fffffff;
    check(RUN2(F32(SG_P_ADD), inf, inf | 0x80000000), nan, "inf - inf");
    check(RUN2(F32(SG_P_MUL), inf, 0), nan, "inf * 0");
    check(RUN2(F32(SG_P_ADD), 0x7f800001, 0), nan, "a signalling NaN");
    check(RUN2(F32(SG_P_DIV), single(-1), 0), inf | 0x80000000, "-1 / 0");
    check(RUN1(F32(SG_P_SQRT), single(-1)), nan, "sqrt(-1)");
    check(RUN2(F32(SG_P_ADD), 0, 0x80000000), 0, "0 + -0");
    check(RUN2(F32(SG_P_ADD, .rounding = SG_R_DOWN), single(1), single(-1)), 0x80000000, "add.rm");
    check(RUN2(F32(SG_P_MUL), 0x7f7fffff, single(2)), inf, "overflow");
    check(RUN2(F32(SG_P_MUL, .rounding = SG_R_ZERO), 0x7f7fffff, single(2)), 0x7f7fffff, "mul.rz");
    check(RUN2(F32(SG_P_MUL), 0x00800000, single(0.5f)), 0x00400000, "a subnormal");
    check(RUN2(F32(SG_P_MUL, .ftz = true), 0x80800000, single(0.5f)), 0x80000000, "mul.ftz");
    check(RUN2(F32(SG_P_ADD, .ftz = true), 0x00400000, single(0)), 0, "add.ftz");
    check(RUN2(F32(SG_P_ADD, .sat = true), single(0.75f), single(0.75f)), single(1), "add.sat");
    check(RUN2(F32(SG_P_ADD, .sat = true), single(-0.75f), single(0.5f)), 0, "add.sat");
    check(RUN2(F32(SG_P_ADD, .sat = true), nan, 0), 0, "add.sat of NaN");
    check(RUN3(F32(SG_P_FMA), single(0x1.000002p0f), single(0x1.000002p0f), single(-0x1.000004p0f)),
          single(0x1p-46f), "fma keeps the product whole");
    struct sg_insn in = INSN(.op = SG_P_SUB, .type = SG_T_F64);
    check(RUN2(in, twice(INFINITY), twice(INFINITY)), f64.nan, "f64 NaN");
    in.rounding = SG_R_UP;
    check(RUN2(in, twice(INFINITY), twice(INFINITY)), f64.nan, "f64 NaN");
    test_long_nans();
    in = INSN(.op = SG_P_ADD, .type = SG_T_F16);
    check(RUN2(in, 0x7c00, 0xfc00), 0x7fff, "f16 NaN");
    check(RUN2(in, 0x7bff, 0x7bff), 0x7c00, "f16 overflow");
    check(RUN2(in, 0x0001, 0x0001), 0x0002, "f16 subnormals");
    in.ftz = true;
    check(RUN2(in, 0x0001, 0x3c00), 0x3c00, "add.ftz.f16");
    in = INSN(.op = SG_P_FMA, .type = SG_T_F16X2, .relu = true);
    check(RUN3(in, 0x3c00bc00, 0x40004000, 0x3c003c00), 0x42000000, "fma.relu.f16x2");
    in = INSN(.op = SG_P_FMA, .type = SG_T_BF16X2);
    check(RUN3(in, 0x3f80bf80, 0x40004000, 0x3f803f80), 0x4040bf80, "fma.bf16x2");
    /* 7 * 37 and 9 * 29 lie halfway; what a double would lose of c decides. */
    in = INSN(.op = SG_P_FMA, .type = SG_T_BF16);
    check(RUN3(in, 0x40e0, 0x4214, 0xa180), 0x4381, "fma.bf16 just below a tie");
    check(RUN3(in, 0x4110, 0x41e8, 0x2180), 0x4383, "fma.bf16 just above a tie");
    in = INSN(.op = SG_P_SUB, .type = SG_T_F16X2, .sat = true);
    check(RUN2(in, 0x3c004200, 0x40003c00), 0x00003c00, "sub.sat.f16x2");
}

static void test_extremes(void **state)
{
    (void)state;
    const uint64_t nan = 0x7fffffff;
    struct sg_insn in = F32(SG_P_MIN);
    check(RUN2(in, 0, 0x80000000), 0x80000000, "min of zeros");
    check(RUN2(in, single(2), single(-3)), single(-3), "min");
    check(RUN2(in, 0xffc00000, single(2)), single(2), "min of NaN");
    check(RUN2(in, 0xffc00000, 0x7fc00001), nan, "min of NaNs");
    in.mode = 1;
    check(RUN2(in, single(2), 0xffc00000), nan, "min.NaN");
    in.op = SG_P_MAX, in.mode = 0;
    check(RUN2(in, 0x80000000, 0), 0, "max of zeros");
    in.mode = 2;
    check(RUN2(in, single(-3), single(2)), single(-3), "max.xorsign.abs");
    check(RUN2(in, single(-3), single(-2)), single(3), "max.xorsign.abs");
    in.mode = 0, in.ftz = true;
    check(RUN2(in, 1, 0x80000000), 0, "max.ftz");
    check(RUN3(F32(SG_P_MAX), single(1), single(4), single(2)), single(4), "max of three");
    check(RUN2(INSN(.op = SG_P_MAX, .type = SG_T_F64), twice(-1), twice(-2)), twice(-1), "max.f64");
    check(RUN2(INSN(.op = SG_P_MIN, .type = SG_T_F16X2), 0x3c00fc00, 0x7e007c00), 0x3c00fc00,
          "min.f16x2");
    check(RUN2(INSN(.op = SG_P_MAX, .type = SG_T_BF16, .mode = 1), 0x3f80, 0x7fc0), 0x7fff,
          "max.NaN.bf16");
    check(RUN1(F32(SG_P_ABS), single(-2)), single(2), "abs");
    check(RUN1(F32(SG_P_NEG, .ftz = true), 1), 0x80000000, "neg.ftz");
    check(RUN1(INSN(.op = SG_P_NEG, .type = SG_T_F64), twice(2)), twice(-2), "neg.f64");
    check(RUN1(INSN(.op = SG_P_ABS, .type = SG_T_BF16X2), 0xbf80bf80), 0x3f803f80, "abs.bf16x2");
    check(RUN1(INSN(.op = SG_P_NEG, .type = SG_T_F16), 0x3c00), 0xbc00, "neg.f16");
    check(RUN2(F32(SG_P_COPYSIGN), single(-0.f), single(2)), single(-2), "copysign");
    check(RUN2(INSN(.op = SG_P_COPYSIGN, .type = SG_T_F64), twice(1), twice(-2)), twice(2),
          "copysign.f64");
}

static void test_properties(void **state)
{
    (void)state;
    static const struct {
        uint32_t v;
        uint8_t answers; /* bit m: testp of mode m */
    } table[] = {
        {0, 0x15},          {0x80000000, 0x15}, {1, 0x25},          {0x807fffff, 0x25},
        {0x00800000, 0x15}, {0x7f7fffff, 0x15}, {0x7f800000, 0x06}, {0xff800000, 0x06},
        {0x7f800001, 0x08}, {0xffffffff, 0x08},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        for (uint8_t m = 0; m < 6; m++)
            check(RUN1(F32(SG_P_TESTP, .mode = m), table[i].v), table[i].answers >> m & 1,
                  "testp %u of %#x", m, table[i].v);
    check(RUN1(INSN(.op = SG_P_TESTP, .type = SG_T_F64, .mode = 5), 1), 1, "testp.f64");

    const uint64_t nan = 0x7fc00000;
    static const uint8_t with_nan[] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1};
    static const uint8_t less[] = {0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0};
    static const uint8_t equal[] = {1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0};
    for (uint8_t c = 0; c <= SG_C_NAN; c++) {
        struct sg_insn in = INSN(.op = SG_P_SET, .type = SG_T_U32, .type2 = SG_T_F32, .compare = c);
        check(RUN2(in, nan, 0), with_nan[c] * 0xffffffffu, "set %u of NaN", c);
        check(RUN2(in, single(-2), single(-1)), less[c] * 0xffffffffu, "set %u", c);
        check(RUN2(in, 0, 0x80000000), equal[c] * 0xffffffffu, "set %u of zeros", c);
        in.type2 = SG_T_F64, in.type = SG_T_F32;
        check(RUN2(in, twice(-1e300), twice(1)), less[c] * 0x3f800000u, "set %u f64", c);
    }
    struct sg_insn in = INSN(.op = SG_P_SET, .type = SG_T_F16X2, .type2 = SG_T_F16X2,
                             .compare = SG_C_LT);
    check(RUN2(in, 0x3c004000, 0x40003c00), 0x3c000000, "set.f16x2");
}

/* Within the relative error of the true value. */
static void close_to(uint64_t got, double want, double relative)
{
    float f;
    uint32_t bits = (uint32_t)got;
    memcpy(&f, &bits, sizeof f);
    if (!(fabs((double)f - want) <= relative * fabs(want)))
        fail_msg("%.9g instead of %.9g", (double)f, want);
}

static void test_approximate(void **state)
{
    (void)state;
    const uint64_t inf = 0x7f800000, minus = 0x80000000, nan = 0x7fffffff;
    static const uint8_t ops[] = {SG_P_RCP, SG_P_SQRT, SG_P_RSQRT, SG_P_SIN,
                                  SG_P_COS, SG_P_LG2,  SG_P_EX2,   SG_P_TANH};
    static const struct {
        float a;
        double want[8];
    } table[] = {
        {2.0f,
         {0.5, 1.41421356237309505, 0.70710678118654752, 0.90929742682568170, -0.41614683654714239,
          1, 4, 0.96402758007581688}},
        {0.25f,
         {4, 0.5, 2, 0.24740395925452293, 0.96891242171064478, -2, 1.18920711500272107,
          0.24491866240370913}},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        for (size_t o = 0; o < COUNT(ops); o++)
            close_to(RUN1(F32(ops[o], .mode = SG_V_APPROX), single(table[i].a)), table[i].want[o],
                     0x1p-23);
#define APPROX(o) F32(o, .mode = SG_V_APPROX)
    check(RUN1(APPROX(SG_P_RCP), minus), inf | minus, "rcp of -0");
    check(RUN1(APPROX(SG_P_RSQRT), 0), inf, "rsqrt of 0");
    check(RUN1(APPROX(SG_P_RSQRT), minus), inf | minus, "rsqrt of -0");
    check(RUN1(APPROX(SG_P_RSQRT), single(-1)), nan, "rsqrt of -1");
    check(RUN1(APPROX(SG_P_LG2), 0), inf | minus, "lg2 of 0");
    check(RUN1(APPROX(SG_P_LG2), single(-1)), nan, "lg2 of -1");
    check(RUN1(APPROX(SG_P_EX2), inf | minus), 0, "ex2 of -inf");
    check(RUN1(APPROX(SG_P_SIN), inf), nan, "sin of inf");
    check(RUN1(APPROX(SG_P_COS), inf), nan, "cos of inf");
    check(RUN1(APPROX(SG_P_TANH), inf | minus), single(-1), "tanh of -inf");
    check(RUN1(APPROX(SG_P_SQRT), minus), minus, "sqrt of -0");
    check(RUN1(F32(SG_P_RCP, .mode = SG_V_APPROX, .ftz = true), single(0x1p127f)), 0, "rcp.ftz");
    check(RUN2(APPROX(SG_P_DIV), single(6), single(3)), single(2), "div.approx");
    check(RUN2(APPROX(SG_P_DIV), single(6), single(0x1.8p126f)), 0, "div.approx of a large one");
    check(RUN2(APPROX(SG_P_DIV), inf, single(0x1.8p126f)), nan, "div.approx of inf");
    check(RUN2(F32(SG_P_DIV, .mode = SG_V_FULL), single(0x1p127f), single(0x1p127f)), single(1),
          "div.full");
    struct sg_insn in = INSN(.op = SG_P_RCP, .type = SG_T_F64, .mode = SG_V_APPROX, .ftz = true);
    check(RUN1(in, twice(4) | 0xffff), twice(0.25), "rcp.approx.ftz.f64");
    in.op = SG_P_RSQRT;
    check(RUN1(in, twice(16)), twice(0.25), "rsqrt.approx.ftz.f64");
    check(RUN1(in, 1), twice(INFINITY), "rsqrt.approx.ftz.f64 of a subnormal");
    in.ftz = false;
    check(RUN1(in, 1), twice(0x1p537), "rsqrt.approx.f64 of a subnormal");
    check(RUN1(in, twice(INFINITY) | 5), UINT64_C(0x7ff8000000000005), "rsqrt.f64 of NaN");
    check(RUN1(in, twice(-1)), f64.nan, "rsqrt.approx.f64 of -1");
    check(RUN1(in, twice(-0.0)), twice(-INFINITY), "rsqrt.approx.f64 of -0");
    in = INSN(.op = SG_P_EX2, .type = SG_T_F16X2, .mode = SG_V_APPROX);
    check(RUN1(in, 0x3c004000), 0x40004400, "ex2.f16x2");
    in.op = SG_P_TANH, in.type = SG_T_BF16;
    check(RUN1(in, 0x7f80), 0x3f80, "tanh.bf16");
}

static void test_refused(void **state)
{
    (void)state;
    const struct sg_insn none[] = {
        {.op = SG_P_ADD, .type = SG_T_F64, .ftz = true},
        {.op = SG_P_ADD, .type = SG_T_F64, .sat = true},
        {.op = SG_P_ADD, .type = SG_T_F16, .sources = 2, .rounding = SG_R_ZERO},
        {.op = SG_P_ADD, .type = SG_T_BF16, .sources = 2, .sat = true},
        {.op = SG_P_ADD, .type = SG_T_F16, .type2 = SG_T_F32, .sources = 2},
        {.op = SG_P_DIV, .type = SG_T_F16, .sources = 2},
        {.op = SG_P_DIV, .type = SG_T_F64, .mode = SG_V_APPROX},
        {.op = SG_P_REM, .type = SG_T_F32},
        {.op = SG_P_SIN, .type = SG_T_F64, .mode = SG_V_APPROX},
        {.op = SG_P_RCP, .type = SG_T_F64, .mode = SG_V_APPROX},
        {.op = SG_P_SQRT, .type = SG_T_F16},
        {.op = SG_P_EX2, .type = SG_T_S32, .mode = SG_V_APPROX},
        {.op = SG_P_TESTP, .type = SG_T_F32, .mode = 6},
        {.op = SG_P_TESTP, .type = SG_T_F16},
        {.op = SG_P_CVT, .type = SG_T_F32, .type2 = SG_T_B32, .sources = 1},
        {.op = SG_P_CVT, .type = SG_T_PRED, .type2 = SG_T_U32, .sources = 1},
        {.op = SG_P_CVT, .type = SG_T_S32, .type2 = SG_T_F32, .sources = 1, .relu = true},
        {.op = SG_P_CVT, .type = SG_T_TF32, .type2 = SG_T_F64, .sources = 1},
        {.op = SG_P_CVT, .type = SG_T_F16, .type2 = SG_T_F32, .sources = 1, .rounding = SG_R_AWAY},
        {.op = SG_P_CVT_PACK, .type = SG_T_F16X2, .type2 = SG_T_F64, .sources = 2},
        {.op = SG_P_CVT_PACK, .type = SG_T_U8, .type2 = SG_T_S32, .sources = 2},
        {.op = SG_P_SET, .type = SG_T_F64, .type2 = SG_T_F32, .sources = 2},
    };
    for (size_t i = 0; i < COUNT(none); i++)
        if (sg_pure_select(&none[i]))
            fail_msg("row %zu: a handler for op %u of type %u", i, none[i].op, none[i].type);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounded),        cmocka_unit_test(test_roots),
        cmocka_unit_test(test_special_values), cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_properties),     cmocka_unit_test(test_approximate),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
