#include "transport_suite.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/transport.h"
#include "transport_raw.h"
#include "wire/wire.h"

/* Long enough that only what hangs runs into it. */
#define PATIENCE_MS 20000
#define PATIENCE_US ((int64_t)PATIENCE_MS * 1000)

/* The suite under test; tests get nothing else. */
static const struct transport_suite *suite;
static const struct gp_transport *tp;
static char folder[64];
static char listen_url[128];
static char nobody_url[128];

/* Two connected ends in this process. */
struct ends {
    struct gp_listener *listener;
    struct gp_channel *client, *worker;
};

/* --- messages ------------------------------------------------------------ */

/* The byte at `i` of message `n`: tells a shifted or mixed message from a good one. */
static unsigned char pattern(uint64_t n, size_t i)
{
    return (unsigned char)(n * 131 + i * 7 + (i >> 8));
}

static void message_fill(unsigned char *at, uint64_t n, size_t size)
{
    memcpy(at, &n, sizeof n);
    for (size_t i = sizeof n; i < size; i++)
        at[i] = pattern(n, i);
}

static bool message_is(const void *message, uint64_t n, size_t size)
{
    const unsigned char *at = message;
    if (memcmp(at, &n, sizeof n) != 0)
        return false;
    for (size_t i = sizeof n; i < size; i++)
        if (at[i] != pattern(n, i))
            return false;
    return true;
}

/* Sizes that meet every edge: 16, not a multiple of 8, batch-sized, largest. */
static size_t message_size(uint64_t n)
{
    static const size_t edges[] = {16, 17, 23, 24, 64, 4095, 65520, 65536, 65537, GP_MESSAGE_MAX};
    if (n % 50 == 49)
        return edges[n / 50 % (sizeof edges / sizeof edges[0])];
    return 16 + (size_t)(n * 2654435761u % 3000);
}

static int send_bytes(struct gp_channel *ch, const void *bytes, size_t size, unsigned flags)
{
    /* In two pieces and an empty one: a gather list, not a buffer. */
    struct iovec iov[3] = {
        {.iov_base = (void *)bytes, .iov_len = 8},
        {.iov_base = NULL, .iov_len = 0},
        {.iov_base = (char *)bytes + 8, .iov_len = size - 8},
    };
    return tp->send(ch, iov, 3, flags);
}

static int send_numbered(struct gp_channel *ch, uint64_t n, size_t size, unsigned flags)
{
    unsigned char *bytes = malloc(size);
    if (!bytes)
        return -ENOMEM;
    message_fill(bytes, n, size);
    int rc = send_bytes(ch, bytes, size, flags);
    free(bytes);
    return rc;
}

static void expect_numbered(struct gp_channel *ch, uint64_t n, size_t size)
{
    const void *message = NULL;
    size_t got = 0;
    assert_int_equal(tp->recv(ch, PATIENCE_US, &message, &got), 0);
    assert_int_equal(got, size);
    assert_int_equal((uintptr_t)message % 8, 0);
    assert_true(message_is(message, n, size));
    tp->release(ch);
}

/* --- connecting ---------------------------------------------------------- */

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

/* Connect to `listener` from a thread and accept here. */
static void ends_join(struct ends *e)
{
    struct dialer d = {.rc = -1};
    struct gp_error err = {.text = ""};
    pthread_t thread;
    snprintf(d.url, sizeof d.url, "%s", tp->listener_url(e->listener));
    assert_int_equal(pthread_create(&thread, NULL, dialer_main, &d), 0);
    int rc = tp->accept(e->listener, PATIENCE_MS, &e->worker, &err);
    pthread_join(thread, NULL);
    if (rc || d.rc)
        fail_msg("accept %d (%s), connect %d (%s)", rc, err.text, d.rc, d.err.text);
    e->client = d.channel;
}

static void ends_open(struct ends *e)
{
    struct gp_error err = {.text = ""};
    memset(e, 0, sizeof *e);
    if (tp->listen(listen_url, &e->listener, &err) != 0)
        fail_msg("listen: %s", err.text);
    ends_join(e);
}

static void ends_close(struct ends *e)
{
    tp->close(e->client);
    tp->close(e->worker);
    tp->listener_close(e->listener);
}

static void expect_line(const struct gp_error *err)
{
    assert_true(strlen(err->text) > 10);
    assert_null(strchr(err->text, '\n'));
}

