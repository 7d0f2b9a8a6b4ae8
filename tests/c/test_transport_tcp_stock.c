/* TLS of our own TCP against OpenSSL's own: either may be the client, in each suite. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/ssl.h>

#include "transport/tcp_tls.h"

#define BULK ((size_t)300 << 20) /* more than keys are for */

static const char *const suites[] = {"TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"};
static unsigned char key[TLS_KEY_BYTES] = {1, 2, 3};
static unsigned char bytes[1 << 20], got[1 << 20];

/* --- OpenSSL's end ---------------------------------------------------------------------- */

static SSL_SESSION *session_new(SSL *ssl)
{
    static const unsigned char suite[2] = {0x13, 0x01};
    SSL_SESSION *s = SSL_SESSION_new();
    assert_true(SSL_SESSION_set1_master_key(s, key, sizeof key));
    assert_true(SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, suite)));
    assert_true(SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION));
    return s;
}

static int key_show(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *id_size,
                    SSL_SESSION **session)
{
    (void)digest;
    *id = (const unsigned char *)"gpupool";
    *id_size = 7;
    *session = session_new(ssl);
    return 1;
}

static int key_find(SSL *ssl, const unsigned char *id, size_t id_size, SSL_SESSION **session)
{
    assert_int_equal(id_size, 7);
    assert_memory_equal(id, "gpupool", 7);
    *session = session_new(ssl);
    return 1;
}

struct peers {
    struct tcp_tls *ours;
    SSL_CTX *context;
    SSL *stock;
    BIO *to, *from; /* of the stock one */
};

static void peers_make(struct peers *p, const char *suite, bool accepts, unsigned tickets)
{
    p->context = SSL_CTX_new(TLS_method());
    assert_true(SSL_CTX_set_min_proto_version(p->context, TLS1_3_VERSION));
    assert_true(SSL_CTX_set_ciphersuites(p->context, suite));
    assert_true(SSL_CTX_set_num_tickets(p->context, tickets));
    SSL_CTX_set_psk_use_session_callback(p->context, key_show);
    SSL_CTX_set_psk_find_session_callback(p->context, key_find);
    p->stock = SSL_new(p->context);
    p->to = BIO_new(BIO_s_mem());
    p->from = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(p->to, -1);
    SSL_set_bio(p->stock, p->to, p->from);
    if (accepts)
        SSL_set_connect_state(p->stock);
    else
        SSL_set_accept_state(p->stock);
    assert_int_equal(tcp_tls_new(key, accepts, &p->ours), 0);
}

static void peers_end(struct peers *p)
{
    tcp_tls_free(p->ours);
    SSL_free(p->stock);
    SSL_CTX_free(p->context);
}

static size_t to_stock(struct peers *p)
{
    struct iovec said = tcp_tls_sealed(p->ours);
    if (said.iov_len > 0)
        assert_int_equal(BIO_write(p->to, said.iov_base, (int)said.iov_len), said.iov_len);
    tcp_tls_sent(p->ours, said.iov_len);
    return said.iov_len;
}

/* At most so much of what the stock one has written. */
static size_t to_ours(struct peers *p, size_t most)
{
    size_t room;
    void *to = tcp_tls_space(p->ours, &room);
    int n = BIO_read(p->from, to, (int)(room < most ? room : most));
    if (n > 0)
        tcp_tls_filled(p->ours, (size_t)n);
    return n > 0 ? (size_t)n : 0;
}

static void shake(struct peers *p)
{
    int ours = -EAGAIN, stock = 0;
    for (int i = 0; i < 10 && (ours == -EAGAIN || stock != 1); i++) {
        if (ours == -EAGAIN)
            ours = tcp_tls_shake(p->ours);
        to_stock(p);
        if (stock != 1)
            stock = SSL_do_handshake(p->stock);
        if (ours == -EAGAIN)
            to_ours(p, SIZE_MAX);
    }
    assert_int_equal(ours, 0);
    assert_int_equal(stock, 1);
}

static void peers_open(struct peers *p, int i)
{
    peers_make(p, suites[i % 2], i / 2 % 2, 0);
    shake(p);
    assert_string_equal(SSL_get_cipher(p->stock), suites[i % 2]);
}

/* --- bytes --------------------------------------------------------------------------------- */

static void send_ours(struct peers *p, size_t size)
{
    size_t come = 0;
    for (size_t at = 0; at < size;) {
        ssize_t n = tcp_tls_seal(p->ours, bytes + at, size - at);
        assert_true(n > 0);
        at += (size_t)n;
        to_stock(p);
        while (come < at) {
            size_t some;
            assert_int_equal(SSL_read_ex(p->stock, got + come, sizeof got - come, &some), 1);
            come += some;
        }
    }
    assert_memory_equal(got, bytes, size);
}

static void send_stock(struct peers *p, size_t size, size_t cut, size_t room)
{
    size_t come = 0, gone;
    assert_int_equal(SSL_write_ex(p->stock, bytes, size, &gone), 1);
    assert_int_equal(gone, size);
    while (come < size) {
        size_t left = size - come;
        ssize_t n = tcp_tls_open(p->ours, got + come, left < room ? left : room);
        if (n == -EAGAIN)
            assert_true(to_ours(p, cut) > 0);
        else
            assert_true(n > 0);
        come += n > 0 ? (size_t)n : 0;
    }
    assert_memory_equal(got, bytes, size);
}

