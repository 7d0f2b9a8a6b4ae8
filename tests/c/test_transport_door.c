/* Who comes to a worker's address without being its client, and a peer that vanishes. */
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "accept_lacks.h"
#include "transport/support.h"
#include "transport_raw.h"
#include "transport_suite_ends.h"
#include "ucx_here.h"

#define CROWD 300

enum { ENDS_MOST = 32 };

/* Of one channel: zmq has two, and leaves the end of silence to the kernel; tcp has four lanes. */
static int connections;
static bool is_zmq;
#define WRONG_WORD "ffffffffffffffffffffffffffffffff"

static void ends_listen(struct ends *e)
{
    struct gp_error err = {.text = ""};
    memset(e, 0, sizeof *e);
    if (tp->listen(listen_url, &e->listener, &err) != 0)
        fail_msg("listen: %s", err.text);
}

/* More than the door has room for, silent or with a part of a knock: who knows the word gets in
 * among them. */
static void test_a_crowd_keeps_nobody_out(void **state)
{
    static const char knock[64] = "gpupool-door/1";
    (void)state;
    struct ends e;
    int crowd[CROWD];
    ends_listen(&e);
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = raw_dial(RAW_TCP, tp->listener_url(e.listener));
        assert_true(crowd[i] >= 0);
        (void)!send(crowd[i], knock, (size_t)i % sizeof knock, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (i % 64 == 63) /* let it look, or the queue of the kernel is full */
            assert_int_equal(tp->accept(e.listener, 1, &e.worker, NULL), -EAGAIN);
    }
    ends_join(&e);
    assert_int_equal(send_numbered(e.client, 1, 64, 0), 0);
    expect_numbered(e.worker, 1, 64);
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    ends_close(&e);
}

static void *accept_main(void *arg)
{
    struct ends *e = arg;
    tp->accept(e->listener, 3000, &e->worker, NULL);
    return NULL;
}

static void test_without_the_word(void **state)
{
    (void)state;
    struct ends e;
    struct gp_channel *ch = NULL;
    struct gp_error err = {.text = ""};
    char url[200];
    pthread_t thread;
    ends_listen(&e);
    const char *right = tp->listener_url(e.listener);
    snprintf(url, sizeof url, "%.*s", (int)strcspn(right, "?"), right);
    assert_int_equal(tp->connect(url, PATIENCE_MS, &ch, &err), -EINVAL);
    expect_line(&err);
    strcat(url, "?door=" WRONG_WORD);
    assert_int_equal(pthread_create(&thread, NULL, accept_main, &e), 0);
    assert_true(tp->connect(url, 2000, &ch, &err) < 0);
    expect_line(&err);
    assert_null(ch);
    pthread_join(thread, NULL);
    assert_null(e.worker);
    ends_join(&e);
    ends_close(&e);
}

/* It looked without end at who waits, as the kernel tells of it at once again. */
static void test_who_comes_waits_for_descriptors(void **state)
{
    (void)state;
    struct ends e;
    ends_listen(&e);
    int stranger = raw_dial(RAW_TCP, tp->listener_url(e.listener));
    assert_true(stranger >= 0);
    accept_lacks(true);
    assert_int_equal(tp->accept(e.listener, 350, &e.worker, NULL), -EAGAIN);
    assert_in_range(accept_calls(), 1, 20);
    accept_lacks(false);
    ends_join(&e);
    assert_int_equal(send_numbered(e.client, 1, 64, 0), 0);
    expect_numbered(e.worker, 1, 64);
    close(stranger);
    ends_close(&e);
}

/* The tcp sockets of this process for which `is` holds. */
static int sockets_find(bool (*is)(int fd), int *found, int most)
{
    int count = 0;
    for (int fd = 3; fd < 1024 && count < most; fd++) {
        int domain = 0;
        socklen_t size = sizeof domain;
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_INET &&
            is(fd))
            found[count++] = fd;
    }
    return count;
}

static int socket_number(int fd, int level, int option)
{
    int value = -1;
    socklen_t size = sizeof value;
    return getsockopt(fd, level, option, &value, &size) == 0 ? value : -1;
}

