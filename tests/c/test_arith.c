/* Integer instructions of the soft GPU against formulas in 128 bits and bit by bit. */
#include "arith_check.h"

__extension__ typedef __int128 big;
__extension__ typedef unsigned __int128 ubig;

static const uint64_t edges[] = {
    0,
    1,
    2,
    3,
    5,
    7,
    31,
    32,
    33,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0x8001,
    0xffff,
    0x10000,
    0x12345678,
    0x7fffffff,
    0x80000000,
    0x80000001,
    0xfffffffe,
    0xffffffff,
    0x100000000,
    0xdeadbeefcafebabe,
    0x7fffffffffffffff,
    0x8000000000000000,
    0x8000000000000001,
    0xfffffffffffffffe,
    0xffffffffffffffff,
};

static const struct kind {
    unsigned type, bits;
    bool is_signed;
} kinds[] = {
    {SG_T_U16, 16, false}, {SG_T_S16, 16, true},  {SG_T_U32, 32, false},
    {SG_T_S32, 32, true},  {SG_T_U64, 64, false}, {SG_T_S64, 64, true},
};

static uint64_t cut(big v, unsigned bits)
{
    return (uint64_t)((ubig)v & (((ubig)1 << bits) - 1));
}

static big number(uint64_t v, unsigned bits, bool is_signed)
{
    big n = (big)cut((big)v, bits);
    return is_signed && (n >> (bits - 1) & 1) ? n - ((big)1 << bits) : n;
}

/* a * b of 64-bit operands and the upper half of it, without leaving 128 bits. */
static uint64_t reference(unsigned op, unsigned mode, const struct kind *k, big a, big b, big c)
{
    switch (op) {
    case SG_P_ADD:
        return cut(a + b, k->bits);
    case SG_P_SUB:
        return cut(a - b, k->bits);
    case SG_P_MUL:
    case SG_P_MAD: {
        ubig p = (ubig)a * (ubig)b;
        uint64_t part = mode == SG_H_HI ? cut((big)(p >> k->bits), k->bits) : cut((big)p, k->bits);
        return op == SG_P_MUL ? part : cut((big)part + c, k->bits);
    }
    case SG_P_DIV:
        return cut(b != 0 ? a / b : -1, k->bits); /* by zero: as the card has it */
    case SG_P_REM:
        return cut(b != 0 ? a % b : -1, k->bits);
    case SG_P_MIN:
        return cut(a < b ? a : b, k->bits);
    case SG_P_MAX:
        return cut(a < b ? b : a, k->bits);
    case SG_P_SAD:
        return cut(c + (a < b ? b - a : a - b), k->bits);
    case SG_P_ABS:
        return cut(a < 0 ? -a : a, k->bits);
    default:
        return cut(-a, k->bits);
    }
}

static void test_arithmetic(void **state)
{
    (void)state;
    static const struct {
        uint8_t op, mode, sources;
        bool signed_only;
    } ops[] = {
        {SG_P_ADD, 0, 2},       {SG_P_SUB, 0, 2},       {SG_P_MUL, SG_H_LO, 2},
        {SG_P_MUL, SG_H_HI, 2}, {SG_P_MAD, SG_H_LO, 3}, {SG_P_MAD, SG_H_HI, 3},
        {SG_P_DIV, 0, 2},       {SG_P_REM, 0, 2},       {SG_P_MIN, 0, 2},
        {SG_P_MAX, 0, 2},       {SG_P_SAD, 0, 3},       {SG_P_ABS, 0, 1, true},
        {SG_P_NEG, 0, 1, true},
    };
    for (size_t o = 0; o < COUNT(ops); o++)
        for (size_t t = 0; t < COUNT(kinds); t++) {
            const struct kind *k = &kinds[t];
            struct sg_insn in = INSN(.op = ops[o].op, .mode = ops[o].mode,
                                     .type = (uint8_t)k->type);
            if (ops[o].signed_only && !k->is_signed) {
                assert_null(sg_pure_select(&in));
                continue;
            }
            for (size_t i = 0; i < COUNT(edges) * COUNT(edges); i++) {
                uint64_t x = edges[i / COUNT(edges)];
                uint64_t y = edges[i % COUNT(edges)];
                uint64_t z = edges[(i * 7 + 3) % COUNT(edges)];
                check(run(in, ops[o].sources, x, y, z),
                      reference(in.op, in.mode, k, number(x, k->bits, k->is_signed),
                                number(y, k->bits, k->is_signed), number(z, k->bits, k->is_signed)),
                      "op %u type %u: %#llx, %#llx", in.op, in.type, (unsigned long long)x,
                      (unsigned long long)y);
            }
        }
}