static void test_connect(void **state)
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

static void test_channel_outlives_listener(void **state)
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

static void test_accept_nobody(void **state)
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

static void test_refuse_nobody(void **state)
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
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d,%d", port, port);
    }
    assert_int_equal(tp->connect(url, PATIENCE_MS, &ch, &err), -ECONNREFUSED);
    assert_null(ch);
    expect_line(&err);
    assert_int_equal(tp->connect(url, PATIENCE_MS, &ch, NULL), -ECONNREFUSED);
    if (held >= 0)
        close(held);
}

static void test_refuse_wrong_service(void **state)
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

static void test_refuse_bad_address(void **state)
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

static void write_junk(int fd, unsigned seed)
{
    unsigned char junk[700];
    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (unsigned char)((seed = seed * 1103515245u + 12345u) >> 16);
    if (seed % 3 == 0)
        memcpy(junk, "\xff\0\0\0\0\0\0\0\x01\x7f\x03", 11); /* starts as ZMTP would */
    for (size_t at = 0; at < sizeof junk; at += 100)
        if (send(fd, junk + at, 100, MSG_NOSIGNAL) < 0)
            return;
}

static void test_garbage_on_socket(void **state)
{
    (void)state;
    if (suite->raw == RAW_NONE)
        skip();
    struct ends e = {0};
    struct gp_error err = {.text = ""};
    if (tp->listen(listen_url, &e.listener, &err) != 0)
        fail_msg("listen: %s", err.text);
    for (unsigned i = 0; i < 12; i++) {
        int fd = raw_dial(suite->raw, tp->listener_url(e.listener));
        assert_true(fd >= 0);
        write_junk(fd, i);
        close(fd);
    }
    int silent = raw_dial(suite->raw, tp->listener_url(e.listener));
    assert_true(silent >= 0);
    ends_join(&e);
    /* Strangers who come while a session runs do not disturb it. */
    int late = raw_dial(suite->raw, tp->listener_url(e.listener));
    if (late >= 0) {
        write_junk(late, 99);
        close(late);
    }
    for (uint64_t n = 0; n < 200; n++) {
        assert_int_equal(send_numbered(e.client, n, message_size(n), 0), 0);
        expect_numbered(e.worker, n, message_size(n));
    }
    close(silent);
    ends_close(&e);
}

/* --- messages both ways -------------------------------------------------- */

static void test_exchange(void **state)
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

struct stream {
    struct gp_channel *channel;
    uint64_t first, count;
    size_t size; /* 0: message_size() */
    unsigned flags;
    _Atomic uint64_t sent;
    _Atomic int rc;
};

static void *stream_main(void *arg)
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

static void test_order(void **state)
{
    (void)state;
    order_both_ways(0);
}

static void test_order_later(void **state)
{
    (void)state;
    order_both_ways(GP_SEND_LATER);
}

static void test_later_needs_no_flush(void **state)
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

static void test_limits(void **state)
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

static void test_recv_timeout(void **state)
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

/* --- many senders, large and slow ---------------------------------------- */

#define MANY_THREADS 8

static void test_many_senders(void **state)
{
    (void)state;
    struct ends e;
    struct stream streams[MANY_THREADS];
    uint64_t next[MANY_THREADS] = {0};
    pthread_t threads[MANY_THREADS];
    ends_open(&e);
    for (uint64_t i = 0; i < MANY_THREADS; i++) {
        streams[i] = (struct stream){.channel = e.client, .first = i << 32, .count = 800,
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
static void test_small_beside_huge(void **state)
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

/* Wait until the sender makes no more progress. */
static uint64_t stream_settle(struct stream *s)
{
    uint64_t last = UINT64_MAX;
    for (int still = 0; still < 20;) {
        uint64_t now = s->sent;
        still = now == last ? still + 1 : 0;
        last = now;
        usleep(20000);
    }
    return last;
}

static void test_slow_peer(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    struct stream s = {.channel = e.client, .count = 128, .size = GP_MESSAGE_MAX};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stream_main, &s), 0);
    /* It blocks long before everything is on its way ... */
    assert_true(stream_settle(&s) <= 48);
    /* ... does not hold up the other direction ... */
    assert_int_equal(send_numbered(e.worker, 5, 100, 0), 0);
    expect_numbered(e.client, 5, 100);
    /* ... and goes on once the peer reads. */
    for (uint64_t n = 0; n < s.count; n++)
        expect_numbered(e.worker, n, GP_MESSAGE_MAX);
    pthread_join(thread, NULL);
    assert_int_equal(s.rc, 0);
    ends_close(&e);
}

/* --- the peer goes ------------------------------------------------------- */

static void expect_dead(struct gp_channel *ch)
{
    const void *message;
    size_t size;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tp->recv(ch, PATIENCE_US, &message, &size), -EPIPE);
        assert_int_equal(tp->recv(ch, 0, &message, &size), -EPIPE);
        assert_int_equal(send_numbered(ch, 1, 64, 0), -EPIPE);
        assert_int_equal(tp->flush(ch), -EPIPE);
    }
}

