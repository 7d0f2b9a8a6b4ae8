/*
 * The log of turns: what was whose and when, as far as it is remembered, by a clock that only the
 * test moves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "board_internal.h"

#define MS UINT64_C(1000000)

static uint64_t clock_ns;

uint64_t gp_board_now(void)
{
    return clock_ns;
}

static const struct gp_board_grant half = {.weight = 1, .share = 500, .ceiling = 1000};

static int make(void **state)
{
    struct gp_board *b;
    *state = NULL;
    clock_ns = 1000 * MS;
    if (gp_board_new(&b) != 0 || gp_board_tenant_set(b, "red", &half) != 0 ||
        gp_board_tenant_set(b, "blue", &half) != 0)
        return -1;
    *state = b;
    return 0;
}

static int unmake(void **state)
{
    gp_board_free(*state);
    return 0;
}

static const char *turns(const struct gp_board *b, uint64_t since)
{
    static char text[1 << 18];
    int n = gp_board_describe_turns(b, since, text, sizeof text);
    assert_in_range(n, 1, sizeof text - 1);
    return text;
}

/* Works for `ms` and is idle, while the other one waits for the turn. */
static void work(struct gp_board *b, int member, int other, uint64_t ms)
{
    assert_true(gp_board_enter(b, member));
    gp_board_started(b, member);
    assert_false(gp_board_enter(b, other));
    clock_ns += ms * MS;
    gp_board_idle(b, member, 0);
    clock_ns += 2 * MS; /* for so long it might have more to do */
    gp_board_turn(b, clock_ns);
}

static void turns_are_remembered(void **state)
{
    struct gp_board *b = *state;
    int red = gp_board_join(b, "red"), blue = gp_board_join(b, "blue");
    assert_string_equal(turns(b, 0), "{\"now_ns\": 1000000000, \"holder\": \"\", \"began_ns\": 0, "
                                     "\"first\": 0, \"turns\": []}");
    work(b, red, blue, 5);
    work(b, blue, red, 3);
    assert_string_equal(turns(b, 0),
                        "{\"now_ns\": 1012000000, \"holder\": \"red\", \"began_ns\": 1012000000, "
                        "\"first\": 0, \"turns\": [[\"red\", 1000000000, 1007000000], "
                        "[\"blue\", 1007000000, 1012000000]]}");
    assert_non_null(strstr(turns(b, 1), "\"first\": 1, \"turns\": [[\"blue\", "));
    assert_non_null(strstr(turns(b, 2), "\"first\": 2, \"turns\": []"));
    assert_non_null(strstr(turns(b, UINT64_MAX), "\"first\": 2, \"turns\": []"));
}

static void a_tenant_that_is_gone_has_no_name(void **state)
{
    struct gp_board *b = *state;
    int red = gp_board_join(b, "red"), blue = gp_board_join(b, "blue");
    work(b, red, blue, 5);
    gp_board_leave(b, red);
    assert_int_equal(gp_board_tenant_remove(b, "red"), 0);
    assert_int_equal(gp_board_tenant_set(b, "green", &half), 0);
    assert_non_null(strstr(turns(b, 0), "\"turns\": [[\"\", 1000000000, 1007000000]]"));
}

static void the_oldest_are_forgotten(void **state)
{
    struct gp_board *b = *state;
    char longest[GP_BOARD_NAME];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(gp_board_tenant_set(b, longest, &half), 0);
    int one = gp_board_join(b, longest), other = gp_board_join(b, "blue");
    for (int i = 0; i < GP_BOARD_TURNS; i++) {
        work(b, one, other, 1);
        work(b, other, one, 1);
    }
    const char *all = turns(b, 3);
    assert_non_null(strstr(all, "\"first\": 1024, "));
    int n = 0;
    for (const char *at = all; (at = strstr(at, "[\"")) != NULL; at++)
        n++;
    assert_int_equal(n, GP_BOARD_TURNS);
    char little[64];
    assert_true(gp_board_describe_turns(b, 0, little, sizeof little) > (int)sizeof little);
}

/* Until the turn must end, or far too long. */
static void work_out(struct gp_board *b, int member, bool asks)
{
    uint64_t stop = clock_ns + 1000 * MS;
    assert_true(gp_board_enter(b, member));
    gp_board_started(b, member);
    for (; !gp_board_must_yield(b, member) && clock_ns < stop; gp_board_turn(b, clock_ns))
        clock_ns += MS;
    assert_true(!asks || !gp_board_enter(b, member));
    gp_board_idle(b, member, 0);
}

/* What it asked that for was let in before, so it has no use for its next turn. */
static void what_was_asked_for_early_is_soon_forgotten(void **state)
{
    struct gp_board *b = *state;
    int red = gp_board_join(b, "red"), blue = gp_board_join(b, "blue");
    work(b, red, blue, 5);
    work(b, blue, red, 3);
    assert_true(gp_board_enter(b, red));
    assert_false(gp_board_enter(b, blue));
    work_out(b, red, true);
    work_out(b, blue, false);
    assert_false(gp_board_enter(b, blue));
    clock_ns += 9 * MS;
    assert_false(gp_board_enter(b, blue));
    clock_ns += MS;
    assert_true(gp_board_enter(b, blue));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(turns_are_remembered, make, unmake),
        cmocka_unit_test_setup_teardown(a_tenant_that_is_gone_has_no_name, make, unmake),
        cmocka_unit_test_setup_teardown(the_oldest_are_forgotten, make, unmake),
        cmocka_unit_test_setup_teardown(what_was_asked_for_early_is_soon_forgotten, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
