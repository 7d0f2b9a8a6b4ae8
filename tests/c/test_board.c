/* The board: limits, names, what cannot be on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include <cmocka.h>

#include "board_internal.h"

#define MIB (UINT64_C(1) << 20)

static const struct gp_board_grant plain = {.memory_limit = 64 * MIB,
                                            .weight = 1,
                                            .share = 500,
                                            .ceiling = 1000};

static int make(void **state)
{
    struct gp_board *b;
    *state = NULL;
    if (gp_board_new(&b) != 0 || gp_board_tenant_set(b, "a", &plain) != 0)
        return -1;
    *state = b;
    return 0;
}

static int unmake(void **state)
{
    gp_board_free(*state);
    return 0;
}

static struct gp_board_tenant look(struct gp_board *b, const char *name)
{
    static struct gp_board_tenant all[GP_BOARD_TENANTS];
    int n = gp_board_tenants(b, all, GP_BOARD_TENANTS);
    for (int i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i];
    fail_msg("no tenant %s", name);
    return all[0];
}

/* What its page says once it was answered. */
static bool take(struct gp_board *b, int member, uint64_t total)
{
    if (!gp_board_memory_take(b, member, total))
        return false;
    gp_board_memory_use(b, member, total);
    return true;
}

static void memory_is_limited(void **state)
{
    struct gp_board *b = *state;
    int one = gp_board_join(b, "a"), two = gp_board_join(b, "a");
    uint64_t limit;
    assert_true(one >= 0 && two >= 0 && one != two);
    assert_true(take(b, one, 40 * MIB));
    assert_false(take(b, two, 24 * MIB + 1)); /* one limit for both */
    assert_true(take(b, two, 24 * MIB));
    assert_false(take(b, one, 40 * MIB + 1));
    assert_false(take(b, one, UINT64_MAX));
    assert_int_equal(gp_board_memory_others(b, one, &limit), 24 * MIB);
    assert_int_equal(limit, 64 * MIB);
    gp_board_memory_use(b, one, 32 * MIB);
    assert_true(take(b, two, 32 * MIB));
    assert_int_equal(look(b, "a").usage.memory_used, 64 * MIB);
    assert_int_equal(look(b, "a").usage.memory_peak, 64 * MIB);
    assert_int_equal(look(b, "a").usage.memory_denied, 3);
    gp_board_memory_use(b, one, 0);
    assert_int_equal(look(b, "a").usage.memory_used, 32 * MIB);
    gp_board_leave(b, two);
    assert_int_equal(look(b, "a").usage.memory_used, 0);
    gp_board_leave(b, one);
    gp_board_leave(b, one); /* again: nothing */
    assert_int_equal(look(b, "a").usage.members, 0);
}

/* What is in use stays, nothing comes to it, and what is given back stays given back. */
static void a_forced_limit_holds_for_what_is_new(void **state)
{
    struct gp_board *b = *state;
    struct gp_board_grant grant = plain;
    int one = gp_board_join(b, "a"), two = gp_board_join(b, "a");
    uint64_t limit;
    assert_true(take(b, one, 40 * MIB));
    assert_true(take(b, two, 8 * MIB));
    grant.memory_limit = 32 * MIB;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), -EBUSY);
    assert_int_equal(look(b, "a").grant.memory_limit, 64 * MIB);
    grant.forced = 1;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_int_equal(gp_board_memory_given(b, one), 40 * MIB); /* and no advance any more */
    assert_int_equal(gp_board_memory_others(b, one, &limit), 8 * MIB);
    assert_int_equal(limit, 32 * MIB);
    assert_false(take(b, two, 8 * MIB + 1));
    gp_board_memory_use(b, one, 25 * MIB);
    assert_int_equal(gp_board_memory_given(b, one), 25 * MIB);
    assert_false(take(b, one, 26 * MIB));
    grant.forced = 0;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), -EBUSY);
    gp_board_memory_use(b, one, 20 * MIB);
    assert_true(take(b, one, 24 * MIB));
    assert_false(take(b, two, 8 * MIB + 1));
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    grant.forced = 2;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), -EINVAL);
    grant.forced = 0;
    grant.gang = 2;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), -EINVAL);
}

