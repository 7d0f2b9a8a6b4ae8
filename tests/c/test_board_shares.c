/*
 * Every policy, simulated: tenants with kernels of given lengths, on a GPU that runs
 * one kernel after another and needs 0.2 ms to change tenants, by a clock that only
 * the test moves. The board's code is the real one; what a worker does at the gate
 * (little ahead while others wait, say when it is idle) is written down here again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "board_internal.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define SWITCH (200 * US)
#define AHEAD (2 * MS)

static uint64_t clock_ns;
static uint64_t tick = 20 * US; /* how far the clock goes at a time */

uint64_t gp_board_now(void)
{
    return clock_ns;
}

struct tenant {
    const char *name;
    struct gp_board_grant grant;
    uint64_t kernel_ns;
    unsigned per_step;    /* kernels before it waits; 0: never waits */
    uint64_t think_ns;    /* from the end of a step to the next */
    bool absent;          /* on the board, but never with work */
    uint64_t from, until; /* ms of the simulation in which it has work; until 0: the end */
    /* state */
    int member;
    unsigned submitted, done; /* of this step */
    uint64_t wake, idle_since;
    bool busy, starts;
    uint64_t work_ns;
};

struct gpu {
    struct {
        int tenant;
        uint64_t left;
    } queue[4096];
    unsigned head, tail;
    uint64_t queued[GP_BOARD_TENANTS]; /* of each tenant, in ns */
    int last;
    uint64_t switching;
};

static void gpu_run(struct gpu *g, struct tenant *tenants, uint64_t ns)
{
    while (ns && g->head != g->tail) {
        int who = g->queue[g->head % 4096].tenant;
        if (who != g->last) {
            g->last = who;
            g->switching = SWITCH;
        }
        uint64_t *left = g->switching ? &g->switching : &g->queue[g->head % 4096].left;
        uint64_t step = *left < ns ? *left : ns;
        if (left != &g->switching) {
            tenants[who].work_ns += step;
            g->queued[who] -= step;
        }
        *left -= step;
        ns -= step;
        if (left != &g->switching && *left == 0) {
            tenants[who].done++;
            g->head++;
        }
    }
}

static void worker_run(struct gp_board *b, struct gpu *g, struct tenant *t, int index)
{
    if (t->absent)
        return;
    bool leaves = clock_ns < t->from || (t->until && clock_ns >= t->until);
    uint64_t mine = g->queued[index];
    if (t->starts && g->last == index && !g->switching) {
        t->starts = false;
        gp_board_started(b, t->member);
    }
    if (mine == 0 && t->busy) {
        t->busy = false;
        t->idle_since = clock_ns;
        gp_board_idle(b, t->member, 0);
    }
    if (t->per_step && t->done == t->per_step) { /* the client waits, and thinks */
        t->submitted = t->done = 0;
        t->wake = clock_ns + t->think_ns;
    }
    if (t->until && clock_ns >= t->until && mine == 0) {
        gp_board_leave(b, t->member);
        t->absent = true;
    }
    if (clock_ns < t->wake || leaves)
        return;
    while ((!t->per_step || t->submitted < t->per_step) && g->tail - g->head < 4000) {
        if (mine && gp_board_contended(b, t->member) && mine >= AHEAD)
            return;
        if (mine >= 50 * MS && mine > 2 * t->kernel_ns) /* the client's queue is full */
            return;
        if (t->busy ? gp_board_must_yield(b, t->member) : false)
            return;
        if (!gp_board_enter(b, t->member))
            return;
        t->busy = true;
        if (gp_board_fresh(b, t->member))
            t->starts = true;
        g->queue[g->tail % 4096].tenant = index;
        g->queue[g->tail++ % 4096].left = t->kernel_ns;
        g->queued[index] += t->kernel_ns;
        mine += t->kernel_ns;
        t->submitted++;
    }
}

