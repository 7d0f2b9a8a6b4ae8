/* Calls: recursion, pointers, and the functions that the device runtime provides. */
#include "exec_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TID SPECIAL(SG_X_TID_X)

static CUresult run(struct build *b, uint32_t threads)
{
    build_finish(b);
    return build_run(b, 1, threads);
}

/* One call with at most two arguments and one result; freed with the process. */
static struct sg_call *call_of(const struct sg_function *callee, uint32_t results,
                               struct sg_operand result, uint32_t arguments, struct sg_operand a,
                               struct sg_operand c)
{
    static struct sg_call calls[32];
    static struct sg_operand operands[32][3];
    static unsigned used;
    if (used == 32)
        abort();
    struct sg_operand *x = operands[used];
    x[0] = result, x[1] = a, x[2] = c;
    calls[used] = (struct sg_call){callee, results, arguments, x, x + 1};
    return &calls[used++];
}

/* f(n) = n == 0 ? 1 : n * f(n - 1), the argument in a .param, the result in a register */
static struct sg_function *add_factorial(struct build *b)
{
    static const struct sg_formal argument = {.offset = 0, .size = 4};
    static const struct sg_formal result = {.in_register = true, .slot = 3, .size = 4};
    struct sg_function *f = build_function(b, 6);
    f->frame_bytes = 8;
    f->argument_count = f->result_count = 1;
    f->arguments = (struct sg_formal *)&argument;
    f->results = (struct sg_formal *)&result;
    build_add(b, SG_P_LD, SG_T_U32, REG32(0), LOCAL(0, 4), END)->space = SG_S_PARAM;
    build_add(b, SG_P_MOV, SG_T_B32, REG32(3), NUMBER(1), END);
    build_test(b, 1, SG_T_U32, SG_C_EQ, REG32(0), NUMBER(0));
    struct sg_insn *done = build_add(b, SG_P_RET, SG_T_NONE, END);
    done->guarded = true;
    done->guard = 1;
    build_add(b, SG_P_SUB, SG_T_U32, REG32(2), REG32(0), NUMBER(1), END);
    build_add(b, SG_P_ST, SG_T_U32, LOCAL(4, 4), REG32(2), END)->space = SG_S_PARAM;
    build_add(b, SG_P_CALL, SG_T_NONE, END)->call = call_of(f, 1, REG32(3), 1, LOCAL(4, 4), SINK);
    build_add(b, SG_P_MUL, SG_T_U32, REG32(3), REG32(3), REG32(0), END);
    build_add(b, SG_P_RET, SG_T_NONE, END);
    return f;
}

/* Each lane goes to a depth of its own, and all are together afterwards. */
static void test_recursion(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    build_add(b, SG_P_REM, SG_T_U32, REG32(0), TID, NUMBER(11), END);
    struct sg_insn *call = build_add(b, SG_P_CALL, SG_T_NONE, END);
    build_store(b, 2, TID, REG32(1));
    build_add(b, SG_P_ACTIVEMASK, SG_T_B32, REG32(3), END);
    build_add(b, SG_P_ADD, SG_T_U32, REG32(4), TID, NUMBER(64), END);
    build_store(b, 2, REG32(4), REG32(3));
    build_add(b, SG_P_RET, SG_T_NONE, END);
    call->call = call_of(add_factorial(b), 1, REG32(1), 1, REG32(0), SINK);
    assert_int_equal(run(b, 64), CUDA_SUCCESS);
    uint32_t expected[11] = {1};
    for (uint32_t n = 1; n < 11; n++)
        expected[n] = expected[n - 1] * n;
    for (uint32_t l = 0; l < 64; l++) {
        assert_int_equal(build_words(b)[l], expected[l % 11]);
        assert_int_equal(build_words(b)[64 + l], UINT32_MAX);
    }
    build_free(b);
}

static void test_too_deep(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    struct sg_insn *call = build_add(b, SG_P_CALL, SG_T_NONE, END);
    build_add(b, SG_P_RET, SG_T_NONE, END);
    call->call = call_of(add_factorial(b), 1, REG32(1), 1, NUMBER(1000000), SINK);
    assert_int_equal(run(b, 1), CUDA_ERROR_HARDWARE_STACK_ERROR);
    assert_non_null(strstr(b->fault, "too deep"));
    build_free(b);
}

