/* Our own TCP: frames in a stream, who is let in, what is seen of it on its way, and
 * descriptors that the program takes away. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/door.h"
#include "transport/hex.h"
#include "transport/support.h"
#include "transport/tcp_frames.h"
#include "transport_raw.h"
#include "transport_suite_ends.h"

#define WORD "00112233445566778899aabbccddeeff"

static void use(const char *scheme)
{
    struct gp_error err = {.text = ""};
    snprintf(listen_url, sizeof listen_url, "%s127.0.0.1:*", scheme);
    tp = gp_transport_find(scheme, getenv("GPUPOOL_PLUGIN_DIR"), &err);
    if (!tp)
        fail_msg("%s", err.text);
}

/* --- frames ----------------------------------------------------------------- */

static void frames_feed(struct tcp_frames *f, const unsigned char *bytes, size_t size)
{
    while (size > 0) {
        size_t room;
        void *to = tcp_frames_space(f, &room);
        size_t n = size < room ? size : room;
        assert_true(n > 0);
        memcpy(to, bytes, n);
        tcp_frames_filled(f, n);
        bytes += n;
        size -= n;
    }
}

static void test_frames_refuse(void **state)
{
    (void)state;
    static const struct gp_batch_entry wrong[] = {
        {.size = 0, .kind = GP_BATCH_MESSAGE},
        {.size = 15, .kind = GP_BATCH_MESSAGE},
        {.size = GP_MESSAGE_MAX + 1, .kind = GP_BATCH_MESSAGE},
        {.size = UINT32_MAX, .kind = GP_BATCH_MESSAGE},
        {.size = 64, .kind = GP_BATCH_MESSAGE + 1},
    };
    struct tcp_frames f = {.bytes = malloc(FRAMES_ROOM)};
    const void *message;
    size_t size;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        f.at = f.end = 0;
        frames_feed(&f, (const void *)&wrong[i], 7);
        assert_int_equal(tcp_frames_next(&f, &message, &size), -EAGAIN);
        frames_feed(&f, (const unsigned char *)&wrong[i] + 7, 1);
        assert_int_equal(tcp_frames_next(&f, &message, &size), -EPROTO);
    }
    free(f.bytes);
}

/* Every cut of a long message after many short ones: each arrives whole and aligned. */
static void test_frames_cut_anywhere(void **state)
{
    (void)state;
    struct tcp_frames f = {.bytes = malloc(FRAMES_ROOM)};
    size_t room = GP_BATCH_MAX;
    unsigned char *entry = malloc(room), *body = malloc(GP_MESSAGE_MAX);
    const void *message;
    size_t size;
    for (size_t n = 0; n < 400; n++) {
        size_t length = n % 10 == 9 ? GP_MESSAGE_MAX - n : 16 + 7 * n, cut = 1 + n * 1237 % 5000;
        memset(body, (int)n, length);
        struct iovec iov = {body, length};
        gp_batch_put(entry, &iov, 1, length);
        size_t whole = gp_batch_room(length), first = cut < whole ? cut : whole - 1;
        frames_feed(&f, entry, first);
        assert_int_equal(tcp_frames_next(&f, &message, &size), -EAGAIN);
        frames_feed(&f, entry + first, whole - first);
        assert_int_equal(tcp_frames_next(&f, &message, &size), 0);
        assert_int_equal(size, length);
        assert_int_equal((uintptr_t)message % 8, 0);
        assert_memory_equal(message, body, length);
        tcp_frames_release(&f);
    }
    free(entry);
    free(body);
    free(f.bytes);
}

/* --- a peer that knows the word and means ill -------------------------------- */

struct caller {
    char endpoint[64];
    int fd;
};

static void *caller_main(void *arg)
{
    struct caller *c = arg;
    struct door_knocked k;
    unsigned char word[DOOR_WORD_BYTES], body[DOOR_BODY_BYTES], proof[DOOR_PROOF_BYTES];
    int64_t deadline = gp_deadline_us(PATIENCE_US);
    c->fd = -1;
    if (gp_hex_read(WORD, word, sizeof word) != 0 ||
        door_knock(c->endpoint, word, deadline, &k) != 0 ||
        door_hear_answer(&k, word, deadline, sizeof body, body) != 0)
        return NULL;
    door_confirm(&k, word, body, proof);
    if (send(k.fd, proof, sizeof proof, MSG_NOSIGNAL) == (ssize_t)sizeof proof)
        c->fd = k.fd;
    return NULL;
}