/* What the server's watchdog goes by: nobody who keeps to turns works outside of them. */
static void check_held(struct gp_board *b, uint32_t policy, const struct tenant *tenants, int count)
{
    struct gp_board_tenant seen[GP_BOARD_TENANTS];
    bool turns = policy != GP_POLICY_WEAK && policy != GP_POLICY_NATIVE;
    int found = gp_board_tenants(b, seen, GP_BOARD_TENANTS);
    for (int i = 0; turns && i < count; i++)
        for (int k = 0; k < found; k++)
            if (strcmp(seen[k].name, tenants[i].name) == 0 && !tenants[i].grant.high_priority)
                assert_true(tenants[i].work_ns <= seen[k].usage.held_ns);
}

static void simulate(struct gp_board_gpu setting, struct tenant *tenants, int count,
                     uint64_t duration)
{
    static struct gpu g;
    struct gp_board *b;
    memset(&g, 0, sizeof g);
    g.last = -1;
    assert_int_equal(gp_board_new(&b), 0);
    assert_int_equal(gp_board_gpu_set(b, &setting), 0);
    for (int i = 0; i < count; i++) {
        if (!tenants[i].grant.share)
            tenants[i].grant.share = 1000 / (unsigned)count;
        if (!tenants[i].grant.ceiling)
            tenants[i].grant.ceiling = 1000;
        assert_int_equal(gp_board_tenant_set(b, tenants[i].name, &tenants[i].grant), 0);
        tenants[i].member = gp_board_join(b, tenants[i].name);
        assert_true(tenants[i].member >= 0);
    }
    for (uint64_t end = clock_ns + duration; clock_ns < end; clock_ns += tick) {
        for (int i = 0; i < count; i++)
            worker_run(b, &g, &tenants[i], i);
        gpu_run(&g, tenants, tick);
    }
    check_held(b, setting.policy, tenants, count);
    gp_board_free(b);
}

static void assert_within(const char *what, double got, double want, double percent)
{
    double off = 100 * (got - want) / want;
    print_message("    %-44s %.4f of %.4f: %+.2f %%\n", what, got, want, off);
    if (off > percent || off < -percent)
        fail_msg("%s: %.4f instead of %.4f", what, got, want);
}

static const struct gp_board_gpu weighted = {GP_POLICY_WEIGHTED, 20, 90, 0, 0};

static void check_ratio(const char *what, uint32_t wa, uint32_t wb, uint64_t ka, uint64_t kb,
                        uint64_t duration, double percent)
{
    struct tenant t[2] = {{.name = "a", .grant = {.weight = wa}, .kernel_ns = ka},
                          {.name = "b", .grant = {.weight = wb}, .kernel_ns = kb}};
    clock_ns = 1000 * MS;
    tick = duration > 20000 * MS ? 100 * US : 20 * US;
    simulate(weighted, t, 2, duration);
    tick = 20 * US;
    assert_within(what, (double)t[1].work_ns / (double)t[0].work_ns, (double)wb / wa, percent);
    assert_within("  and together", (double)(t[0].work_ns + t[1].work_ns) / (double)duration, 0.985,
                  1.5);
}

static void weights_hold_for_kernels_of_every_length(void **state)
{
    (void)state;
    check_ratio("1 : 1, 0.3 ms", 1, 1, 300 * US, 300 * US, 10000 * MS, 1);
    check_ratio("1 : 2, 0.02 ms", 1, 2, 20 * US, 20 * US, 10000 * MS, 1);
    check_ratio("1 : 2, 3 ms", 1, 2, 3 * MS, 3 * MS, 10000 * MS, 1);
    check_ratio("1 : 2, 300 ms", 1, 2, 300 * MS, 300 * MS, 30000 * MS, 2);
    check_ratio("1 : 9, 0.3 ms", 1, 9, 300 * US, 300 * US, 10000 * MS, 2);
    check_ratio("3 : 7, 0.3 ms", 3, 7, 300 * US, 300 * US, 10000 * MS, 1);
    check_ratio("8 : 4, 0.02 ms", 8, 4, 20 * US, 20 * US, 10000 * MS, 1);
    check_ratio("1 : 2, 0.3 ms beside 300 ms", 1, 2, 300 * US, 300 * MS, 60000 * MS, 2);
    check_ratio("1 : 2, 300 ms beside 0.02 ms", 1, 2, 300 * MS, 20 * US, 60000 * MS, 2);
}

