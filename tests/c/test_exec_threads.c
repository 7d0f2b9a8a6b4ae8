/*
 * Blocks of one grid on several threads: what they count together, the order of what they print,
 * the end of all when one fails, and that all stop where the launch waits for the device's turn.
 */
#include "exec_build.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define THREADS 4
#define BLOCKS 40
#define LOOPS 20000 /* of a block: long enough for help to come */
#define TID SPECIAL(SG_X_TID_X)
#define BLOCK SPECIAL(SG_X_CTAID_X)
#define COUNTER 0 /* word of memory */
#define FORMAT 4096
#define ARGUMENTS 8192

/* Registers 0..3 are spent. */
static void add_loop(struct build *b, uint32_t count)
{
    build_add(b, SG_P_MOV, SG_T_B32, REG32(0), NUMBER(0), END);
    uint32_t loop = build_pc(b);
    build_add(b, SG_P_ADD, SG_T_U32, REG32(0), REG32(0), NUMBER(1), END);
    build_test(b, 1, SG_T_U32, SG_C_LT, REG32(0), NUMBER(count));
    build_jump(b, 1, false)->target = loop;
}

static void add_count(struct build *b)
{
    build_add(b, SG_P_MOV, SG_T_B64, REG64(2), NUMBER(BUILD_BASE + 4 * COUNTER), END);
    struct sg_insn *in = build_add(b, SG_P_RED, SG_T_U32, REG64(2), NUMBER(1), END);
    in->mode = SG_A_ADD;
    in->space = SG_S_GLOBAL;
}

/* Calls the builtin with two arguments; call_end() after the last instruction of the entry. */
struct call {
    struct sg_operand arguments[2];
    struct sg_call call;
};

static void add_call(struct build *b, struct call *c, struct sg_operand one, struct sg_operand two)
{
    c->arguments[0] = one;
    c->arguments[1] = two;
    c->call = (struct sg_call){.argument_count = 2, .arguments = c->arguments};
    build_add(b, SG_P_CALL, SG_T_NONE, END)->call = &c->call;
}

static void call_end(struct build *b, struct call *c, unsigned builtin)
{
    struct sg_function *f = build_function(b, 0);
    f->defined = false;
    f->builtin = (uint8_t)builtin;
    c->call.callee = f;
}

static void run_well(struct build *b, const struct sg_launch *with, uint32_t threads)
{
    build_finish(b);
    CUresult result = build_launch(b, with, BLOCKS, threads);
    if (result != CUDA_SUCCESS)
        print_message("%s\n", b->fault);
    assert_int_equal(result, CUDA_SUCCESS);
}

/* Each thread of the grid counts once, and has a word of its own. */
static void test_all_count(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct build *b = build_new(12, 0);
        add_loop(b, LOOPS / 4);
        add_count(b);
        build_add(b, SG_P_MAD, SG_T_U32, REG32(4), BLOCK, NUMBER(70), TID, END);
        build_add(b, SG_P_ADD, SG_T_U32, REG32(5), REG32(4), NUMBER(1), END);
        build_store(b, 6, REG32(5), REG32(4));
        build_add(b, SG_P_EXIT, SG_T_NONE, END);
        run_well(b, &(struct sg_launch){0}, 70);
        assert_int_equal(build_words(b)[COUNTER], 70 * BLOCKS);
        for (uint32_t i = 0; i < 70 * BLOCKS; i++)
            assert_int_equal(build_words(b)[i + 1], i);
        build_free(b);
    }
}

/* Who was there: the first waits in a callback until another one comes. */
struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t first;
    bool begun, met;
};

static void meet(void *context, uint64_t handle, uint32_t value)
{
    struct meeting *m = context;
    struct timespec until;
    (void)handle, (void)value;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&m->lock);
    if (!m->begun)
        m->first = pthread_self();
    m->begun = true;
    m->met |= !pthread_equal(m->first, pthread_self());
    pthread_cond_broadcast(&m->changed);
    while (!m->met && pthread_cond_timedwait(&m->changed, &m->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&m->lock);
}

static void test_help_comes(void **state)
{
    (void)state;
    struct meeting m = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct call c;
    struct build *b = build_new(8, 0);
    add_loop(b, LOOPS);
    add_call(b, &c, NUMBER(0), NUMBER(0));
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    call_end(b, &c, SG_B_SET_CONDITION);
    run_well(b, &(struct sg_launch){.set_condition = meet, .condition_context = &m}, 1);
    assert_true(m.met);
    build_free(b);
}

