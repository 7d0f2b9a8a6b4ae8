#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport_suite_ends.h"

const struct transport_suite *suite;
const struct gp_transport *tp;
char listen_url[128];
char nobody_url[128];
static char folder[64];

void test_table(void **state)
{
    (void)state;
    assert_int_equal(tp->abi, GP_TRANSPORT_ABI);
    struct gp_error err = {.text = ""};
    assert_null(gp_transport_find("carrier-pigeon://x", NULL, &err));
    expect_line(&err);
    assert_null(gp_transport_find(NULL, NULL, &err));
    assert_true((tp->share != NULL) == ((tp->caps & GP_CAP_SHARE) != 0));
    tp->close(NULL);
    tp->listener_close(NULL);
}

static int folder_make(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/gpt-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder))
        return -1;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(listen_url, sizeof listen_url, suite->listen_url, folder);
    snprintf(nobody_url, sizeof nobody_url, suite->nobody_url, folder);
#pragma GCC diagnostic pop
    return 0;
}

int transport_suite_run(const struct transport_suite *which)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_connect),
        cmocka_unit_test(test_speak_at_once),
        cmocka_unit_test(test_channel_outlives_listener),
        cmocka_unit_test(test_accept_nobody),
        cmocka_unit_test(test_refuse_nobody),
        cmocka_unit_test(test_refuse_wrong_service),
        cmocka_unit_test(test_refuse_bad_address),
        cmocka_unit_test(test_garbage_on_socket),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_order_later),
        cmocka_unit_test(test_later_needs_no_flush),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_recv_timeout),
        cmocka_unit_test(test_many_senders),
        cmocka_unit_test(test_both_send),
        cmocka_unit_test(test_small_beside_huge),
        cmocka_unit_test(test_slow_peer),
        cmocka_unit_test(test_close_drains),
        cmocka_unit_test(test_close_wakes),
        cmocka_unit_test(test_killed_while_idle),
        cmocka_unit_test(test_killed_while_receiving),
        cmocka_unit_test(test_killed_while_sending),
        cmocka_unit_test(test_killed_while_sending_little),
        cmocka_unit_test(test_killed_behind_a_flood),
        cmocka_unit_test(test_leave_keeps_what_was_sent),
        cmocka_unit_test(test_fork_is_harmless),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_shares_outstanding),
        cmocka_unit_test(test_shares_threads),
    };
    struct gp_error err = {.text = ""};
    suite = which;
    if (folder_make() != 0) {
        perror("mkdtemp");
        return 1;
    }
    tp = suite->transport;
    if (!tp)
        tp = gp_transport_find(listen_url, getenv("GPUPOOL_PLUGIN_DIR"), &err);
    if (!tp) {
        fprintf(stderr, "%s: %s\n", suite->name, err.text);
        return 1;
    }
    int failed = cmocka_run_group_tests_name(suite->name, tests, NULL, NULL);
    char line[128];
    snprintf(line, sizeof line, "rm -rf '%s'", folder);
    if (system(line) != 0)
        fprintf(stderr, "cannot remove %s\n", folder);
    return failed != 0;
}
