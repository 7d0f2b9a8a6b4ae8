/* TLS 1.3's records as our own TCP makes and reads them: what is right, and what nobody may write. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/hex.h"
#include "transport/tcp_seal.h"

static const char *const ciphers[] = {"AES-128-GCM", "ChaCha20-Poly1305"};
static const unsigned char secret[SEAL_SECRET_BYTES] = {1, 2, 3, 4, 5};

enum { BYTES = 100000 };
static unsigned char bytes[BYTES], wire[2 * BYTES], got[BYTES];

/* Both ends of a direction. */
struct pair {
    struct seal from, to;
    unsigned char *rest;
    size_t sealed; /* in `wire` */
};

static void pair_keyed(struct pair *p, const char *cipher, const unsigned char *key)
{
    *p = (struct pair){.rest = malloc(SEAL_REST_BYTES)};
    assert_int_equal(seal_begin(&p->from, NULL, cipher, key, NULL), 0);
    assert_int_equal(seal_begin(&p->to, NULL, cipher, key, p->rest), 0);
}

static void pair_open(struct pair *p, const char *cipher)
{
    pair_keyed(p, cipher, secret);
}

static void pair_close(struct pair *p)
{
    seal_end(&p->from);
    seal_end(&p->to);
    free(p->rest);
}

static void record_put(struct pair *p, unsigned char type, const void *content, size_t size)
{
    ssize_t n = seal_record(&p->from, type, content, size, wire + p->sealed);
    assert_int_equal(n, size + SEAL_BESIDE);
    p->sealed += (size_t)n;
}

/* What one call makes of all that lies in `wire`, with memory of its size to be seen to. */
static ssize_t read_all(struct pair *p, size_t room, size_t *used)
{
    unsigned char *exact = malloc(p->sealed + 1), *to = malloc(room + 1);
    memcpy(exact, wire, p->sealed);
    ssize_t n = seal_read(&p->to, exact, p->sealed, used, to, room);
    if (n > 0)
        memcpy(got, to, (size_t)n);
    free(exact);
    free(to);
    return n;
}

static void expect_end(struct pair *p)
{
    size_t used;
    assert_int_equal(read_all(p, BYTES, &used), -EPROTO);
    /* And for good. */
    p->sealed = 0;
    record_put(p, SEAL_DATA, bytes, 10);
    assert_int_equal(read_all(p, BYTES, &used), -EPROTO);
    pair_close(p);
}

/* --- what is right ---------------------------------------------------------------------- */

/* The server's data of RFC 8448, section 3. */
static void test_a_record_of_the_rfc_s(void **state)
{
    (void)state;
    static const char key[] = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
    static const char record[] = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e"
                                 "30efaf97d90e6dffc602dcb501a59"
                                 "a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";
    struct pair p;
    unsigned char of_rfc[SEAL_SECRET_BYTES], sealed[128];
    size_t used;
    assert_int_equal(gp_hex_read(key, of_rfc, sizeof of_rfc), 0);
    pair_keyed(&p, ciphers[0], of_rfc);
    p.sealed = (sizeof record - 1) / 2;
    assert_int_equal(gp_hex_read(record, wire, p.sealed), 0);
    p.from.number = p.to.number = 1; /* a ticket was sent before */
    assert_int_equal(read_all(&p, BYTES, &used), 50);
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(got[i], i);
    assert_int_equal(seal_record(&p.from, SEAL_DATA, got, 50, sealed), p.sealed);
    assert_memory_equal(sealed, wire, p.sealed);
    pair_close(&p);
}

/* Whatever is sent at once, and wanted at once. */
static void test_bytes_come_as_they_were(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 15, 16, 17, 16383, 16384, 16385, 70000, BYTES};
    static const size_t rooms[] = {1000, 16383, 16384, 16385, 65536, BYTES};
    enum { SIZES = sizeof sizes / sizeof sizes[0], ROOMS = sizeof rooms / sizeof rooms[0] };
    for (size_t i = 0; i < 2 * SIZES * ROOMS; i++) {
        size_t size = sizes[i / 2 % SIZES], room = rooms[i / 2 / SIZES], taken, at = 0, come = 0;
        struct pair p;
        pair_open(&p, ciphers[i % 2]);
        ssize_t made = seal_write(&p.from, bytes, size, wire, sizeof wire, &taken);
        assert_int_equal(taken, size);
        size_t records = (size + SEAL_CONTENT_MOST - 1) / SEAL_CONTENT_MOST;
        assert_int_equal(made, size + records * SEAL_BESIDE);
        memset(got, 0, sizeof got);
        while (come < size) {
            size_t used, left = BYTES - come;
            ssize_t n = seal_read(&p.to, wire + at, (size_t)made - at, &used, got + come,
                                  left < room ? left : room);
            assert_true(n > 0);
            at += used;
            come += (size_t)n;
        }
        assert_int_equal(at, made);
        assert_memory_equal(got, bytes, size);
        pair_close(&p);
    }
}

