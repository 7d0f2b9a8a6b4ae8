/* What a session may take of its host's memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "session.h"

#define KIB UINT64_C(1024)

static struct gpw_session session;

static void sums_have_one_limit(void **state)
{
    (void)state;
    gpw_budget_open(&session, 64 * KIB);
    assert_true(gpw_budget_take(&session, GPW_BUDGET_WAITS, 40 * KIB));
    assert_true(gpw_budget_take(&session, GPW_BUDGET_HOST, 24 * KIB));
    assert_false(gpw_budget_take(&session, GPW_BUDGET_GRAPHS, 1));
    assert_false(gpw_budget_take(&session, GPW_BUDGET_WAITS, UINT64_MAX));
    assert_int_equal(gpw_budget_refused(&session), 2);
    gpw_budget_give(&session, GPW_BUDGET_HOST, 24 * KIB);
    assert_true(gpw_budget_take(&session, GPW_BUDGET_GRAPHS, 24 * KIB));
    assert_int_equal(gpw_budget_used(&session), 64 * KIB);
    gpw_budget_force(&session, GPW_BUDGET_OBJECTS, KIB);
    assert_false(gpw_budget_take(&session, GPW_BUDGET_IMAGES, 0));
    gpw_budget_give(&session, GPW_BUDGET_OBJECTS, KIB);
    gpw_budget_give(&session, GPW_BUDGET_GRAPHS, 24 * KIB);
    gpw_budget_give(&session, GPW_BUDGET_WAITS, 40 * KIB);
    assert_int_equal(gpw_budget_used(&session), 0);
}

static void without_a_limit_it_only_counts(void **state)
{
    (void)state;
    char text[256], cut[8];
    gpw_budget_open(&session, 0);
    assert_true(gpw_budget_take(&session, GPW_BUDGET_HOST, UINT64_C(1) << 40));
    int length = gpw_budget_describe(&session, text, sizeof text);
    assert_int_equal(length, (int)strlen(text));
    assert_non_null(strstr(text, "\"host\": 1099511627776"));
    assert_int_equal(gpw_budget_describe(&session, cut, sizeof cut), length);
    gpw_budget_give(&session, GPW_BUDGET_HOST, UINT64_C(1) << 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_one_limit),
        cmocka_unit_test(without_a_limit_it_only_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