static void test_wide_and_24(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(edges) * COUNT(edges); i++) {
        uint64_t x = edges[i / COUNT(edges)];
        uint64_t y = edges[i % COUNT(edges)];
        uint64_t z = edges[(i * 5 + 1) % COUNT(edges)];
        for (size_t t = 0; t < 4; t++) {
            const struct kind *k = &kinds[t];
            struct sg_insn in = INSN(.op = SG_P_MUL, .mode = SG_H_WIDE, .type = (uint8_t)k->type);
            big p = number(x, k->bits, k->is_signed) * number(y, k->bits, k->is_signed);
            check(RUN2(in, x, y), cut(p, 2 * k->bits), "mul.wide");
            in.op = SG_P_MAD;
            check(RUN3(in, x, y, z), cut(p + (big)z, 2 * k->bits), "mad.wide");
        }
        for (size_t t = 2; t < 4; t++) {
            struct sg_insn in = INSN(.op = SG_P_MUL24, .type = (uint8_t)kinds[t].type);
            big p = number(x, 24, kinds[t].is_signed) * number(y, 24, kinds[t].is_signed);
            check(RUN2(in, x, y), cut(p, 32), "mul24.lo");
            in.mode = SG_H_HI;
            check(RUN2(in, x, y), cut(p >> 16, 32), "mul24.hi");
            in.op = SG_P_MAD24;
            check(RUN3(in, x, y, z), cut((p >> 16) + (big)z, 32), "mad24.hi");
            in.mode = SG_H_LO;
            check(RUN3(in, x, y, z), cut(p + (big)z, 32), "mad24.lo");
        }
    }
}

static uint64_t clamped(big v)
{
    return cut(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v, 32);
}

static void test_saturating(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(edges) * COUNT(edges); i++) {
        uint64_t x = edges[i / COUNT(edges)];
        uint64_t y = edges[i % COUNT(edges)];
        uint64_t z = edges[(i * 11 + 2) % COUNT(edges)];
        big a = number(x, 32, true);
        big b = number(y, 32, true);
        big c = number(z, 32, true);
        struct sg_insn in = INSN(.op = SG_P_ADD, .type = SG_T_S32, .sat = true);
        check(RUN2(in, x, y), clamped(a + b), "add.sat");
        in.op = SG_P_SUB;
        check(RUN2(in, x, y), clamped(a - b), "sub.sat");
        in.op = SG_P_MAD, in.mode = SG_H_HI;
        check(RUN3(in, x, y, z), clamped((a * b >> 32) + c), "mad.hi.sat");
        in.op = SG_P_MAD24;
        check(RUN3(in, x, y, z), clamped((number(x, 24, true) * number(y, 24, true) >> 16) + c),
              "mad24.hi.sat");
        in = INSN(.op = SG_P_MIN, .type = SG_T_S32, .relu = true);
        check(RUN2(in, x, y), clamped(a < 0 || b < 0 ? 0 : a < b ? a : b), "min.relu");
        in.op = SG_P_MAX;
        check(RUN2(in, x, y), clamped(a < 0 && b < 0 ? 0 : a < b ? b : a), "max.relu");
    }
}

