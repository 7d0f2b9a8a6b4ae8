/*
 * The copy engines' account, simulated: tenants that copy all the time, or now and then,
 * by a clock that only the test moves. The board's code is the real one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "board_internal.h"

#define MS UINT64_C(1000000)
#define MIB (UINT64_C(1) << 20)
#define STEP (100 * UINT64_C(1000))

static uint64_t clock_ns;

uint64_t gp_board_now(void)
{
    return clock_ns;
}

struct tenant {
    const char *name;
    uint32_t share, ceiling; /* permille */
    uint64_t bytes;          /* of each copy */
    uint64_t every;          /* ns from one to the next; 0: as soon as may be */
    enum gp_board_way way;
    /* state */
    int member;
    uint64_t next, asked, done, worst;
};

static void setup(struct gp_board *b, struct tenant *tenants, int count)
{
    struct gp_board_gpu gpu = {
        .policy = GP_POLICY_SHARE, .max_inst = 20, .prio_ratio = 90, .memory_total = 1024 * MIB};
    assert_int_equal(gp_board_gpu_set(b, &gpu), 0);
    for (int i = 0; i < count; i++) {
        struct gp_board_grant grant = {.weight = 1,
                                       .share = tenants[i].share,
                                       .ceiling = tenants[i].ceiling ? tenants[i].ceiling : 1000};
        assert_int_equal(gp_board_tenant_set(b, tenants[i].name, &grant), 0);
        tenants[i].member = gp_board_join(b, tenants[i].name);
        assert_true(tenants[i].member >= 0);
    }
}

static void copy(struct gp_board *b, struct tenant *t)
{
    if (clock_ns < t->next)
        return;
    if (!t->asked)
        t->asked = clock_ns;
    for (int burst = 0; burst < 64; burst++) { /* what it can submit in one step */
        if (!gp_board_copy(b, t->member, t->way, t->bytes))
            return;
        if (clock_ns - t->asked > t->worst)
            t->worst = clock_ns - t->asked;
        t->done += t->bytes;
        t->asked = clock_ns;
        if (t->every) {
            t->next = clock_ns + t->every;
            t->asked = 0;
            return;
        }
    }
    t->asked = 0;
}

static void run(struct tenant *tenants, int count, uint64_t ns)
{
    struct gp_board *b;
    assert_int_equal(gp_board_new(&b), 0);
    clock_ns = 1000 * MS;
    setup(b, tenants, count);
    unsigned turn = 0;
    for (uint64_t end = clock_ns + ns; clock_ns < end; clock_ns += STEP, turn++)
        for (int i = 0; i < count; i++) /* nobody is always the first to ask */
            copy(b, &tenants[(i + turn) % (unsigned)count]);
    gp_board_free(b);
}

static void assert_ratio(const struct tenant *a, const struct tenant *b, double want)
{
    double ratio = (double)b->done / (double)a->done;
    if (ratio < want * 0.98 || ratio > want * 1.02)
        fail_msg("%s : %s = 1 : %.3f, not 1 : %g", a->name, b->name, ratio, want);
}

static void by_share(void **state)
{
    static const uint64_t sizes[][2] = {{4, 4}, {1, 64}, {1, 256}};
    static const uint32_t shares[][2] = {{300, 300}, {300, 600}, {100, 900}, {300, 700}};
    (void)state;
    for (int s = 0; s < 3; s++)
        for (int w = 0; w < 4; w++) {
            struct tenant t[] = {
                {.name = "a", .share = shares[w][0], .bytes = sizes[s][0] * MIB},
                {.name = "b", .share = shares[w][1], .bytes = sizes[s][1] * MIB},
            };
            run(t, 2, 10000 * MS);
            assert_ratio(&t[0], &t[1], (double)shares[w][1] / shares[w][0]);
            /* the bus, which is a little slower than the pace, never runs dry */
            assert_true(t[0].done + t[1].done >= UINT64_C(55) * 10000 * MS);
        }
}

static void the_ways_are_two_accounts(void **state)
{
    (void)state;
    struct tenant t[] = {
        {.name = "a", .share = 100, .bytes = 4 * MIB},
        {.name = "b", .share = 900, .bytes = 4 * MIB, .way = GP_BOARD_DOWNLOAD},
    };
    run(t, 2, 1000 * MS);
    assert_ratio(&t[0], &t[1], 1.0);
}

/* Nobody else copies: nothing is held up, however much it is. */
static void alone(void **state)
{
    (void)state;
    struct tenant t[] = {{.name = "a", .share = 100, .bytes = 64 * MIB},
                         {.name = "b", .share = 100, .bytes = MIB, .every = 100000 * MS}};
    t[1].next = UINT64_MAX;
    run(t, 2, 100 * MS);
    assert_int_equal(t[0].done, 64 * 64 * MIB * (100 * MS / STEP));
    assert_int_equal(t[0].worst, 0);
}

/* One that copies a little now and then neither waits long nor holds the other up. */
static void now_and_then(void **state)
{
    (void)state;
    struct tenant t[] = {
        {.name = "modest", .share = 100, .bytes = 64 * 1024, .every = 10 * MS},
        {.name = "greedy", .share = 100, .bytes = 16 * MIB},
    };
    run(t, 2, 5000 * MS);
    assert_true(t[0].done >= 450 * 64 * 1024);
    assert_true(t[0].worst <= 6 * MS);
    assert_true(t[1].done >= UINT64_C(54) * 5000 * MS);
}

static void under_a_ceiling(void **state)
{
    (void)state;
    struct tenant t[] = {{.name = "a", .share = 100, .ceiling = 300, .bytes = 4 * MIB}};
    run(t, 1, 10000 * MS);
    double part = (double)t[0].done / (56.0 * 10000 * MS);
    if (part < 0.295 || part > 0.307)
        fail_msg("it had %.4f of the engine", part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_share),        cmocka_unit_test(the_ways_are_two_accounts),
        cmocka_unit_test(alone),           cmocka_unit_test(now_and_then),
        cmocka_unit_test(under_a_ceiling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
