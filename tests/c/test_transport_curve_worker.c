/* Keys in addresses of a worker: who is let in, and what is on the wire. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "curve_check.h"
#include "transport_raw.h"
#include "wire/hmac.h"

static const struct gp_transport *tp;

/* --- a worker ----------------------------------------------------------------- */

struct accepting {
    struct gp_listener *listener;
    struct gp_channel *channel;
    int rc;
};

static void *accept_main(void *arg)
{
    struct accepting *a = arg;
    a->rc = tp->accept(a->listener, PATIENCE_MS, &a->channel, NULL);
    return NULL;
}

/* After whoever was refused, the right one gets in. */
static void expect_let_in(struct accepting *a, pthread_t thread)
{
    struct gp_channel *client = NULL;
    struct gp_error err = {.text = ""};
    if (tp->connect(tp->listener_url(a->listener), PATIENCE_MS, &client, &err) != 0)
        fail_msg("%s", err.text);
    pthread_join(thread, NULL);
    assert_int_equal(a->rc, 0);
    uint64_t words[2] = {16, 4711};
    struct iovec iov = {words, sizeof words};
    const void *message;
    size_t size;
    assert_int_equal(tp->send(client, &iov, 1, 0), 0);
    assert_int_equal(tp->recv(a->channel, (int64_t)PATIENCE_MS * 1000, &message, &size), 0);
    assert_int_equal(size, sizeof words);
    assert_memory_equal(message, words, sizeof words);
    tp->release(a->channel);
    tp->close(client);
    tp->close(a->channel);
    tp->listener_close(a->listener);
}