static void test_pairs_and_dots(void **state)
{
    (void)state;
    struct sg_insn in = INSN(.op = SG_P_ADD, .type = SG_T_U16X2);
    check(RUN2(in, 0x0001ffff, 0xffff0001), 0, "add.u16x2");
    in.type = SG_T_S16X2;
    check(RUN2(in, 0x7fff0003, 0x00018000), 0x80008003, "add.s16x2");
    in.op = SG_P_MIN;
    check(RUN2(in, 0x8000ffff, 0x00017fff), 0x8000ffff, "min.s16x2");
    in.type = SG_T_U16X2;
    check(RUN2(in, 0x8000ffff, 0x00017fff), 0x00017fff, "min.u16x2");
    in.op = SG_P_MAX;
    check(RUN2(in, 0x8000ffff, 0x00017fff), 0x8000ffff, "max.u16x2");
    in.type = SG_T_S16X2, in.relu = true;
    check(RUN2(in, 0x8000ffff, 0xfffffff0), 0, "max.relu.s16x2");
    check(RUN2(in, 0x8000ffff, 0x00057fff), 0x00057fff, "max.relu.s16x2");
    in.op = SG_P_MIN;
    check(RUN2(in, 0x00078001, 0x00057fff), 0x00050000, "min.relu.s16x2");

    in = INSN(.op = SG_P_DP4A, .type = SG_T_S32, .type2 = SG_T_S32);
    check(RUN3(in, 0xff80017f, 0x02ff0380, 10), (uint32_t)(10 - 2 + 128 + 3 - 127 * 128),
          "dp4a.s32.s32");
    in.type2 = SG_T_U32;
    check(RUN3(in, 0xff80017f, 0x02ff0380, 10), (uint32_t)(10 - 2 - 128 * 255 + 3 + 127 * 128),
          "dp4a.s32.u32");
    in.type = SG_T_U32;
    check(RUN3(in, 0xffffffff, 0xffffffff, 0xffffffff), (uint32_t)(4 * 255 * 255 - 1), "dp4a.u32");
    in = INSN(.op = SG_P_DP2A, .type = SG_T_S32, .type2 = SG_T_S32);
    check(RUN3(in, 0x8000ffff, 0x02ff0380, 1), (uint32_t)(1 + 128 - 32768 * 3), "dp2a.lo");
    in.mode = 1;
    check(RUN3(in, 0x8000ffff, 0x02ff0380, 1), (uint32_t)(1 + 1 - 32768 * 2), "dp2a.hi");
}

static void test_shifts(void **state)
{
    (void)state;
    static const uint8_t bit_types[] = {SG_T_B16, SG_T_B32, SG_T_B64};
    for (size_t i = 0; i < COUNT(edges) * COUNT(edges); i++) {
        uint64_t x = edges[i / COUNT(edges)];
        uint64_t n = edges[i % COUNT(edges)] & 0xffffffff;
        for (unsigned t = 0; t < 3; t++) {
            unsigned bits = 16u << t;
            struct sg_insn in = INSN(.op = SG_P_SHL, .type = bit_types[t]);
            check(RUN2(in, x, n), n >= bits ? 0 : cut((big)((ubig)x << n), bits), "shl");
            in.op = SG_P_SHR;
            check(RUN2(in, x, n), n >= bits ? 0 : cut((big)x, bits) >> n, "shr.b");
            in.type = (uint8_t)kinds[2 * t + 1].type;
            check(RUN2(in, x, n), cut(number(x, bits, true) >> (n > 100 ? 100 : n), bits), "shr.s");
            in.type = (uint8_t)kinds[2 * t].type;
            check(RUN2(in, x, n), n >= bits ? 0 : cut((big)x, bits) >> n, "shr.u");
        }
        uint64_t y = edges[(i * 3 + 4) % COUNT(edges)];
        ubig whole = (ubig)(uint32_t)y << 32 | (uint32_t)x;
        for (uint8_t mode = 0; mode < 4; mode++) {
            unsigned by = mode & 2 ? (n > 32 ? 32 : (unsigned)n) : n % 32;
            struct sg_insn in = INSN(.op = SG_P_SHF, .type = SG_T_B32, .mode = mode);
            check(RUN3(in, x, y, n),
                  mode & 1 ? (uint32_t)(whole >> by) : (uint32_t)((whole << by) >> 32), "shf");
        }
    }
}