static void weights_hold_among_three(void **state)
{
    (void)state;
    struct tenant t[3] = {{.name = "a", .grant = {.weight = 1}, .kernel_ns = 300 * US},
                          {.name = "b", .grant = {.weight = 1}, .kernel_ns = 3 * MS},
                          {.name = "c", .grant = {.weight = 2}, .kernel_ns = 20 * US}};
    clock_ns = 1000 * MS;
    simulate(weighted, t, 3, 10000 * MS);
    double all = (double)(t[0].work_ns + t[1].work_ns + t[2].work_ns);
    assert_within("1 of 1 : 1 : 2", (double)t[0].work_ns / all, 0.25, 1);
    assert_within("1 of 1 : 1 : 2", (double)t[1].work_ns / all, 0.25, 1);
    assert_within("2 of 1 : 1 : 2", (double)t[2].work_ns / all, 0.50, 1);
}

static void twenty_five_share_evenly(void **state)
{
    (void)state;
    static char names[25][8];
    struct tenant t[25];
    memset(t, 0, sizeof t);
    for (int i = 0; i < 25; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        t[i].name = names[i];
        t[i].grant.weight = 1;
        t[i].kernel_ns = 300 * US;
    }
    clock_ns = 1000 * MS;
    /* long enough that what the first had while it was alone, 50 ms, is little */
    tick = 100 * US;
    simulate((struct gp_board_gpu){GP_POLICY_PREEMPTIVE, 25, 90, 0, 0}, t, 25, 40000 * MS);
    tick = 20 * US;
    uint64_t all = 0;
    for (int i = 0; i < 25; i++)
        all += t[i].work_ns;
    for (int i = 0; i < 25; i++)
        assert_within("1 of 25", (double)t[i].work_ns / (double)all, 0.04, 5);
}

/* Those that wait after every step run at full speed within their turns. */
static void weights_hold_for_those_that_wait(void **state)
{
    (void)state;
    struct tenant t[2] = {{.name = "a",
                           .grant = {.weight = 1},
                           .kernel_ns = 500 * US,
                           .per_step = 2,
                           .think_ns = 100 * US},
                          {.name = "b",
                           .grant = {.weight = 2},
                           .kernel_ns = 500 * US,
                           .per_step = 2,
                           .think_ns = 100 * US}};
    clock_ns = 1000 * MS;
    simulate(weighted, t, 2, 10000 * MS);
    assert_within("1 : 2, steps of 1 ms", (double)t[1].work_ns / (double)t[0].work_ns, 2, 2);
    assert_within("  against one alone", (double)(t[0].work_ns + t[1].work_ns) / (10000.0 * MS),
                  1.0 / 1.12, 3);
}

static void alone_it_has_everything(void **state)
{
    (void)state;
    struct tenant t = {.name = "a", .grant = {.weight = 1}, .kernel_ns = 300 * US};
    clock_ns = 1000 * MS;
    simulate(weighted, &t, 1, 5000 * MS);
    assert_within("alone", (double)t.work_ns / (5000.0 * MS), 1, 0.1);
}