static pthread_t listen_start(struct accepting *a, const char *url)
{
    struct gp_error err = {.text = ""};
    pthread_t thread;
    memset(a, 0, sizeof *a);
    if (tp->listen(url, &a->listener, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(pthread_create(&thread, NULL, accept_main, a), 0);
    return thread;
}

static void expect_refused(const char *url, const char *words)
{
    struct gp_channel *ch = NULL;
    struct gp_error err = {.text = ""};
    assert_int_equal(tp->connect(url, PATIENCE_MS, &ch, &err), -EACCES);
    assert_null(ch);
    expect_words(&err, words);
}

static void test_connect(void **state)
{
    (void)state;
    struct accepting a;
    char url[256];
    pthread_t thread = listen_start(&a, "tcp://127.0.0.1:*?key=own");
    const char *right = tp->listener_url(a.listener);
    int plain = (int)strcspn(right, "?");
    assert_int_equal(strlen(right) - (size_t)plain,
                     strlen("?key=" KEY_OF_NOBODY "&door=00112233445566778899aabbccddeeff"));
    const char *word = strstr(right, "door=");
    snprintf(url, sizeof url, "%.*s?%s", plain, right, word);
    expect_refused(url, "encrypts, and the address has no key");
    snprintf(url, sizeof url, "%.*s?key=" KEY_OF_NOBODY "&%s", plain, right, word);
    expect_refused(url, "does not have this key");
    expect_let_in(&a, thread);
}

static void test_connect_in_clear(void **state)
{
    (void)state;
    struct accepting a;
    char url[256];
    pthread_t thread = listen_start(&a, "tcp://127.0.0.1:*");
    assert_null(strstr(tp->listener_url(a.listener), "key="));
    snprintf(url, sizeof url, "%s&key=" KEY_OF_NOBODY, tp->listener_url(a.listener));
    expect_refused(url, "does not encrypt");
    expect_let_in(&a, thread);
}

static void test_listen(void **state)
{
    (void)state;
    struct gp_listener *first = NULL, *second = NULL;
    struct gp_error err = {.text = ""};
    char url[256];
    assert_int_equal(tp->listen("tcp://127.0.0.1:*?key=" KEY_OF_NOBODY, &first, &err), -EINVAL);
    expect_words(&err, "?key=own");
    assert_null(first);
    assert_int_equal(tp->listen("tcp://127.0.0.1:*?key=xyz", &first, &err), -EINVAL);
    assert_int_equal(tp->listen("tcp://127.0.0.1:*?key=own", &first, &err), 0);
    /* Our own key, written out, is ours as well. */
    const char *key = strchr(tp->listener_url(first), '?');
    assert_non_null(key);
    snprintf(url, sizeof url, "tcp://127.0.0.1:*%s", key);
    assert_int_equal(tp->listen(url, &second, &err), 0);
    assert_string_equal(key, strchr(tp->listener_url(second), '?'));
    tp->listener_close(first);
    tp->listener_close(second);
}

/* --- on the wire ------------------------------------------------------------------ */

static const char MARKER[32] = "what nobody on the wire may read";

static uint64_t *marked_message(size_t size)
{
    char *bytes = calloc(1, size);
    assert_non_null(bytes);
    memcpy(bytes, &(uint32_t){(uint32_t)size}, 4);
    for (size_t at = 16; at + sizeof MARKER <= size; at += sizeof MARKER)
        memcpy(bytes + at, MARKER, sizeof MARKER);
    return (uint64_t *)(void *)bytes;
}

/* A client and a worker with somebody between them, who knows the word. */
struct tapped {
    struct raw_tap up, down;
    struct accepting a;
    struct gp_channel *client;
    int listener, door_port;
    unsigned char word[16];
    pthread_t thread;
};

static void read_whole(int fd, unsigned char *bytes, size_t size)
{
    assert_int_equal(recv(fd, bytes, size, MSG_WAITALL), size);
}

/* Pass a knock on, and say in the answer that the taps are where to go. */
static void *tapped_door_main(void *arg)
{
    struct tapped *t = arg;
    struct raw_tap *taps[2] = {&t->up, &t->down};
    unsigned char knock[64], answer[64];
    char url[64], label[40] = "gpupool door answer";
    int client = accept(t->listener, NULL, NULL);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", t->door_port);
    int worker = raw_dial(RAW_TCP, url);
    assert_true(client >= 0 && worker >= 0);
    read_whole(client, knock, sizeof knock);
    assert_int_equal(send(worker, knock, sizeof knock, MSG_NOSIGNAL), sizeof knock);
    read_whole(worker, answer, sizeof answer);
    for (int i = 0; i < 2; i++) {
        unsigned char *port = answer + 16 + 2 * i;
        assert_int_equal(raw_tap_start(taps[i], port[0] << 8 | port[1]), 0);
        port[0] = (unsigned char)(taps[i]->port >> 8);
        port[1] = (unsigned char)taps[i]->port;
    }
    memcpy(label + 24, knock + 16, 16);
    gp_hmac(t->word, sizeof t->word, label, sizeof label, answer + 16, 4, answer + 32);
    assert_int_equal(send(client, answer, sizeof answer, MSG_NOSIGNAL), sizeof answer);
    assert_int_equal(recv(client, knock, 1, 0), 0); /* until it is in */
    close(client);
    close(worker);
    return NULL;
}

static void tapped_open(struct tapped *t, const char *listen_url)
{
    struct gp_error err = {.text = ""};
    char url[256];
    int port;
    memset(t, 0, sizeof *t);
    pthread_t thread = listen_start(&t->a, listen_url);
    const char *there = tp->listener_url(t->a.listener);
    assert_int_equal(sscanf(there, "tcp://127.0.0.1:%d", &t->door_port), 1);
    const char *word = strstr(there, "door=") + strlen("door=");
    for (size_t i = 0; i < sizeof t->word; i++)
        assert_int_equal(sscanf(word + 2 * i, "%2hhx", &t->word[i]), 1);
    t->listener = raw_port_reserve(&port);
    assert_int_equal(listen(t->listener, 1), 0);
    assert_int_equal(pthread_create(&t->thread, NULL, tapped_door_main, t), 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d%.180s", port, strchr(there, '?'));
    if (tp->connect(url, PATIENCE_MS, &t->client, &err) != 0)
        fail_msg("%s", err.text);
    pthread_join(thread, NULL);
    pthread_join(t->thread, NULL);
    assert_int_equal(t->a.rc, 0);
    close(t->listener);
}

static void tapped_close(struct tapped *t)
{
    tp->close(t->client);
    tp->close(t->a.channel);
    tp->listener_close(t->a.listener);
    raw_tap_stop(&t->up);
    raw_tap_stop(&t->down);
}

static int marked_send(struct tapped *t, size_t size)
{
    uint64_t *bytes = marked_message(size);
    struct iovec iov = {bytes, size};
    int rc = tp->send(t->client, &iov, 1, 0);
    free(bytes);
    return rc;
}

/* 0 the message came as it was sent, else what recv said. */
static int marked_recv(struct tapped *t, size_t size)
{
    const void *message;
    size_t got;
    int rc = tp->recv(t->a.channel, (int64_t)PATIENCE_MS * 1000, &message, &got);
    if (rc)
        return rc;
    uint64_t *bytes = marked_message(size);
    assert_int_equal(got, size);
    assert_memory_equal(message, bytes, size);
    free(bytes);
    tp->release(t->a.channel);
    return 0;
}

static void test_wire(void **state)
{
    (void)state;
    static const size_t sizes[] = {48, 4096, 1 << 20};
    for (int encrypts = 0; encrypts < 2; encrypts++) {
        struct tapped t;
        size_t total = 0;
        tapped_open(&t, encrypts ? "tcp://127.0.0.1:*?key=own" : "tcp://127.0.0.1:*");
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            assert_int_equal(marked_send(&t, sizes[i]), 0);
            assert_int_equal(marked_recv(&t, sizes[i]), 0);
            total += sizes[i];
        }
        tapped_close(&t);
        assert_true(t.up.seen_bytes > total);
        bool readable = memmem(t.up.seen, t.up.seen_bytes, MARKER, sizeof MARKER) != NULL;
        assert_int_equal(readable, !encrypts);
        raw_tap_free(&t.up);
        raw_tap_free(&t.down);
    }
}

/* One bit that changes on the way ends the channel; it is never taken for a message. */
static void test_wire_tampered(void **state)
{
    (void)state;
    struct tapped t;
    tapped_open(&t, "tcp://127.0.0.1:*?key=own");
    assert_int_equal(marked_send(&t, 4096), 0);
    assert_int_equal(marked_recv(&t, 4096), 0);
    raw_tap_spoil(&t.up, 5000);
    assert_int_equal(marked_send(&t, 8192), 0);
    assert_int_equal(marked_recv(&t, 8192), -EPIPE);
    assert_true(t.up.spoiled);
    tapped_close(&t);
    raw_tap_free(&t.up);
    raw_tap_free(&t.down);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connect),       cmocka_unit_test(test_connect_in_clear),
        cmocka_unit_test(test_listen),        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_wire_tampered),
    };
    tp = find_transport();
    return tp ? cmocka_run_group_tests_name("curve worker", tests, NULL, NULL) : 1;
}
