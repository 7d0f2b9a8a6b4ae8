/* The suite: connecting, and what is refused. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport_raw.h"
#include "transport_suite_ends.h"

void test_connect(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    assert_int_equal(send_numbered(e.client, 1, 64, 0), 0);
    expect_numbered(e.worker, 1, 64);
    ends_close(&e);
    /* The address is free again. */
    ends_open(&e);
    ends_close(&e);
}

struct hasty {
    const char *url;
    struct gp_channel *channel;
    int rc;
};

static void *hasty_main(void *arg)
{
    struct hasty *h = arg;
    h->rc = tp->connect(h->url, PATIENCE_MS, &h->channel, NULL);
    for (uint64_t n = 0; h->rc == 0 && n < 3; n++)
        h->rc = send_numbered(h->channel, n, GP_MESSAGE_MAX, 0);
    return NULL;
}

/* Who is in may speak at once and at length, before the other side has seen that it is. */
void test_speak_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct ends e = {0};
        struct gp_error err = {.text = ""};
        pthread_t thread;
        assert_int_equal(tp->listen(listen_url, &e.listener, &err), 0);
        struct hasty h = {.url = tp->listener_url(e.listener), .rc = -1};
        assert_int_equal(pthread_create(&thread, NULL, hasty_main, &h), 0);
        usleep(i % 2 ? 0 : 2000); /* so that much is there when it looks */
        if (tp->accept(e.listener, PATIENCE_MS, &e.worker, &err) != 0)
            fail_msg("%s", err.text);
        for (uint64_t n = 0; n < 3; n++)
            expect_numbered(e.worker, n, GP_MESSAGE_MAX);
        pthread_join(thread, NULL);
        assert_int_equal(h.rc, 0);
        e.client = h.channel;
        ends_close(&e);
    }
}

void test_channel_outlives_listener(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    tp->listener_close(e.listener);
    for (uint64_t n = 0; n < 10; n++) {
        assert_int_equal(send_numbered(e.client, n, 100, 0), 0);
        expect_numbered(e.worker, n, 100);
    }
    tp->close(e.client);
    tp->close(e.worker);
}

void test_accept_nobody(void **state)
{
    (void)state;
    struct gp_listener *l = NULL;
    struct gp_channel *ch = NULL;
    struct gp_error err = {.text = ""};
    assert_int_equal(tp->listen(listen_url, &l, &err), 0);
    assert_int_equal(tp->accept(l, 30, &ch, &err), -EAGAIN);
    assert_null(ch);
    expect_line(&err);
    tp->listener_close(l);
}

void test_refuse_nobody(void **state)
{
    (void)state;
    char url[160];
    struct gp_channel *ch = NULL;
    struct gp_error err = {.text = ""};
    int port = 0, held = -1;
    snprintf(url, sizeof url, "%s", nobody_url);
    if (suite->raw == RAW_TCP) {
        held = raw_port_reserve(&port);
        assert_true(held >= 0);
        snprintf(url, sizeof url, "%.*s://127.0.0.1:%d?door=00112233445566778899aabbccddeeff",
                 (int)strcspn(nobody_url, ":"), nobody_url, port);
    }
    assert_int_equal(tp->connect(url, PATIENCE_MS, &ch, &err), -ECONNREFUSED);
    assert_null(ch);
    expect_line(&err);
    assert_int_equal(tp->connect(url, PATIENCE_MS, &ch, NULL), -ECONNREFUSED);
    if (held >= 0)
        close(held);
}

void test_refuse_wrong_service(void **state)
{
    (void)state;
    if (suite->raw == RAW_NONE)
        skip();
    struct raw_server server;
    struct gp_channel *ch = NULL;
    struct gp_error err = {.text = ""};
    assert_int_equal(raw_server_start(&server, suite->raw, nobody_url), 0);
    int rc = tp->connect(server.url, PATIENCE_MS, &ch, &err);
    raw_server_stop(&server);
    assert_int_equal(rc, -EPROTO);
    expect_line(&err);
}

void test_refuse_bad_address(void **state)
{
    (void)state;
    static const char *const rests[] = {"", "%", ":,", "x:y", "/no/such/folder/at/all/x.sock:"};
    char url[2300];
    struct gp_error err;
    for (size_t i = 0; i <= sizeof rests / sizeof rests[0]; i++) {
        struct gp_channel *ch = NULL;
        size_t scheme = strcspn(listen_url, ":") + 3;
        memset(url, 'a', sizeof url - 1); /* the last turn: absurdly long */
        url[sizeof url - 1] = '\0';
        memcpy(url, listen_url, scheme);
        if (i < sizeof rests / sizeof rests[0])
            snprintf(url + scheme, sizeof url - scheme, "%s", rests[i]);
        err.text[0] = '\0';
        assert_true(tp->connect(url, 3000, &ch, &err) < 0);
        assert_null(ch);
        expect_line(&err);
    }
}