/* PTX's own description, bit by bit. Of 32 bits eight count in pos and len, of 64 all. */
static uint64_t field_reference(uint64_t a, unsigned pos, unsigned len, const struct kind *k)
{
    unsigned msb = k->bits - 1;
    unsigned top = pos + len - 1 < msb ? pos + len - 1 : msb;
    uint64_t sign = !k->is_signed || len == 0 ? 0 : a >> top & 1;
    uint64_t d = 0;
    for (unsigned i = 0; i <= msb; i++)
        d |= (i < len && pos + i <= msb ? a >> (pos + i) & 1 : sign) << i;
    return d;
}

static void test_fields(void **state)
{
    (void)state;
    static const unsigned places[] = {0, 1, 7, 15, 16, 31, 32, 33, 62, 63, 64, 200, 255};
    for (size_t i = 0; i < COUNT(edges); i++)
        for (size_t p = 0; p < COUNT(places) * COUNT(places); p++)
            for (size_t t = 2; t < COUNT(kinds); t++) {
                unsigned pos = places[p / COUNT(places)];
                unsigned len = places[p % COUNT(places)];
                const struct kind *k = &kinds[t];
                struct sg_insn in = INSN(.op = SG_P_BFE, .type = (uint8_t)k->type);
                unsigned more = k->bits == 32 ? 0x700 : 0;
                check(RUN3(in, edges[i], pos + more, len + more),
                      field_reference(edges[i], pos, len, k), "bfe %u %u", pos, len);
                uint64_t b = edges[(i * 13 + p) % COUNT(edges)];
                uint64_t want = cut((big)b, k->bits);
                for (unsigned j = 0; j < len && pos + j < k->bits; j++) {
                    uint64_t bit = j < 64 ? edges[i] >> j & 1 : 0;
                    want = (want & ~((uint64_t)1 << (pos + j))) | bit << (pos + j);
                }
                in = INSN(.op = SG_P_BFI, .type = k->bits == 32 ? SG_T_B32 : SG_T_B64,
                          .sources = 4);
                check(run_wide(&in, (const uint64_t[4]){edges[i], b, pos + more, len + more}), want,
                      "bfi %u %u", pos, len);
            }
    struct sg_insn in = INSN(.op = SG_P_BFE, .type = SG_T_S64);
    check(RUN3(in, 7, 0x101, 16), 0, "bfe.s64 far outside");
    check(RUN3(in, (uint64_t)1 << 63, 0x80000000, 16), UINT64_MAX, "bfe.s64 far outside");
    check(RUN3(in, 10, 1, 0x101), 5, "bfe.s64 longer than all");
    in = INSN(.op = SG_P_BFI, .type = SG_T_B64, .sources = 4);
    check(run_wide(&in, (const uint64_t[4]){10, 0x8000, 0x101, 33}), 0x8000, "bfi.b64 outside");
    check(run_wide(&in, (const uint64_t[4]){10, 0x8000, 4, 0xffffffff}), 160, "bfi.b64 of all");
}

