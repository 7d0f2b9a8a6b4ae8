/* Straight code, branches, barriers, atomics and carries on the executor. */
#include "exec_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define TID SPECIAL(SG_X_TID_X)

static void run_well(struct build *b, uint32_t blocks, uint32_t threads)
{
    build_finish(b);
    CUresult result = build_run(b, blocks, threads);
    if (result != CUDA_SUCCESS)
        print_message("%s\n", b->fault);
    assert_int_equal(result, CUDA_SUCCESS);
}

/* memory[ctaid * 40 + tid] = tid * 3 + 7, with a partial second warp */
static void test_straight(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    build_add(b, SG_P_MAD, SG_T_U32, REG32(0), SPECIAL(SG_X_CTAID_X), NUMBER(40), TID, END);
    build_add(b, SG_P_MAD, SG_T_U32, REG32(1), TID, NUMBER(3), NUMBER(7), END);
    build_store(b, 2, REG32(0), REG32(1));
    build_add(b, SG_P_RET, SG_T_NONE, END);
    run_well(b, 3, 40);
    for (uint32_t i = 0; i < 120; i++)
        assert_int_equal(build_words(b)[i], i % 40 * 3 + 7);
    assert_int_equal(build_words(b)[120], 0);
    build_free(b);
}

/* Loops of unlike length, then all lanes meet again. */
static void test_branches_join(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    build_add(b, SG_P_MOV, SG_T_B32, REG32(0), NUMBER(0), END);
    build_add(b, SG_P_MOV, SG_T_B32, REG32(1), NUMBER(0), END);
    uint32_t loop = build_pc(b);
    build_test(b, 2, SG_T_U32, SG_C_GE, REG32(0), TID);
    struct sg_insn *leave = build_jump(b, 2, false);
    build_add(b, SG_P_ADD, SG_T_U32, REG32(0), REG32(0), NUMBER(1), END);
    build_add(b, SG_P_ADD, SG_T_U32, REG32(1), REG32(1), REG32(0), END);
    build_add(b, SG_P_BRA, SG_T_NONE, END)->target = loop;
    leave->target = build_pc(b);
    build_add(b, SG_P_ACTIVEMASK, SG_T_B32, REG32(3), END);
    build_store(b, 4, TID, REG32(1));
    build_add(b, SG_P_ADD, SG_T_U32, REG32(5), TID, NUMBER(32), END);
    build_store(b, 4, REG32(5), REG32(3));
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    run_well(b, 1, 32);
    for (uint32_t i = 0; i < 32; i++) {
        assert_int_equal(build_words(b)[i], i * (i + 1) / 2);
        assert_int_equal(build_words(b)[32 + i], UINT32_MAX);
    }
    build_free(b);
}

/* shared[tid] = tid; barrier; memory[tid] = shared[255 - tid] */
static void test_barrier(void **state)
{
    (void)state;
    struct build *b = build_new(8, 1024);
    build_add(b, SG_P_MAD, SG_T_U32, REG32(0), TID, NUMBER(4), SHARED(0), END);
    build_add(b, SG_P_ST, SG_T_U32, REG32(0), TID, END)->space = SG_S_SHARED;
    build_add(b, SG_P_BARRIER, SG_T_NONE, NUMBER(0), END)->mode = SG_Y_SYNC;
    build_add(b, SG_P_SUB, SG_T_U32, REG32(1), NUMBER(1020), REG32(0), END);
    build_add(b, SG_P_LD, SG_T_U32, REG32(2), REG32(1), END)->space = SG_S_SHARED;
    build_store(b, 3, TID, REG32(2));
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    run_well(b, 1, 256);
    for (uint32_t i = 0; i < 256; i++)
        assert_int_equal(build_words(b)[i], 255 - i);
    build_free(b);
}

