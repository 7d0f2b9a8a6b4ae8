/* Long messages over several connections: what only our own TCP has. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
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

#include "transport/support.h"
#include "transport/tcp_frames.h"
#include "transport_raw.h"
#include "transport_suite_ends.h"

static const char *const schemes[] = {"plain://", "tls://"};

/* --- what a peer writes --------------------------------------------------------- */

static void test_notes_in_a_stream(void **state)
{
    (void)state;
    static const struct {
        struct stripe_note note;
        int rc;
    } cases[] = {
        {{2, STRIPE_NOTE_LANES}, 0},
        {{STRIPE_LANES_MAX, STRIPE_NOTE_LANES}, 0},
        {{1, STRIPE_NOTE_LANES}, -EPROTO},
        {{STRIPE_LANES_MAX + 1, STRIPE_NOTE_LANES}, -EPROTO},
        {{STRIPE_LEAST, STRIPE_NOTE_MESSAGE}, 0},
        {{GP_MESSAGE_MAX, STRIPE_NOTE_MESSAGE}, 0},
        {{STRIPE_LEAST - 1, STRIPE_NOTE_MESSAGE}, -EPROTO},
        {{GP_MESSAGE_MAX + 1, STRIPE_NOTE_MESSAGE}, -EPROTO},
        {{64, GP_BATCH_MESSAGE}, -EAGAIN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tcp_frames f = {.bytes = malloc(FRAMES_ROOM)};
        struct stripe_note note = {0, 0};
        size_t room;
        memcpy(tcp_frames_space(&f, &room), &cases[i].note, 5);
        tcp_frames_filled(&f, 5);
        assert_int_equal(tcp_frames_note(&f, &note), -EAGAIN);
        memcpy(tcp_frames_space(&f, &room), (const char *)&cases[i].note + 5, 3);
        tcp_frames_filled(&f, 3);
        assert_int_equal(tcp_frames_note(&f, &note), cases[i].rc);
        if (cases[i].rc == 0)
            assert_memory_equal(&note, &cases[i].note, sizeof note);
        free(f.bytes);
    }
}

static void test_a_piece_s_head(void **state)
{
    (void)state;
    const struct stripe_head right = stripe_head_make(3, STRIPE_LEAST + 16, 7);
    size_t size = 0;
    assert_int_equal(stripe_head_check(&right, 3, 7, &size), 0);
    assert_int_equal(size, STRIPE_LEAST + 16);
    assert_int_equal(stripe_head_check(&right, 2, 7, &size), -EPROTO);
    assert_int_equal(stripe_head_check(&right, 3, 8, &size), -EPROTO);
    static const size_t wrong[] = {0, STRIPE_LEAST - 1, GP_MESSAGE_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct stripe_head h = stripe_head_make(3, wrong[i], 7);
        assert_int_equal(stripe_head_check(&h, 3, 7, &size), -EPROTO);
    }
    struct stripe_head h = right;
    h.magic++;
    assert_int_equal(stripe_head_check(&h, 3, 7, &size), -EPROTO);
}

/* Pieces are a message again, however it was gathered. */
static void test_pieces_are_the_whole(void **state)
{
    (void)state;
    static unsigned char bytes[GP_MESSAGE_MAX];
    static const size_t sizes[] = {STRIPE_LEAST, STRIPE_LEAST + 1, 777777, GP_MESSAGE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (unsigned lanes = 2; lanes <= STRIPE_LANES_MAX; lanes++) {
            struct iovec list[4] = {{bytes, 16},
                                    {bytes + 16, 0},
                                    {bytes + 16, 70000},
                                    {bytes + 70016, sizes[i] - 70016}};
            size_t at = 0;
            for (unsigned k = 0; k < lanes; k++) {
                struct iovec out[GP_GATHER_MAX];
                struct stripe_piece piece = stripe_piece_of(sizes[i], k, lanes);
                assert_int_equal(piece.begin, at);
                assert_true(piece.size > 0);
                int n = stripe_gather(list, 4, piece, out);
                for (int j = 0; j < n; j++) {
                    assert_ptr_equal(out[j].iov_base, bytes + at);
                    at += out[j].iov_len;
                }
                assert_int_equal(at, piece.begin + piece.size);
            }
            assert_int_equal(at, sizes[i]);
        }
}

/* --- two ends -------------------------------------------------------------------- */

/* This process's connections to the worker's port, the channel's own first. */
static unsigned connections(const struct ends *e, int *fds, unsigned most)
{
    int port = atoi(strrchr(tp->listener_url(e->listener), ':') + 1);
    unsigned count = 0;
    for (int fd = 3; fd < 1024 && count < most; fd++) {
        struct sockaddr_in a;
        socklen_t size = sizeof a;
        if (getpeername(fd, (void *)&a, &size) == 0 && ntohs(a.sin_port) == port)
            fds[count++] = fd;
    }
    return count;
}

/* Bytes that came to these connections. */
static uint64_t bytes_received(const int *fds, unsigned count)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < count; i++) {
        struct {
            unsigned char before[128];
            uint64_t received;
        } info = {0}; /* struct tcp_info, as far as tcpi_bytes_received */
        socklen_t size = sizeof info;
        if (getsockopt(fds[i], IPPROTO_TCP, 11, &info, &size) == 0)
            sum += info.received;
    }
    return sum;
}