/* A worker's channel, whose other end is a bare socket. */
static int open_bare(struct ends *e)
{
    struct caller c = {.fd = -1};
    struct gp_error err = {.text = ""};
    pthread_t thread;
    char url[128];
    memset(e, 0, sizeof *e);
    use("plain://");
    snprintf(url, sizeof url, "%.60s?door=" WORD, listen_url);
    assert_int_equal(tp->listen(url, &e->listener, &err), 0);
    const char *at = tp->listener_url(e->listener);
    snprintf(c.endpoint, sizeof c.endpoint, "%.*s", (int)strcspn(at, "?"), at);
    assert_int_equal(pthread_create(&thread, NULL, caller_main, &c), 0);
    int rc = tp->accept(e->listener, PATIENCE_MS, &e->worker, &err);
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    assert_true(c.fd >= 0);
    return c.fd;
}

static void test_hostile_frames(void **state)
{
    (void)state;
    static const struct gp_batch_entry wrong[] = {
        {.size = 3, .kind = GP_BATCH_MESSAGE},
        {.size = UINT32_MAX, .kind = GP_BATCH_MESSAGE},
        {.size = 64, .kind = 0},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct ends e;
        const void *message;
        size_t size;
        int fd = open_bare(&e);
        assert_int_equal(send(fd, &wrong[i], sizeof wrong[i], MSG_NOSIGNAL), sizeof wrong[i]);
        assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), -EPROTO);
        assert_int_equal(tp->recv(e.worker, 0, &message, &size), -EPROTO);
        assert_int_equal(send_numbered(e.worker, 1, 64, 0), -EPIPE);
        close(fd);
        tp->close(e.worker);
        tp->listener_close(e.listener);
    }
}

/* A message that is cut off is none. */
static void test_half_a_message(void **state)
{
    (void)state;
    struct ends e;
    const void *message;
    size_t size;
    unsigned char half[40] = {0};
    struct gp_batch_entry entry = {.size = 64, .kind = GP_BATCH_MESSAGE};
    int fd = open_bare(&e);
    memcpy(half, &entry, sizeof entry);
    assert_int_equal(send(fd, half, sizeof half, MSG_NOSIGNAL), sizeof half);
    assert_int_equal(tp->recv(e.worker, 50000, &message, &size), -EAGAIN);
    close(fd);
    assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), -EPIPE);
    tp->close(e.worker);
    tp->listener_close(e.listener);
}

static int port_of(const char *url)
{
    return atoi(strrchr(url, ':') + 1);
}

/* A connection through a tap; the address that the client is given is the tap's. */
static void open_tapped(struct ends *e, struct raw_tap *tap, const char *scheme)
{
    struct gp_error err = {.text = ""};
    char url[128];
    memset(e, 0, sizeof *e);
    use(scheme);
    assert_int_equal(tp->listen(listen_url, &e->listener, &err), 0);
    const char *right = tp->listener_url(e->listener);
    assert_int_equal(raw_tap_start(tap, port_of(right)), 0);
    snprintf(url, sizeof url, "%s127.0.0.1:%d%s", scheme, tap->port, strchr(right, '?'));
    ends_join_at(e, url);
}

/* What was heard of one client lets nobody else in, though its word is the same. */
static void test_a_replay_is_refused(void **state)
{
    (void)state;
    static const char *const schemes[] = {"plain://", "tls://"};
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        struct raw_tap tap;
        struct gp_listener *again = NULL;
        struct gp_channel *ch = NULL;
        char url[128], *query;
        open_tapped(&e, &tap, schemes[i]);
        query = strchr(tp->listener_url(e.listener), '?');
        snprintf(url, sizeof url, "%s%s", listen_url, query);
        ends_close(&e);
        raw_tap_stop(&tap);
        assert_int_equal(tp->listen(url, &again, NULL), 0);
        int fd = raw_dial(RAW_TCP, tp->listener_url(again));
        assert_true(send(fd, tap.seen, tap.seen_bytes, MSG_NOSIGNAL) > 0);
        assert_int_equal(tp->accept(again, 1000, &ch, NULL), -EAGAIN);
        close(fd);
        tp->listener_close(again);
        raw_tap_free(&tap);
    }
}