/* Threads that are gone hold nobody up; bar.red counts those that are there. */
static void test_barrier_reduction(void **state)
{
    (void)state;
    struct build *b = build_new(12, 0);
    build_test(b, 0, SG_T_U32, SG_C_GE, TID, NUMBER(70));
    struct sg_insn *gone = build_add(b, SG_P_EXIT, SG_T_NONE, END);
    gone->guarded = true;
    gone->guard = 0;
    build_test(b, 1, SG_T_U32, SG_C_LT, TID, NUMBER(50));
    build_add(b, SG_P_BARRIER, SG_T_NONE, REG32(2), NUMBER(3), PREDICATE(1), END)->mode =
        SG_Y_RED_POPC;
    build_add(b, SG_P_BARRIER, SG_T_NONE, PREDICATE(3), NUMBER(3), PREDICATE(1), END)->mode =
        SG_Y_RED_AND;
    build_add(b, SG_P_BARRIER, SG_T_NONE, PREDICATE(4), NUMBER(3), INVERSE(1), END)->mode =
        SG_Y_RED_OR;
    build_add(b, SG_P_SELP, SG_T_B32, REG32(5), NUMBER(1000), REG32(2), PREDICATE(3), END);
    build_add(b, SG_P_SELP, SG_T_B32, REG32(6), REG32(5), NUMBER(2000), PREDICATE(4), END);
    build_store(b, 7, TID, REG32(6));
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    run_well(b, 1, 100);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(build_words(b)[i], i < 70 ? 50 : 0);
    build_free(b);
}

/* Every thread of a warp takes the same lock, which only separate progress allows. */
static void test_spin_lock(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    build_add(b, SG_P_MOV, SG_T_B64, REG64(0), NUMBER(BUILD_BASE), END);
    uint32_t retry = build_pc(b);
    struct sg_insn *cas = build_add(b, SG_P_ATOM, SG_T_B32, REG32(1), REG64(0), NUMBER(0),
                                    NUMBER(1), END);
    cas->mode = SG_A_CAS;
    cas->space = SG_S_GLOBAL;
    cas->polls = true;
    build_test(b, 2, SG_T_U32, SG_C_NE, REG32(1), NUMBER(0));
    build_jump(b, 2, false)->target = retry;
    struct sg_insn *load = build_add(b, SG_P_LD, SG_T_U32, REG32(3), REG64(0), END);
    load->offset = 4;
    build_add(b, SG_P_ADD, SG_T_U32, REG32(3), REG32(3), NUMBER(1), END);
    build_add(b, SG_P_ST, SG_T_U32, REG64(0), REG32(3), END)->offset = 4;
    struct sg_insn *release = build_add(b, SG_P_ATOM, SG_T_B32, SINK, REG64(0), NUMBER(0), END);
    release->mode = SG_A_EXCH;
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    run_well(b, 2, 96);
    assert_int_equal(build_words(b)[0], 0);
    assert_int_equal(build_words(b)[1], 192);
    build_free(b);
}

/* All blocks wait until all have come: they must be there together. */
static void test_grid_barrier(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    build_add(b, SG_P_MOV, SG_T_B64, REG64(0), NUMBER(BUILD_BASE), END);
    struct sg_insn *come = build_add(b, SG_P_RED, SG_T_U32, REG64(0), NUMBER(1), END);
    come->mode = SG_A_ADD;
    uint32_t wait = build_pc(b);
    build_add(b, SG_P_LD, SG_T_U32, REG32(1), REG64(0), END)->polls = true;
    build_test(b, 2, SG_T_U32, SG_C_LT, REG32(1), NUMBER(12 * 64));
    build_jump(b, 2, false)->target = wait;
    build_add(b, SG_P_ADD, SG_T_U32, REG32(3), SPECIAL(SG_X_CTAID_X), NUMBER(1), END);
    build_store(b, 4, REG32(3), REG32(1));
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    run_well(b, 12, 64);
    for (uint32_t i = 0; i <= 12; i++)
        assert_int_equal(build_words(b)[i], 12 * 64);
    build_free(b);
}

struct atomic_case {
    unsigned type, mode;
    uint64_t before, b, after;
};

