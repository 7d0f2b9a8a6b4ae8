/* Messages that are read on after they were sent: what only our own TCP has. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/support.h"
#include "transport_suite_ends.h"

/* More than sockets hold between two ends that do not read. */
#define MOST 256
/* Not to be copied: with a head that is, a message of the longest. */
#define HEAD 256
#define BYTES (GP_MESSAGE_MAX - HEAD)

static const char *const schemes[] = {"plain://", "tls://"};

/* Message `n`: its head lies where it is written over behind the call, and `bytes` are lent. */
static int lend(struct gp_channel *ch, uint64_t n, unsigned char **bytes)
{
    unsigned char head[HEAD], *whole = malloc(GP_MESSAGE_MAX);
    assert_non_null(whole);
    message_fill(whole, n, GP_MESSAGE_MAX);
    memcpy(head, whole, HEAD);
    memset(whole, 0, HEAD);
    const struct iovec iov[] = {{head, HEAD}, {NULL, 0}, {whole + HEAD, BYTES}};
    int rc = tp->send(ch, iov, 3, GP_SEND_LENT);
    memset(head, 0xee, sizeof head);
    *bytes = whole;
    return rc;
}

static void take_one(struct ends *e, uint64_t n)
{
    expect_numbered(e->worker, n, GP_MESSAGE_MAX);
}

/* Until the lanes are in nothing is lent. */
static void open_until_lent(struct ends *e, const char *scheme)
{
    const void *message;
    size_t size;
    transport_use(scheme);
    ends_open(e);
    int64_t deadline = gp_deadline_us(PATIENCE_US);
    while (tp->lent(e->client) == 0) {
        assert_true(gp_clock_ns() < deadline);
        tp->recv(e->client, 0, &message, &size); /* the worker says that they are in */
        struct stream up = {.channel = e->client, .count = 1, .size = GP_MESSAGE_MAX};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stream_main, &up), 0);
        take_one(e, 0);
        pthread_join(thread, NULL);
        usleep(1000);
    }
    assert_int_equal(tp->returned(e->client), tp->lent(e->client)); /* it was not lent */
}

/* Until the sockets are full, so that one stays with its lanes: how many were sent. */
static unsigned fill(struct ends *e, unsigned char **bytes)
{
    unsigned count = 0;
    bool is_full = false;
    while (!is_full) {
        assert_true(count < MOST);
        assert_int_equal(lend(e->client, count, &bytes[count]), 0);
        count++;
        is_full = true;
        for (int ms = 0; is_full && ms < 100; ms++) {
            is_full = tp->returned(e->client) < tp->lent(e->client);
            usleep(1000);
        }
    }
    return count;
}

static void let_go(unsigned char **bytes, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        free(bytes[i]);
}

static void *take_back_main(void *arg)
{
    struct gp_channel *ch = arg;
    return tp->take_back(ch) == 0 ? NULL : arg;
}

static void test_what_is_lent_comes_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        unsigned char *bytes[MOST];
        pthread_t thread;
        void *wrong;
        open_until_lent(&e, schemes[i]);
        uint64_t before = tp->lent(e.client);
        unsigned count = fill(&e, bytes);
        assert_int_equal(tp->lent(e.client) - before, count);
        assert_int_equal(pthread_create(&thread, NULL, take_back_main, e.client), 0);
        for (unsigned n = 0; n < count; n++)
            take_one(&e, n);
        pthread_join(thread, &wrong);
        assert_null(wrong);
        assert_int_equal(tp->returned(e.client), tp->lent(e.client));
        let_go(bytes, count);
        ends_close(&e);
    }
}

/* The bytes are their owner's again, whatever became of the channel. */
static void test_so_it_does_when_the_peer_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        unsigned char *bytes[MOST], *more;
        open_until_lent(&e, schemes[i]);
        unsigned count = fill(&e, bytes);
        tp->close(e.worker);
        e.worker = NULL;
        int rc = tp->take_back(e.client); /* what ends makes room, too */
        assert_true(rc == 0 || rc == -EPIPE);
        for (unsigned n = 0; rc == 0; n++) {
            assert_true(n < MOST);
            assert_int_equal(tp->returned(e.client), tp->lent(e.client));
            rc = lend(e.client, n, &more);
            rc = rc ? rc : tp->take_back(e.client);
            free(more);
        }
        assert_int_equal(rc, -EPIPE);
        assert_int_equal(tp->returned(e.client), tp->lent(e.client));
        let_go(bytes, count);
        ends_close(&e);
    }
}

/* Nobody reads: within its time a close gives up, and reads nothing more. */
static void test_a_close_ends_it(void **state)
{
    (void)state;
    struct ends e;
    unsigned char *bytes[MOST];
    open_until_lent(&e, "plain://");
    unsigned count = fill(&e, bytes);
    tp->close(e.client);
    e.client = NULL;
    let_go(bytes, count);
    ends_close(&e);
}

static void *lend_and_close_main(void *arg)
{
    struct ends *e = arg;
    unsigned char *bytes[3];
    int rc = 0;
    for (unsigned n = 0; n < 3; n++)
        rc |= lend(e->client, n, &bytes[n]);
    tp->close(e->client);
    let_go(bytes, 3);
    return rc ? arg : NULL;
}

/* What was lent before the end arrives, in the order of what was not. */
static void test_what_was_lent_arrives(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        const void *message;
        size_t size;
        pthread_t thread;
        void *wrong;
        open_until_lent(&e, schemes[i]);
        assert_int_equal(pthread_create(&thread, NULL, lend_and_close_main, &e), 0);
        for (unsigned n = 0; n < 3; n++)
            take_one(&e, n);
        assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), -EPIPE);
        pthread_join(thread, &wrong);
        assert_null(wrong);
        e.client = NULL;
        ends_close(&e);
    }
}

int main(void)
{
    static const struct transport_suite own = {.name = "tcp", .raw = RAW_TCP};
    suite = &own;
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_lent_comes_back),
        cmocka_unit_test(test_so_it_does_when_the_peer_ends),
        cmocka_unit_test(test_a_close_ends_it),
        cmocka_unit_test(test_what_was_lent_arrives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