/* Only whole records are taken; the rest waits. */
static void test_a_stream_cut_anywhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (size_t cut = 0, whole = 1; cut < whole; cut++) {
            struct pair p;
            size_t used = 0, more = 0;
            pair_open(&p, ciphers[i]);
            record_put(&p, SEAL_DATA, bytes, 5);
            record_put(&p, SEAL_DATA, bytes + 5, 40);
            p.sealed += (size_t)seal_rekey(&p.from, wire + p.sealed);
            record_put(&p, SEAL_DATA, bytes + 45, 1);
            whole = p.sealed;
            p.sealed = cut;
            ssize_t n = read_all(&p, BYTES, &used);
            assert_int_equal(n, cut < 5 + SEAL_BESIDE        ? -EAGAIN
                                : cut < 45 + 2 * SEAL_BESIDE ? 5
                                                             : 45);
            assert_true(used <= cut);
            size_t first = n > 0 ? (size_t)n : 0;
            n = seal_read(&p.to, wire + used, whole - used, &more, got + first, BYTES - first);
            assert_int_equal(first + (size_t)n, 46);
            assert_int_equal(used + more, whole);
            assert_memory_equal(got, bytes, 46);
            pair_close(&p);
        }
}

static void test_what_is_too_long_waits(void **state)
{
    (void)state;
    struct pair p;
    size_t used, none;
    pair_open(&p, ciphers[0]);
    record_put(&p, SEAL_DATA, bytes, 10);
    record_put(&p, SEAL_DATA, bytes + 10, 10);
    assert_int_equal(read_all(&p, 3, &used), 3);
    assert_int_equal(used, 10 + SEAL_BESIDE);
    assert_int_equal(seal_read(&p.to, NULL, 0, &none, got + 3, 4), 4);
    assert_int_equal(none, 0);
    assert_int_equal(seal_read(&p.to, wire + used, used, &used, got + 7, 100), 13);
    assert_int_equal(used, 10 + SEAL_BESIDE);
    assert_memory_equal(got, bytes, 20);
    pair_close(&p);
}

static void test_no_more_than_there_is_room_for(void **state)
{
    (void)state;
    struct pair p;
    size_t taken;
    pair_open(&p, ciphers[0]);
    for (size_t room = 0; room < 100 + SEAL_BESIDE; room++) {
        assert_int_equal(seal_write(&p.from, bytes, 100, wire, room, &taken), 0);
        assert_int_equal(taken, 0);
    }
    size_t two = 2 * SEAL_RECORD_MOST + 100;
    assert_int_equal(seal_write(&p.from, bytes, BYTES, wire, two, &taken), 2 * SEAL_RECORD_MOST);
    assert_int_equal(taken, 2 * SEAL_CONTENT_MOST);
    assert_int_equal(seal_write(&p.from, bytes, 0, wire, two, &taken), 0);
    pair_close(&p);
}

static void test_zeros_behind_the_type(void **state)
{
    (void)state;
    static const unsigned char padded[] = {'a', 0, 'b', SEAL_DATA, 0, 0, 0};
    struct pair p;
    size_t used;
    for (size_t room = 1; room < 20; room++) {
        pair_open(&p, ciphers[0]);
        record_put(&p, 0, padded, sizeof padded);
        record_put(&p, 0, "\x17", 1); /* nothing, and one zero */
        size_t expected = room < 3 ? room : 3;
        assert_int_equal(read_all(&p, room, &used), expected);
        assert_memory_equal(got, "a\0b", expected);
        pair_close(&p);
    }
    /* As long as it may be with them. */
    memcpy(got, bytes, SEAL_CONTENT_MOST);
    got[SEAL_CONTENT_MOST - 1] = SEAL_DATA;
    pair_open(&p, ciphers[0]);
    record_put(&p, 0, got, SEAL_CONTENT_MOST);
    assert_int_equal(read_all(&p, BYTES, &used), SEAL_CONTENT_MOST - 1);
    assert_memory_equal(got, bytes, SEAL_CONTENT_MOST - 1);
    pair_close(&p);
}