/* Send until it comes over so many lanes, and no other is left. False: it never did. */
static bool lanes_come(struct ends *e, int *lanes, unsigned expected)
{
    int fds[STRIPE_LANES_MAX + 1];
    int64_t deadline = gp_deadline_us(PATIENCE_US);
    for (uint64_t n = 0; gp_clock_ns() < deadline; n++) {
        unsigned count = connections(e, fds, STRIPE_LANES_MAX + 1);
        uint64_t before = count > 1 ? bytes_received(fds + 1, count - 1) : 0;
        struct stream down = {.channel = e->worker, .first = n, .count = 1, .size = 500000};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stream_main, &down), 0);
        expect_numbered(e->client, n, 500000);
        pthread_join(thread, NULL);
        if (count == 1 + expected && bytes_received(fds + 1, count - 1) - before >= 500000) {
            memcpy(lanes, fds + 1, expected * sizeof *lanes);
            return true;
        }
        usleep(2000);
    }
    return false;
}

static void lanes_open(struct ends *e, const char *scheme, int *lanes, unsigned expected)
{
    transport_use(scheme);
    ends_open(e);
    /* Both ends give up after 10 s; where the machine is that busy another channel has them. */
    for (int tries = 1; !lanes_come(e, lanes, expected); tries++) {
        ends_close(e);
        if (tries == 5)
            fail_msg("no lanes came");
        ends_open(e);
    }
}

struct sink {
    struct gp_channel *channel;
    uint64_t count;
};

/* Long and short ones by turns, and longer than a slot or less than a stripe. */
static size_t mixed_size(uint64_t n)
{
    static const size_t sizes[] = {
        64,     STRIPE_LEAST, 16, STRIPE_LEAST - 1, GP_MESSAGE_MAX, 400008, GP_MESSAGE_MAX,
        300000, 70000};
    return sizes[n % (sizeof sizes / sizeof sizes[0])];
}

static void *mixed_main(void *arg)
{
    struct sink *s = arg;
    for (uint64_t n = 0; n < s->count; n++)
        if (send_numbered(s->channel, n, mixed_size(n), n % 3 ? GP_SEND_LATER : 0) != 0)
            return s;
    return tp->flush(s->channel) == 0 ? NULL : s;
}

static void *take_main(void *arg)
{
    struct sink *s = arg;
    for (uint64_t n = 0; n < s->count; n++) {
        const void *message;
        size_t size;
        if (tp->recv(s->channel, PATIENCE_US, &message, &size) != 0 || size != mixed_size(n) ||
            !message_is(message, n, size))
            return s;
        tp->release(s->channel);
    }
    return NULL;
}

