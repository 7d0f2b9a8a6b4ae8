/* Keys in addresses of a front end: who has the right one is let in, others are told why not. */
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "curve_check.h"
#include "transport_raw.h"

static const struct gp_transport *tp;

/* --- a front end ----------------------------------------------------------- */

/* A ROUTER that answers every question with "yes" until it is stopped. */
struct server {
    void *ctx, *socket;
    pthread_t thread;
    char key[80];  /* as in an address; "": it does not encrypt */
    char url[256]; /* with its key */
    size_t plain;  /* bytes of it before the key */
};

static void *server_main(void *arg)
{
    struct server *s = arg;
    char id[64], text[256];
    for (;;) {
        int id_size = zmq_recv(s->socket, id, sizeof id, 0);
        int size = zmq_recv(s->socket, text, sizeof text, 0);
        if (id_size <= 0 || size < 0)
            return NULL; /* the context has been shut down */
        zmq_send(s->socket, id, (size_t)id_size, ZMQ_SNDMORE);
        zmq_send(s->socket, "yes", 3, 0);
    }
}

static void server_encrypt(struct server *s)
{
    char public[41], secret[41];
    unsigned char bytes[32];
    int yes = 1;
    assert_int_equal(zmq_curve_keypair(public, secret), 0);
    assert_int_equal(zmq_setsockopt(s->socket, ZMQ_CURVE_SERVER, &yes, sizeof yes), 0);
    assert_int_equal(zmq_setsockopt(s->socket, ZMQ_CURVE_SECRETKEY, secret, 40), 0);
    assert_non_null(zmq_z85_decode(bytes, public));
    strcpy(s->key, "?key=");
    for (int i = 0; i < 32; i++)
        snprintf(s->key + strlen(s->key), 3, "%02x", bytes[i]);
}

