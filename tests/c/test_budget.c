/* What a session may take of its host's memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "session.h"

#define KIB UINT64_C(1024)

static struct gpw_session session;

static void sums_have_one_limit(void **state)
{
    (void)state;
    gpw_budget_open(&session, GPW_BUDGET_HOST_MEMORY, 64 * KIB);
    assert_true(gpw_budget_take(&session, GPW_USE_WAITS, 40 * KIB));
    assert_true(gpw_budget_take(&session, GPW_USE_HOST, 24 * KIB));
    assert_false(gpw_budget_take(&session, GPW_USE_GRAPHS, 1));
    assert_false(gpw_budget_take(&session, GPW_USE_WAITS, UINT64_MAX));
    assert_int_equal(gpw_budget_refused(&session, GPW_BUDGET_HOST_MEMORY), 2);
    gpw_budget_give(&session, GPW_USE_HOST, 24 * KIB);
    assert_true(gpw_budget_take(&session, GPW_USE_GRAPHS, 24 * KIB));
    assert_int_equal(gpw_budget_used(&session, GPW_BUDGET_HOST_MEMORY), 64 * KIB);
    gpw_budget_force(&session, GPW_USE_OBJECTS, KIB);
    assert_false(gpw_budget_take(&session, GPW_USE_IMAGES, 0));
    gpw_budget_give(&session, GPW_USE_OBJECTS, KIB);
    gpw_budget_give(&session, GPW_USE_GRAPHS, 24 * KIB);
    gpw_budget_give(&session, GPW_USE_WAITS, 40 * KIB);
    assert_int_equal(gpw_budget_used(&session, GPW_BUDGET_HOST_MEMORY), 0);
}

/* The server has just fetched an image: what is found here is the room, and nothing to free. */
static void given_back(struct gpw_session *s)
{
    gpw_budget_give(s, GPW_USE_IMAGES, 40 * KIB);
    s->budget.spare = NULL;
}

static void room_that_another_thread_gives_back_is_taken(void **state)
{
    (void)state;
    session = (struct gpw_session){.budget.spare = given_back};
    gpw_budget_open(&session, GPW_BUDGET_HOST_MEMORY, 64 * KIB);
    assert_true(gpw_budget_take(&session, GPW_USE_IMAGES, 40 * KIB));
    assert_true(gpw_budget_take(&session, GPW_USE_OBJECTS, 40 * KIB));
    assert_int_equal(gpw_budget_refused(&session, GPW_BUDGET_HOST_MEMORY), 0);
    session = (struct gpw_session){0};
}

static void budgets_are_apart(void **state)
{
    (void)state;
    session = (struct gpw_session){0};
    gpw_budget_open(&session, GPW_BUDGET_HOST_MEMORY, 64 * KIB);
    gpw_budget_open(&session, GPW_BUDGET_PINNED_MEMORY, 8 * KIB);
    gpw_budget_open(&session, GPW_BUDGET_SHARES, 2);
    assert_true(gpw_budget_take(&session, GPW_USE_PINNED, 8 * KIB));
    assert_false(gpw_budget_take(&session, GPW_USE_PINNED, 1));
    assert_true(gpw_budget_take(&session, GPW_USE_SHARES, 2));
    assert_false(gpw_budget_take(&session, GPW_USE_SHARES, 1));
    assert_true(gpw_budget_take(&session, GPW_USE_HOST, 64 * KIB));
    char text[512];
    int length = gpw_budget_describe(&session, text, sizeof text);
    assert_int_equal(length, (int)strlen(text));
    static const char counted[] =
        "{\"host_memory\": {\"used\": 65536, \"limit\": 65536, \"refused\": 0}, "
        "\"pinned_memory\": {\"used\": 8192, \"limit\": 8192, \"refused\": 1}, "
        "\"shares\": {\"used\": 2, \"limit\": 2, \"refused\": 1}, ";
    assert_memory_equal(text, counted, sizeof counted - 1);
    session = (struct gpw_session){0};
}

/* What the kernel holds is counted where it is. */
static unsigned open_now(void)
{
    char text[1024];
    unsigned count = 0;
    assert_true(gpw_budget_describe(&session, text, sizeof text) < (int)sizeof text);
    const char *at = strstr(text, "\"open_files\": {\"used\": ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"open_files\": {\"used\": %u", &count), 1);
    return count;
}

static void open_files_are_seen(void **state)
{
    (void)state;
    unsigned before = open_now();
    int more = dup(1);
    assert_true(more >= 0 && before >= 1);
    assert_int_equal(open_now(), before + 1);
    close(more);
    assert_int_equal(open_now(), before);
}

static void limits_are_read(void **state)
{
    (void)state;
    uint64_t limits[GPW_BUDGETS] = {0};
    assert_int_equal(gpw_budget_parse("pinned_memory=18446744073709551615", limits), 0);
    assert_int_equal(gpw_budget_parse("shares=7", limits), 0);
    assert_true(limits[GPW_BUDGET_PINNED_MEMORY] == UINT64_MAX && limits[GPW_BUDGET_SHARES] == 7);
    static const char *const wrong[] = {
        "",          "shares",    "shares=",
        "shares=-1", "shares= 1", "shares=1x",
        "share=1",   "shares2=1", "pinned_memory=18446744073709551616",
        "=1",        "shares=+1", "host_memory=0x10"};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(gpw_budget_parse(wrong[i], limits), -1);
    assert_true(limits[GPW_BUDGET_SHARES] == 7 && limits[GPW_BUDGET_HOST_MEMORY] == 0);
}

static void without_a_limit_it_only_counts(void **state)
{
    (void)state;
    char text[256], cut[8];
    gpw_budget_open(&session, GPW_BUDGET_HOST_MEMORY, 0);
    assert_true(gpw_budget_take(&session, GPW_USE_HOST, UINT64_C(1) << 40));
    int length = gpw_budget_describe_uses(&session, text, sizeof text);
    assert_int_equal(length, (int)strlen(text));
    assert_non_null(strstr(text, "\"host\": 1099511627776"));
    assert_int_equal(gpw_budget_describe_uses(&session, cut, sizeof cut), length);
    gpw_budget_give(&session, GPW_USE_HOST, UINT64_C(1) << 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_one_limit),
        cmocka_unit_test(room_that_another_thread_gives_back_is_taken),
        cmocka_unit_test(budgets_are_apart),
        cmocka_unit_test(open_files_are_seen),
        cmocka_unit_test(limits_are_read),
        cmocka_unit_test(without_a_limit_it_only_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