static bool listens(int fd)
{
    return socket_number(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1;
}

static bool connected(int fd)
{
    struct sockaddr_in a;
    socklen_t size = sizeof a;
    return getpeername(fd, (void *)&a, &size) == 0;
}

/* Not one that a kernel alone has let in: whoever has it asks whether its peer is there. */
static bool is_in(int fd)
{
    return connected(fd) && socket_number(fd, SOL_SOCKET, SO_KEEPALIVE) == 1;
}

/* Both ends of all: lanes come behind the channel. */
static int connected_find(int *fds)
{
    int64_t deadline = gp_deadline_us(20000000);
    int count;
    while ((count = sockets_find(is_in, fds, ENDS_MOST)) < 2 * connections &&
           gp_clock_ns() < deadline)
        usleep(1000);
    assert_int_equal(count, 2 * connections);
    return count;
}

/* Once the client is in, nobody else reaches what was opened for it. */
static void test_the_ports_are_shut_behind_the_client(void **state)
{
    (void)state;
    struct ends e;
    int found[ENDS_MOST];
    ends_open(&e);
    connected_find(found);
    int64_t deadline = gp_deadline_us(20000000);
    int stranger;
    while ((stranger = raw_dial(RAW_TCP, tp->listener_url(e.listener))) >= 0 &&
           gp_clock_ns() < deadline) {
        close(stranger);
        usleep(1000);
    }
    assert_true(stranger < 0);
    int count = sockets_find(listens, found, ENDS_MOST);
    for (int i = 0; i < count; i++) {
        struct sockaddr_in a;
        socklen_t size = sizeof a;
        assert_int_equal(getsockname(found[i], (void *)&a, &size), 0);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        assert_int_equal(connect(fd, (void *)&a, sizeof a), -1);
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        assert_int_equal(poll(&p, 1, 300), 0);
        close(fd);
    }
    assert_int_equal(send_numbered(e.client, 1, 64, 0), 0);
    expect_numbered(e.worker, 1, 64);
    ends_close(&e);
}

/* --- silence -------------------------------------------------------------------------- */

/* From now on nothing reaches these sockets, as if the cable were cut. */
static void cut(const int *fds, int count)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {.len = 1, .filter = &nothing};
    for (int i = 0; i < count; i++)
        assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program),
                         0);
}

static void test_a_peer_that_vanished(void **state)
{
    (void)state;
    struct ends e;
    int fds[ENDS_MOST];
    const void *message;
    size_t size;
    setenv("GPUPOOL_SILENCE", "4", 1);
    ends_open(&e);
    unsetenv("GPUPOOL_SILENCE");
    int count = connected_find(fds);
    for (int i = 0; i < count && is_zmq; i++)
        assert_int_equal(socket_number(fds[i], IPPROTO_TCP, TCP_USER_TIMEOUT), 4000);
    cut(fds, count);
    assert_int_equal(tp->recv(e.worker, 1000000, &message, &size), -EAGAIN);
    assert_int_equal(tp->recv(e.worker, 60000000, &message, &size), -EPIPE);
    assert_int_equal(tp->recv(e.client, 60000000, &message, &size), -EPIPE);
    ends_close(&e);
}

/* As before, with something under way, which ends the kernel's own questions. */
static void test_a_peer_that_vanished_while_it_was_sent_to(void **state)
{
    (void)state;
    struct ends e;
    int fds[ENDS_MOST];
    const void *message;
    size_t size;
    setenv("GPUPOOL_SILENCE", "4", 1);
    ends_open(&e);
    unsetenv("GPUPOOL_SILENCE");
    cut(fds, connected_find(fds));
    assert_int_equal(send_numbered(e.client, 1, 64, 0), 0);
    assert_int_equal(tp->recv(e.client, 1000000, &message, &size), -EAGAIN);
    assert_int_equal(tp->recv(e.client, 60000000, &message, &size), -EPIPE);
    ends_close(&e);
}

/* A thread that sends more than there is room for; it has met the end of it. */
static void stuff(struct ends *e, struct stream *s, pthread_t *thread)
{
    uint64_t sent;
    setenv("GPUPOOL_SILENCE", "2", 1);
    ends_open(e);
    unsetenv("GPUPOOL_SILENCE");
    *s = (struct stream){.channel = e->client, .count = 64, .size = GP_MESSAGE_MAX};
    assert_int_equal(pthread_create(thread, NULL, stream_main, s), 0);
    do {
        sent = s->sent;
        sleep(1);
    } while (sent == 0 || s->sent != sent);
    assert_true(sent < s->count);
}