static void test_nothing_is_readable_on_its_way(void **state)
{
    (void)state;
    static const char secret[] = "the weights of a model nobody else shall read";
    struct ends e;
    struct raw_tap tap;
    const void *message;
    size_t size;
    open_tapped(&e, &tap, "tls://");
    assert_int_equal(send_bytes(e.client, secret, sizeof secret, 0), 0);
    assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), 0);
    assert_memory_equal(message, secret, sizeof secret);
    tp->release(e.worker);
    ends_close(&e);
    raw_tap_stop(&tap);
    assert_true(tap.seen_bytes > sizeof secret);
    assert_null(memmem(tap.seen, tap.seen_bytes, secret, 16));
    raw_tap_free(&tap);
}

static void test_a_changed_bit_ends_it(void **state)
{
    (void)state;
    struct ends e;
    struct raw_tap tap;
    const void *message;
    size_t size;
    open_tapped(&e, &tap, "tls://");
    raw_tap_spoil(&tap, 700);
    int rc = 0;
    for (uint64_t n = 0; rc == 0 && n < 100; n++) {
        (void)send_numbered(e.client, n, 512, 0);
        rc = tp->recv(e.worker, PATIENCE_US, &message, &size);
        if (rc == 0) {
            assert_true(message_is(message, n, 512));
            tp->release(e.worker);
        }
    }
    assert_int_equal(rc, -EPROTO);
    ends_close(&e);
    raw_tap_stop(&tap);
    assert_true(tap.spoiled);
    raw_tap_free(&tap);
}

/* Past the change of keys, which comes with the amount. */
static void test_more_than_one_key_carries(void **state)
{
    (void)state;
    struct ends e;
    use("tls://");
    ends_open(&e);
    unsigned char *bytes = calloc(1, GP_MESSAGE_MAX);
    const void *message;
    size_t size;
    for (uint64_t n = 0; n < 300; n++) {
        memcpy(bytes, &n, sizeof n);
        struct stream s = {.channel = e.client, .first = n, .count = 1, .size = GP_MESSAGE_MAX};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stream_main, &s), 0);
        assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), 0);
        assert_memory_equal(message, &n, sizeof n);
        assert_int_equal(size, GP_MESSAGE_MAX);
        tp->release(e.worker);
        pthread_join(thread, NULL);
        assert_int_equal(s.rc, 0);
    }
    free(bytes);
    ends_close(&e);
}

/* --- what was gathered, and a full socket ----------------------------------- */

/* What sockets took, and how often they did not. */
static _Atomic size_t taken;
static _Atomic unsigned refused, send_calls;

/* The plug-in's, counted. */
__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *message,
                                                       int flags)
{
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (!real)
        real = (ssize_t (*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    ssize_t n = real(fd, message, flags);
    send_calls++;
    if (n >= 0)
        taken += (size_t)n;
    else if (errno == EAGAIN)
        refused++;
    return n;
}

/* It waits for room: it does not try and try again. */
static void test_the_keeper_of_a_full_socket(void **state)
{
    (void)state;
    struct ends e;
    uint64_t count = 0;
    use("plain://");
    ends_open(&e);
    taken = 0;
    refused = 0;
    do { /* as much at once as is gathered: the sender itself must not wait */
        for (int i = 0; i < 16; i++)
            assert_int_equal(send_numbered(e.client, count++, 3000, GP_SEND_LATER), 0);
        while (refused == 0 && taken < count * gp_batch_room(3000))
            usleep(1000);
    } while (refused == 0);
    unsigned before = refused;
    usleep(500000);
    assert_in_range(refused - before, 0, 100);
    for (uint64_t n = 0; n < count; n++)
        expect_numbered(e.worker, n, 3000);
    ends_close(&e);
}

/* A message that is waited for is one call, and so are those that were gathered before it. */
static void test_one_call_for_what_is_due(void **state)
{
    (void)state;
    static const char *const schemes[] = {"plain://", "tls://"};
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        use(schemes[i]);
        ends_open(&e);
        send_calls = 0;
        for (uint64_t n = 0; n < 50; n++) {
            assert_int_equal(send_numbered(e.client, n, 100, 0), 0);
            expect_numbered(e.worker, n, 100);
            assert_int_equal(send_numbered(e.worker, n, 3000, 0), 0);
            expect_numbered(e.client, n, 3000);
        }
        assert_in_range(send_calls, 100, 101); /* once the worker says that lanes are in */
        ends_close(&e);
    }
}

/* --- descriptors that the program takes away ---------------------------------- */

/* The client's end of the connection to this port. */
static int client_fd(int port)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in a;
        socklen_t size = sizeof a;
        if (getpeername(fd, (void *)&a, &size) == 0 && a.sin_family == AF_INET &&
            ntohs(a.sin_port) == port)
            return fd;
    }
    return -1;
}

