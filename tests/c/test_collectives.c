/* What an arbiter tells workers of how far other ranks of their gang have come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "arbiter.h"
#include "board_internal.h"
#include "seat.h"

#define SEATS 24
#define COMMUNICATOR 7

static struct {
    struct gp_arbiter *arbiter;
    struct gp_seat *seats[SEATS];
    int members[SEATS];
} world;

static int begin(void **state)
{
    (void)state;
    return gp_arbiter_new(-1, &world.arbiter);
}

static int end(void **state)
{
    (void)state;
    for (int i = 0; i < SEATS; i++) {
        gp_seat_close(world.seats[i]);
        world.seats[i] = NULL;
    }
    gp_arbiter_free(world.arbiter);
    return 0;
}

static void sit(int i, const char *tenant)
{
    const struct gp_board_grant grant = {.weight = 1, .share = 100, .ceiling = 1000};
    int page, bell;
    assert_int_equal(gp_board_tenant_set(gp_arbiter_board(world.arbiter), tenant, &grant), 0);
    world.members[i] = gp_arbiter_join(world.arbiter, tenant, &page, &bell);
    assert_true(world.members[i] >= 0);
    assert_int_equal(gp_seat_open(dup(page), dup(bell), &world.seats[i]), 0);
}

static void expect(int i, bool behind)
{
    gp_arbiter_step(world.arbiter, 0);
    assert_int_equal(gp_seat_behind(world.seats[i]), behind);
}

static void a_rank_hears_of_what_another_has_begun(void **state)
{
    (void)state;
    sit(0, "red/job");
    sit(1, "red/job");
    gp_seat_collective(world.seats[0], COMMUNICATOR, 1);
    expect(1, false); /* it has none of them */
    gp_seat_collective(world.seats[1], COMMUNICATOR, 1);
    expect(1, false);
    gp_seat_collective(world.seats[0], COMMUNICATOR, 3);
    expect(1, true);
    expect(0, false);
    assert_true(gp_arbiter_board(world.arbiter)->tenants[0].ranks);
    assert_true(gp_arbiter_board(world.arbiter)->tenants[0].behind);
    gp_seat_collective(world.seats[1], COMMUNICATOR, 2);
    assert_true(gp_seat_behind(world.seats[1])); /* without asking again */
    gp_seat_collective(world.seats[1], COMMUNICATOR, 3);
    assert_false(gp_seat_behind(world.seats[1]));
    expect(0, false);
    assert_false(gp_arbiter_board(world.arbiter)->tenants[0].behind);
}

static void numbers_wrap(void **state)
{
    (void)state;
    sit(0, "red/job");
    sit(1, "red/job");
    gp_seat_collective(world.seats[0], COMMUNICATOR, UINT32_MAX);
    gp_seat_collective(world.seats[1], COMMUNICATOR, 0);
    expect(0, true);
    expect(1, false);
}

static void others_are_nothing_to_it(void **state)
{
    (void)state;
    sit(0, "red/job");
    sit(1, "red/other");
    sit(2, "red/job");
    gp_seat_collective(world.seats[0], COMMUNICATOR, 1);
    gp_seat_collective(world.seats[1], COMMUNICATOR, 2);     /* another tenant's */
    gp_seat_collective(world.seats[2], COMMUNICATOR + 1, 2); /* another communicator's */
    expect(0, false);
    assert_false(gp_arbiter_board(world.arbiter)->tenants[0].ranks);
}

static void a_rank_that_leaves_is_not_followed(void **state)
{
    (void)state;
    sit(0, "red/job");
    sit(1, "red/job");
    gp_seat_collective(world.seats[0], COMMUNICATOR, 2);
    gp_seat_collective(world.seats[1], COMMUNICATOR, 1);
    expect(1, true);
    gp_arbiter_leave(world.arbiter, world.members[0]);
    expect(1, false);
}

/* Of more communicators of a tenant than it looks at, nothing is said; of others it is. */
static void many_communicators_harm_nobody(void **state)
{
    (void)state;
    const int last = SEATS - 1;
    for (int i = 0; i < last - 1; i++) {
        sit(i, "red/job");
        gp_seat_collective(world.seats[i], (uint32_t)i + 1, 1);
    }
    sit(last - 1, "blue");
    sit(last, "blue");
    gp_seat_collective(world.seats[last - 1], COMMUNICATOR, 1);
    gp_seat_collective(world.seats[last], COMMUNICATOR, 2);
    expect(last - 1, true);
    gp_seat_collective(world.seats[last - 2], (uint32_t)last - 2, 2);
    expect(last - 3, false);
    gp_seat_collective(world.seats[last - 2], 1, 2);
    expect(0, true);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_rank_hears_of_what_another_has_begun),
        TEST(numbers_wrap),
        TEST(others_are_nothing_to_it),
        TEST(a_rank_that_leaves_is_not_followed),
        TEST(many_communicators_harm_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