static void test_close_drains(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        struct ends e;
        ends_open(&e);
        struct gp_channel *from = side ? e.worker : e.client, *to = side ? e.client : e.worker;
        for (uint64_t n = 0; n < 100; n++)
            assert_int_equal(send_numbered(from, n, 1000, GP_SEND_LATER), 0);
        tp->close(from);
        for (uint64_t n = 0; n < 100; n++)
            expect_numbered(to, n, 1000);
        expect_dead(to);
        tp->close(to);
        tp->listener_close(e.listener);
    }
}

static void *closer_main(void *arg)
{
    usleep(50000);
    tp->close(arg);
    return NULL;
}

static void test_close_wakes(void **state)
{
    (void)state;
    struct ends e;
    pthread_t thread;
    ends_open(&e);
    assert_int_equal(pthread_create(&thread, NULL, closer_main, e.worker), 0);
    const void *message;
    size_t size;
    assert_int_equal(tp->recv(e.client, -1, &message, &size), -EPIPE);
    pthread_join(thread, NULL);
    expect_dead(e.client);
    tp->close(e.client);
    tp->listener_close(e.listener);
}

/* A process that is one end of a channel until it is killed. */
struct victim {
    pid_t pid;
    int to, from;
    struct gp_listener *listener; /* ours, where the victim connects */
    struct gp_channel *channel;   /* our end */
};

static void victim_main(bool listens, int in, int out)
{
    char url[256] = "";
    struct gp_channel *ch = NULL;
    struct gp_listener *l = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (listens) {
        if (tp->listen(listen_url, &l, NULL) != 0)
            _exit(1);
        snprintf(url, sizeof url, "%s", tp->listener_url(l));
        if (write(out, url, sizeof url) != sizeof url)
            _exit(2);
        if (tp->accept(l, PATIENCE_MS, &ch, NULL) != 0)
            _exit(3);
    } else {
        if (read(in, url, sizeof url) != sizeof url)
            _exit(4);
        if (tp->connect(url, PATIENCE_MS, &ch, NULL) != 0)
            _exit(5);
    }
    if (send_numbered(ch, 42, 64, 0) != 0)
        _exit(6);
    for (;;)
        pause();
}

/* Fork before this process has anything of a transport open. */
static void victim_start(struct victim *v, bool listens)
{
    int to[2], from[2];
    char url[256] = "";
    struct gp_error err = {.text = ""};
    memset(v, 0, sizeof *v);
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    v->pid = fork();
    assert_true(v->pid >= 0);
    if (v->pid == 0)
        victim_main(listens, to[0], from[1]);
    close(to[0]);
    close(from[1]);
    v->to = to[1];
    v->from = from[0];
    if (listens) {
        assert_int_equal(read(v->from, url, sizeof url), sizeof url);
        if (tp->connect(url, PATIENCE_MS, &v->channel, &err) != 0)
            fail_msg("connect: %s", err.text);
    } else {
        assert_int_equal(tp->listen(listen_url, &v->listener, &err), 0);
        snprintf(url, sizeof url, "%s", tp->listener_url(v->listener));
        assert_int_equal(write(v->to, url, sizeof url), sizeof url);
        if (tp->accept(v->listener, PATIENCE_MS, &v->channel, &err) != 0)
            fail_msg("accept: %s", err.text);
    }
    expect_numbered(v->channel, 42, 64);
}

static void victim_kill(struct victim *v)
{
    int status;
    kill(v->pid, SIGKILL);
    waitpid(v->pid, &status, 0);
    assert_true(WIFSIGNALED(status));
}

static void victim_bury(struct victim *v)
{
    tp->close(v->channel);
    tp->listener_close(v->listener);
    close(v->to);
    close(v->from);
}