static void test_keys_change_in_time(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct pair p;
        size_t used, taken;
        pair_open(&p, ciphers[i]);
        unsigned char before[SEAL_SECRET_BYTES];
        memcpy(before, p.from.secret, sizeof before);
        p.from.bytes = SEAL_REKEY_BYTES - 20000;
        p.sealed = (size_t)seal_write(&p.from, bytes, 40000, wire, sizeof wire, &taken);
        assert_int_equal(p.sealed, 40000 + 3 * SEAL_BESIDE + 5 + SEAL_BESIDE);
        assert_int_equal(p.from.bytes, 40000 - SEAL_CONTENT_MOST);
        assert_memory_not_equal(p.from.secret, before, sizeof before);
        assert_int_equal(read_all(&p, BYTES, &used), 40000);
        assert_memory_equal(got, bytes, 40000);
        assert_memory_equal(p.from.secret, p.to.secret, sizeof before);
        pair_close(&p);
    }
}

/* --- what nobody may write ------------------------------------------------------------------ */

static void test_any_byte_changed(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (size_t at = 0; at < 100 + SEAL_BESIDE; at++)
            for (int bit = 0; bit < 8; bit++) {
                struct pair p;
                size_t used;
                pair_open(&p, ciphers[i]);
                record_put(&p, SEAL_DATA, bytes, 100);
                unsigned char right = wire[at];
                wire[at] ^= (unsigned char)(1 << bit);
                ssize_t n = read_all(&p, at % 2 ? BYTES : 7, &used);
                /* A longer one may yet come. */
                bool waits = (at == 3 && wire[3] < 0x40) || (at == 4 && wire[4] > right);
                assert_int_equal(n, waits ? -EAGAIN : -EPROTO);
                assert_int_equal(used, 0);
                pair_close(&p);
            }
}

static void test_records_out_of_order(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct pair p;
        pair_open(&p, ciphers[i % 2]);
        record_put(&p, SEAL_DATA, bytes, 10);
        record_put(&p, SEAL_DATA, bytes + 10, 10);
        size_t each = p.sealed / 2;
        if (i < 2) /* left out, or said twice */
            memcpy(wire, wire + each, i == 0 ? each : 0);
        if (i == 1)
            memcpy(wire + each, wire, each);
        if (i == 2) /* one of the key before */
            p.sealed = (size_t)seal_rekey(&p.to, wire + 2 * each) ? each : 0;
        expect_end(&p);
    }
}

static void test_lengths_and_headers(void **state)
{
    (void)state;
    static const unsigned char wrong[][SEAL_HEADER_BYTES] = {
        {23, 3, 3, 0, 0},     {23, 3, 3, 0, 16}, {23, 3, 3, 0x40, 18}, {23, 3, 3, 0x41, 0},
        {23, 3, 3, 255, 255}, {20, 3, 3, 0, 1},  {21, 3, 3, 0, 2},     {22, 3, 3, 0, 32},
        {24, 3, 3, 0, 32},    {23, 3, 1, 0, 32}, {23, 3, 4, 0, 32},    {23, 2, 3, 0, 32},
        {0x80, 3, 3, 0, 32},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct pair p;
        pair_open(&p, ciphers[0]);
        memcpy(wire, wrong[i], SEAL_HEADER_BYTES);
        p.sealed = SEAL_HEADER_BYTES; /* nothing need be waited for */
        expect_end(&p);
    }
    /* One byte too long, be it a zero behind the type. */
    for (int zero = 0; zero < 2; zero++) {
        struct pair p;
        pair_open(&p, ciphers[0]);
        memcpy(got, bytes, SEAL_CONTENT_MOST + 1);
        got[SEAL_CONTENT_MOST] = SEAL_DATA;
        record_put(&p, zero ? 0 : SEAL_DATA, got, SEAL_CONTENT_MOST + 1);
        expect_end(&p);
    }
}

