/*
 * What goes on in others' turns is paid for: how much of the time whoever did that has afterwards,
 * by a clock that only the test moves.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "board_internal.h"

#define MS UINT64_C(1000000)
#define TURN (25 * MS) /* the longest */

static uint64_t clock_ns;

uint64_t gp_board_now(void)
{
    return clock_ns;
}

enum who { RED, BLUE, BOTH };
static const char *const names[BOTH] = {"red", "blue"};

struct pair {
    struct gp_board *b;
    int member[BOTH];
};

static struct pair pair_new(enum gp_policy policy, uint32_t red, uint32_t blue)
{
    struct pair p;
    struct gp_board_gpu gpu = {.policy = policy, .max_inst = 10, .prio_ratio = 90};
    clock_ns = 1000 * MS;
    assert_int_equal(gp_board_new(&p.b), 0);
    assert_int_equal(gp_board_gpu_set(p.b, &gpu), 0);
    for (enum who who = RED; who < BOTH; who++) {
        uint32_t part = who == RED ? red : blue;
        struct gp_board_grant grant = {.weight = part, .share = 100 * part, .ceiling = 1000};
        assert_int_equal(gp_board_tenant_set(p.b, names[who], &grant), 0);
        p.member[who] = gp_board_join(p.b, names[who]);
        assert_in_range(p.member[who], 0, BOTH);
    }
    return p;
}

static uint64_t held(const struct pair *p, enum who who)
{
    struct gp_board_tenant all[BOTH];
    assert_int_equal(gp_board_tenants(p->b, all, BOTH), BOTH);
    return all[who].usage.held_ns;
}

/* Both have work all the time. */
static void work(const struct pair *p, uint64_t ns)
{
    for (uint64_t end = clock_ns + ns; clock_ns < end; clock_ns += MS) {
        for (enum who who = RED; who < BOTH; who++)
            if (gp_board_must_yield(p->b, p->member[who]))
                gp_board_idle(p->b, p->member[who], 0);
        for (enum who who = RED; who < BOTH; who++)
            if (gp_board_enter(p->b, p->member[who]))
                gp_board_started(p->b, p->member[who]);
    }
}

/* By how much longer blue's turns are than red's, in so many of red's for each of blue's. */
static int64_t ahead(const struct pair *p, unsigned times)
{
    return (int64_t)held(p, BLUE) - (int64_t)(times * held(p, RED));
}

static void assert_near(int64_t is, int64_t wanted, int64_t by)
{
    assert_in_range(is - wanted + by, 0, 2 * by);
}

static void who_took_half_has_that_much_less(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_SHARE, 5, 5);
    work(&p, 1000 * MS);
    assert_near(ahead(&p, 1), 0, (int64_t)TURN);
    /* blue has lost these 200 ms, and red has had them */
    assert_int_equal(gp_board_charge(p.b, "red", "blue", 200 * MS), 0);
    work(&p, 3000 * MS);
    assert_near(ahead(&p, 1), 400 * (int64_t)MS, 2 * (int64_t)TURN);
    gp_board_free(p.b);
}

static void by_weight(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_SHARE, 2, 6);
    work(&p, 1000 * MS);
    assert_near(ahead(&p, 3), 0, 4 * (int64_t)TURN);
    assert_int_equal(gp_board_charge(p.b, "red", "blue", 200 * MS), 0);
    work(&p, 6000 * MS);
    assert_near(ahead(&p, 3), 800 * (int64_t)MS, 6 * (int64_t)TURN);
    gp_board_free(p.b);
}