static void one_without_work_keeps_its_slices(void **state)
{
    (void)state;
    struct tenant t[2] = {{.name = "a", .grant = {.weight = 1}, .kernel_ns = 300 * US},
                          {.name = "b", .grant = {.weight = 2}, .absent = true}};
    clock_ns = 1000 * MS;
    simulate(weighted, t, 2, 10000 * MS);
    assert_within("1 of 3, the other idle", (double)t[0].work_ns / (10000.0 * MS), 1.0 / 3, 2);
    t[0].work_ns = 0;
    clock_ns = 1000 * MS;
    simulate((struct gp_board_gpu){GP_POLICY_PREEMPTIVE, 20, 90, 0, 0}, t, 2, 10000 * MS);
    assert_within("preemptive: all of it", (double)t[0].work_ns / (10000.0 * MS), 1, 1);
}

static void fixed_shares_are_fixed(void **state)
{
    (void)state;
    struct tenant t = {.name = "a", .grant = {.weight = 6}, .kernel_ns = 300 * US};
    clock_ns = 1000 * MS;
    simulate((struct gp_board_gpu){GP_POLICY_FIXED, 20, 90, 0, 0}, &t, 1, 10000 * MS);
    assert_within("6 of 20 alone", (double)t.work_ns / (10000.0 * MS), 0.3, 2);
    t.work_ns = 0;
    clock_ns = 1000 * MS;
    simulate((struct gp_board_gpu){GP_POLICY_AVERAGE, 4, 90, 0, 0}, &t, 1, 10000 * MS);
    assert_within("average of 4 alone", (double)t.work_ns / (10000.0 * MS), 0.25, 2);
    struct tenant s = {.name = "a", .grant = {.share = 300, .ceiling = 300}, .kernel_ns = 30 * MS};
    clock_ns = 1000 * MS;
    simulate((struct gp_board_gpu){GP_POLICY_SHARE, 20, 90, 0, 0}, &s, 1, 30000 * MS);
    assert_within("a share of 30 %, kernels of 30 ms", (double)s.work_ns / (30000.0 * MS), 0.3, 2);
}

static void elastic_shares_borrow_up_to_their_ceiling(void **state)
{
    (void)state;
    const struct gp_board_gpu share = {GP_POLICY_SHARE, 20, 90, 0, 0};
    struct tenant t[2] = {
        {.name = "a", .grant = {.share = 500, .ceiling = 900}, .kernel_ns = 300 * US},
        {.name = "b", .grant = {.share = 500, .ceiling = 900}, .absent = true}};
    clock_ns = 1000 * MS;
    simulate(share, t, 2, 10000 * MS);
    assert_within("half of it, up to 90 %", (double)t[0].work_ns / (10000.0 * MS), 0.9, 1);
    t[0].work_ns = 0;
    t[1].absent = false;
    t[1].kernel_ns = 3 * MS;
    clock_ns = 1000 * MS;
    simulate(share, t, 2, 10000 * MS);
    assert_within("given back", (double)t[0].work_ns / (double)t[1].work_ns, 1, 1);
}

/* What one has used while nobody else wanted it is not held against it, and what one has
 * not wanted is not saved up. */
static void being_alone_is_no_debt(void **state)
{
    (void)state;
    struct tenant t[2] = {
        {.name = "a", .grant = {.weight = 1}, .kernel_ns = 300 * US, .until = 9000 * MS},
        {.name = "b", .grant = {.weight = 1}, .kernel_ns = 300 * US, .from = 6000 * MS}};
    clock_ns = 1000 * MS;
    /* a alone for 5 s, both for 3 s, b alone for 3 s */
    simulate((struct gp_board_gpu){GP_POLICY_PREEMPTIVE, 20, 90, 0, 0}, t, 2, 11000 * MS);
    assert_within("alone for 5 s, then half for 3 s", (double)t[0].work_ns / (6500.0 * MS), 1, 2);
    assert_within("half for 3 s, then alone for 3 s", (double)t[1].work_ns / (4500.0 * MS), 1, 2);
}