static void test_each_reads_the_other(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 64, 16384, 16385, 65536, 300000, 1 << 20};
    for (int i = 0; i < 4; i++) {
        struct peers p;
        peers_open(&p, i);
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            send_ours(&p, sizes[k]);
            send_stock(&p, sizes[k], SIZE_MAX, SIZE_MAX);
            send_stock(&p, sizes[k], 5000, 7777);
        }
        peers_end(&p);
    }
}

static void test_keys_change_both_ways(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct peers p;
        peers_open(&p, i);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(SSL_key_update(p.stock, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
            send_stock(&p, 1000, 3, 999);
        }
        for (size_t sent = 0; sent < BULK; sent += sizeof bytes)
            send_ours(&p, sizeof bytes);
        send_stock(&p, 1000, SIZE_MAX, SIZE_MAX);
        peers_end(&p);
    }
}

/* One that pads what it sends. */
static void test_records_with_padding(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct peers p;
        peers_open(&p, i);
        assert_int_equal(SSL_set_block_padding(p.stock, 512), 1);
        send_stock(&p, 1, SIZE_MAX, SIZE_MAX);
        send_stock(&p, 100000, 4000, SIZE_MAX);
        peers_end(&p);
    }
}

/* What is sent with the last words of a handshake is not for OpenSSL, and is not lost. */
static void test_what_comes_with_the_handshake(void **state)
{
    (void)state;
    struct peers p;
    size_t gone;
    peers_make(&p, suites[0], true, 0);
    assert_int_equal(SSL_do_handshake(p.stock), -1);
    to_ours(&p, SIZE_MAX);
    assert_int_equal(tcp_tls_shake(p.ours), -EAGAIN);
    to_stock(&p);
    assert_int_equal(SSL_do_handshake(p.stock), 1);
    assert_int_equal(SSL_write_ex(p.stock, bytes, 9000, &gone), 1);
    to_ours(&p, SIZE_MAX);
    assert_int_equal(tcp_tls_shake(p.ours), 0);
    assert_int_equal(tcp_tls_open(p.ours, got, sizeof got), 9000);
    assert_memory_equal(got, bytes, 9000);
    peers_end(&p);
}

/* The word is what OpenSSL exports. */
static void test_the_word_is_the_connection_s(void **state)
{
    (void)state;
    static const char label[] = "EXPERIMENTAL gpupool lanes";
    for (int i = 0; i < 4; i++) {
        struct peers p;
        unsigned char ours[TLS_WORD_BYTES], theirs[TLS_WORD_BYTES];
        peers_open(&p, i);
        tcp_tls_word(p.ours, ours);
        assert_int_equal(SSL_export_keying_material(p.stock, theirs, sizeof theirs, label,
                                                    sizeof label - 1, NULL, 0, 0),
                         1);
        assert_memory_equal(ours, theirs, sizeof ours);
        peers_end(&p);
    }
}

/* --- what ends it ----------------------------------------------------------------------------- */

static void expect_end(struct peers *p)
{
    to_ours(p, SIZE_MAX);
    assert_int_equal(tcp_tls_open(p->ours, got, sizeof got), -EPROTO);
    assert_int_equal(tcp_tls_open(p->ours, got, sizeof got), -EPROTO);
    peers_end(p);
}

static void test_an_end_is_no_message(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct peers p;
        peers_open(&p, i);
        assert_int_equal(SSL_shutdown(p.stock), 0);
        expect_end(&p);
    }
}

static void test_nobody_asks_for_keys(void **state)
{
    (void)state;
    struct peers p;
    size_t gone;
    peers_open(&p, 0);
    assert_int_equal(SSL_key_update(p.stock, SSL_KEY_UPDATE_REQUESTED), 1);
    assert_int_equal(SSL_write_ex(p.stock, bytes, 10, &gone), 1);
    expect_end(&p);
}

static void test_nobody_has_tickets(void **state)
{
    (void)state;
    struct peers p;
    peers_make(&p, suites[0], false, 2);
    shake(&p);
    expect_end(&p);
}

static void test_a_byte_that_was_changed(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct peers p;
        size_t gone, room;
        peers_open(&p, i);
        assert_int_equal(SSL_write_ex(p.stock, bytes, 1000, &gone), 1);
        unsigned char *to = tcp_tls_space(p.ours, &room);
        int n = BIO_read(p.from, to, (int)room);
        to[700] ^= 1;
        tcp_tls_filled(p.ours, (size_t)n);
        expect_end(&p);
    }
}

static void test_another_key(void **state)
{
    (void)state;
    for (int accepts = 0; accepts < 2; accepts++) {
        struct peers p;
        peers_make(&p, suites[0], accepts, 0);
        key[0]++; /* what the stock one has from here on */
        int rc = -EAGAIN;
        for (int i = 0; i < 6 && rc == -EAGAIN; i++) {
            rc = tcp_tls_shake(p.ours);
            to_stock(&p);
            SSL_do_handshake(p.stock);
            to_ours(&p, SIZE_MAX);
        }
        assert_int_equal(rc, -EPROTO);
        key[0]--;
        peers_end(&p);
    }
}

int main(void)
{
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 24);
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_reads_the_other),
        cmocka_unit_test(test_keys_change_both_ways),
        cmocka_unit_test(test_records_with_padding),
        cmocka_unit_test(test_what_comes_with_the_handshake),
        cmocka_unit_test(test_the_word_is_the_connection_s),
        cmocka_unit_test(test_an_end_is_no_message),
        cmocka_unit_test(test_nobody_asks_for_keys),
        cmocka_unit_test(test_nobody_has_tickets),
        cmocka_unit_test(test_a_byte_that_was_changed),
        cmocka_unit_test(test_another_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
