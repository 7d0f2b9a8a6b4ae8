/* One question to a server: answered, and every way in which it is not. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "curve_check.h"
#include "transport_raw.h"

static const struct gp_transport *tp;

/* A ROUTER that answers one question with the question turned round. */
struct server {
    void *ctx, *socket;
    char url[128];
    size_t answer_size; /* 0: as long as the question */
};

static void *server_main(void *arg)
{
    struct server *s = arg;
    char id[64], text[256], answer[4096] = {0};
    int id_size = zmq_recv(s->socket, id, sizeof id, 0);
    int size = zmq_recv(s->socket, text, sizeof text, 0);
    if (id_size <= 0 || size < 0)
        return NULL;
    for (int i = 0; i < size; i++)
        answer[i] = text[size - 1 - i];
    zmq_send(s->socket, id, (size_t)id_size, ZMQ_SNDMORE);
    zmq_send(s->socket, answer, s->answer_size ? s->answer_size : (size_t)size, 0);
    return NULL;
}

static int ask_server(size_t answer_size, char *answer, size_t *size, struct gp_error *err)
{
    struct server s = {.ctx = zmq_ctx_new(), .answer_size = answer_size};
    size_t length = sizeof s.url;
    pthread_t thread;
    s.socket = zmq_socket(s.ctx, ZMQ_ROUTER);
    assert_int_equal(zmq_bind(s.socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(s.socket, ZMQ_LAST_ENDPOINT, s.url, &length), 0);
    assert_int_equal(pthread_create(&thread, NULL, server_main, &s), 0);
    int rc = tp->ask(s.url, "hello", 5, answer, size, PATIENCE_MS, err);
    pthread_join(thread, NULL);
    zmq_close(s.socket);
    zmq_ctx_term(s.ctx);
    return rc;
}

static void test_answered(void **state)
{
    (void)state;
    char answer[64];
    size_t size = sizeof answer;
    struct gp_error err = {.text = ""};
    assert_int_equal(ask_server(0, answer, &size, &err), 0);
    assert_int_equal(size, 5);
    assert_memory_equal(answer, "olleh", 5);
}

static void test_answer_too_long(void **state)
{
    (void)state;
    char answer[64];
    size_t size = sizeof answer;
    struct gp_error err = {.text = ""};
    assert_int_equal(ask_server(4096, answer, &size, &err), -EMSGSIZE);
    assert_int_equal(size, sizeof answer);
    expect_words(&err, "longer answer");
}

static int ask_nobody(const char *url, int timeout_ms, struct gp_error *err)
{
    char answer[64];
    size_t size = sizeof answer;
    return tp->ask(url, "hello", 5, answer, &size, timeout_ms, err);
}

static void test_refused(void **state)
{
    (void)state;
    char url[64];
    int port;
    struct gp_error err = {.text = ""};
    int held = raw_port_reserve(&port);
    assert_true(held >= 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    assert_int_equal(ask_nobody(url, PATIENCE_MS, &err), -ECONNREFUSED);
    expect_words(&err, "is gpupool-server running there and the port right?");
    assert_int_equal(ask_nobody(url, PATIENCE_MS, NULL), -ECONNREFUSED);
    close(held);
}

static void test_wrong_service(void **state)
{
    (void)state;
    struct raw_server server;
    struct gp_error err = {.text = ""};
    assert_int_equal(raw_server_start(&server, RAW_TCP, "tcp://"), 0);
    *strchr(server.url, '?') = '\0';
    int rc = ask_nobody(server.url, PATIENCE_MS, &err);
    raw_server_stop(&server);
    assert_int_equal(rc, -EPROTO);
    expect_words(&err, "not a gpupool server");
}

static void test_silent(void **state)
{
    (void)state;
    char url[64];
    int port, held = raw_port_reserve(&port);
    assert_int_equal(listen(held, 4), 0); /* connects, and nobody ever speaks */
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    expect_silence(tp, url, 300);
    close(held);
}

/* What takes the questions at a listening socket that another process keeps. */
struct successor {
    int held;
    char url[64];
    bool at_path;
    void (*before)(struct successor *s);
};

static void router_open(const struct successor *s, struct server *server)
{
    int fd = dup(s->held);
    *server = (struct server){.ctx = zmq_ctx_new()};
    server->socket = zmq_socket(server->ctx, ZMQ_ROUTER);
    assert_int_equal(zmq_setsockopt(server->socket, ZMQ_USE_FD, &fd, sizeof fd), 0);
    assert_int_equal(zmq_bind(server->socket, s->url), 0);
}

static void router_close(struct server *server)
{
    zmq_close(server->socket);
    zmq_ctx_term(server->ctx);
}

/* It takes two connections and reads nothing: that of the question, until the handshake is given up,
 * and the one by which the client finds out why, if that may be keys. */
static void stands_still(struct successor *s)
{
    char bytes[256];
    for (int i = 0; i < (s->at_path ? 1 : 2); i++) {
        int fd = accept(s->held, NULL, NULL);
        while (recv(fd, bytes, sizeof bytes, 0) > 0)
            ;
        close(fd);
    }
}

static void dies_with_a_question(struct successor *s)
{
    struct server first;
    char part[256];
    router_open(s, &first);
    zmq_recv(first.socket, part, sizeof part, 0);
    zmq_recv(first.socket, part, sizeof part, 0);
    router_close(&first);
}

static void *successor_main(void *arg)
{
    struct successor *s = arg;
    struct server last;
    s->before(s);
    router_open(s, &last);
    server_main(&last);
    router_close(&last);
    return NULL;
}

static void hold_port(struct successor *s)
{
    int port;
    s->held = raw_port_reserve(&port);
    snprintf(s->url, sizeof s->url, "tcp://127.0.0.1:%d", port);
}

static void hold_path(struct successor *s)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/gp-test-ask-%d", (int)getpid());
    snprintf(s->url, sizeof s->url, "ipc://%.32s", at.sun_path);
    s->held = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(at.sun_path);
    assert_int_equal(bind(s->held, (struct sockaddr *)&at, sizeof at), 0);
}

static void ask_successor(void (*before)(struct successor *s), bool at_path)
{
    struct successor s = {.before = before, .at_path = at_path};
    char answer[64];
    size_t size = sizeof answer;
    pthread_t thread;
    struct gp_error err = {.text = ""};
    if (at_path)
        hold_path(&s);
    else
        hold_port(&s);
    assert_int_equal(listen(s.held, 16), 0);
    assert_int_equal(pthread_create(&thread, NULL, successor_main, &s), 0);
    int rc = tp->ask(s.url, "hello", 5, answer, &size, PATIENCE_MS, &err);
    if (rc)
        fail_msg("%s", err.text);
    pthread_join(thread, NULL);
    close(s.held);
    if (at_path)
        unlink(s.url + strlen("ipc://"));
    assert_memory_equal(answer, "olleh", 5);
}

static void test_a_server_that_stands_still_is_asked_again(void **state)
{
    (void)state;
    ask_successor(stands_still, false);
    ask_successor(stands_still, true);
}

static void test_a_server_that_has_a_successor_is_asked_again(void **state)
{
    (void)state;
    ask_successor(dies_with_a_question, false);
    ask_successor(dies_with_a_question, true);
}

static void test_bad_address(void **state)
{
    (void)state;
    struct gp_error err = {.text = ""};
    assert_int_equal(ask_nobody("tcp://127.0.0.1", 2000, &err), -EINVAL);
    expect_words(&err, "not an address of a server");
    assert_int_equal(ask_nobody("tcp://no-such-host.invalid:7700", PATIENCE_MS, &err),
                     -EHOSTUNREACH);
    expect_words(&err, "host is not known");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answered),
        cmocka_unit_test(test_answer_too_long),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_wrong_service),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_bad_address),
        cmocka_unit_test(test_a_server_that_stands_still_is_asked_again),
        cmocka_unit_test(test_a_server_that_has_a_successor_is_asked_again),
    };
    tp = find_transport();
    return tp ? cmocka_run_group_tests_name("ask", tests, NULL, NULL) : 1;
}