static void test_what_is_no_data(void **state)
{
    (void)state;
    static const struct {
        unsigned char type, size, content[12];
    } wrong[] = {
        {0, 0, {0}},                              /* a zero alone */
        {0, 12, {0}},                             /* and many */
        {SEAL_ALERT, 2, {1, 0}},                  /* that it closes */
        {SEAL_ALERT, 2, {2, 20}},                 /**/
        {SEAL_ALERT, 0, {0}},                     /**/
        {20, 1, {1}},                             /* a change of ciphers */
        {SEAL_HANDSHAKE, 0, {0}},                 /**/
        {SEAL_HANDSHAKE, 4, {24, 0, 0, 1}},       /* cut off */
        {SEAL_HANDSHAKE, 5, {24, 0, 0, 1, 1}},    /* that wants another */
        {SEAL_HANDSHAKE, 5, {24, 0, 0, 1, 2}},    /**/
        {SEAL_HANDSHAKE, 5, {24, 0, 0, 2, 0}},    /**/
        {SEAL_HANDSHAKE, 6, {24, 0, 0, 1, 0, 4}}, /* with something behind it */
        {SEAL_HANDSHAKE, 10, {24, 0, 0, 1, 0, 24, 0, 0, 1, 0}},
        {SEAL_HANDSHAKE, 8, {4, 0, 0, 4, 0, 0, 0, 0}}, /* a ticket */
        {24, 5, {1, 0, 1, 'a'}},                       /* a heartbeat */
        {255, 5, {1}},
    };
    for (size_t i = 0; i < 2 * sizeof wrong / sizeof wrong[0]; i++) {
        struct pair p;
        pair_open(&p, ciphers[i % 2]);
        record_put(&p, wrong[i / 2].type, wrong[i / 2].content, wrong[i / 2].size);
        expect_end(&p);
    }
}

/* Nobody keeps a receiver at work with records that bring nothing. */
static void test_records_that_bring_nothing(void **state)
{
    (void)state;
    for (int update = 0; update < 2; update++)
        for (unsigned more = 0; more < 2; more++) {
            struct pair p;
            size_t used;
            pair_open(&p, ciphers[0]);
            for (unsigned round = 0; round < 2; round++) {
                for (unsigned i = 0; i < SEAL_IDLE_MOST + (more & round); i++)
                    if (update)
                        p.sealed += (size_t)seal_rekey(&p.from, wire + p.sealed);
                    else
                        record_put(&p, SEAL_DATA, NULL, 0);
                record_put(&p, SEAL_DATA, bytes, 10);
            }
            assert_int_equal(read_all(&p, 100, &used), more ? -EPROTO : 20);
            pair_close(&p);
        }
}

static void test_numbers_come_to_an_end(void **state)
{
    (void)state;
    struct pair p;
    size_t used;
    pair_open(&p, ciphers[0]);
    p.from.number = p.to.number = UINT64_MAX - 1;
    record_put(&p, SEAL_DATA, bytes, 10);
    assert_int_equal(read_all(&p, 100, &used), 10);
    assert_int_equal(seal_record(&p.from, SEAL_DATA, bytes, 10, wire), -EPROTO);
    assert_int_equal(seal_rekey(&p.from, wire), -EPROTO);
    assert_int_equal(read_all(&p, 100, &used), -EPROTO);
    pair_close(&p);
}

static void test_ciphers_that_are_none(void **state)
{
    (void)state;
    static const char *const wrong[] = {"AES-128-CBC", "none of this name"};
    for (size_t i = 0; i < 2; i++) {
        struct seal s;
        assert_int_equal(seal_begin(&s, NULL, wrong[i], secret, i ? got : NULL), -ENOTSUP);
        seal_end(&s);
    }
}

int main(void)
{
    for (unsigned i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 24);
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record_of_the_rfc_s),
        cmocka_unit_test(test_bytes_come_as_they_were),
        cmocka_unit_test(test_a_stream_cut_anywhere),
        cmocka_unit_test(test_what_is_too_long_waits),
        cmocka_unit_test(test_no_more_than_there_is_room_for),
        cmocka_unit_test(test_zeros_behind_the_type),
        cmocka_unit_test(test_keys_change_in_time),
        cmocka_unit_test(test_any_byte_changed),
        cmocka_unit_test(test_records_out_of_order),
        cmocka_unit_test(test_lengths_and_headers),
        cmocka_unit_test(test_what_is_no_data),
        cmocka_unit_test(test_records_that_bring_nothing),
        cmocka_unit_test(test_numbers_come_to_an_end),
        cmocka_unit_test(test_ciphers_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