/* The later a block, the sooner it prints; what is told is in the order of blocks all the same. */
static void test_text_in_order(void **state)
{
    (void)state;
    struct call c;
    char expected[8192] = "";
    struct build *b = build_new(12, 0);
    memcpy(b->memory + FORMAT, "block %d\n", 10);
    build_add(b, SG_P_SUB, SG_T_U32, REG32(4), NUMBER(BLOCKS), BLOCK, END);
    build_add(b, SG_P_MUL, SG_T_U32, REG32(4), REG32(4), NUMBER(LOOPS / 20), END);
    build_add(b, SG_P_MOV, SG_T_B32, REG32(0), NUMBER(0), END);
    uint32_t loop = build_pc(b);
    build_add(b, SG_P_ADD, SG_T_U32, REG32(0), REG32(0), NUMBER(1), END);
    build_test(b, 1, SG_T_U32, SG_C_LT, REG32(0), REG32(4));
    build_jump(b, 1, false)->target = loop;
    build_add(b, SG_P_ADD, SG_T_U32, REG32(5), BLOCK, NUMBER(ARGUMENTS / 4), END);
    build_store(b, 6, REG32(5), BLOCK);
    add_call(b, &c, NUMBER(BUILD_BASE + FORMAT), REG64(6)); /* the address of the store */
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    call_end(b, &c, SG_B_VPRINTF);
    run_well(b, &(struct sg_launch){0}, 1);
    for (int i = 0; i < BLOCKS; i++)
        snprintf(expected + strlen(expected), sizeof(expected) - strlen(expected), "block %d\n", i);
    assert_string_equal(b->printed, expected);
    build_free(b);
}

/* The second block ends the first one, which would run for ever. */
static void test_fault_ends_all(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    build_test(b, 1, SG_T_U32, SG_C_EQ, BLOCK, NUMBER(1));
    struct sg_insn *trap = build_add(b, SG_P_TRAP, SG_T_NONE, END);
    trap->guarded = true;
    trap->guard = 1;
    uint32_t loop = build_pc(b);
    build_add(b, SG_P_ADD, SG_T_U32, REG32(0), REG32(0), NUMBER(1), END);
    build_add(b, SG_P_BRA, SG_T_NONE, END)->target = loop;
    build_finish(b);
    assert_int_equal(build_run(b, BLOCKS, 32), CUDA_ERROR_LAUNCH_FAILED);
    assert_non_null(strstr(b->fault, "block (1,0,0)"));
    build_free(b);
}

/* What the grid counts does not move while the launch waits for its turn. */
struct pause {
    uint32_t *counter;
    uint32_t moved, pauses;
};

static bool is_due(void *context)
{
    const struct pause *p = context;
    return p->pauses < 20;
}

static void wait_for_turn(void *context)
{
    struct pause *p = context;
    struct timespec while_ns = {0, 2000000};
    if (!is_due(p))
        return;
    uint32_t before = __atomic_load_n(p->counter, __ATOMIC_SEQ_CST);
    nanosleep(&while_ns, NULL);
    p->moved += __atomic_load_n(p->counter, __ATOMIC_SEQ_CST) - before;
    p->pauses++;
}

static void test_all_stop(void **state)
{
    (void)state;
    struct build *b = build_new(8, 0);
    build_add(b, SG_P_MOV, SG_T_B32, REG32(4), NUMBER(0), END);
    uint32_t loop = build_pc(b);
    add_count(b);
    build_add(b, SG_P_ADD, SG_T_U32, REG32(4), REG32(4), NUMBER(1), END);
    build_test(b, 1, SG_T_U32, SG_C_LT, REG32(4), NUMBER(500));
    build_jump(b, 1, false)->target = loop;
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    struct pause p = {.counter = build_words(b) + COUNTER};
    run_well(b, &(struct sg_launch){.breathe = wait_for_turn, .due = is_due, .breathe_context = &p},
             1);
    assert_int_equal(build_words(b)[COUNTER], 500 * BLOCKS);
    assert_true(p.pauses > 0);
    assert_int_equal(p.moved, 0);
    build_free(b);
}

/* Each block waits for all others, which are all there. */
static void test_cooperative(void **state)
{
    (void)state;
    struct build *b = build_new(12, 0);
    add_count(b);
    build_add(b, SG_P_MOV, SG_T_B64, REG64(4), NUMBER(BUILD_BASE + 4 * COUNTER), END);
    uint32_t retry = build_pc(b);
    struct sg_insn *load = build_add(b, SG_P_LD, SG_T_U32, REG32(5), REG64(4), END);
    load->space = SG_S_GLOBAL;
    load->polls = true;
    build_test(b, 1, SG_T_U32, SG_C_LT, REG32(5), NUMBER(BLOCKS * 33));
    build_jump(b, 1, false)->target = retry;
    build_add(b, SG_P_ADD, SG_T_U32, REG32(6), BLOCK, NUMBER(1), END);
    build_store(b, 8, REG32(6), REG32(5));
    build_add(b, SG_P_EXIT, SG_T_NONE, END);
    run_well(b, &(struct sg_launch){.cooperative = true}, 33);
    for (uint32_t i = 1; i <= BLOCKS; i++)
        assert_int_equal(build_words(b)[i], BLOCKS * 33);
    build_free(b);
}

int main(void)
{
    char threads[16];
    snprintf(threads, sizeof(threads), "%d", THREADS);
    setenv("GPUPOOL_SOFT_THREADS", threads, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_count),     cmocka_unit_test(test_help_comes),
        cmocka_unit_test(test_text_in_order), cmocka_unit_test(test_fault_ends_all),
        cmocka_unit_test(test_all_stop),      cmocka_unit_test(test_cooperative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
