/* Instructions between lanes, with lanes together and apart. */
#include "exec_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define TID SPECIAL(SG_X_TID_X)
#define ALL NUMBER(UINT32_MAX)

static void run_well(struct build *b, uint32_t blocks, uint32_t threads)
{
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    build_finish(b);
    CUresult result = build_run(b, blocks, threads);
    if (result != CUDA_SUCCESS)
        print_message("%s\n", b->fault);
    assert_int_equal(result, CUDA_SUCCESS);
}

struct shuffle_case {
    unsigned mode;
    uint32_t b, c;
    int (*from)(int lane); /* -1: out of range */
};

static int up_3(int lane)
{
    return lane - 3 < 0 ? -1 : lane - 3;
}
static int down_5(int lane)
{
    return lane + 5 > 31 ? -1 : lane + 5;
}
static int across_16(int lane)
{
    return lane ^ 16;
}
static int first_of_8(int lane)
{
    return lane & ~7;
}
static int down_2_of_8(int lane)
{
    return (lane & 7) + 2 > 7 ? -1 : lane + 2;
}

/* memory[tid] = 1000 + source lane, memory[32 + tid] = in range */
static void test_shuffle(void **state)
{
    (void)state;
    static const struct shuffle_case cases[] = {
        {0, 3, 0, up_3},
        {1, 5, 31, down_5},
        {2, 16, 31, across_16},
        {3, 8, 0x181f, first_of_8},
        {1, 2, 0x181f, down_2_of_8},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct shuffle_case *c = &cases[i];
        struct build *b = build_new(8, 0);
        build_add(b, SG_P_ADD, SG_T_U32, REG32(0), TID, NUMBER(1000), END);
        build_add(b, SG_P_SHFL, SG_T_B32, REG32(1), PREDICATE(2), REG32(0), NUMBER(c->b),
                  NUMBER(c->c), ALL, END)
            ->mode = (uint8_t)c->mode;
        build_store(b, 4, TID, REG32(1));
        build_add(b, SG_P_ADD, SG_T_U32, REG32(3), TID, NUMBER(32), END);
        build_store(b, 4, REG32(3), REG32(2));
        run_well(b, 1, 32);
        for (int l = 0; l < 32; l++) {
            int from = c->from(l);
            assert_int_equal(build_words(b)[l], 1000 + (from < 0 ? l : from));
            assert_int_equal(build_words(b)[32 + l], from >= 0);
        }
        build_free(b);
    }
}

/* The two halves come to different instructions; the exchange still joins them. */
static void test_shuffle_apart(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    build_test(b, 0, SG_T_U32, SG_C_LT, TID, NUMBER(16));
    struct sg_insn *low = build_jump(b, 0, false);
    build_add(b, SG_P_SHFL, SG_T_B32, REG32(1), SINK, TID, NUMBER(16), NUMBER(31), ALL, END)->mode =
        2;
    struct sg_insn *join = build_add(b, SG_P_BRA, SG_T_NONE, END);
    low->target = build_pc(b);
    build_add(b, SG_P_SHFL, SG_T_B32, REG32(2), SINK, TID, NUMBER(16), NUMBER(31), ALL, END)->mode =
        2;
    build_add(b, SG_P_ADD, SG_T_U32, REG32(1), REG32(2), NUMBER(100), END);
    join->target = build_pc(b);
    build_add(b, SG_P_BAR_WARP, SG_T_NONE, ALL, END);
    build_store(b, 4, TID, REG32(1));
    run_well(b, 1, 32);
    for (uint32_t l = 0; l < 32; l++)
        assert_int_equal(build_words(b)[l], (l ^ 16) + (l < 16 ? 100 : 0));
    build_free(b);
}

