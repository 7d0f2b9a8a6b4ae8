/*
 * Each level of processors computes what the first one does, bit for bit: every operation of
 * every type, plain and with its modifiers, on numbers and on the edges of their formats.
 */
#include "arith_check.h"
#include "exec_level.h"

#include <string.h>

static const uint64_t edges[] = {0,
                                 1,
                                 UINT64_MAX,
                                 INT64_MAX,
                                 INT32_MAX,
                                 UINT64_C(0x80000000),
                                 UINT64_C(0x8000000000000000),
                                 UINT64_C(0x3f8000003f800000),
                                 UINT64_C(0x7f8000007f800000),
                                 UINT64_C(0xff800000ff800000),
                                 UINT64_C(0x7fc000017fc00001),
                                 UINT64_C(0x0000000100000001),
                                 UINT64_C(0x3ff0000000000000),
                                 UINT64_C(0x7ff0000000000000),
                                 UINT64_C(0xfff8000000000123),
                                 UINT64_C(0x41dfffffffc00000),
                                 UINT64_C(0x4f0000004effffff),
                                 UINT64_C(0xcf000001c0490fdb),
                                 33,
                                 255};

/* No two rounds alike, none that another run would not have. */
static uint64_t drawn(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t v = *state >> 33 | *state << 31;
    return v % 3 ? v : edges[v / 3 % COUNT(edges)];
}

static void compare_handlers(const struct sg_insn *in, sg_pure first, sg_pure other,
                             const char *level, uint64_t *state)
{
    uint64_t lanes[SG_SOURCES][SG_LANES], expected[SG_LANES], got[SG_LANES];
    const uint64_t *s[] = {lanes[0], lanes[1], lanes[2], lanes[3]},
                   *same[] = {got, s[1], s[2], s[3]};
    for (unsigned k = 0; k < SG_SOURCES; k++)
        for (unsigned l = 0; l < SG_LANES; l++)
            lanes[k][l] = drawn(state);
    first(in, s, expected);
    other(in, s, got);
    for (unsigned l = 0; l < SG_LANES; l++)
        check(got[l], expected[l], "%s: op %u, type %u of %u, lane %u", level, in->op, in->type,
              in->type2, l);
    memcpy(got, lanes[0], sizeof(got));
    other(in, same, got);
    for (unsigned l = 0; l < SG_LANES; l++)
        check(got[l], expected[l], "%s, in place: op %u, type %u of %u, lane %u", level, in->op,
              in->type, in->type2, l);
}

/* How many instructions of the form there are. */
static unsigned compare_form(const struct sg_insn *in, uint64_t *state)
{
    sg_pure first = sg_level_v1.pure(in);
    for (const struct sg_level *const *level = sg_levels(); *level; level++) {
        sg_pure other = (*level)->pure(in);
        assert_int_equal(other != NULL, first != NULL);
        for (int round = 0; first && round < 3; round++)
            compare_handlers(in, first, other, (*level)->name, state);
    }
    return first != NULL;
}

/* The modifiers by number: nothing, then one after the other. */
static void modify(struct sg_insn *in, unsigned which)
{
    in->ftz = which == 1;
    in->sat = which == 2;
    in->rounding = which >= 3 && which < 6 ? (uint8_t)(which - 2) : SG_R_NEAREST;
    in->relu = which == 6;
}

static void test_levels_agree(void **state)
{
    (void)state;
    uint64_t numbers = 1;
    unsigned forms = 0;
    struct sg_operand x[5] = {{.kind = SG_O_REGISTER, .width = 8}};
    for (unsigned op = 0; op <= SG_P_SETP; op++)
        for (unsigned type = SG_T_NONE; type < SG_T_COUNT; type++)
            for (unsigned type2 = SG_T_NONE; type2 < SG_T_COUNT; type2++)
                for (unsigned which = 0; which < 7; which++)
                    for (unsigned mode = 0; mode < 3; mode++) {
                        struct sg_insn in = {.op = (uint8_t)op,
                                             .type = (uint8_t)type,
                                             .type2 = (uint8_t)type2,
                                             .mode = (uint8_t)mode,
                                             .compare = (uint8_t)(type2 % (SG_C_NAN + 1)),
                                             .sources = op == SG_P_CVT ? 1 : 1 + (which + op) % 4,
                                             .operands = 5,
                                             .x = x};
                        modify(&in, which);
                        forms += compare_form(&in, &numbers);
                    }
    print_message("%u forms of instructions\n", forms);
    assert_true(forms > 5000);
}

/* The one that the executor takes is among them, and the first one is always there. */
static void test_levels_known(void **state)
{
    (void)state;
    const struct sg_level *const *level = sg_levels(), *last = NULL;
    for (; *level; level++)
        last = *level;
    assert_ptr_equal(last, &sg_level_v1);
    struct sg_insn in = INSN(.op = SG_P_ADD, .type = SG_T_U32, .sources = 2);
    assert_ptr_equal(sg_pure_select(&in), sg_levels()[0]->pure(&in));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels_agree),
                                       cmocka_unit_test(test_levels_known)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