/* Both ways at once: whole, once, and in the order of the stream. */
static void test_order_is_the_stream_s(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        int lanes[STRIPE_LANES_MAX];
        pthread_t threads[4];
        void *wrong;
        lanes_open(&e, schemes[i], lanes, 4);
        struct sink up = {e.client, 120}, down = {e.worker, 120};
        assert_int_equal(pthread_create(&threads[0], NULL, mixed_main, &up), 0);
        assert_int_equal(pthread_create(&threads[1], NULL, mixed_main, &down), 0);
        assert_int_equal(pthread_create(&threads[2], NULL, take_main, &up), 0);
        struct sink taken = {e.worker, 120};
        wrong = take_main(&taken);
        assert_null(wrong);
        pthread_join(threads[0], &wrong);
        assert_null(wrong);
        pthread_join(threads[1], &wrong);
        assert_null(wrong);
        pthread_join(threads[2], &wrong);
        assert_null(wrong);
        ends_close(&e);
    }
}

static void *last_words_main(void *arg)
{
    struct gp_channel *ch = arg;
    int rc = 0;
    for (uint64_t n = 0; n < 3; n++)
        rc |= send_numbered(ch, n, n < 2 ? GP_MESSAGE_MAX : 64, 0);
    tp->close(ch);
    return rc ? arg : NULL;
}

/* What was sent before the end arrives. */
static void test_what_was_sent_arrives(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        int lanes[STRIPE_LANES_MAX];
        const void *message;
        size_t size;
        pthread_t thread;
        void *wrong;
        lanes_open(&e, schemes[i], lanes, 4);
        assert_int_equal(pthread_create(&thread, NULL, last_words_main, e.client), 0);
        expect_numbered(e.worker, 0, GP_MESSAGE_MAX);
        expect_numbered(e.worker, 1, GP_MESSAGE_MAX);
        expect_numbered(e.worker, 2, 64);
        assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), -EPIPE);
        pthread_join(thread, &wrong);
        assert_null(wrong);
        e.client = NULL;
        ends_close(&e);
    }
}

/* A polling receiver never waits for a piece. */
static void test_polling_takes_whole_messages(void **state)
{
    (void)state;
    struct ends e;
    int lanes[STRIPE_LANES_MAX];
    lanes_open(&e, "plain://", lanes, 4);
    struct stream s = {.channel = e.client, .count = 20, .size = GP_MESSAGE_MAX};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stream_main, &s), 0);
    for (uint64_t n = 0; n < 20;) {
        const void *message;
        size_t size;
        int rc = tp->recv(e.worker, 0, &message, &size);
        if (rc == -EAGAIN)
            continue;
        assert_int_equal(rc, 0);
        assert_true(message_is(message, n++, size));
        tp->release(e.worker);
    }
    pthread_join(thread, NULL);
    ends_close(&e);
}

/* Nobody waits for ever for what a lane was to bring. */
static void test_a_lane_that_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct ends e;
        int lanes[STRIPE_LANES_MAX], rc = 0;
        const void *message;
        size_t size;
        lanes_open(&e, schemes[i % 2], lanes, 4);
        shutdown(lanes[2], SHUT_RDWR);
        struct gp_channel *from = i < 2 ? e.client : e.worker, *to = i < 2 ? e.worker : e.client;
        while (rc == 0) {
            rc = send_numbered(from, 0, STRIPE_LEAST, 0);
            if (tp->recv(to, 0, &message, &size) == 0)
                tp->release(to);
        }
        assert_int_equal(rc, -EPIPE);
        while ((rc = tp->recv(to, PATIENCE_US, &message, &size)) == 0)
            tp->release(to);
        assert_int_equal(rc, -EPIPE);
        ends_close(&e);
    }
}

/* Who is between both ends writes what looks like a record: nothing of it is a message's. */
static void test_a_forged_record_on_a_lane(void **state)
{
    (void)state;
    static const unsigned char forged[5 + 40] = {23, 3, 3, 0, 40};
    for (int i = 0; i < 2; i++) {
        struct ends e;
        int lanes[STRIPE_LANES_MAX], rc;
        const void *message;
        size_t size;
        lanes_open(&e, "tls://", lanes, 4);
        if (i == 1) /* while nothing is due, or behind something */
            assert_int_equal(send_numbered(e.client, 0, STRIPE_LEAST, 0), 0);
        assert_int_equal(send(lanes[2], forged, sizeof forged, MSG_NOSIGNAL), sizeof forged);
        (void)send_numbered(e.client, 1, STRIPE_LEAST, 0);
        int come = 0;
        while ((rc = tp->recv(e.worker, PATIENCE_US, &message, &size)) == 0) {
            assert_true(message_is(message, (uint64_t)come++, size));
            tp->release(e.worker);
        }
        assert_true(come <= i);
        assert_int_equal(rc, -EPROTO);
        ends_close(&e);
    }
}