/* Its machine answers, though it is asked ever more rarely: it may take its time. */
static void test_a_peer_that_takes_nothing(void **state)
{
    (void)state;
    struct ends e;
    struct stream s;
    pthread_t thread;
    if (is_zmq)
        skip(); /* docs/limits.md */
    stuff(&e, &s, &thread);
    sleep(9);
    assert_int_equal(s.rc, 0);
    for (uint64_t n = 0; n < s.count; n++)
        expect_numbered(e.worker, n, GP_MESSAGE_MAX);
    pthread_join(thread, NULL);
    assert_int_equal(s.rc, 0);
    ends_close(&e);
}

/* We say so, long before the kernel does: for it our end is still connected. */
static void test_a_peer_that_vanished_without_room(void **state)
{
    (void)state;
    struct ends e;
    struct stream s;
    int fds[ENDS_MOST];
    pthread_t thread;
    if (is_zmq)
        skip();
    stuff(&e, &s, &thread);
    cut(fds, connected_find(fds));
    pthread_join(thread, NULL);
    assert_int_equal(s.rc, -EPIPE);
    assert_true(sockets_find(connected, fds, ENDS_MOST) > 0);
    ends_close(&e);
}

/* By default a silence of a minute is none. */
static void test_how_long_silence_may_last(void **state)
{
    (void)state;
    struct ends e;
    int fds[ENDS_MOST];
    ends_open(&e);
    int count = connected_find(fds);
    for (int i = 0; i < count; i++) {
        int idle = socket_number(fds[i], IPPROTO_TCP, TCP_KEEPIDLE);
        int probes = socket_number(fds[i], IPPROTO_TCP, TCP_KEEPCNT) *
                     socket_number(fds[i], IPPROTO_TCP, TCP_KEEPINTVL);
        assert_true(idle <= 30);
        if (is_zmq)
            assert_true(socket_number(fds[i], IPPROTO_TCP, TCP_USER_TIMEOUT) >= 60000);
        else
            assert_true(idle + probes >= 60);
    }
    ends_close(&e);
}

static void test_a_silence_that_is_none(void **state)
{
    (void)state;
    static const char *const wrong[] = {"0", "1", "-5", "ten", "90s", "999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct gp_listener *l = NULL;
        struct gp_channel *ch = NULL;
        struct gp_error err = {.text = ""};
        setenv("GPUPOOL_SILENCE", wrong[i], 1);
        assert_int_equal(tp->listen(listen_url, &l, &err), -EINVAL);
        assert_non_null(strstr(err.text, "GPUPOOL_SILENCE"));
        char url[80];
        snprintf(url, sizeof url, "%.*s127.0.0.1:1?door=" WRONG_WORD, (int)strcspn(listen_url, "1"),
                 listen_url);
        assert_int_equal(tp->connect(url, 100, &ch, &err), -EINVAL);
        unsetenv("GPUPOOL_SILENCE");
    }
}

/* Of ucx the rest is in test_transport_ucx_own.c. */
static int strangers_run(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_crowd_keeps_nobody_out),
        cmocka_unit_test(test_without_the_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The scheme to listen at is the argument. */
int main(int argc, char **argv)
{
    static const struct transport_suite door = {.name = "door", .raw = RAW_TCP};
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_crowd_keeps_nobody_out),
        cmocka_unit_test(test_without_the_word),
        cmocka_unit_test(test_who_comes_waits_for_descriptors),
        cmocka_unit_test(test_the_ports_are_shut_behind_the_client),
        cmocka_unit_test(test_a_peer_that_vanished),
        cmocka_unit_test(test_a_peer_that_vanished_while_it_was_sent_to),
        cmocka_unit_test(test_a_peer_that_takes_nothing),
        cmocka_unit_test(test_a_peer_that_vanished_without_room),
        cmocka_unit_test(test_how_long_silence_may_last),
        cmocka_unit_test(test_a_silence_that_is_none),
    };
    struct gp_error err = {.text = ""};
    suite = &door;
    snprintf(listen_url, sizeof listen_url, "%.10s127.0.0.1:*", argc > 1 ? argv[1] : "tcp://");
    is_zmq = strncmp(listen_url, "tcp://", 6) == 0;
    connections = is_zmq ? 2 : 5;
    tp = gp_transport_find(listen_url, getenv("GPUPOOL_PLUGIN_DIR"), &err);
    bool is_ucx = strncmp(listen_url, "ucx://", 6) == 0;
    if (!tp) {
        fprintf(stderr, "%s\n", err.text);
        return is_ucx ? UCX_SKIPPED : 1;
    }
    if (is_ucx)
        return strangers_run();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
