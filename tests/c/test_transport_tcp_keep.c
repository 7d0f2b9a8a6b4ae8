/* Messages that are kept beyond their release: what only our own TCP has. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/support.h"
#include "transport_suite_ends.h"

/* More than a channel ever keeps. */
#define MOST 64

static void take(struct ends *e, uint64_t n, size_t length, const void **message)
{
    struct stream up = {.channel = e->client, .first = n, .count = 1, .size = length};
    pthread_t thread;
    size_t size;
    assert_int_equal(pthread_create(&thread, NULL, stream_main, &up), 0);
    assert_int_equal(tp->recv(e->worker, PATIENCE_US, message, &size), 0);
    pthread_join(thread, NULL);
    assert_int_equal(size, length);
    assert_true(message_is(*message, n, size));
}

/* Before the lanes are in, nothing can be. */
static void open_until_kept(struct ends *e, const char *scheme)
{
    const void *message;
    transport_use(scheme);
    ends_open(e);
    int64_t deadline = gp_deadline_us(PATIENCE_US);
    for (int rc = -EAGAIN; rc != 0; usleep(1000)) {
        size_t size;
        assert_true(gp_clock_ns() < deadline);
        tp->recv(e->client, 0, &message, &size); /* the worker says that they are in */
        take(e, 0, GP_MESSAGE_MAX, &message);
        rc = tp->keep(e->worker, message);
        tp->release(e->worker);
        if (rc == 0)
            tp->let_go(e->worker, message);
    }
}

static unsigned keep_all(struct ends *e, const void **kept)
{
    unsigned count = 0;
    for (int rc = 0; rc == 0; count += rc == 0) {
        assert_true(count < MOST);
        take(e, count, GP_MESSAGE_MAX, &kept[count]);
        rc = tp->keep(e->worker, (const char *)kept[count] + 4096);
        assert_true(rc == 0 || rc == -EAGAIN);
        assert_int_equal((uintptr_t)kept[count] % 4096, 0);
        if (rc == 0)
            assert_int_equal(tp->keep(e->worker, kept[count]), -EAGAIN); /* it is */
        tp->release(e->worker);
    }
    return count;
}

static void test_what_is_kept_stays(void **state)
{
    static const char *const schemes[] = {"plain://", "tls://"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        const void *kept[MOST], *message;
        open_until_kept(&e, schemes[i]);
        unsigned count = keep_all(&e, kept);
        assert_true(count >= 4);
        for (uint64_t n = 100; n < 110; n++) {
            take(&e, n, GP_MESSAGE_MAX, &message);
            tp->release(e.worker);
        }
        for (unsigned k = 0; k < count; k++)
            assert_true(message_is(kept[k], k, GP_MESSAGE_MAX));
        /* of these one is free again, and is given out once */
        tp->let_go(e.worker, (const char *)kept[1] + 777);
        take(&e, 1, GP_MESSAGE_MAX, &kept[1]);
        assert_int_equal(tp->keep(e.worker, kept[1]), 0);
        tp->release(e.worker);
        take(&e, 2, GP_MESSAGE_MAX, &message);
        assert_int_equal(tp->keep(e.worker, message), -EAGAIN);
        tp->release(e.worker);
        for (unsigned k = count; k-- > 0; tp->let_go(e.worker, kept[k]))
            assert_true(message_is(kept[k], k, GP_MESSAGE_MAX));
        assert_int_equal(keep_all(&e, kept), count);
        ends_close(&e); /* with all of them kept */
        assert_true(message_is(kept[0], 0, GP_MESSAGE_MAX));
        for (unsigned k = 0; k < count; k++)
            free((void *)(uintptr_t)kept[k]); /* it is nobody's now */
    }
}

static void test_what_cannot_be_kept(void **state)
{
    (void)state;
    struct ends e;
    const void *message;
    int elsewhere = 0;
    open_until_kept(&e, "plain://");
    take(&e, 1, 4096, &message);
    assert_int_equal(tp->keep(e.worker, message), -EAGAIN);
    tp->release(e.worker);
    take(&e, 2, GP_MESSAGE_MAX, &message);
    assert_int_equal(tp->keep(e.worker, &elsewhere), -EAGAIN);
    assert_int_equal(tp->keep(e.worker, (const char *)message + GP_MESSAGE_MAX), -EAGAIN);
    tp->release(e.worker);
    tp->let_go(e.worker, &elsewhere); /* never was */
    ends_close(&e);
}

int main(void)
{
    static const struct transport_suite own = {.name = "tcp", .raw = RAW_TCP};
    suite = &own;
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_kept_stays),
        cmocka_unit_test(test_what_cannot_be_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
