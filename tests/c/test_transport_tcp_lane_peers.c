/* Lanes whose other side knows the word and means ill. */
#include <errno.h>
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

#include "transport/dial.h"
#include "transport/door.h"
#include "transport/hex.h"
#include "transport/support.h"
#include "transport/tcp_stripe.h"
#include "transport_suite_ends.h"

#define WORD "00112233445566778899aabbccddeeff"
#define SIZE ((size_t)STRIPE_LEAST + 4096)

/* A client by hand. */
struct caller {
    char endpoint[64];
    int stream, lane[STRIPE_LANES_MAX];
    unsigned char word[DOOR_WORD_BYTES]; /* of the lanes */
    bool came;
};

/* Answer for a knock: 0, or what the worker did instead. */
static int greet(struct door_knocked *k, const unsigned char *word, unsigned char *lanes_word)
{
    unsigned char body[DOOR_BODY_BYTES], proof[DOOR_PROOF_BYTES];
    int rc = door_hear_answer(k, word, gp_deadline_us(PATIENCE_US), sizeof body, body);
    if (rc)
        return rc;
    if (lanes_word)
        door_lanes_word(word, k->nonce, body, lanes_word);
    door_confirm(k, word, body, proof);
    return send(k->fd, proof, sizeof proof, MSG_NOSIGNAL) == (ssize_t)sizeof proof ? 0 : -EPIPE;
}

static void *caller_main(void *arg)
{
    struct caller *c = arg;
    struct door_knocked k;
    unsigned char word[DOOR_WORD_BYTES];
    if (gp_hex_read(WORD, word, sizeof word) == 0 &&
        door_knock(c->endpoint, word, gp_deadline_us(PATIENCE_US), &k) == 0 &&
        greet(&k, word, c->word) == 0) {
        c->stream = k.fd;
        c->came = true;
    }
    return NULL;
}

static void worker_open(struct ends *e, struct caller *c)
{
    struct gp_error err = {.text = ""};
    pthread_t thread;
    memset(e, 0, sizeof *e);
    memset(c, 0, sizeof *c);
    tp = gp_transport_find("plain://", getenv("GPUPOOL_PLUGIN_DIR"), &err);
    assert_non_null(tp);
    assert_int_equal(tp->listen("plain://127.0.0.1:*?door=" WORD, &e->listener, &err), 0);
    const char *at = tp->listener_url(e->listener);
    snprintf(c->endpoint, sizeof c->endpoint, "%.*s", (int)strcspn(at, "?"), at);
    assert_int_equal(pthread_create(&thread, NULL, caller_main, c), 0);
    assert_int_equal(tp->accept(e->listener, PATIENCE_MS, &e->worker, &err), 0);
    pthread_join(thread, NULL);
    assert_true(c->came);
}

/* Knock as lane `number` of `lanes`: 0, or why it was not let in. */
static int lane_try(struct caller *c, const unsigned char *word, unsigned number, unsigned lanes,
                    int *fd)
{
    const unsigned char mark[DOOR_MARK_BYTES] = {(unsigned char)(STRIPE_MARK + number),
                                                 (unsigned char)lanes};
    struct door_knocked k;
    int rc = gp_dial(c->endpoint, PATIENCE_MS, fd);
    if (rc)
        return rc;
    rc = door_knock_at(*fd, word, mark, &k);
    if (rc == 0)
        rc = greet(&k, word, NULL);
    if (rc)
        close(*fd);
    return rc;
}

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, PATIENCE_MS) == 1;
}

static void read_all(int fd, void *to, size_t size)
{
    for (size_t at = 0; at < size;) {
        assert_true(readable(fd));
        ssize_t n = recv(fd, (char *)to + at, size - at, 0);
        assert_true(n > 0);
        at += (size_t)n;
    }
}

