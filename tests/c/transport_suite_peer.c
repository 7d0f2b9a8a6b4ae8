/* The suite: peers that talk nonsense, are slow, close, are killed or fork. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport_raw.h"
#include "transport_suite_ends.h"

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

void test_garbage_on_socket(void **state)
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

void test_slow_peer(void **state)
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

void test_close_drains(void **state)
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

void test_close_wakes(void **state)
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

#define FLOOD_BYTES ((size_t)16 << 10)
#define PARTING 64u

/* What a victim is told to do before it ends. */
enum order { ORDER_FLOOD = 'f', ORDER_LEAVE = 'l' };

static void victim_obey(struct gp_channel *ch, char order, int out)
{
    uint64_t most = order == ORDER_FLOOD ? UINT64_MAX : PARTING;
    for (uint64_t n = 0; n < most && send_numbered(ch, n, FLOOD_BYTES, 0) == 0; n++)
        if (write(out, "", 1) != 1)
            _exit(7);
    if (tp->leave)
        tp->leave(ch);
    _exit(0);
}

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
    char order;
    while (read(in, &order, 1) == 1)
        victim_obey(ch, order, out);
    _exit(0);
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

/* It sends until it cannot, or has sent `most`. */
static void victim_send(struct victim *v, char order, unsigned most)
{
    struct pollfd p = {.fd = v->from, .events = POLLIN};
    char byte;
    assert_int_equal(write(v->to, &order, 1), 1);
    assert_int_equal(read(v->from, &byte, 1), 1);
    for (unsigned n = 1; n < most && poll(&p, 1, 500) > 0; n++)
        assert_int_equal(read(v->from, &byte, 1), 1);
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

/* As much as goes without waiting was sent, and nobody here takes it: the end is seen all the
 * same, and what had come by then can be read. */
static void killed_behind_a_flood(bool listens)
{
    struct victim v;
    int rc = 0;
    victim_start(&v, listens);
    victim_send(&v, ORDER_FLOOD, UINT_MAX);
    victim_kill(&v);
    for (int i = 0; i < PATIENCE_MS && rc == 0; i++) {
        rc = tp->flush(v.channel);
        usleep(1000);
    }
    assert_int_equal(rc, -EPIPE);
    expect_numbered(v.channel, 0, FLOOD_BYTES);
    victim_bury(&v);
}

#define KILLED_TEST(how)                                                                           \
    void test_##how(void **state)                                                                  \
    {                                                                                              \
        (void)state;                                                                               \
        if (!can_cross_processes())                                                                \
            skip();                                                                                \
        how(false);                                                                                \
        how(true);                                                                                 \
    }
KILLED_TEST(killed_while_idle)
KILLED_TEST(killed_while_receiving)
KILLED_TEST(killed_while_sending)
KILLED_TEST(killed_while_sending_little)

/* The end of a worker that is killed comes behind its answers: its client reads those. */
void test_killed_behind_a_flood(void **state)
{
    (void)state;
    if (!can_cross_processes())
        skip();
    killed_behind_a_flood(false);
}

/* Whoever ends in order, though nobody closes, takes back nothing of what was sent. */
void test_leave_keeps_what_was_sent(void **state)
{
    (void)state;
    struct victim v;
    int status = -1;
    if (!can_cross_processes() || !tp->leave)
        skip();
    victim_start(&v, false);
    victim_send(&v, ORDER_LEAVE, PARTING);
    usleep(100000); /* one that does not wait has ended by now */
    for (uint64_t n = 0; n < PARTING; n++)
        expect_numbered(v.channel, n, FLOOD_BYTES);
    expect_dead(v.channel);
    assert_int_equal(waitpid(v.pid, &status, 0), v.pid);
    assert_int_equal(status, 0);
    victim_bury(&v);
}

/* A forked child has copies of everything, and must not be able to do harm. */
void test_fork_is_harmless(void **state)
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