/* As before, but who was alone is awake last. */
static void who_comes_back_has_no_debt(void **state)
{
    (void)state;
    struct tenant t[3] = {
        {.name = "a", .grant = {.weight = 1}, .kernel_ns = 300 * US, .until = 6000 * MS},
        {.name = "b", .grant = {.weight = 1}, .kernel_ns = 300 * US, .from = 7000 * MS},
        {.name = "c",
         .grant = {.weight = 1},
         .kernel_ns = 300 * US,
         .from = 6500 * MS,
         .until = 6900 * MS}};
    clock_ns = 1000 * MS;
    struct gp_board_gpu setting = {GP_POLICY_PREEMPTIVE, 20, 90, 0, 0};
    simulate(setting, t, 3, 9000 * MS);
    assert_within("one after the other", (double)t[1].work_ns / (3000.0 * MS), 1, 2);
}

/* A turn that lasted because nobody else wanted it was taken for one that others had to wait for: who
 * came next without having worked before had as much in advance, and the others nothing. */
static void a_long_turn_alone_gives_nobody_more(void **state)
{
    (void)state;
    struct tenant t[3] = {
        {.name = "a", .grant = {.weight = 1}, .kernel_ns = 500 * US, .per_step = 10000},
        {.name = "b", .grant = {.weight = 1}, .kernel_ns = 500 * US, .from = 6200 * MS},
        {.name = "c", .grant = {.weight = 1}, .kernel_ns = 500 * US, .from = 6250 * MS}};
    t[0].think_ns = 300 * MS;
    clock_ns = 1000 * MS;
    /* a for 5 s, and all three from 6300 ms on */
    simulate((struct gp_board_gpu){GP_POLICY_PREEMPTIVE, 20, 90, 0, 0}, t, 3, 8300 * MS);
    assert_within("of all, who was alone", (double)t[0].work_ns / (5985.0 * MS), 1, 2);
    assert_within("who came first", (double)t[1].work_ns / (1060.0 * MS), 1, 5);
    assert_within("who came last", (double)t[2].work_ns / (1010.0 * MS), 1, 5);
}

/* Enter, work for `ns`, and say that it is over; returns how long it waited at the gate. */
static uint64_t work_once(struct gp_board *b, int member, uint64_t ns)
{
    uint64_t since = clock_ns;
    while (!gp_board_enter(b, member))
        clock_ns += tick;
    uint64_t waited = clock_ns - since;
    gp_board_started(b, member);
    clock_ns += ns;
    gp_board_idle(b, member, 0);
    return waited;
}

/* Who keeps the turn because nobody else wants it pays nothing for the time without work,
 * when another one comes. */
static void idle_with_the_turn_is_no_debt(void **state)
{
    (void)state;
    const struct gp_board_gpu fixed = {GP_POLICY_FIXED, 20, 90, 0, 0};
    const struct gp_board_grant grant = {.weight = 4, .share = 500, .ceiling = 1000};
    struct gp_board *b;
    assert_int_equal(gp_board_new(&b), 0);
    assert_int_equal(gp_board_gpu_set(b, &fixed), 0);
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_int_equal(gp_board_tenant_set(b, "b", &grant), 0);
    int one = gp_board_join(b, "a"), other = gp_board_join(b, "b");
    clock_ns += 1000 * MS;
    work_once(b, one, MS);
    for (int i = 0; i < 5; i++) {
        clock_ns += 10000 * MS;
        assert_in_range(work_once(b, other, MS), 0, 5 * MS);
        assert_in_range(work_once(b, one, MS), 0, 5 * MS);
    }
    gp_board_free(b);
}

static void no_weight_no_compute(void **state)
{
    (void)state;
    struct tenant t[2] = {{.name = "a", .grant = {.weight = 0}, .kernel_ns = 300 * US},
                          {.name = "b", .grant = {.weight = 1}, .kernel_ns = 300 * US}};
    clock_ns = 1000 * MS;
    simulate(weighted, t, 2, 1000 * MS);
    assert_int_equal(t[0].work_ns, 0);
    assert_true(t[1].work_ns > 900 * MS);
}