/* Green has the same weight as red, and all that red does not have goes to both others. */
static void one_of_little_weight_is_not_paid_by_its_weight_alone(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_SHARE, 5, 1);
    const struct gp_board_grant green = {.share = 500, .ceiling = 1000},
                                blue = {.share = 1, .ceiling = 1000};
    assert_int_equal(gp_board_tenant_set(p.b, "blue", &blue), 0);
    assert_int_equal(gp_board_tenant_set(p.b, "green", &green), 0);
    int third = gp_board_join(p.b, "green");
    assert_true(gp_board_enter(p.b, third));
    assert_int_equal(gp_board_charge(p.b, "red", "blue", 200 * MS), 0);
    const struct tenant_slot *red = gp_board_find(p.b, "red");
    /* ns * 1000 / weight: its own part, and those of others together */
    assert_int_equal(red->vtime, 200 * MS * 1000 / 500 + 200 * MS * 1000 / 501);
    gp_board_idle(p.b, third, 0);
    clock_ns += 1000 * MS; /* it has no work any more */
    uint64_t before = red->vtime;
    assert_int_equal(gp_board_charge(p.b, "red", "blue", MS), 0);
    assert_int_equal(red->vtime - before, MS * 1000 / 500 + MS * 1000);
    gp_board_free(p.b);
}

static void of_one_that_is_gone_its_own_part_is_paid(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_SHARE, 5, 5);
    work(&p, 1000 * MS);
    assert_int_equal(gp_board_charge(p.b, "red", "", 200 * MS), 0);
    assert_int_equal(gp_board_charge(p.b, "red", "green", 200 * MS), 0);
    work(&p, 3000 * MS);
    assert_near(ahead(&p, 1), 400 * (int64_t)MS, 2 * (int64_t)TURN);
    gp_board_free(p.b);
}

/* Red has a kernel that is longer than its turn and works on behind that; blue works beside it. */
static void loses_its_turn(const struct pair *p)
{
    work(p, 1000 * MS);
    uint64_t end = clock_ns + 3000 * MS;
    for (; clock_ns < end && gp_board_must_yield(p->b, p->member[RED]); clock_ns += MS)
        gp_board_idle(p->b, p->member[RED], 0);
    for (; clock_ns < end && !gp_board_enter(p->b, p->member[RED]); clock_ns += MS)
        if (gp_board_must_yield(p->b, p->member[BLUE]))
            gp_board_idle(p->b, p->member[BLUE], 0);
    gp_board_started(p->b, p->member[RED]);
    for (; clock_ns < end; clock_ns += MS)
        if (gp_board_enter(p->b, p->member[BLUE]))
            return;
    fail();
}

static void behind_a_lost_turn_it_is_not_paid_for_twice(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_SHARE, 5, 5);
    const struct tenant_slot *red = gp_board_find(p.b, "red");
    loses_its_turn(&p);
    uint64_t before = red->vtime;
    clock_ns += 1000 * MS; /* of which it had half, which costs it twice as much: or a bit more */
    assert_int_equal(gp_board_charge(p.b, "red", "blue", 500 * MS), 0);
    assert_int_equal(red->vtime - before, 1000 * MS * 1000 / 500);
    assert_int_equal(gp_board_charge(p.b, "red", "blue", 100 * MS), 0);
    assert_int_equal(red->vtime - before, 1200 * MS * 1000 / 500);
    gp_board_idle(p.b, p.member[RED], 0);
    assert_int_equal(red->vtime - before, 1200 * MS * 1000 / 500);
    gp_board_free(p.b);
}

static void a_lost_turns_kernel_is_paid_also_while_another_member_has_turns(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_SHARE, 5, 5);
    const struct tenant_slot *red = gp_board_find(p.b, "red");
    int second = gp_board_join(p.b, "red");
    loses_its_turn(&p);
    uint64_t before = red->vtime;
    clock_ns += 1000 * MS;
    assert_false(gp_board_enter(p.b, second));
    gp_board_idle(p.b, p.member[BLUE], 0);
    clock_ns += 2 * MS;
    assert_true(gp_board_enter(p.b, second));
    assert_true(red->vtime - before >= 1000 * MS * 1000 / 500);
    before = red->vtime; /* what comes later is not of that */
    assert_int_equal(gp_board_charge(p.b, "red", "", MS), 0);
    assert_int_equal(red->vtime - before, MS * 1000 / 500);
    gp_board_free(p.b);
}

