/* What transports share: how long it is worth to spin, and waits that end when they are to. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/support.h"

static void learn(struct gp_spin *spin, int64_t waited_ns, int times)
{
    for (int i = 0; i < times; i++)
        gp_spin_learn(spin, waited_ns);
}

static void test_long_waits_are_slept(void **state)
{
    (void)state;
    struct gp_spin spin;
    gp_spin_init(&spin);
    assert_int_equal(spin.budget_ns, gp_spin_limit_ns());
    learn(&spin, INT64_MAX, 50);
    assert_int_equal(spin.budget_ns, 0);
}

/* A wait that was slept through tells as much as one that was spun. */
static void test_short_waits_bring_the_spin_back(void **state)
{
    (void)state;
    struct gp_spin spin = {.budget_ns = 0};
    int64_t limit = gp_spin_limit_ns();
    learn(&spin, limit + 1, 10);
    assert_int_equal(spin.budget_ns, 0);
    learn(&spin, limit, 10);
    assert_int_equal(spin.budget_ns, limit);
}

/* A worker that waits for its GPU looks for messages every few microseconds. */
static void test_short_looks_are_no_waits(void **state)
{
    (void)state;
    int64_t limit_us = gp_spin_limit_ns() / 1000;
    assert_true(gp_spin_naps(0));
    assert_true(gp_spin_naps(limit_us));
    assert_false(gp_spin_naps(limit_us + 1));
    assert_false(gp_spin_naps(-1));
}

static void test_a_wait_ends_at_its_deadline(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    struct pollfd item = {.fd = ends[0], .events = POLLIN};
    for (int64_t us = 1; us < 3000; us *= 3) {
        int64_t deadline = gp_deadline_us(us);
        assert_int_equal(gp_poll_until(&item, 1, deadline, 1000), 0);
        assert_true(gp_clock_ns() >= deadline);
    }
    assert_int_equal(gp_poll_until(&item, 1, gp_deadline_us(0), 1000), 0);
    assert_int_equal(gp_poll_until(&item, 1, gp_clock_ns() - 1, 1000), 0);
    assert_int_equal(gp_poll_until(&item, 1, INT64_MAX, 1), 0);
    assert_int_equal(write(ends[1], "", 1), 1);
    assert_int_equal(gp_poll_until(&item, 1, INT64_MAX, 1 << 30), 1);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_waits_are_slept),
        cmocka_unit_test(test_short_waits_bring_the_spin_back),
        cmocka_unit_test(test_short_looks_are_no_waits),
        cmocka_unit_test(test_a_wait_ends_at_its_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