static void *killer_main(void *arg)
{
    usleep(150000);
    kill(((struct victim *)arg)->pid, SIGKILL);
    return NULL;
}

static bool can_cross_processes(void)
{
    return suite->raw != RAW_NONE;
}

static void killed_while_idle(bool listens)
{
    struct victim v;
    victim_start(&v, listens);
    victim_kill(&v);
    expect_dead(v.channel);
    victim_bury(&v);
}

static void killed_while_receiving(bool listens)
{
    struct victim v;
    pthread_t thread;
    const void *message;
    size_t size;
    victim_start(&v, listens);
    assert_int_equal(pthread_create(&thread, NULL, killer_main, &v), 0);
    assert_int_equal(tp->recv(v.channel, -1, &message, &size), -EPIPE);
    pthread_join(thread, NULL);
    victim_kill(&v);
    expect_dead(v.channel);
    victim_bury(&v);
}

static void killed_while_sending(bool listens)
{
    struct victim v;
    pthread_t thread;
    int rc;
    victim_start(&v, listens);
    assert_int_equal(pthread_create(&thread, NULL, killer_main, &v), 0);
    do /* it never reads, so this fills up and blocks */
        rc = send_numbered(v.channel, 0, GP_MESSAGE_MAX, 0);
    while (rc == 0);
    assert_int_equal(rc, -EPIPE);
    pthread_join(thread, NULL);
    victim_kill(&v);
    expect_dead(v.channel);
    victim_bury(&v);
}

/* Nobody receives here, nothing fills up: the sender has to notice by itself. */
static void killed_while_sending_little(bool listens)
{
    struct victim v;
    int rc = 0;
    victim_start(&v, listens);
    victim_kill(&v);
    for (int i = 0; i < PATIENCE_MS && rc == 0; i++) {
        rc = send_numbered(v.channel, 0, 32, 0);
        usleep(1000);
    }
    assert_int_equal(rc, -EPIPE);
    victim_bury(&v);
}

#define KILLED_TEST(how)                 \
    static void test_##how(void **state) \
    {                                    \
        (void)state;                     \
        if (!can_cross_processes())      \
            skip();                      \
        how(false);                      \
        how(true);                       \
    }
KILLED_TEST(killed_while_idle)
KILLED_TEST(killed_while_receiving)
KILLED_TEST(killed_while_sending)
KILLED_TEST(killed_while_sending_little)

/* A forked child has copies of everything, and must not be able to do harm. */
static void test_fork_is_harmless(void **state)
{
    (void)state;
    if (!can_cross_processes())
        skip();
    struct ends e;
    int status = -1;
    const void *message;
    size_t size;
    ends_open(&e);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(30);
        int bad = 0;
        bad |= send_numbered(e.client, 9, 64, 0) != -EPIPE;
        bad |= (tp->recv(e.worker, 0, &message, &size) != -EPIPE) << 1;
        bad |= (tp->flush(e.client) != -EPIPE) << 2;
        tp->close(e.client);
        tp->close(e.worker);
        tp->listener_close(e.listener);
        _exit(bad);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    for (uint64_t n = 0; n < 10; n++) {
        assert_int_equal(send_numbered(e.client, n, 64, 0), 0);
        expect_numbered(e.worker, n, 64);
        assert_int_equal(send_numbered(e.worker, n, 64, 0), 0);
        expect_numbered(e.client, n, 64);
    }
    ends_close(&e);
}

/* --- shares -------------------------------------------------------------- */

