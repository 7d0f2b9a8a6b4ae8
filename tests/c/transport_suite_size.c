/* The suite: the limits of a message; large ones beside small ones. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include <cmocka.h>

#include "transport_suite_ends.h"

void test_limits(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    static unsigned char bytes[GP_MESSAGE_MAX + 1];
    struct iovec one = {.iov_base = bytes, .iov_len = sizeof bytes};
    assert_int_equal(tp->send(e.client, &one, 1, 0), -EMSGSIZE);
    one.iov_len = sizeof(struct gp_header) - 1;
    assert_int_equal(tp->send(e.client, &one, 1, 0), -EMSGSIZE);
    assert_int_equal(tp->send(e.client, &one, 0, 0), -EMSGSIZE);
    struct iovec huge[2] = {{.iov_base = bytes, .iov_len = 32},
                            {.iov_base = bytes, .iov_len = SIZE_MAX - 16}};
    assert_int_equal(tp->send(e.client, huge, 2, 0), -EMSGSIZE);
    struct iovec many[9];
    for (int i = 0; i < 9; i++)
        many[i] = (struct iovec){.iov_base = bytes, .iov_len = 16};
    assert_int_equal(tp->send(e.client, many, 9, 0), -EINVAL);
    assert_int_equal(tp->send(e.client, many, -1, 0), -EINVAL);

    /* None of it was sent, and what the limits allow passes. */
    for (uint64_t n = 0; n < 40; n++) {
        assert_int_equal(send_numbered(e.client, n, GP_MESSAGE_MAX, 0), 0);
        expect_numbered(e.worker, n, GP_MESSAGE_MAX);
    }
    assert_int_equal(send_numbered(e.client, 3, 16, 0), 0);
    expect_numbered(e.worker, 3, 16);
    for (uint64_t n = 0; n < 3; n++)
        assert_int_equal(tp->send(e.client, many, 8, 0), 0);
    const void *message;
    size_t size;
    for (uint64_t n = 0; n < 3; n++) {
        assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), 0);
        assert_int_equal(size, 8 * 16);
        tp->release(e.worker);
    }
    ends_close(&e);
}

#define HUGE_FIRST ((uint64_t)1 << 40)
#define HUGE_MOST 3000
#define SMALL_COUNT 40

struct huge_stream {
    struct gp_channel *channel;
    _Atomic bool stop;
    _Atomic int rc;
};

static void *huge_main(void *arg)
{
    struct huge_stream *s = arg;
    unsigned char *bytes = calloc(1, GP_MESSAGE_MAX);
    uint64_t n = HUGE_FIRST;
    while (bytes && s->rc == 0 && !s->stop && n < HUGE_FIRST + HUGE_MOST) {
        memcpy(bytes, &n, sizeof n);
        s->rc = send_bytes(s->channel, bytes, GP_MESSAGE_MAX, 0);
        n++;
    }
    uint64_t last = UINT64_MAX;
    if (bytes && s->rc == 0) {
        memcpy(bytes, &last, sizeof last);
        s->rc = send_bytes(s->channel, bytes, 16, 0);
    }
    free(bytes);
    return NULL;
}

/* One thread streams the largest messages without a pause until all the small
 * ones of another are through: a sender that starves meets the end of it. */
void test_small_beside_huge(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    struct huge_stream huge = {.channel = e.client};
    struct stream small = {.channel = e.client, .count = SMALL_COUNT, .size = 64};
    pthread_t threads[2];
    uint64_t small_seen = 0, huge_seen = 0;
    assert_int_equal(pthread_create(&threads[0], NULL, huge_main, &huge), 0);
    for (;;) {
        const void *message;
        size_t size;
        uint64_t n;
        assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), 0);
        memcpy(&n, message, sizeof n);
        tp->release(e.worker);
        if (n == UINT64_MAX)
            break;
        if (n >= HUGE_FIRST) {
            assert_int_equal(n - HUGE_FIRST, huge_seen++);
            if (huge_seen == 1)
                assert_int_equal(pthread_create(&threads[1], NULL, stream_main, &small), 0);
        } else {
            assert_int_equal(n, small_seen++);
            if (small_seen == SMALL_COUNT)
                huge.stop = true;
        }
    }
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(huge.rc, 0);
    assert_int_equal(small.rc, 0);
    assert_int_equal(small_seen, SMALL_COUNT);
    assert_true(huge_seen < HUGE_MOST);
    ends_close(&e);
}
