/* The suite: messages both ways, in order, from one thread and from many. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "transport_suite_ends.h"

void test_exchange(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    for (uint64_t n = 0; n < 300; n++) {
        assert_int_equal(send_numbered(e.client, n, message_size(n), 0), 0);
        expect_numbered(e.worker, n, message_size(n));
        assert_int_equal(send_numbered(e.worker, ~n, message_size(n + 7), 0), 0);
        expect_numbered(e.client, ~n, message_size(n + 7));
    }
    ends_close(&e);
}

static void order_both_ways(unsigned flags)
{
    struct ends e;
    ends_open(&e);
    struct stream up = {.channel = e.client, .count = 3000, .flags = flags};
    struct stream down = {.channel = e.worker, .count = 3000, .flags = flags};
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, stream_main, &up), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, stream_main, &down), 0);
    for (uint64_t n = 0; n < up.count; n++) {
        expect_numbered(e.worker, n, message_size(n));
        expect_numbered(e.client, n, message_size(n));
    }
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(up.rc, 0);
    assert_int_equal(down.rc, 0);
    const void *message;
    size_t size;
    assert_int_equal(tp->recv(e.worker, 0, &message, &size), -EAGAIN);
    ends_close(&e);
}

void test_order(void **state)
{
    (void)state;
    order_both_ways(0);
}

void test_order_later(void **state)
{
    (void)state;
    order_both_ways(GP_SEND_LATER);
}

void test_later_needs_no_flush(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    for (uint64_t n = 0; n < 20; n++) {
        assert_int_equal(send_numbered(e.client, n, 48, GP_SEND_LATER), 0);
        expect_numbered(e.worker, n, 48);
    }
    for (uint64_t n = 0; n < 20; n++)
        assert_int_equal(send_numbered(e.client, n, 48, GP_SEND_LATER), 0);
    assert_int_equal(tp->flush(e.client), 0);
    for (uint64_t n = 0; n < 20; n++)
        expect_numbered(e.worker, n, 48);
    ends_close(&e);
}

void test_recv_timeout(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    const void *message = &e;
    size_t size = 77;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(tp->recv(e.worker, 0, &message, &size), -EAGAIN);
    assert_int_equal(tp->recv(e.worker, 20000, &message, &size), -EAGAIN);
    assert_int_equal(tp->recv(e.client, 1, &message, &size), -EAGAIN);
    assert_ptr_equal(message, &e);
    assert_int_equal(size, 77);
    ends_close(&e);
}

/* More than any transport has under way, so that two that only send are both blocked. */
#define BOTH_COUNT 48
#define BOTH_SIZE ((size_t)1 << 20)

struct receiver {
    struct gp_channel *channel;
    uint64_t next;
    bool wrong;
};

static bool receive(struct receiver *r, int64_t timeout_us)
{
    const void *message;
    size_t size;
    if (tp->recv(r->channel, timeout_us, &message, &size) != 0)
        return false;
    r->wrong |= size != BOTH_SIZE || !message_is(message, r->next++, size);
    tp->release(r->channel);
    return true;
}

static bool receive_some(void *owner)
{
    struct receiver *r = owner;
    uint64_t before = r->next;
    while (receive(r, 0))
        ;
    return r->next != before;
}

static void *send_then_receive(void *arg)
{
    struct receiver *r = arg;
    struct stream out = {.channel = r->channel, .count = BOTH_COUNT, .size = BOTH_SIZE};
    stream_main(&out);
    r->wrong = out.rc != 0;
    while (r->next < BOTH_COUNT && receive(r, PATIENCE_US))
        ;
    return NULL;
}

/* Neither receives before it has sent everything, but for what the blocked sender does. */
void test_both_send(void **state)
{
    (void)state;
    struct ends e;
    pthread_t thread;
    ends_open(&e);
    struct receiver client = {.channel = e.client}, worker = {.channel = e.worker};
    assert_non_null(tp->relieve);
    tp->relieve(e.client, receive_some, &client);
    assert_int_equal(pthread_create(&thread, NULL, send_then_receive, &worker), 0);
    send_then_receive(&client);
    pthread_join(thread, NULL);
    assert_int_equal(client.next, BOTH_COUNT);
    assert_int_equal(worker.next, BOTH_COUNT);
    assert_false(client.wrong || worker.wrong);
    ends_close(&e);
}

#define MANY_THREADS 8

void test_many_senders(void **state)
{
    (void)state;
    struct ends e;
    struct stream streams[MANY_THREADS];
    uint64_t next[MANY_THREADS] = {0};
    pthread_t threads[MANY_THREADS];
    ends_open(&e);
    for (uint64_t i = 0; i < MANY_THREADS; i++) {
        streams[i] = (struct stream){.channel = e.client,
                                     .first = i << 32,
                                     .count = 800,
                                     .flags = i % 2 ? GP_SEND_LATER : 0};
        assert_int_equal(pthread_create(&threads[i], NULL, stream_main, &streams[i]), 0);
    }
    for (int i = 0; i < MANY_THREADS * 800; i++) {
        const void *message;
        size_t size;
        uint64_t n;
        assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), 0);
        memcpy(&n, message, sizeof n);
        assert_true(n >> 32 < MANY_THREADS);
        assert_int_equal((uint32_t)n, next[n >> 32]++);
        assert_int_equal(size, message_size((uint32_t)n));
        assert_true(message_is(message, n, size));
        tp->release(e.worker);
    }
    for (int i = 0; i < MANY_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(streams[i].rc, 0);
    }
    ends_close(&e);
}
