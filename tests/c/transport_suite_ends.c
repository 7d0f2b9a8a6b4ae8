/* Two ends and numbered messages between them, for every test of the suite. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include <cmocka.h>

#include "transport_suite_ends.h"

void transport_use(const char *scheme)
{
    struct gp_error err = {.text = ""};
    snprintf(listen_url, sizeof listen_url, "%s127.0.0.1:*", scheme);
    tp = gp_transport_find(listen_url, getenv("GPUPOOL_PLUGIN_DIR"), &err);
    if (!tp)
        fail_msg("%s", err.text);
}

#define BLOCK 256

/* Every block of a message is 256 bytes of these, so that whole blocks are copied and compared:
 * byte by byte, a sanitizer would look at each of hundreds of megabytes. */
static unsigned char ramp[2 * BLOCK];

__attribute__((constructor)) static void make_ramp(void)
{
    for (size_t i = 0; i < sizeof ramp; i++)
        ramp[i] = (unsigned char)(i * 7);
}

/* The bytes at `i` of message `n` to the end of its block: they tell a shifted or mixed message
 * from a good one. */
static const unsigned char *pattern(uint64_t n, size_t i)
{
    return &ramp[(n * 131 + i / BLOCK * 37) % BLOCK + i % BLOCK];
}

static size_t block_end(size_t i, size_t size)
{
    size_t end = i - i % BLOCK + BLOCK;
    return end < size ? end : size;
}

void message_fill(unsigned char *at, uint64_t n, size_t size)
{
    memcpy(at, &n, sizeof n);
    for (size_t i = sizeof n, end; i < size; i = end) {
        end = block_end(i, size);
        memcpy(at + i, pattern(n, i), end - i);
    }
}

bool message_is(const void *message, uint64_t n, size_t size)
{
    const unsigned char *at = message;
    if (memcmp(at, &n, sizeof n) != 0)
        return false;
    for (size_t i = sizeof n, end; i < size; i = end) {
        end = block_end(i, size);
        if (memcmp(at + i, pattern(n, i), end - i) != 0)
            return false;
    }
    return true;
}

size_t message_size(uint64_t n)
{
    static const size_t edges[] = {16, 17, 23, 24, 64, 4095, 65520, 65536, 65537, GP_MESSAGE_MAX};
    if (n % 50 == 49)
        return edges[n / 50 % (sizeof edges / sizeof edges[0])];
    return 16 + (size_t)(n * 2654435761u % 3000);
}

int send_bytes(struct gp_channel *ch, const void *bytes, size_t size, unsigned flags)
{
    /* In two pieces and an empty one: a gather list, not a buffer. */
    struct iovec iov[3] = {
        {.iov_base = (void *)bytes, .iov_len = 8},
        {.iov_base = NULL, .iov_len = 0},
        {.iov_base = (char *)bytes + 8, .iov_len = size - 8},
    };
    return tp->send(ch, iov, 3, flags);
}

int send_numbered(struct gp_channel *ch, uint64_t n, size_t size, unsigned flags)
{
    unsigned char *bytes = malloc(size);
    if (!bytes)
        return -ENOMEM;
    message_fill(bytes, n, size);
    int rc = send_bytes(ch, bytes, size, flags);
    free(bytes);
    return rc;
}

void expect_numbered(struct gp_channel *ch, uint64_t n, size_t size)
{
    const void *message = NULL;
    size_t got = 0;
    assert_int_equal(tp->recv(ch, PATIENCE_US, &message, &got), 0);
    assert_int_equal(got, size);
    assert_int_equal((uintptr_t)message % 8, 0);
    assert_true(message_is(message, n, size));
    tp->release(ch);
}

struct dialer {
    char url[256];
    struct gp_channel *channel;
    struct gp_error err;
    int rc;
};

static void *dialer_main(void *arg)
{
    struct dialer *d = arg;
    d->rc = tp->connect(d->url, PATIENCE_MS, &d->channel, &d->err);
    return NULL;
}

void ends_join(struct ends *e)
{
    ends_join_at(e, tp->listener_url(e->listener));
}

void ends_join_at(struct ends *e, const char *url)
{
    struct dialer d = {.rc = -1};
    struct gp_error err = {.text = ""};
    pthread_t thread;
    snprintf(d.url, sizeof d.url, "%s", url);
    assert_int_equal(pthread_create(&thread, NULL, dialer_main, &d), 0);
    int rc = tp->accept(e->listener, PATIENCE_MS, &e->worker, &err);
    pthread_join(thread, NULL);
    if (rc || d.rc)
        fail_msg("accept %d (%s), connect %d (%s)", rc, err.text, d.rc, d.err.text);
    e->client = d.channel;
}

void ends_open(struct ends *e)
{
    struct gp_error err = {.text = ""};
    memset(e, 0, sizeof *e);
    if (tp->listen(listen_url, &e->listener, &err) != 0)
        fail_msg("listen: %s", err.text);
    ends_join(e);
}

void ends_close(struct ends *e)
{
    tp->close(e->client);
    tp->close(e->worker);
    tp->listener_close(e->listener);
}

void expect_line(const struct gp_error *err)
{
    assert_true(strlen(err->text) > 10);
    assert_null(strchr(err->text, '\n'));
}

void *stream_main(void *arg)
{
    struct stream *s = arg;
    for (uint64_t n = 0; n < s->count && s->rc == 0; n++) {
        /* Mostly as asked, now and then at once, as a waited call does. */
        unsigned flags = n % 100 == 99 ? 0 : s->flags;
        s->rc = send_numbered(s->channel, s->first + n, s->size ? s->size : message_size(n), flags);
        if (s->rc == 0)
            s->sent++;
    }
    if (s->rc == 0)
        s->rc = tp->flush(s->channel);
    return NULL;
}