/* As much as goes: a worker that has given up reads no more. */
static bool write_all(int fd, const void *from, size_t size)
{
    for (size_t at = 0; at < size;) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, PATIENCE_MS) != 1)
            return false;
        ssize_t n = send(fd, (const char *)from + at, size - at, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

static void lanes_come(struct caller *c, unsigned lanes)
{
    struct stripe_note note;
    for (unsigned i = 0; i < lanes; i++)
        assert_int_equal(lane_try(c, c->word, i, lanes, &c->lane[i]), 0);
    read_all(c->stream, &note, sizeof note);
    assert_int_equal(note.kind, STRIPE_NOTE_LANES);
    assert_int_equal(note.value, lanes);
}

static void ends_part(struct ends *e, struct caller *c, unsigned lanes)
{
    close(c->stream);
    for (unsigned i = 0; i < lanes; i++)
        close(c->lane[i]);
    tp->close(e->worker);
    tp->listener_close(e->listener);
}

/* What is wrong with a message. */
enum lie {
    LIE_NONE,
    LIE_MAGIC,
    LIE_LANE,
    LIE_NUMBER,
    LIE_SIZE, /* of one lane's head, within the limits */
    LIE_LONG, /* beyond them */
    LIE_NOTE, /* the note's, with all heads the same */
    LIE_HEAD, /* what stands before a piece is not what the message begins with */
    LIE_MORE, /* a lane sends on behind its piece */
    LIE_CUT,  /* a lane ends in its piece */
    LIE_GONE, /* everything ends in a piece */
    LIE_COUNT,
};

static void message_send(struct caller *c, unsigned lanes, const unsigned char *bytes, enum lie lie)
{
    struct stripe_note note = {(uint32_t)(SIZE + 8 * (lie == LIE_NOTE)), STRIPE_NOTE_MESSAGE};
    assert_true(write_all(c->stream, &note, sizeof note));
    for (unsigned i = 0; i < lanes; i++) {
        struct stripe_piece piece = stripe_piece_of(SIZE, i, lanes);
        struct stripe_head head = stripe_head_make(i, SIZE, 0);
        bool lies = i == 1;
        head.magic += lies && lie == LIE_MAGIC;
        head.lane += lies && lie == LIE_LANE;
        head.number += lies && lie == LIE_NUMBER;
        head.size += lies && lie == LIE_SIZE ? 64 : 0;
        head.size = lies && lie == LIE_LONG ? UINT32_MAX : head.size;
        size_t size = lies && (lie == LIE_CUT || lie == LIE_GONE) ? piece.size / 2 : piece.size;
        struct stripe_opening opening = {.head = head};
        memcpy(opening.message, bytes, GP_MESSAGE_HEAD);
        opening.message[0] ^= lie == LIE_HEAD;
        write_all(c->lane[i], &opening, sizeof opening);
        write_all(c->lane[i], bytes + piece.begin, size);
        if (lies && (lie == LIE_SIZE || lie == LIE_MORE))
            write_all(c->lane[i], bytes, 2 * sizeof opening);
    }
    if (lie == LIE_CUT || lie == LIE_GONE)
        shutdown(c->lane[1], SHUT_RDWR);
    if (lie == LIE_GONE)
        shutdown(c->stream, SHUT_RDWR);
}

/* Where messages go, and how often somebody asked. */
struct field {
    unsigned char to[SIZE];
    _Atomic unsigned asked;
};

static bool lands(void *owner, const void *head, size_t size, struct gp_landing *out)
{
    struct field *f = owner;
    (void)head;
    f->asked++;
    *out = (struct gp_landing){f->to, 32, size - 32};
    return true;
}

static void lanes_bring(const unsigned char *bytes, enum lie lie, struct field *f)
{
    struct ends e;
    struct caller c;
    const void *message;
    size_t size;
    worker_open(&e, &c);
    lanes_come(&c, 3);
    if (f)
        tp->land(e.worker, lands, f);
    message_send(&c, 3, bytes, lie);
    int rc = tp->recv(e.worker, PATIENCE_US, &message, &size);
    bool whole = lie == LIE_NONE || lie == LIE_MORE || (lie == LIE_HEAD && !f);
    if (rc == 0) { /* what follows it is another lane's matter */
        assert_true(whole);
        assert_int_equal(size, SIZE);
        assert_memory_equal(message, bytes, f ? 32 : SIZE);
        if (f)
            assert_memory_equal(f->to, bytes + 32, SIZE - 32);
        tp->release(e.worker);
    } else if (lie == LIE_CUT || lie == LIE_GONE) {
        assert_int_equal(rc, -EPIPE);
    } else {
        assert_int_equal(rc, -EPROTO);
    }
    if (lie == LIE_MORE) /* but not the next message's, which it claims to be */
        while ((rc = tp->recv(e.worker, PATIENCE_US, &message, &size)) == 0)
            tp->release(e.worker);
    if (!whole || lie == LIE_MORE)
        assert_true(rc == -EPROTO || rc == -EPIPE);
    ends_part(&e, &c, 3);
}

static void bytes_make(unsigned char *bytes)
{
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (unsigned char)(i * 7 + (i >> 9));
}

/* Lent, and written to where it belongs. */
static void test_what_lanes_bring(void **state)
{
    (void)state;
    static unsigned char bytes[SIZE];
    static struct field f;
    bytes_make(bytes);
    for (int lie = LIE_NONE; lie < LIE_COUNT; lie++) {
        lanes_bring(bytes, (enum lie)lie, NULL);
        f.asked = 0;
        lanes_bring(bytes, (enum lie)lie, &f);
        assert_true(f.asked == 1 || lie != LIE_NONE);
    }
}

/* A peer that stops in a piece keeps nobody from taking its memory back, for ever. */
static void test_no_landing_behind_the_end(void **state)
{
    (void)state;
    static unsigned char bytes[SIZE];
    static struct field f;
    struct ends e;
    struct caller c;
    const void *message;
    size_t size;
    struct stripe_note note = {SIZE, STRIPE_NOTE_MESSAGE};
    bytes_make(bytes);
    f.asked = 0;
    worker_open(&e, &c);
    lanes_come(&c, 2);
    tp->land(e.worker, lands, &f);
    assert_true(write_all(c.stream, &note, sizeof note));
    for (unsigned i = 0; i < 2; i++) {
        struct stripe_opening opening = {.head = stripe_head_make(i, SIZE, 0)};
        memcpy(opening.message, bytes, GP_MESSAGE_HEAD);
        assert_true(write_all(c.lane[i], &opening, sizeof opening));
        assert_true(write_all(c.lane[i], bytes + stripe_piece_of(SIZE, i, 2).begin, 4096));
    }
    do
        assert_int_equal(tp->recv(e.worker, 1000, &message, &size), -EAGAIN);
    while (f.asked == 0);
    tp->ground(e.worker);
    memset(f.to, 0x5a, sizeof f.to);
    for (unsigned i = 0; i < 2; i++)
        (void)write_all(c.lane[i], bytes, 4096);
    assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), -EPIPE);
    for (size_t i = 0; i < sizeof f.to; i++)
        assert_int_equal(f.to[i], 0x5a);
    ends_part(&e, &c, 2);
}