static void expect_taken(struct gp_channel *ch)
{
    const void *message;
    size_t size;
    assert_int_equal(send_numbered(ch, 1, 64, 0), -EBADF);
    assert_int_equal(send_numbered(ch, 1, GP_MESSAGE_MAX, 0), -EBADF);
    assert_int_equal(tp->recv(ch, PATIENCE_US, &message, &size), -EBADF);
    assert_int_equal(tp->flush(ch), -EBADF);
}

static void test_a_closed_descriptor(void **state)
{
    (void)state;
    static const char *const schemes[] = {"plain://", "tls://"};
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        const void *message;
        size_t size;
        use(schemes[i]);
        ends_open(&e);
        close(client_fd(port_of(tp->listener_url(e.listener))));
        expect_taken(e.client);
        assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), -EPIPE);
        ends_close(&e);
    }
}

/* Its number is a file's now, which must stay as it is and open. */
static void test_a_replaced_descriptor(void **state)
{
    (void)state;
    struct ends e;
    struct stat s;
    use("plain://");
    ends_open(&e);
    int fd = client_fd(port_of(tp->listener_url(e.listener)));
    int file = memfd_create("precious", MFD_CLOEXEC);
    assert_int_equal(dup2(file, fd), fd);
    expect_taken(e.client);
    assert_int_equal(fstat(fd, &s), 0);
    assert_int_equal(s.st_size, 0);
    tp->close(e.client);
    assert_int_equal(fstat(fd, &s), 0);
    close(fd);
    close(file);
    tp->close(e.worker);
    tp->listener_close(e.listener);
}

struct taker {
    int fd;
};

static void *taker_main(void *arg)
{
    usleep(100000);
    close(((struct taker *)arg)->fd);
    return NULL;
}

/* While somebody sleeps in it, in both directions. */
static void test_a_descriptor_closed_inside_a_call(void **state)
{
    (void)state;
    for (int sends = 0; sends < 2; sends++) {
        struct ends e;
        const void *message;
        size_t size;
        pthread_t thread;
        int rc = 0;
        use("plain://");
        ends_open(&e);
        struct taker t = {.fd = client_fd(port_of(tp->listener_url(e.listener)))};
        assert_int_equal(pthread_create(&thread, NULL, taker_main, &t), 0);
        if (sends)
            while ((rc = send_numbered(e.client, 0, GP_MESSAGE_MAX, 0)) == 0)
                ;
        else
            rc = tp->recv(e.client, -1, &message, &size);
        assert_int_equal(rc, -EBADF);
        pthread_join(thread, NULL);
        ends_close(&e);
    }
}

int main(void)
{
    static const struct transport_suite own = {.name = "tcp", .raw = RAW_TCP};
    suite = &own;
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_refuse),
        cmocka_unit_test(test_frames_cut_anywhere),
        cmocka_unit_test(test_hostile_frames),
        cmocka_unit_test(test_half_a_message),
        cmocka_unit_test(test_a_replay_is_refused),
        cmocka_unit_test(test_nothing_is_readable_on_its_way),
        cmocka_unit_test(test_a_changed_bit_ends_it),
        cmocka_unit_test(test_more_than_one_key_carries),
        cmocka_unit_test(test_the_keeper_of_a_full_socket),
        cmocka_unit_test(test_one_call_for_what_is_due),
        cmocka_unit_test(test_a_closed_descriptor),
        cmocka_unit_test(test_a_replaced_descriptor),
        cmocka_unit_test(test_a_descriptor_closed_inside_a_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