/* One thread; the old value comes back and the new one is left. */
static void test_atomics(void **state)
{
    (void)state;
    static const struct atomic_case cases[] = {
        {SG_T_U32, SG_A_ADD, UINT32_MAX, 2, 1},
        {SG_T_U64, SG_A_ADD, UINT32_MAX, 2, UINT64_C(0x100000001)},
        {SG_T_S32, SG_A_MIN, 5, (uint32_t)-3, (uint32_t)-3},
        {SG_T_U32, SG_A_MIN, 5, (uint32_t)-3, 5},
        {SG_T_S64, SG_A_MAX, 5, (uint64_t)-3, 5},
        {SG_T_U32, SG_A_INC, 7, 7, 0},
        {SG_T_U32, SG_A_INC, 6, 7, 7},
        {SG_T_U32, SG_A_DEC, 0, 9, 9},
        {SG_T_U32, SG_A_DEC, 10, 9, 9},
        {SG_T_U32, SG_A_DEC, 4, 9, 3},
        {SG_T_B32, SG_A_AND, 0xc, 0xa, 0x8},
        {SG_T_B32, SG_A_OR, 0xc, 0xa, 0xe},
        {SG_T_B64, SG_A_XOR, 0xc, 0xa, 0x6},
        {SG_T_F32, SG_A_ADD, 0x3f800000, 0x40000000, 0x40400000},
        {SG_T_F64, SG_A_ADD, 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000},
        {SG_T_F16X2, SG_A_ADD, 0x3c003c00, 0x40003c00, 0x42004000},
        {SG_T_BF16, SG_A_ADD, 0x3f80, 0x3f80, 0x4000},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct atomic_case *c = &cases[i];
        struct build *b = build_new(4, 0);
        memcpy(b->memory, &c->before, 8);
        build_add(b, SG_P_MOV, SG_T_B64, REG64(0), NUMBER(BUILD_BASE), END);
        build_add(b, SG_P_ATOM, c->type, REG64(1), REG64(0), NUMBER(c->b), END)->mode = (uint8_t)
                                                                                            c->mode;
        build_add(b, SG_P_ST, SG_T_U64, REG64(0), REG64(1), END)->offset = 8;
        build_add(b, SG_P_EXIT, SG_T_NONE, END);
        run_well(b, 1, 1);
        uint64_t got[2];
        memcpy(got, b->memory, sizeof(got));
        if (got[0] != c->after)
            print_message("case %zu\n", i);
        assert_int_equal(got[0], c->after);
        assert_int_equal(got[1], c->before);
        build_free(b);
    }
}

/* A 96-bit sum, a 64-bit difference, and a product's high half with carry. */
static void test_carry(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    build_add(b, SG_P_ADDC, SG_T_U32, REG32(0), NUMBER(UINT32_MAX), NUMBER(1), END)->mode = 1;
    build_add(b, SG_P_ADDC, SG_T_U32, REG32(1), NUMBER(UINT32_MAX), NUMBER(0), END)->mode = 3;
    build_add(b, SG_P_ADDC, SG_T_U32, REG32(2), NUMBER(5), NUMBER(6), END)->mode = 2;
    build_add(b, SG_P_SUBC, SG_T_U32, REG32(3), NUMBER(0), NUMBER(1), END)->mode = 1;
    build_add(b, SG_P_SUBC, SG_T_U32, REG32(4), NUMBER(9), NUMBER(0), END)->mode = 2;
    build_add(b, SG_P_ADDC, SG_T_U32, SINK, NUMBER(UINT32_MAX), NUMBER(1), END)->mode = 1;
    build_add(b, SG_P_MADC, SG_T_U32, REG32(5), NUMBER(UINT32_MAX), NUMBER(UINT32_MAX), NUMBER(10),
              END)
        ->mode = 2 | SG_H_HI << 2;
    for (uint32_t i = 0; i < 6; i++)
        build_store(b, 6, NUMBER(i), REG32(i));
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    run_well(b, 1, 1);
    const uint32_t expected[] = {0, 0, 12, UINT32_MAX, 8, UINT32_MAX - 1 + 11};
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(build_words(b)[i], expected[i]);
    build_free(b);
}