/* Nobody listens any more once all lanes are in. */
static void test_the_port_is_shut_behind_the_lanes(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        int lanes[STRIPE_LANES_MAX], fd;
        lanes_open(&e, schemes[i], lanes, 4);
        int64_t deadline = gp_deadline_us(PATIENCE_US);
        while ((fd = raw_dial(RAW_TCP, tp->listener_url(e.listener))) >= 0) {
            assert_true(gp_clock_ns() < deadline);
            close(fd);
            usleep(2000);
        }
        ends_close(&e);
    }
}

/* The program closes a descriptor of ours. */
static void test_a_lane_s_descriptor_is_closed(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        int lanes[STRIPE_LANES_MAX];
        lanes_open(&e, schemes[i], lanes, 4);
        usleep(150000); /* until its reader sleeps */
        assert_int_equal(send_numbered(e.client, 0, STRIPE_LEAST, 0), 0);
        close(lanes[1]);
        assert_int_equal(send_numbered(e.client, 0, GP_MESSAGE_MAX, 0), -EBADF);
        assert_int_equal(send_numbered(e.client, 0, 64, 0), -EBADF);
        ends_close(&e);
    }
}

/* One side wants none, or fewer; or the end comes while they are on their way. */
static void test_the_less_of_two_settings(void **state)
{
    (void)state;
    struct ends e;
    int fds[STRIPE_LANES_MAX + 1];
    transport_use("plain://");
    setenv("GPUPOOL_LANES", "1", 1);
    ends_open(&e);
    usleep(50000);
    assert_int_equal(connections(&e, fds, STRIPE_LANES_MAX + 1), 1);
    ends_close(&e);
    setenv("GPUPOOL_LANES", "8", 1);
    lanes_open(&e, "plain://", fds, 8);
    ends_close(&e);
    setenv("GPUPOOL_LANES", "2", 1);
    struct gp_error err = {.text = ""};
    assert_int_equal(tp->listen(listen_url, &e.listener, &err), 0);
    setenv("GPUPOOL_LANES", "6", 1);
    ends_join(&e);
    assert_true(lanes_come(&e, fds, 2));
    ends_close(&e);
    unsetenv("GPUPOOL_LANES");
    for (int i = 0; i < 40; i++) {
        transport_use(schemes[i % 2]);
        ends_open(&e);
        usleep((useconds_t)(i * 50));
        ends_close(&e);
    }
}

static void test_settings_that_are_none(void **state)
{
    (void)state;
    static const char *const wrong[] = {"0", "9", "-1", "4 ", "40", "many"};
    transport_use("plain://");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct gp_listener *l;
        struct gp_channel *ch;
        struct gp_error err = {.text = ""};
        setenv("GPUPOOL_LANES", wrong[i], 1);
        assert_int_equal(tp->listen(listen_url, &l, &err), -EINVAL);
        assert_non_null(strstr(err.text, "GPUPOOL_LANES="));
        expect_line(&err);
        assert_int_equal(tp->connect("plain://127.0.0.1:1?door=00112233445566778899aabbccddeeff",
                                     100, &ch, &err),
                         -EINVAL);
    }
    unsetenv("GPUPOOL_LANES");
}

int main(void)
{
    static const struct transport_suite own = {.name = "tcp", .raw = RAW_TCP};
    suite = &own;
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notes_in_a_stream),
        cmocka_unit_test(test_a_piece_s_head),
        cmocka_unit_test(test_pieces_are_the_whole),
        cmocka_unit_test(test_order_is_the_stream_s),
        cmocka_unit_test(test_what_was_sent_arrives),
        cmocka_unit_test(test_polling_takes_whole_messages),
        cmocka_unit_test(test_a_lane_that_ends),
        cmocka_unit_test(test_a_forged_record_on_a_lane),
        cmocka_unit_test(test_the_port_is_shut_behind_the_lanes),
        cmocka_unit_test(test_a_lane_s_descriptor_is_closed),
        cmocka_unit_test(test_the_less_of_two_settings),
        cmocka_unit_test(test_settings_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