/* Of the limit's rest each member is given no more than its part, at most. */
static void an_advance_is_bounded(void **state)
{
    struct gp_board *b = *state;
    struct gp_board_grant grant = plain;
    int one = gp_board_join(b, "a");
    assert_true(take(b, one, MIB));
    assert_int_equal(gp_board_memory_given(b, one), 9 * MIB);
    assert_true(take(b, one, 60 * MIB));
    assert_int_equal(gp_board_memory_given(b, one), 64 * MIB);
    gp_board_memory_use(b, one, 40 * MIB);
    int two = gp_board_join(b, "a");
    assert_true(take(b, two, 20 * MIB)); /* the first has lost its advance for that */
    assert_int_equal(gp_board_memory_given(b, one), 40 * MIB);
    assert_int_equal(gp_board_memory_given(b, two), 22 * MIB);
    gp_board_leave(b, two);
    grant.memory_limit = 6400 * MIB; /* a part of a larger one */
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_true(take(b, one, 41 * MIB));
    assert_int_equal(gp_board_memory_given(b, one), 241 * MIB);
    grant.memory_limit = 0; /* without any */
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_true(take(b, one, 300 * MIB));
    assert_int_equal(gp_board_memory_given(b, one), 1324 * MIB);
    assert_false(take(b, one, (UINT64_C(1) << 50) + 1));
    assert_int_equal(look(b, "a").usage.memory_used, 300 * MIB);
}

/* Whatever members take and give back: together they are never given more than the limit, and
 * none is refused what the others do not use. */
static void sums_are_exact(void **state)
{
    struct gp_board *b = *state;
    uint64_t used[5] = {0}, sum = 0, seed = 7;
    int members[5];
    for (int i = 0; i < 5; i++)
        members[i] = gp_board_join(b, "a");
    for (int i = 0; i < 20000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        unsigned who = (unsigned)(seed >> 33) % 5;
        uint64_t total = (seed >> 40) % (40 * MIB), given = 0;
        bool fits = sum - used[who] + total <= 64 * MIB;
        if (total < used[who])
            gp_board_memory_use(b, members[who], total);
        else
            assert_int_equal(take(b, members[who], total), fits);
        if (fits) {
            sum += total - used[who];
            used[who] = total;
        }
        for (int k = 0; k < 5; k++) {
            assert_true(gp_board_memory_given(b, members[k]) >= used[k]);
            given += gp_board_memory_given(b, members[k]);
        }
        assert_true(given <= 64 * MIB);
        assert_int_equal(look(b, "a").usage.memory_used, sum);
    }
}

/* What was charged beyond the limit, because it was there already, is not kept for later. */
static void what_was_charged_beyond_the_limit_is_not_given(void **state)
{
    struct gp_board *b = *state;
    int one = gp_board_join(b, "a"), two = gp_board_join(b, "a");
    gp_board_memory_use(b, one, 100 * MIB);
    assert_true(gp_board_memory_given(b, one) >= 100 * MIB);
    gp_board_memory_use(b, one, 30 * MIB);
    assert_true(gp_board_memory_given(b, one) <= 64 * MIB);
    assert_false(take(b, one, 64 * MIB + 1));
    assert_true(take(b, two, 34 * MIB));
    assert_false(take(b, one, 30 * MIB + 1));
}

/* What one has given back since the arbiter looked is nobody's when the next takes it. */
static uint64_t has_none(struct gp_board *b, int member)
{
    (void)b, (void)member;
    return 0;
}

static void a_peak_counts_nothing_twice(void **state)
{
    struct gp_board *b = *state;
    int one = gp_board_join(b, "a"), two = gp_board_join(b, "a");
    assert_true(take(b, one, 50 * MIB));
    b->keeps = has_none;
    assert_true(gp_board_memory_take(b, two, 40 * MIB));
    assert_int_equal(look(b, "a").usage.memory_used, 0);
    assert_int_equal(look(b, "a").usage.memory_peak, 50 * MIB);
}

static void limits_change_while_in_use(void **state)
{
    struct gp_board *b = *state;
    struct gp_board_grant grant = plain;
    int m = gp_board_join(b, "a");
    assert_true(take(b, m, 32 * MIB));
    assert_true(gp_board_memory_given(b, m) > 32 * MIB);
    grant.memory_limit = 31 * MIB;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), -EBUSY);
    assert_int_equal(look(b, "a").grant.memory_limit, 64 * MIB);
    grant.memory_limit = 32 * MIB;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_int_equal(gp_board_memory_given(b, m), 32 * MIB);
    assert_false(take(b, m, 32 * MIB + 1));
    grant.memory_limit = 0; /* all of the GPU */
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_true(take(b, m, 1032 * MIB));
    struct gp_board_gpu gpu = {GP_POLICY_SHARE, 20, 90, 0, 1040 * MIB}; /* it has got smaller */
    assert_int_equal(gp_board_gpu_set(b, &gpu), 0);
    assert_true(gp_board_memory_given(b, m) <= 1040 * MIB);
}