/* Fixed parts have ceilings: what red had beyond its own it has less of, and nobody has it. */
static void a_ceiling_is_one_of_both(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_FIXED, 2, 5);
    work(&p, 5000 * MS);
    uint64_t before = held(&p, RED), blue = held(&p, BLUE);
    work(&p, 5000 * MS);
    uint64_t usual = held(&p, RED) - before, usual_blue = held(&p, BLUE) - blue;
    assert_near((int64_t)usual, 1000 * (int64_t)MS, 200 * (int64_t)MS);
    assert_int_equal(gp_board_charge(p.b, "red", "blue", 500 * MS), 0);
    before = held(&p, RED), blue = held(&p, BLUE);
    work(&p, 5000 * MS);
    assert_near((int64_t)(held(&p, RED) - before), (int64_t)(usual - 500 * MS), 2 * (int64_t)TURN);
    assert_near((int64_t)(held(&p, BLUE) - blue), (int64_t)usual_blue, 3 * (int64_t)TURN);
    gp_board_free(p.b);
}

/* Red has it all for five minutes, and then keeps to its turns. */
static void a_debt_has_an_end(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_SHARE, 5, 5);
    work(&p, 1000 * MS);
    for (int i = 0; i < 5; i++)
        assert_int_equal(gp_board_charge(p.b, "red", "blue", GP_BOARD_CHARGE_MOST), 0);
    uint64_t before = held(&p, RED);
    work(&p, 10500 * MS);
    assert_true(held(&p, RED) > before);
    assert_near(ahead(&p, 1), 10000 * (int64_t)MS, 4 * (int64_t)TURN);
    gp_board_free(p.b);
}

/* While nobody else wants the GPU, a debt keeps nobody from it. */
static void whoever_is_alone_works_on(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_SHARE, 5, 5);
    assert_int_equal(gp_board_charge(p.b, "red", "blue", GP_BOARD_CHARGE_MOST), 0);
    assert_true(gp_board_enter(p.b, p.member[RED]));
    gp_board_free(p.b);
}

static void what_is_nobodys(void **state)
{
    (void)state;
    struct pair p = pair_new(GP_POLICY_SHARE, 5, 5);
    const struct tenant_slot *red = gp_board_find(p.b, "red");
    uint64_t before = red->vtime;
    assert_int_equal(gp_board_charge(p.b, "red", "red", MS), 0);
    assert_int_equal(gp_board_charge(p.b, "green", "red", MS), -ENOENT);
    assert_int_equal(gp_board_charge(p.b, "", "red", MS), -ENOENT);
    assert_int_equal(gp_board_charge(p.b, "red", "blue", GP_BOARD_CHARGE_MOST + 1), -EINVAL);
    assert_int_equal(gp_board_charge(p.b, "red", "blue", UINT64_MAX), -EINVAL);
    struct gp_board_gpu gpu = {.policy = GP_POLICY_NATIVE, .max_inst = 10, .prio_ratio = 90};
    assert_int_equal(gp_board_gpu_set(p.b, &gpu), 0);
    assert_int_equal(gp_board_charge(p.b, "red", "blue", MS), 0);
    assert_int_equal(red->vtime, before);
    gp_board_free(p.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_took_half_has_that_much_less),
        cmocka_unit_test(by_weight),
        cmocka_unit_test(one_of_little_weight_is_not_paid_by_its_weight_alone),
        cmocka_unit_test(of_one_that_is_gone_its_own_part_is_paid),
        cmocka_unit_test(behind_a_lost_turn_it_is_not_paid_for_twice),
        cmocka_unit_test(a_lost_turns_kernel_is_paid_also_while_another_member_has_turns),
        cmocka_unit_test(a_ceiling_is_one_of_both),
        cmocka_unit_test(a_debt_has_an_end),
        cmocka_unit_test(whoever_is_alone_works_on),
        cmocka_unit_test(what_is_nobodys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
