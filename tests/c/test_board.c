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

static void memory_is_limited(void **state)
{
    struct gp_board *b = *state;
    int one = gp_board_join(b, "a"), two = gp_board_join(b, "a");
    uint64_t limit;
    assert_true(one >= 0 && two >= 0 && one != two);
    assert_true(gp_board_memory_take(b, one, 40 * MIB));
    assert_false(gp_board_memory_take(b, two, 24 * MIB + 1)); /* one limit for both */
    assert_true(gp_board_memory_take(b, two, 24 * MIB));
    assert_false(gp_board_memory_take(b, one, 1));
    assert_false(gp_board_memory_take(b, one, UINT64_MAX));
    assert_int_equal(gp_board_memory_left(b, one, &limit), 0);
    assert_int_equal(limit, 64 * MIB);
    gp_board_memory_give(b, one, 8 * MIB);
    assert_true(gp_board_memory_take(b, two, 8 * MIB));
    assert_int_equal(look(b, "a").usage.memory_used, 64 * MIB);
    assert_int_equal(look(b, "a").usage.memory_peak, 64 * MIB);
    assert_int_equal(look(b, "a").usage.memory_denied, 3);
    gp_board_memory_give(b, one, UINT64_MAX); /* more than it has: what it has */
    assert_int_equal(look(b, "a").usage.memory_used, 32 * MIB);
    gp_board_leave(b, two);
    assert_int_equal(look(b, "a").usage.memory_used, 0);
    gp_board_leave(b, one);
    gp_board_leave(b, one); /* again: nothing */
    assert_int_equal(look(b, "a").usage.members, 0);
}

static void limits_change_while_in_use(void **state)
{
    struct gp_board *b = *state;
    struct gp_board_grant grant = plain;
    int m = gp_board_join(b, "a");
    assert_true(gp_board_memory_take(b, m, 32 * MIB));
    grant.memory_limit = 31 * MIB;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), -EBUSY);
    assert_int_equal(look(b, "a").grant.memory_limit, 64 * MIB);
    grant.memory_limit = 32 * MIB;
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_false(gp_board_memory_take(b, m, 1));
    grant.memory_limit = 0; /* all of the GPU */
    assert_int_equal(gp_board_tenant_set(b, "a", &grant), 0);
    assert_true(gp_board_memory_take(b, m, 1000 * MIB));
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
    assert_true(gp_board_memory_take(b, m, 5 * MIB));
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
        BOARD_TEST(memory_is_limited),   BOARD_TEST(limits_change_while_in_use),
        BOARD_TEST(nonsense_is_refused), BOARD_TEST(there_is_an_end_of_room),
        BOARD_TEST(it_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