static void test_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(edges); i++)
        for (unsigned bits = 32; bits <= 64; bits *= 2) {
            uint64_t x = cut((big)edges[i], bits);
            uint8_t b = bits == 32 ? SG_T_B32 : SG_T_B64;
            uint8_t u = bits == 32 ? SG_T_U32 : SG_T_U64;
            uint8_t s = bits == 32 ? SG_T_S32 : SG_T_S64;
            unsigned ones = 0, zeros = 0, high = UINT32_MAX, differs = UINT32_MAX;
            uint64_t backwards = 0;
            for (unsigned j = 0; j < bits; j++) {
                ones += x >> j & 1;
                zeros = x >> j & 1 ? 0 : zeros + 1;
                high = x >> j & 1 ? j : high;
                differs = (x >> j & 1) != (x >> (bits - 1) & 1) ? j : differs;
                backwards |= (x >> j & 1) << (bits - 1 - j);
            }
            check(RUN1(INSN(.op = SG_P_POPC, .type = b), edges[i]), ones, "popc");
            check(RUN1(INSN(.op = SG_P_CLZ, .type = b), edges[i]), zeros, "clz");
            check(RUN1(INSN(.op = SG_P_BREV, .type = b), edges[i]), backwards, "brev");
            check(RUN1(INSN(.op = SG_P_BFIND, .type = u), edges[i]), high, "bfind.u");
            check(RUN1(INSN(.op = SG_P_BFIND, .type = s), edges[i]), differs, "bfind.s");
            check(RUN1(INSN(.op = SG_P_BFIND, .type = u, .mode = 1), edges[i]),
                  high == UINT32_MAX ? high : bits - 1 - high, "bfind.shiftamt");
        }
    struct sg_insn in = INSN(.op = SG_P_FNS, .type = SG_T_B32);
    check(RUN3(in, 0xaaaaaaaa, 3, 1), 3, "fns");
    check(RUN3(in, 0xaaaaaaaa, 3, (uint32_t)-1), 3, "fns");
    check(RUN3(in, 0xaaaaaaaa, 3, 2), 5, "fns");
    check(RUN3(in, 0xaaaaaaaa, 4, (uint32_t)-2), 1, "fns");
    check(RUN3(in, 0xaaaaaaaa, 4, 0), 0xffffffff, "fns");
    check(RUN3(in, 0xaaaaaaaa, 31, 2), 0xffffffff, "fns");
    check(RUN3(in, 0xaaaaaaaa, 0, 0x80000000), 0, "fns");
}

static void test_permutations(void **state)
{
    (void)state;
    const uint64_t a = 0x83020100, b = 0x07060504;
    static const uint32_t want[7][4] = {
        [1] = {0x83020100, 0x04830201, 0x05048302, 0x06050483},
        [2] = {0x05060700, 0x06070001, 0x07000102, 0x00010283},
        [3] = {0x00000000, 0x01010101, 0x02020202, 0x83838383},
        [4] = {0x83020100, 0x83020101, 0x83020202, 0x83838383},
        [5] = {0x00000000, 0x01010100, 0x02020100, 0x83020100},
        [6] = {0x01000100, 0x83028302, 0x01000100, 0x83028302},
    };
    for (uint8_t mode = 1; mode < 7; mode++)
        for (uint64_t c = 0; c < 8; c++)
            check(RUN3(INSN(.op = SG_P_PRMT, .type = SG_T_B32, .mode = mode), a, b, c),
                  want[mode][c & 3], "prmt mode %u, %u", mode, (unsigned)c);
    struct sg_insn in = INSN(.op = SG_P_PRMT, .type = SG_T_B32);
    check(RUN3(in, a, b, 0xffff7531), 0x07058301, "prmt");
    check(RUN3(in, a, b, 0xb3af), 0xff830000, "prmt with signs");
}