/* Lanes that have exited are not waited for, nor counted. */
static void test_vote(void **state)
{
    (void)state;
    struct build *b = build_new(12, 0);
    build_test(b, 0, SG_T_U32, SG_C_GE, TID, NUMBER(20));
    struct sg_insn *gone = build_add(b, SG_P_EXIT, SG_T_NONE, END);
    gone->guarded = true;
    build_add(b, SG_P_AND, SG_T_B32, REG32(1), TID, NUMBER(1), END);
    build_test(b, 2, SG_T_U32, SG_C_NE, REG32(1), NUMBER(0));
    build_add(b, SG_P_VOTE, SG_T_B32, REG32(3), PREDICATE(2), ALL, END)->mode = 3;
    build_add(b, SG_P_VOTE, SG_T_PRED, PREDICATE(4), PREDICATE(2), ALL, END)->mode = 0;
    build_add(b, SG_P_VOTE, SG_T_PRED, PREDICATE(5), PREDICATE(2), ALL, END)->mode = 1;
    build_add(b, SG_P_VOTE, SG_T_PRED, PREDICATE(6), INVERSE(0), ALL, END)->mode = 2;
    build_add(b, SG_P_ELECT, SG_T_NONE, REG32(7), PREDICATE(8), ALL, END);
    build_store(b, 10, TID, REG32(3));
    for (uint32_t i = 0; i < 5; i++) {
        build_add(b, SG_P_ADD, SG_T_U32, REG32(9), TID, NUMBER(32 * (i + 1)), END);
        build_store(b, 10, REG32(9), REG32(4 + i));
    }
    run_well(b, 1, 32);
    const uint32_t *m = build_words(b);
    for (uint32_t l = 0; l < 32; l++) {
        bool here = l < 20;
        assert_int_equal(m[l], here ? 0xaaaaau : 0);
        assert_int_equal(m[32 + l], 0);
        assert_int_equal(m[64 + l], here);
        assert_int_equal(m[96 + l], here);
        assert_int_equal(m[128 + l], 0);
        assert_int_equal(m[160 + l], l == 0);
    }
    build_free(b);
}

static void test_match_and_redux(void **state)
{
    (void)state;
    struct build *b = build_new(12, 0);
    build_add(b, SG_P_AND, SG_T_B32, REG32(0), TID, NUMBER(3), END);
    build_add(b, SG_P_MATCH, SG_T_B32, REG32(1), SINK, REG32(0), ALL, END)->mode = 0;
    build_add(b, SG_P_MATCH, SG_T_B32, REG32(2), PREDICATE(3), REG32(0), ALL, END)->mode = 1;
    build_add(b, SG_P_REDUX, SG_T_U32, REG32(4), TID, ALL, END)->mode = SG_A_ADD;
    build_add(b, SG_P_SUB, SG_T_U32, REG32(5), REG32(0), NUMBER(2), END);
    build_add(b, SG_P_REDUX, SG_T_S32, REG32(6), REG32(5), ALL, END)->mode = SG_A_MIN;
    build_add(b, SG_P_REDUX, SG_T_U32, REG32(7), REG32(5), ALL, END)->mode = SG_A_MIN;
    const uint32_t stored[] = {1, 2, 3, 4, 6, 7};
    for (uint32_t i = 0; i < 6; i++) {
        build_add(b, SG_P_ADD, SG_T_U32, REG32(9), TID, NUMBER(32 * i), END);
        build_store(b, 10, REG32(9), REG32(stored[i]));
    }
    run_well(b, 1, 32);
    const uint32_t *m = build_words(b);
    for (uint32_t l = 0; l < 32; l++) {
        assert_int_equal(m[l], 0x11111111u << (l & 3));
        assert_int_equal(m[32 + l], 0);
        assert_int_equal(m[64 + l], 0);
        assert_int_equal(m[96 + l], 31 * 32 / 2);
        assert_int_equal(m[128 + l], (uint32_t)-2);
        assert_int_equal(m[160 + l], 0);
    }
    build_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffle),
        cmocka_unit_test(test_shuffle_apart),
        cmocka_unit_test(test_vote),
        cmocka_unit_test(test_match_and_redux),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