static void high_priority_goes_first_up_to_its_part(void **state)
{
    (void)state;
    struct tenant t[2] = {
        {.name = "low", .grant = {.weight = 1}, .kernel_ns = 300 * US},
        {.name = "high", .grant = {.weight = 1, .high_priority = 1}, .kernel_ns = 300 * US}};
    clock_ns = 1000 * MS;
    simulate((struct gp_board_gpu){GP_POLICY_PREEMPTIVE, 20, 80, 0, 0}, t, 2, 10000 * MS);
    assert_within("high priority, at most 80 %", (double)t[1].work_ns / (10000.0 * MS), 0.8, 3);
    assert_true(t[0].work_ns > 1500 * MS);
}

static uint64_t held_ns(struct gp_board *b, const char *name)
{
    struct gp_board_tenant seen[2];
    int n = gp_board_tenants(b, seen, 2);
    for (int i = 0; i < n; i++)
        if (strcmp(seen[i].name, name) == 0)
            return seen[i].usage.held_ns;
    fail_msg("there is no %s", name);
    return 0;
}

/* Time in which a tenant has the turn is the board's own count, whatever its worker says. */
static void turns_are_counted_by_the_board(void **state)
{
    (void)state;
    static const struct gp_board_grant half = {.weight = 1, .share = 500, .ceiling = 1000};
    static char text[65536];
    struct gp_board *b;
    assert_int_equal(gp_board_new(&b), 0);
    static const struct gp_board_gpu shares = {GP_POLICY_SHARE, 20, 90, 0, 0};
    assert_int_equal(gp_board_gpu_set(b, &shares), 0);
    assert_int_equal(gp_board_tenant_set(b, "a", &half), 0);
    assert_int_equal(gp_board_tenant_set(b, "b", &half), 0);
    int one = gp_board_join(b, "a"), other = gp_board_join(b, "b");
    b->members[one].pid = 1; /* its process has been started */
    assert_true(gp_board_enter(b, one));
    clock_ns += 5 * MS;
    assert_int_equal(held_ns(b, "a"), 5 * MS); /* of the turn under way, too */
    int asked = 0;
    while (!gp_board_enter(b, other) && ++asked < 1000) /* it never gives it back, and loses it */
        clock_ns += 10 * MS;
    uint64_t lost = held_ns(b, "a");
    assert_true(lost >= 2000 * MS);
    assert_true(gp_board_describe(b, text, sizeof text) > 0);
    assert_non_null(strstr(text, "\"overdue\": 1, \"late\": true"));
    clock_ns += 50 * MS;
    assert_int_equal(held_ns(b, "a"), lost);
    assert_int_equal(held_ns(b, "b"), 50 * MS);
    gp_board_idle(b, one, 0);
    assert_true(gp_board_describe(b, text, sizeof text) > 0);
    assert_non_null(strstr(text, "\"overdue\": 1, \"late\": false"));
    gp_board_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_it_has_everything),
        cmocka_unit_test(weights_hold_for_kernels_of_every_length),
        cmocka_unit_test(weights_hold_among_three),
        cmocka_unit_test(twenty_five_share_evenly),
        cmocka_unit_test(weights_hold_for_those_that_wait),
        cmocka_unit_test(one_without_work_keeps_its_slices),
        cmocka_unit_test(fixed_shares_are_fixed),
        cmocka_unit_test(elastic_shares_borrow_up_to_their_ceiling),
        cmocka_unit_test(being_alone_is_no_debt),
        cmocka_unit_test(who_comes_back_has_no_debt),
        cmocka_unit_test(a_long_turn_alone_gives_nobody_more),
        cmocka_unit_test(idle_with_the_turn_is_no_debt),
        cmocka_unit_test(no_weight_no_compute),
        cmocka_unit_test(high_priority_goes_first_up_to_its_part),
        cmocka_unit_test(turns_are_counted_by_the_board),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