/* Notes that a client may not write, or not yet. */
static void test_notes_out_of_place(void **state)
{
    (void)state;
    static const struct stripe_note wrong[] = {
        {SIZE, STRIPE_NOTE_MESSAGE},
        {2, STRIPE_NOTE_LANES},
        {9, STRIPE_NOTE_LANES},
        {16, STRIPE_NOTE_MESSAGE},
        {UINT32_MAX, STRIPE_NOTE_MESSAGE},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct ends e;
        struct caller c;
        const void *message;
        size_t size;
        worker_open(&e, &c);
        assert_true(write_all(c.stream, &wrong[i], sizeof wrong[i]));
        assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), -EPROTO);
        assert_int_equal(send_numbered(e.worker, 0, 64, 0), -EPIPE);
        ends_part(&e, &c, 0);
    }
}

/* Of another session, or of none: the session's own word opens nothing any more. */
static void test_a_stranger_s_lane(void **state)
{
    (void)state;
    struct ends e, other;
    struct caller c, another;
    unsigned char word[DOOR_WORD_BYTES];
    int fd;
    assert_int_equal(gp_hex_read(WORD, word, sizeof word), 0);
    worker_open(&e, &c);
    worker_open(&other, &another); /* of the same word */
    assert_int_not_equal(lane_try(&c, word, 0, 2, &fd), 0);
    assert_int_not_equal(lane_try(&c, another.word, 0, 2, &fd), 0);
    lanes_come(&c, 2);
    lanes_come(&another, 2);
    ends_part(&e, &c, 2);
    ends_part(&other, &another, 2);
}