static void nonsense_is_refused(void **state)
{
    struct gp_board *b = *state;
    struct gp_board_gpu gpu = {GP_POLICY_SHARE + 1, 20, 90, 0, 0};
    struct gp_board_grant grant = plain;
    char name[200];
    memset(name, 'x', sizeof name);
    name[GP_BOARD_NAME] = '\0';
    assert_int_equal(gp_board_gpu_set(b, &gpu), -EINVAL);
    gpu = (struct gp_board_gpu){GP_POLICY_FIXED, 26, 90, 0, 0};
    assert_int_equal(gp_board_gpu_set(b, &gpu), -EINVAL);
    gpu = (struct gp_board_gpu){GP_POLICY_FIXED, 25, 19, 0, 0};
    assert_int_equal(gp_board_gpu_set(b, &gpu), -EINVAL);
    assert_int_equal(gp_board_tenant_set(b, "", &grant), -EINVAL);
    assert_int_equal(gp_board_tenant_set(b, name, &grant), -EINVAL);
    assert_int_equal(gp_board_tenant_set(b, "a\"b", &grant), -EINVAL);
    grant.share = 0;
    assert_int_equal(gp_board_tenant_set(b, "x", &grant), -EINVAL);
    grant = plain;
    grant.ceiling = grant.share - 1;
    assert_int_equal(gp_board_tenant_set(b, "x", &grant), -EINVAL);
    assert_int_equal(gp_board_join(b, "nobody"), -ENOENT);
    assert_int_equal(gp_board_join(b, ""), -ENOENT);
    assert_int_equal(gp_board_tenant_remove(b, "nobody"), -ENOENT);
    assert_true(gp_board_join(b, "a") >= 0);
    assert_int_equal(gp_board_tenant_remove(b, "a"), -EBUSY);
}

static void there_is_an_end_of_room(void **state)
{
    struct gp_board *b = *state;
    char name[16];
    for (int i = 1; i < GP_BOARD_TENANTS; i++) {
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(gp_board_tenant_set(b, name, &plain), 0);
    }
    assert_int_equal(gp_board_tenant_set(b, "more", &plain), -ENOSPC);
    assert_int_equal(gp_board_tenant_remove(b, "t7"), 0);
    assert_int_equal(gp_board_tenant_set(b, "more", &plain), 0);
    for (int i = 0; i < GP_BOARD_MEMBERS; i++)
        assert_true(gp_board_join(b, "a") >= 0);
    assert_int_equal(gp_board_join(b, "a"), -ENOSPC);
}

static void it_is_described(void **state)
{
    struct gp_board *b = *state;
    static char text[65536];
    int m = gp_board_join(b, "a");
    assert_true(take(b, m, 5 * MIB));
    int n = gp_board_describe(b, text, sizeof text);
    assert_int_equal(n, (int)strlen(text));
    assert_non_null(strstr(text, "\"name\": \"a\""));
    assert_non_null(strstr(text, "\"memory_used\": 5242880"));
    char cut[10];
    assert_int_equal(gp_board_describe(b, cut, sizeof cut), n); /* says how much it needs */
    assert_int_equal(strlen(cut), sizeof cut - 1);
}

int main(void)
{
#define BOARD_TEST(name) cmocka_unit_test_setup_teardown(name, make, unmake)
    const struct CMUnitTest tests[] = {
        BOARD_TEST(memory_is_limited),
        BOARD_TEST(a_forced_limit_holds_for_what_is_new),
        BOARD_TEST(an_advance_is_bounded),
        BOARD_TEST(sums_are_exact),
        BOARD_TEST(what_was_charged_beyond_the_limit_is_not_given),
        BOARD_TEST(a_peak_counts_nothing_twice),
        BOARD_TEST(limits_change_while_in_use),
        BOARD_TEST(nonsense_is_refused),
        BOARD_TEST(there_is_an_end_of_room),
        BOARD_TEST(it_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