/* One lane calls one function, its neighbour another. */
static void test_pointers(void **state)
{
    (void)state;
    static const struct sg_formal formal = {.in_register = true, .slot = 0, .size = 4};
    struct build *b = build_new(8, 0);
    build_add(b, SG_P_AND, SG_T_B32, REG32(0), TID, NUMBER(1), END);
    build_add(b, SG_P_ADD, SG_T_U64, REG64(1), REG64(0), NUMBER(SG_WINDOW_CODE + 2), END);
    build_add(b, SG_P_CALL, SG_T_NONE, REG64(1), END)->call = call_of(NULL, 1, REG32(2), 1, TID,
                                                                      SINK);
    build_store(b, 3, TID, REG32(2));
    build_add(b, SG_P_RET, SG_T_NONE, END);
    for (uint32_t i = 0; i < 2; i++) {
        struct sg_function *f = build_function(b, 2);
        f->argument_count = f->result_count = 1;
        f->arguments = f->results = (struct sg_formal *)&formal;
        build_add(b, SG_P_ADD, SG_T_U32, REG32(0), REG32(0), NUMBER(1000 * (i + 1)), END);
        build_add(b, SG_P_RET, SG_T_NONE, END);
    }
    assert_int_equal(run(b, 32), CUDA_SUCCESS);
    for (uint32_t l = 0; l < 32; l++)
        assert_int_equal(build_words(b)[l], l + 1000 * ((l & 1) + 1));
    build_free(b);
}

static void test_bad_pointer(void **state)
{
    (void)state;
    static const uint64_t pointers[] = {0, SG_WINDOW_CODE, SG_WINDOW_CODE + 1, SG_WINDOW_CODE + 9};
    for (size_t i = 0; i < sizeof(pointers) / sizeof(*pointers); i++) {
        struct build *b = build_new(4, 0);
        build_add(b, SG_P_CALL, SG_T_NONE, NUMBER(pointers[i]), END)->call = call_of(NULL, 0, SINK,
                                                                                     0, SINK, SINK);
        build_add(b, SG_P_RET, SG_T_NONE, END);
        assert_int_equal(run(b, 1), CUDA_ERROR_ILLEGAL_INSTRUCTION);
        build_free(b);
    }
}

static struct build *builtin(unsigned which, uint32_t arguments, struct sg_operand a,
                             struct sg_operand c)
{
    struct build *b = build_new(8, 0);
    struct sg_insn *call = build_add(b, SG_P_CALL, SG_T_NONE, END);
    build_store(b, 2, NUMBER(1000), REG32(1));
    build_add(b, SG_P_RET, SG_T_NONE, END);
    struct sg_function *f = build_function(b, 0);
    f->defined = false;
    f->builtin = (uint8_t)which;
    call->call = call_of(f, 1, REG32(1), arguments, a, c);
    return b;
}

static void test_printf(void **state)
{
    (void)state;
    static const char format[] = "%d|%5u|%-6s|%08.3f|%c|%llx|%%|%.2s|%*d|%e|%lu\n";
    struct build *b = builtin(SG_B_VPRINTF, 2, NUMBER(BUILD_BASE), NUMBER(BUILD_BASE + 256));
    memcpy(b->memory, format, sizeof(format));
    memcpy(b->memory + 512, "text", 5);
    unsigned char *p = b->memory + 256;
    const int32_t minus = -7, letter = 'x', width = 6;
    const uint32_t small = 42;
    const uint64_t text = BUILD_BASE + 512, wide = UINT64_C(0xfedcba9876543210), big = UINT64_MAX;
    const double number = -3.14159, large = 12345.678;
    memcpy(p, &minus, 4), memcpy(p + 4, &small, 4), memcpy(p + 8, &text, 8);
    memcpy(p + 16, &number, 8), memcpy(p + 24, &letter, 4), memcpy(p + 32, &wide, 8);
    memcpy(p + 40, &text, 8), memcpy(p + 48, &width, 4), memcpy(p + 52, &minus, 4);
    memcpy(p + 56, &large, 8), memcpy(p + 64, &big, 8);
    assert_int_equal(run(b, 1), CUDA_SUCCESS);
    assert_string_equal(b->printed, "-7|   42|text  |-003.142|x|fedcba9876543210|%|te|    -7|"
                                    "1.234568e+04|18446744073709551615\n");
    assert_int_equal(build_words(b)[1000], 11); /* the width counts */
    build_free(b);
}