/* p|q with a combine, NaN ordered and not, sinks, and unpacking. */
static void test_predicates(void **state)
{
    (void)state;
    const uint32_t nan = 0x7fc00000, one = 0x3f800000;
    struct build *b = build_new(12, 0);
    build_test(b, 0, SG_T_F32, SG_C_LT, NUMBER(one), NUMBER(nan));
    build_test(b, 1, SG_T_F32, SG_C_LTU, NUMBER(one), NUMBER(nan));
    build_test(b, 2, SG_T_S32, SG_C_LT, NUMBER(UINT32_MAX), NUMBER(0));
    struct sg_insn *both = build_add(b, SG_P_SETP, SG_T_U32, PREDICATE(3), PREDICATE(4), NUMBER(3),
                                     NUMBER(4), INVERSE(0), END);
    both->compare = SG_C_LT;
    both->combine = 1;
    build_add(b, SG_P_UNPACK, SG_T_B64, SINK, REG32(5), NUMBER(UINT64_C(0x1234567800000001)), END);
    for (uint32_t i = 0; i < 5; i++) {
        build_add(b, SG_P_SELP, SG_T_B32, REG32(6), NUMBER(1), NUMBER(0), PREDICATE(i), END);
        build_store(b, 7, NUMBER(i), REG32(6));
    }
    build_store(b, 7, NUMBER(5), REG32(5));
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    run_well(b, 1, 1);
    const uint32_t expected[] = {0, 1, 1, 1, 0, 0x12345678};
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(build_words(b)[i], expected[i]);
    build_free(b);
}

/* Parameters, vectors, sign extension and the generic windows. */
static void test_memory_forms(void **state)
{
    (void)state;
    static const _Alignas(16) uint32_t parameters[4] = {11, 22, 33, 0x80ff};
    struct build *b = build_new(12, 64);
    b->functions[0].info.parameter_bytes = sizeof(parameters);
    b->functions[0].frame_bytes = 32;
    b->parameters = parameters;
    struct sg_insn *in = build_add(b, SG_P_LD, SG_T_U32, REG32(0), REG32(1), REG32(2), REG32(3),
                                   NUMBER(0), END);
    in->vector = 4;
    in->space = SG_S_PARAM;
    in = build_add(b, SG_P_LD, SG_T_S8, REG32(4), NUMBER(12), END);
    in->space = SG_S_PARAM;
    build_add(b, SG_P_MOV, SG_T_B64, REG64(5), LOCAL(8, 0), END);
    build_add(b, SG_P_CVTA, SG_T_U64, REG64(6), REG64(5), END)->space = SG_S_LOCAL;
    build_add(b, SG_P_ST, SG_T_U64, REG64(6), TID, END); /* generic, the thread's own */
    build_add(b, SG_P_MOV, SG_T_B64, REG64(7), SHARED(16), END);
    build_add(b, SG_P_CVTA, SG_T_U64, REG64(7), REG64(7), END)->space = SG_S_SHARED;
    build_add(b, SG_P_ST, SG_T_U32, REG64(7), REG32(1), END);
    build_add(b, SG_P_LD, SG_T_U32, REG32(8), SHARED(16), END)->space = SG_S_SHARED;
    build_add(b, SG_P_LD, SG_T_U32, REG32(9), LOCAL(8, 0), END)->space = SG_S_LOCAL;
    build_add(b, SG_P_MAD, SG_T_U32, REG32(10), REG32(9), NUMBER(100), REG32(8), END);
    build_store(b, 11, TID, REG32(10));
    build_store(b, 11, NUMBER(64), REG32(4));
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    run_well(b, 1, 50);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(build_words(b)[i], i * 100 + 22);
    assert_int_equal(build_words(b)[64], UINT32_MAX);
    build_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_straight),   cmocka_unit_test(test_branches_join),
        cmocka_unit_test(test_barrier),    cmocka_unit_test(test_barrier_reduction),
        cmocka_unit_test(test_spin_lock),  cmocka_unit_test(test_grid_barrier),
        cmocka_unit_test(test_atomics),    cmocka_unit_test(test_carry),
        cmocka_unit_test(test_predicates), cmocka_unit_test(test_memory_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