static void test_logic(void **state)
{
    (void)state;
    const uint64_t a = 0xf0f0f0f0f0f0f0f0, b = 0xccccccccccccccccu, c = 0xaaaaaaaaaaaaaaaa;
    for (uint64_t table = 0; table < 256; table++) {
        struct sg_insn in = INSN(.op = SG_P_LOP3, .type = SG_T_B32, .sources = 4);
        check(run_wide(&in, (const uint64_t[4]){a, b, c, table}), table * 0x01010101, "lop3");
    }
    static const uint8_t types[] = {SG_T_PRED, SG_T_B16, SG_T_B32, SG_T_B64};
    for (unsigned t = 0; t < 4; t++) {
        uint64_t all = t == 0 ? 1 : t == 3 ? UINT64_MAX : (UINT64_C(1) << (8u << t)) - 1;
        for (unsigned i = 0; i < 4; i++) {
            uint64_t x = t ? a >> i : i & 1;
            uint64_t y = t ? b >> 2 * i : i >> 1;
            check(RUN2(INSN(.op = SG_P_AND, .type = types[t]), x, y), x & y & all, "and");
            check(RUN2(INSN(.op = SG_P_OR, .type = types[t]), x, y), (x | y) & all, "or");
            check(RUN2(INSN(.op = SG_P_XOR, .type = types[t]), x, y), (x ^ y) & all, "xor");
            check(RUN1(INSN(.op = SG_P_NOT, .type = types[t]), x), ~x & all, "not");
        }
        if (t) {
            check(RUN1(INSN(.op = SG_P_CNOT, .type = types[t]), 0), 1, "cnot");
            check(RUN1(INSN(.op = SG_P_CNOT, .type = types[t]), 0x8000), 0, "cnot");
        }
    }
}

static void test_moves(void **state)
{
    (void)state;
    const uint64_t x = 0x8877665544332211;
    check(RUN1(INSN(.op = SG_P_MOV, .type = SG_T_U16), x), 0x2211, "mov.u16");
    check(RUN1(INSN(.op = SG_P_MOV, .type = SG_T_F32), x), 0x44332211, "mov.f32");
    check(RUN1(INSN(.op = SG_P_MOV, .type = SG_T_B64), x), x, "mov.b64");
    check(RUN1(INSN(.op = SG_P_MOV, .type = SG_T_PRED), 1), 1, "mov.pred");
    check(RUN2(INSN(.op = SG_P_PACK, .type = SG_T_B64), x, 0x99), 0x9944332211, "mov.b64 {}");
    struct sg_insn four = INSN(.op = SG_P_PACK, .type = SG_T_B64, .sources = 4);
    check(run_wide(&four, (const uint64_t[4]){x, 0xa0001, 2, 3}), 0x0003000200012211, "mov.b64 {}");
    check(RUN3(INSN(.op = SG_P_SELP, .type = SG_T_B64), x, 7, 1), x, "selp");
    check(RUN3(INSN(.op = SG_P_SELP, .type = SG_T_U16), x, 0x70007, 0), 7, "selp");
    struct sg_insn in = INSN(.op = SG_P_SLCT, .type = SG_T_U32, .type2 = SG_T_S32);
    check(RUN3(in, 3, 4, 0), 3, "slct.s32");
    check(RUN3(in, 3, 4, 0xffffffff), 4, "slct.s32");
    in.type2 = SG_T_F32;
    check(RUN3(in, 3, 4, 0x80000000), 3, "slct.f32 of -0");
    check(RUN3(in, 3, 4, 0x80000001), 4, "slct.f32");
    check(RUN3(in, 3, 4, 0x7fc00000), 4, "slct.f32 of NaN");
    in.ftz = true;
    check(RUN3(in, 3, 4, 0x80000001), 3, "slct.ftz.f32");
    in = INSN(.op = SG_P_CVTA, .type = SG_T_U64, .space = SG_S_SHARED);
    check(RUN1(in, 0x40), SG_WINDOW_SHARED | 0x40, "cvta.shared");
    in.mode = 1;
    check(RUN1(in, SG_WINDOW_SHARED | 0x40), 0x40, "cvta.to.shared");
    in.space = SG_S_GLOBAL;
    check(RUN1(in, 0x7f0000000040), 0x7f0000000040, "cvta.to.global");
    in = INSN(.op = SG_P_ISSPACEP, .type = SG_T_U64, .space = SG_S_LOCAL);
    check(RUN1(in, SG_WINDOW_LOCAL | 8), 1, "isspacep.local");
    check(RUN1(in, SG_WINDOW_SHARED | 8), 0, "isspacep.local");
    in.space = SG_S_GLOBAL;
    check(RUN1(in, 0x7f0000000040), 1, "isspacep.global");
    check(RUN1(in, SG_WINDOW_HEAP | 8), 1, "isspacep.global");
    check(RUN1(in, SG_WINDOW_PARAM | 8), 0, "isspacep.global");
}

