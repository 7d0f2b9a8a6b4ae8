/* What is under way may wait for what the gate holds back. */
#include "gate_world.h"

/* What is under way may wait for what comes behind: a kernel that polls, a stream that waits. */
static void what_stands_lets_more_in(void **state)
{
    (void)state;
    assert_int_equal(ahead(), 4);
    world.now += 999 * MS;
    assert_false(submit());
    world.now += MS;
    assert_int_equal(ahead(), 1);
    world.now += 9 * MS;
    assert_false(submit());
    world.now += 991 * MS;
    assert_int_equal(ahead(), 100);
    run(0); /* it goes on */
    finish_all();
}

static void a_program_whose_streams_wait_is_let_in_sooner(void **state)
{
    (void)state;
    static const struct gp_req_cuStreamWaitValue32_v2 wait = {
        .h = {.op = GP_OP_cuStreamWaitValue32_v2, .size = sizeof wait}};
    assert_true(gpw_gate_admit(&session, &wait.h, &here));
    gpw_gate_passed(&session, &wait.h, &here);
    assert_int_equal(ahead(), 4);
    world.now += 20 * MS;
    assert_int_equal(ahead(), 1);
    world.now += 2 * MS;
    assert_int_equal(ahead(), 10);
}

/* The turn goes on: what was let in is of it, and nobody else is beside it. */
static void a_turn_that_ends_lets_in_what_it_may_wait_for(void **state)
{
    (void)state;
    assert_true(submit());
    world.must_yield = world.contended = true;
    assert_false(submit());
    world.now += 1000 * MS;
    assert_true(submit());
    assert_false(submit());
    assert_int_equal(world.entered, 1);
    assert_int_equal(world.idled, 0);
    run(0);
    run(0);
    assert_int_equal(world.idled, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_stands_lets_more_in),
        TEST(a_program_whose_streams_wait_is_let_in_sooner),
        TEST(a_turn_that_ends_lets_in_what_it_may_wait_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
