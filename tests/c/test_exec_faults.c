/* How launches end that do not succeed: the error, and the line that says why. */
#include "exec_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define TID SPECIAL(SG_X_TID_X)

static void run_badly(struct build *b, uint32_t blocks, uint32_t threads, CUresult expected,
                      const char *words)
{
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    build_finish(b);
    CUresult result = build_run(b, blocks, threads);
    assert_int_equal(result, expected);
    if (!strstr(b->fault, words))
        fail_msg("\"%s\" does not say \"%s\"", b->fault, words);
    build_free(b);
}

static struct build *access_at(uint64_t address, unsigned type, unsigned space, unsigned vector)
{
    struct build *b = build_new(8, 16);
    b->functions[0].frame_bytes = 16;
    struct sg_insn *in = vector == 2
                             ? build_add(b, SG_P_LD, type, REG32(0), REG32(1), NUMBER(address), END)
                             : build_add(b, SG_P_LD, type, REG32(0), NUMBER(address), END);
    in->space = (uint8_t)space;
    in->vector = (uint8_t)vector;
    return b;
}

static void test_illegal_address(void **state)
{
    (void)state;
    static const struct {
        uint64_t address;
        unsigned type, space;
    } cases[] = {
        {BUILD_BASE + BUILD_MEMORY, SG_T_U32, SG_S_GLOBAL},
        {BUILD_BASE - 4, SG_T_U32, SG_S_GENERIC},
        {0, SG_T_U8, SG_S_GLOBAL},
        {BUILD_BASE + BUILD_MEMORY, SG_T_B128, SG_S_GLOBAL},
        {UINT64_MAX - 7, SG_T_U64, SG_S_GENERIC},
        {16, SG_T_U32, SG_S_SHARED},
        {SG_WINDOW_SHARED + 16, SG_T_U8, SG_S_GENERIC},
        {1 << SG_CLUSTER_SHIFT | 16, SG_T_U32, SG_S_SHARED},
        {2 << SG_CLUSTER_SHIFT, SG_T_U32, SG_S_SHARED},
        {0, SG_T_U32, SG_S_LOCAL},
        {SG_WINDOW_LOCAL + 32, SG_T_U32, SG_S_GENERIC},
        {0, SG_T_U32, SG_S_PARAM},
        {SG_WINDOW_HEAP + 16, SG_T_U32, SG_S_GENERIC},
        {SG_WINDOW_CODE + 1, SG_T_U8, SG_S_GENERIC},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct build *b = access_at(cases[i].address, cases[i].type, cases[i].space, 1);
        run_badly(b, 1, 1, CUDA_ERROR_ILLEGAL_ADDRESS, "PTX line 1: ");
    }
}

static void test_misaligned(void **state)
{
    (void)state;
    run_badly(access_at(BUILD_BASE + 2, SG_T_U32, SG_S_GLOBAL, 1), 1, 1,
              CUDA_ERROR_MISALIGNED_ADDRESS, "0x10000002 is not a multiple of 4");
    run_badly(access_at(BUILD_BASE + 4, SG_T_U32, SG_S_GLOBAL, 2), 1, 1,
              CUDA_ERROR_MISALIGNED_ADDRESS, "multiple of 8");
    run_badly(access_at(1, SG_T_U16, SG_S_SHARED, 1), 1, 1, CUDA_ERROR_MISALIGNED_ADDRESS,
              "shared address");
}

/* The line names the thread. */
static void test_trap(void **state)
{
    (void)state;
    struct build *b = build_new(4, 0);
    build_test(b, 0, SG_T_U32, SG_C_EQ, TID, NUMBER(37));
    struct sg_insn *trap = build_add(b, SG_P_TRAP, SG_T_NONE, END);
    trap->guarded = true;
    run_badly(b, 2, 64, CUDA_ERROR_LAUNCH_FAILED,
              "kernel: block (0,0,0), thread (37,0,0), PTX line 2: trap");
}

/* One half at barrier 1, the other at barrier 2. */
static void test_deadlock(void **state)
{
    (void)state;
    struct build *b = build_new(4, 0);
    build_test(b, 0, SG_T_U32, SG_C_LT, TID, NUMBER(32));
    struct sg_insn *jump = build_jump(b, 0, false);
    build_add(b, SG_P_BARRIER, SG_T_NONE, NUMBER(1), END)->mode = SG_Y_SYNC;
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    jump->target = build_pc(b);
    build_add(b, SG_P_BARRIER, SG_T_NONE, NUMBER(2), END)->mode = SG_Y_SYNC;
    run_badly(b, 1, 64, CUDA_ERROR_LAUNCH_FAILED, "deadlock");
}

static void test_cancel(void **state)
{
    (void)state;
    struct build *b = build_new(4, 0);
    build_add(b, SG_P_BRA, SG_T_NONE, END)->target = 0;
    b->cancel = 1;
    run_badly(b, 1, 64, CUDA_ERROR_LAUNCH_TIMEOUT, "cancelled");
}

static void test_barrier_number(void **state)
{
    (void)state;
    struct build *b = build_new(4, 0);
    build_add(b, SG_P_BARRIER, SG_T_NONE, NUMBER(16), END)->mode = SG_Y_SYNC;
    run_badly(b, 1, 1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "barrier 16");
}

static void test_jump_table(void **state)
{
    (void)state;
    static const uint32_t targets[] = {2, 1, 1};
    struct build *b = build_new(4, 0);
    build_add(b, SG_P_BRX, SG_T_NONE, NUMBER(2), END)->targets = targets;
    run_badly(b, 1, 1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "index 2");
}

static void test_shapes(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{0, 1}, {1, 0}, {1, 1025}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        run_badly(build_new(4, 0), shapes[i][0], shapes[i][1], CUDA_ERROR_INVALID_VALUE, "the ");
    struct build *b = build_new(4, SG_MAX_SHARED + 1);
    run_badly(b, 1, 1, CUDA_ERROR_INVALID_VALUE, "shared memory");
    b = build_new(4, 0);
    b->functions[0].info.parameter_bytes = 4;
    run_badly(b, 1, 1, CUDA_ERROR_INVALID_VALUE, "parameters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_illegal_address),
        cmocka_unit_test(test_misaligned),
        cmocka_unit_test(test_trap),
        cmocka_unit_test(test_deadlock),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_barrier_number),
        cmocka_unit_test(test_jump_table),
        cmocka_unit_test(test_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