static void test_set(void **state)
{
    (void)state;
    struct sg_insn in = INSN(.op = SG_P_SET, .type = SG_T_U32, .type2 = SG_T_S32);
    in.compare = SG_C_LT;
    check(RUN2(in, 0xffffffff, 0), 0xffffffff, "set.lt.u32.s32");
    in.type2 = SG_T_U32;
    check(RUN2(in, 0xffffffff, 0), 0, "set.lt.u32.u32");
    in.type = SG_T_F32, in.compare = SG_C_GE;
    check(RUN2(in, 5, 5), 0x3f800000, "set.ge.f32.u32");
    in.type2 = SG_T_S16, in.combine = 1;
    check(RUN3(in, 0x18000, 0x8000, 1), 0x3f800000, "set.ge.and");
    check(RUN3(in, 0x18000, 0x8000, 0), 0, "set.ge.and");
    in.combine = 3;
    check(RUN3(in, 0x18000, 0x8000, 1), 0, "set.ge.xor");
    in.combine = 2, in.compare = SG_C_NE;
    check(RUN3(in, 4, 4, 1), 0x3f800000, "set.ne.or");
}

static void test_refused(void **state)
{
    (void)state;
    const struct sg_insn none[] = {
        {.op = SG_P_ADD, .type = SG_T_U8},
        {.op = SG_P_ADD, .type = SG_T_U32, .sat = true},
        {.op = SG_P_ADD, .type = SG_T_B32},
        {.op = SG_P_MUL, .type = SG_T_U64, .mode = SG_H_WIDE},
        {.op = SG_P_MUL24, .type = SG_T_U64},
        {.op = SG_P_NEG, .type = SG_T_U32},
        {.op = SG_P_POPC, .type = SG_T_B16},
        {.op = SG_P_BFE, .type = SG_T_B32},
        {.op = SG_P_SHF, .type = SG_T_B64},
        {.op = SG_P_PRMT, .type = SG_T_B32, .mode = 7},
        {.op = SG_P_LOP3, .type = SG_T_B64},
        {.op = SG_P_AND, .type = SG_T_U32},
        {.op = SG_P_SHL, .type = SG_T_F32},
        {.op = SG_P_MOV, .type = SG_T_B128},
        {.op = SG_P_SELP, .type = SG_T_PRED},
        {.op = SG_P_SLCT, .type = SG_T_U32, .type2 = SG_T_U32},
        {.op = SG_P_PACK, .type = SG_T_B32, .sources = 3},
        {.op = SG_P_DP4A, .type = SG_T_U32},
        {.op = SG_P_CVTA, .type = SG_T_U32, .space = SG_S_SHARED},
        {.op = SG_P_ISSPACEP, .type = SG_T_U64, .space = SG_S_REG},
        {.op = SG_P_SET, .type = SG_T_U64, .type2 = SG_T_U32, .sources = 2},
        {.op = SG_P_SET, .type = SG_T_U32, .type2 = SG_T_B32, .compare = SG_C_LT, .sources = 2},
        {.op = SG_P_SET, .type = SG_T_U32, .type2 = SG_T_U32, .compare = SG_C_NAN, .sources = 2},
        {.op = SG_P_UNPACK, .type = SG_T_B64},
        {.op = SG_P_COUNT},
    };
    for (size_t i = 0; i < COUNT(none); i++)
        if (sg_pure_select(&none[i]))
            fail_msg("row %zu: a handler for op %u of type %u", i, none[i].op, none[i].type);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arithmetic), cmocka_unit_test(test_wide_and_24),
        cmocka_unit_test(test_saturating), cmocka_unit_test(test_pairs_and_dots),
        cmocka_unit_test(test_shifts),     cmocka_unit_test(test_fields),
        cmocka_unit_test(test_counts),     cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_logic),      cmocka_unit_test(test_moves),
        cmocka_unit_test(test_set),        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