/* Formats that would run away: no end, wild pointers, huge fields. */
static void test_printf_hostile(void **state)
{
    (void)state;
    static const char format[] = "[%999999999d][%.999999999f][%s][%q][%";
    struct build *b = builtin(SG_B_VPRINTF, 2, NUMBER(BUILD_BASE), NUMBER(BUILD_BASE + 256));
    memcpy(b->memory, format, sizeof(format));
    memset(b->memory + 256, 0xff, 256);
    assert_int_equal(run(b, 1), CUDA_SUCCESS);
    assert_true(b->printed_size > 4096 && b->printed_size < 20000);
    build_free(b);
    b = builtin(SG_B_VPRINTF, 2, NUMBER(0), NUMBER(0));
    assert_int_equal(run(b, 1), CUDA_SUCCESS);
    assert_int_equal(build_words(b)[1000], UINT32_MAX);
    build_free(b);
}

static void test_assertion(void **state)
{
    (void)state;
    struct build *b = builtin(SG_B_ASSERTFAIL, 2, NUMBER(BUILD_BASE), NUMBER(BUILD_BASE + 64));
    strcpy((char *)b->memory, "i < n");
    strcpy((char *)b->memory + 64, "sum.cu");
    assert_int_equal(run(b, 2), CUDA_ERROR_ASSERT);
    assert_non_null(strstr(b->printed, "sum.cu:0: : block: [0,0,0], thread: [0,0,0] Assertion "
                                       "`i < n` failed.\n"));
    assert_non_null(strstr(b->printed, "thread: [1,0,0]"));
    build_free(b);
}

static unsigned updates, breaths;
static volatile int *cancelled;

static bool update(uint64_t name, const struct sg_update *what)
{
    *cancelled = name == 7;
    updates++;
    return what->field == SG_UPDATE_ENABLED;
}

static void breathe(void *context)
{
    (void)context;
    breaths++;
}

/* A kernel says how many there are: the GPU is others' meanwhile, and what is cancelled ends. */
static void test_updates_without_end(void **state)
{
    (void)state;
    const struct sg_launch with = {.update_node = update, .breathe = breathe};
    struct build *b = builtin(SG_B_NODE_UPDATES, 2, NUMBER(BUILD_BASE), NUMBER(1500));
    cancelled = &b->cancel;
    for (unsigned i = 0; i < 1500; i++) {
        memcpy(b->memory + i * 40, &(uint64_t){i == 900 ? 7 : 1}, 8);
        b->memory[i * 40 + 8] = SG_UPDATE_ENABLED;
    }
    build_finish(b);
    build_launch(b, &with, 1, 1);
    assert_int_equal(updates, 901);
    assert_in_range(breaths, 4, 900);
    build_free(b);
}

/* Threads get pieces of their own, and give them back once. */
static void test_heap(void **state)
{
    (void)state;
    struct build *b = build_new(12, 0);
    struct sg_insn *take = build_add(b, SG_P_CALL, SG_T_NONE, END);
    build_add(b, SG_P_ST, SG_T_U32, REG64(0), TID, END);
    build_add(b, SG_P_BARRIER, SG_T_NONE, NUMBER(0), END)->mode = SG_Y_SYNC;
    build_add(b, SG_P_LD, SG_T_U32, REG32(1), REG64(0), END);
    struct sg_insn *give = build_add(b, SG_P_CALL, SG_T_NONE, END);
    build_store(b, 2, TID, REG32(1));
    build_test(b, 3, SG_T_U32, SG_C_EQ, TID, NUMBER(99));
    struct sg_insn *again = build_add(b, SG_P_CALL, SG_T_NONE, END);
    again->guarded = true;
    again->guard = 3;
    build_add(b, SG_P_RET, SG_T_NONE, END);
    struct sg_function *f = build_function(b, 0);
    f->builtin = SG_B_MALLOC;
    take->call = call_of(f, 1, REG64(0), 1, NUMBER(20), SINK);
    f = build_function(b, 0);
    f->builtin = SG_B_FREE;
    give->call = again->call = call_of(f, 0, SINK, 1, REG64(0), SINK);
    assert_int_equal(run(b, 64), CUDA_SUCCESS);
    for (uint32_t l = 0; l < 64; l++)
        assert_int_equal(build_words(b)[l], l);
    assert_int_equal(run(b, 100), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_non_null(strstr(b->fault, "thread (99,0,0)"));
    build_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recursion),
        cmocka_unit_test(test_too_deep),
        cmocka_unit_test(test_pointers),
        cmocka_unit_test(test_bad_pointer),
        cmocka_unit_test(test_printf),
        cmocka_unit_test(test_printf_hostile),
        cmocka_unit_test(test_assertion),
        cmocka_unit_test(test_heap),
        cmocka_unit_test(test_updates_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