/* Let in and shown out again: -EPIPE or a reset once it is looked for. */
static void expect_shown_out(struct caller *c, unsigned number, unsigned lanes)
{
    char byte;
    int fd;
    if (lane_try(c, c->word, number, lanes, &fd) != 0)
        return;
    assert_true(readable(fd));
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

/* Each comes once, in order, and as many as both sides want; behind them the door is shut. */
static void test_more_lanes_than_there_are(void **state)
{
    (void)state;
    struct ends e;
    struct caller c;
    int fd, rc = 0;
    worker_open(&e, &c);
    expect_shown_out(&c, 0, 1);
    expect_shown_out(&c, 0, 0);
    assert_int_equal(lane_try(&c, c.word, 0, 200, &c.lane[0]), 0);
    expect_shown_out(&c, 0, 200);
    expect_shown_out(&c, 3, 200);
    expect_shown_out(&c, 1, 2);
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(lane_try(&c, c.word, i, 200, &c.lane[i]), 0);
    struct stripe_note note;
    read_all(c.stream, &note, sizeof note);
    assert_int_equal(note.value, 4);
    rc = gp_dial(c.endpoint, PATIENCE_MS, &fd);
    assert_int_equal(rc, -ECONNREFUSED);
    ends_part(&e, &c, 4);
}

/* What does not come is done without. */
static void test_too_few_lanes(void **state)
{
    (void)state;
    struct ends e;
    struct caller c;
    struct stripe_note entry;
    worker_open(&e, &c);
    assert_int_equal(lane_try(&c, c.word, 0, 4, &c.lane[0]), 0);
    struct stream s = {.channel = e.worker, .count = 1, .size = GP_MESSAGE_MAX};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stream_main, &s), 0);
    read_all(c.stream, &entry, sizeof entry);
    assert_int_equal(entry.value, GP_MESSAGE_MAX); /* whole, in the stream */
    static unsigned char whole[GP_MESSAGE_MAX];
    read_all(c.stream, whole, sizeof whole);
    assert_true(message_is(whole, 0, sizeof whole));
    pthread_join(thread, NULL);
    ends_part(&e, &c, 1);
}

/* --- a worker by hand ------------------------------------------------------------------ */

struct host {
    struct door *door;
    char endpoint[GP_ENDPOINT_MAX];
    struct gp_channel *client;
    int rc;
};

static void *client_main(void *arg)
{
    struct host *h = arg;
    char url[GP_ENDPOINT_MAX + 48];
    snprintf(url, sizeof url, "%s?door=" WORD, h->endpoint);
    h->rc = tp->connect(url, PATIENCE_MS, &h->client, NULL);
    return NULL;
}

/* The channel's own connection; no lane is ever let in. */
static int host_open(struct host *h)
{
    unsigned char word[DOOR_WORD_BYTES];
    static const unsigned char body[DOOR_BODY_BYTES];
    unsigned char proof[DOOR_PROOF_BYTES];
    pthread_t thread;
    memset(h, 0, sizeof *h);
    tp = gp_transport_find("plain://", getenv("GPUPOOL_PLUGIN_DIR"), NULL);
    snprintf(h->endpoint, sizeof h->endpoint, "plain://127.0.0.1:*");
    assert_int_equal(gp_hex_read(WORD, word, sizeof word), 0);
    assert_int_equal(door_open(-1, h->endpoint, sizeof h->endpoint, word, &h->door), 0);
    assert_int_equal(pthread_create(&thread, NULL, client_main, h), 0);
    while (!door_has_guest(h->door)) {
        door_serve(h->door);
        usleep(500);
    }
    int fd = door_guest_lend(h->door);
    assert_int_equal(door_answer(h->door, body, sizeof body), 0);
    read_all(fd, proof, sizeof proof);
    door_guest_release(h->door);
    pthread_join(thread, NULL);
    assert_int_equal(h->rc, 0);
    return fd;
}

/* A worker that says it has what it has not, or uses it before it says so. */
static void test_a_worker_s_notes(void **state)
{
    (void)state;
    static const struct stripe_note wrong[][2] = {
        {{SIZE, STRIPE_NOTE_MESSAGE}, {0, 0}},
        {{5, STRIPE_NOTE_LANES}, {0, 0}},
        {{1, STRIPE_NOTE_LANES}, {0, 0}},
        {{2, STRIPE_NOTE_LANES}, {2, STRIPE_NOTE_LANES}},
        {{2, STRIPE_NOTE_LANES}, {SIZE, STRIPE_NOTE_MESSAGE}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct host h;
        const void *message;
        size_t size;
        int fd = host_open(&h);
        size_t length = wrong[i][1].kind ? sizeof wrong[i] : sizeof wrong[i][0];
        assert_true(write_all(fd, wrong[i], length));
        door_close(h.door); /* and its lanes are refused */
        assert_int_equal(tp->recv(h.client, PATIENCE_US, &message, &size), -EPROTO);
        tp->close(h.client);
        close(fd);
    }
}

int main(void)
{
    static const struct transport_suite own = {.name = "tcp", .raw = RAW_TCP};
    suite = &own;
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_lanes_bring),
        cmocka_unit_test(test_notes_out_of_place),
        cmocka_unit_test(test_a_stranger_s_lane),
        cmocka_unit_test(test_more_lanes_than_there_are),
        cmocka_unit_test(test_too_few_lanes),
        cmocka_unit_test(test_a_worker_s_notes),
        cmocka_unit_test(test_no_landing_behind_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