static void server_start(struct server *s, bool encrypts)
{
    char plain[64];
    size_t size = sizeof plain;
    memset(s, 0, sizeof *s);
    s->ctx = zmq_ctx_new();
    s->socket = zmq_socket(s->ctx, ZMQ_ROUTER);
    if (encrypts)
        server_encrypt(s);
    assert_int_equal(zmq_bind(s->socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(s->socket, ZMQ_LAST_ENDPOINT, plain, &size), 0);
    s->plain = strlen(plain);
    snprintf(s->url, sizeof s->url, "%s%s", plain, s->key);
    assert_int_equal(pthread_create(&s->thread, NULL, server_main, s), 0);
}

static void server_stop(struct server *s)
{
    zmq_ctx_shutdown(s->ctx);
    pthread_join(s->thread, NULL);
    zmq_close(s->socket);
    zmq_ctx_term(s->ctx);
}

static int ask(const char *url, struct gp_error *err)
{
    char answer[64];
    size_t size = sizeof answer;
    err->text[0] = '\0';
    int rc = tp->ask(url, "hello", 5, answer, &size, PATIENCE_MS, err);
    if (rc == 0) {
        assert_int_equal(size, 3);
        assert_memory_equal(answer, "yes", 3);
    }
    return rc;
}

static void test_ask(void **state)
{
    (void)state;
    struct server s;
    struct gp_error err;
    char url[256];
    server_start(&s, true);
    assert_int_equal(ask(s.url, &err), 0);
    snprintf(url, sizeof url, "%.*s", (int)s.plain, s.url);
    assert_int_equal(ask(url, &err), -EACCES);
    expect_words(&err, "encrypts, and the address has no key");
    snprintf(url, sizeof url, "%.*s?key=" KEY_OF_NOBODY, (int)s.plain, s.url);
    assert_int_equal(ask(url, &err), -EACCES);
    expect_words(&err, "does not have this key");
    assert_null(strstr(err.text, KEY_OF_NOBODY));
    assert_int_equal(ask(s.url, &err), 0);
    server_stop(&s);
}

static void test_ask_in_clear(void **state)
{
    (void)state;
    struct server s;
    struct gp_error err;
    char url[256];
    server_start(&s, false);
    assert_int_equal(ask(s.url, &err), 0);
    snprintf(url, sizeof url, "%.60s?key=" KEY_OF_NOBODY, s.url);
    assert_int_equal(ask(url, &err), -EACCES);
    expect_words(&err, "does not encrypt, and the address has a key");
    server_stop(&s);
}

static void test_ask_nobody(void **state)
{
    (void)state;
    char url[160];
    int port, held = raw_port_reserve(&port);
    struct gp_error err;
    assert_true(held >= 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d?key=" KEY_OF_NOBODY, port);
    assert_int_equal(ask(url, &err), -ECONNREFUSED);
    expect_words(&err, "connection refused");
    close(held);
}

static const char *const garbage[] = {
    "?key=",
    "?key=00",
    "?key=00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEE0F",
    "?key=00112233445566778899aabbccddeeff00112233445566778899aabbccddee0",
    "?key=00112233445566778899aabbccddeeff00112233445566778899aabbccddee0ff",
    "?key=00112233445566778899aabbccddeeff00112233445566778899aabbccddee0g",
    "?key= 0112233445566778899aabbccddeeff00112233445566778899aabbccddee0f",
    "?key=own",
};

static void test_garbage_key(void **state)
{
    (void)state;
    struct gp_error err;
    char url[160];
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        struct gp_channel *ch = NULL;
        snprintf(url, sizeof url, "tcp://127.0.0.1:1%s", garbage[i]);
        assert_int_equal(ask(url, &err), -EINVAL);
        expect_words(&err, "64 digits");
        snprintf(url, sizeof url, "tcp://127.0.0.1:1%s", garbage[i]);
        assert_int_equal(tp->connect(url, PATIENCE_MS, &ch, &err), -EINVAL);
        expect_words(&err, "64 digits");
        assert_null(ch);
    }
    assert_int_equal(ask("ipc:///tmp/x?key=" KEY_OF_NOBODY, &err), -EINVAL);
    expect_words(&err, "only tcp://");
}
/* --- strangers ------------------------------------------------------------------ */

/* Says a few bytes to everybody, and hangs up. */
struct stranger {
    int fd;
    char url[160];
    const void *words;
    size_t size;
    bool stays; /* until it is asked to stop, in place of hanging up */
    pthread_t thread;
};

/* Behind its words: a connection that is closed with something unread is cut off, at once, and whether
 * the peer hears of the end or of the cut is chance. */
static void hang_up(int fd)
{
    char unread[256];
    shutdown(fd, SHUT_WR);
    while (recv(fd, unread, sizeof unread, 0) > 0)
        ;
    close(fd);
}

static void *stranger_main(void *arg)
{
    struct stranger *s = arg;
    int fd, kept[64], count = 0;
    while ((fd = accept(s->fd, NULL, NULL)) >= 0) {
        if (send(fd, s->words, s->size, MSG_NOSIGNAL) < 0)
            perror("send");
        if (s->stays && count < 64)
            kept[count++] = fd;
        else
            hang_up(fd);
    }
    while (count > 0)
        close(kept[--count]);
    return NULL;
}

static void expect_no_server(const void *words, size_t size)
{
    struct stranger s = {.words = words, .size = size};
    struct gp_error err;
    int port;
    s.fd = raw_port_reserve(&port);
    assert_int_equal(listen(s.fd, 16), 0);
    assert_int_equal(pthread_create(&s.thread, NULL, stranger_main, &s), 0);
    snprintf(s.url, sizeof s.url, "tcp://127.0.0.1:%d?key=" KEY_OF_NOBODY, port);
    int rc = ask(s.url, &err);
    shutdown(s.fd, SHUT_RDWR);
    pthread_join(s.thread, NULL);
    close(s.fd);
    assert_int_equal(rc, -EPROTO);
    expect_words(&err, "not a gpupool server");
}

/* Whatever is no whole greeting says nothing about keys. */
static void test_strange_greetings(void **state)
{
    (void)state;
    unsigned char greeting[80] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1};
    memcpy(greeting + 12, "PLAIN", 5);
    expect_no_server(greeting, 64);
    memcpy(greeting + 12, "CURVES", 6);
    expect_no_server(greeting, 64);
    memset(greeting + 12, 'N', 20);
    expect_no_server(greeting, sizeof greeting);
    memset(greeting + 12, 0, 20);
    memcpy(greeting + 12, "CURVE", 5);
    expect_no_server(greeting, 63);
    expect_no_server(greeting, 12);
    expect_no_server(greeting, 0);
    greeting[10] = 2;
    expect_no_server(greeting, 64);
    greeting[10] = 3;
    greeting[0] = 0x16;
    expect_no_server(greeting, 64);
}

/* Who greets, or has begun to, and says no more may be busy: that is no word about its key. */
static void test_slow_server(void **state)
{
    (void)state;
    static const unsigned char greeting[64] = {0xff, 0, 0, 0,   0,   0,   0,   0,  1,
                                               0x7f, 3, 1, 'C', 'U', 'R', 'V', 'E'};
    static const size_t said[] = {sizeof greeting, 10};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        char url[160];
        int port;
        struct stranger s = {.words = greeting, .size = said[i], .stays = true};
        s.fd = raw_port_reserve(&port);
        assert_int_equal(listen(s.fd, 16), 0);
        assert_int_equal(pthread_create(&s.thread, NULL, stranger_main, &s), 0);
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d?key=" KEY_OF_NOBODY, port);
        expect_silence(tp, url, 2000);
        shutdown(s.fd, SHUT_RDWR);
        pthread_join(s.thread, NULL);
        close(s.fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ask),
        cmocka_unit_test(test_ask_in_clear),
        cmocka_unit_test(test_ask_nobody),
        cmocka_unit_test(test_garbage_key),
        cmocka_unit_test(test_strange_greetings),
        cmocka_unit_test(test_slow_server),
    };
    tp = find_transport();
    return tp ? cmocka_run_group_tests_name("curve", tests, NULL, NULL) : 1;
}