static void share_once(struct gp_channel *from, struct gp_channel *to, void *hint)
{
    struct gp_share ours = {0}, theirs = {0};
    const void *message;
    size_t size;
    uint64_t words[2];
    assert_int_equal(tp->share(from, hint, 3 * 4096 + 1, &ours), 0);
    assert_non_null(ours.addr);
    assert_true(ours.size >= 3 * 4096 + 1);
    assert_int_equal(ours.size % 4096, 0);
    if (hint)
        assert_ptr_equal(ours.addr, hint);

    words[0] = 1;
    words[1] = ours.id;
    assert_int_equal(send_bytes(from, words, sizeof words, 0), 0);
    assert_int_equal(tp->recv(to, PATIENCE_US, &message, &size), 0);
    memcpy(words, message, sizeof words);
    tp->release(to);
    assert_int_equal(tp->accept_share(to, words[1] + 1000, &theirs), -ENOENT);
    assert_int_equal(tp->accept_share(to, words[1], &theirs), 0);
    assert_int_equal(theirs.size, ours.size);
    assert_int_equal(theirs.id, ours.id);
    assert_int_equal(theirs.same_address, theirs.addr == ours.addr);
    /* A share is accepted once. */
    struct gp_share again = {0};
    assert_int_equal(tp->accept_share(to, words[1], &again), -ENOENT);

    memset(ours.addr, 0x5a, ours.size);
    assert_int_equal(((unsigned char *)theirs.addr)[theirs.size - 1], 0x5a);
    ((unsigned char *)theirs.addr)[0] = 0x77;
    assert_int_equal(((unsigned char *)ours.addr)[0], 0x77);
    tp->unshare(from, &ours);
    assert_null(ours.addr);
    /* What the other side let go of is still there for this one. */
    assert_int_equal(((unsigned char *)theirs.addr)[1], 0x5a);
    tp->unshare(to, &theirs);
}

/* An address that is free now, whatever else lives in this process. */
static void *free_address(void)
{
    void *addr = mmap(NULL, 16 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(addr != MAP_FAILED);
    munmap(addr, 16 * 4096);
    return addr;
}

static void test_shares(void **state)
{
    (void)state;
    if (!(tp->caps & GP_CAP_SHARE))
        skip();
    struct ends e;
    ends_open(&e);
    for (int i = 0; i < 20; i++) {
        share_once(e.client, e.worker, NULL);
        share_once(e.worker, e.client, free_address());
    }
    ends_close(&e);
}

#define SHARES_MANY 64

static void test_shares_outstanding(void **state)
{
    (void)state;
    if (!(tp->caps & GP_CAP_SHARE))
        skip();
    struct ends e;
    struct gp_share shares[SHARES_MANY], got;
    ends_open(&e);
    for (int i = 0; i < SHARES_MANY; i++) {
        assert_int_equal(tp->share(e.client, NULL, 4096, &shares[i]), 0);
        memcpy(shares[i].addr, &i, sizeof i);
        for (int k = 0; k < i; k++)
            assert_true(shares[k].id != shares[i].id);
    }
    for (int i = SHARES_MANY - 1; i >= 0; i -= 2) { /* half of them, backwards */
        assert_int_equal(tp->accept_share(e.worker, shares[i].id, &got), 0);
        assert_memory_equal(got.addr, &i, sizeof i);
        tp->unshare(e.worker, &got);
    }
    for (int i = 0; i < SHARES_MANY; i++)
        tp->unshare(e.client, &shares[i]);
    assert_int_equal(tp->share(e.client, NULL, 0, &got), -EINVAL);
    ends_close(&e);
}

struct sharer {
    struct gp_channel *from, *to;
    _Atomic int bad;
};

static void *sharer_main(void *arg)
{
    struct sharer *s = arg;
    for (int i = 0; i < 100; i++) {
        struct gp_share a = {0}, b = {0};
        if (tp->share(s->from, NULL, 4096, &a) != 0 ||
            tp->accept_share(s->to, a.id, &b) != 0) {
            s->bad++;
            continue;
        }
        memcpy(a.addr, &a.id, sizeof a.id);
        if (memcmp(b.addr, &a.id, sizeof a.id) != 0)
            s->bad++;
        tp->unshare(s->from, &a);
        tp->unshare(s->to, &b);
    }
    return NULL;
}

static void test_shares_threads(void **state)
{
    (void)state;
    if (!(tp->caps & GP_CAP_SHARE))
        skip();
    struct ends e;
    pthread_t threads[4];
    ends_open(&e);
    struct sharer up = {.from = e.client, .to = e.worker};
    struct sharer down = {.from = e.worker, .to = e.client};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sharer_main, i % 2 ? &up : &down), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(up.bad + down.bad, 0);
    ends_close(&e);
}

/* --- the suite ----------------------------------------------------------- */

static void test_table(void **state)
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
        cmocka_unit_test(test_small_beside_huge),
        cmocka_unit_test(test_slow_peer),
        cmocka_unit_test(test_close_drains),
        cmocka_unit_test(test_close_wakes),
        cmocka_unit_test(test_killed_while_idle),
        cmocka_unit_test(test_killed_while_receiving),
        cmocka_unit_test(test_killed_while_sending),
        cmocka_unit_test(test_killed_while_sending_little),
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
