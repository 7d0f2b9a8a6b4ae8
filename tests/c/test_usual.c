/* Around which times a wait is looked at closely. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "usual.h"

#define MS UINT64_C(1000000)

static void test_nothing_is_usual_at_first(void **state)
{
    (void)state;
    struct gp_usual u = {.next = 0};
    assert_int_equal(gp_usual_next_ns(&u, 0), 0);
    assert_int_equal(gp_usual_next_ns(&u, 100 * MS), 0);
}

/* A step with a short wait and a long one: whichever it is, the next is looked for. */
static void test_each_length_has_its_turn(void **state)
{
    (void)state;
    struct gp_usual u = {.next = 0};
    gp_usual_learn(&u, 8 * MS);
    gp_usual_learn(&u, 1 * MS);
    assert_int_equal(gp_usual_next_ns(&u, 0), 1 * MS);
    assert_int_equal(gp_usual_next_ns(&u, gp_usual_latest_ns(1 * MS) - 1), 1 * MS);
    assert_int_equal(gp_usual_next_ns(&u, gp_usual_latest_ns(1 * MS)), 8 * MS);
    assert_int_equal(gp_usual_next_ns(&u, gp_usual_latest_ns(8 * MS)), 0);
}

static void test_what_was_long_ago_is_forgotten(void **state)
{
    (void)state;
    struct gp_usual u = {.next = 0};
    gp_usual_learn(&u, 1 * MS);
    for (unsigned i = 0; i < GP_USUAL_TIMES; i++) {
        assert_int_equal(gp_usual_next_ns(&u, 0), 1 * MS);
        gp_usual_learn(&u, 8 * MS);
    }
    assert_int_equal(gp_usual_next_ns(&u, 0), 8 * MS);
}

/* The closer look begins before the time and ends behind it, and is short for a long one. */
static void test_a_look_is_bounded(void **state)
{
    (void)state;
    for (uint64_t ns = 1; ns < UINT64_MAX / 2; ns *= 3) {
        uint64_t from = gp_usual_soonest_ns(ns), to = gp_usual_latest_ns(ns);
        assert_true(from <= ns && ns <= to);
        assert_true(to - from <= 2 * GP_USUAL_AROUND_NS);
        assert_true(to - from <= ns / 8 + ns / 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_usual_at_first),
        cmocka_unit_test(test_each_length_has_its_turn),
        cmocka_unit_test(test_what_was_long_ago_is_forgotten),
        cmocka_unit_test(test_a_look_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
