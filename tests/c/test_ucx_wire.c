/* What the peer of a ucx channel may say, and what not: without UCX. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/ucx_wire.h"

static const struct ucx_proof proof = {.key = "a key of 32 bytes", .confirmed = "a connection"};

static size_t hello_make(unsigned char *to, enum ucx_side side)
{
    return ucx_hello_write(to, side, &proof, 7, "where UCX is", 12);
}

static void test_a_hello(void **state)
{
    (void)state;
    unsigned char bytes[UCX_HELLO_MAX];
    struct ucx_hello hello;
    size_t size = hello_make(bytes, UCX_CLIENT);
    for (size_t some = 0; some < size; some++)
        assert_int_equal(ucx_hello_read(bytes, some, UCX_CLIENT, &proof, &hello), -EAGAIN);
    assert_int_equal(ucx_hello_read(bytes, size, UCX_CLIENT, &proof, &hello), 0);
    assert_int_equal(hello.tag, 7);
    assert_int_equal(hello.address_size, 12);
    assert_memory_equal(bytes + sizeof hello, "where UCX is", 12);
}

/* Nobody can change it, send back the other side's, or use that of another connection. */
static void test_a_hello_is_proved(void **state)
{
    (void)state;
    unsigned char bytes[UCX_HELLO_MAX];
    struct ucx_hello hello;
    struct ucx_proof other = proof;
    size_t size = hello_make(bytes, UCX_WORKER);
    assert_int_equal(ucx_hello_read(bytes, size, UCX_CLIENT, &proof, &hello), -EPROTO);
    other.confirmed[31] ^= 1;
    assert_int_equal(ucx_hello_read(bytes, size, UCX_WORKER, &other, &hello), -EPROTO);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 0x40;
        assert_true(ucx_hello_read(bytes, size, UCX_WORKER, &proof, &hello) < 0);
        bytes[i] ^= 0x40;
    }
    assert_int_equal(ucx_hello_read(bytes, size, UCX_WORKER, &proof, &hello), 0);
}

static void test_a_hello_has_limits(void **state)
{
    (void)state;
    struct ucx_hello hello = {.magic = UCX_MAGIC}, out;
    static const uint32_t sizes[] = {0, UCX_ADDRESS_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        hello.address_size = sizes[i];
        assert_int_equal(
            ucx_hello_read((const void *)&hello, sizeof hello, UCX_CLIENT, &proof, &out), -EPROTO);
    }
}

static int admit(struct ucx_window *w, uint64_t tag, uint64_t number, size_t size)
{
    const struct ucx_batch_header h = {.tag = tag, .number = number};
    return ucx_window_admit(w, &h, sizeof h, size);
}

static void test_strangers_change_nothing(void **state)
{
    (void)state;
    struct ucx_window w = {.tag = 5};
    const struct ucx_batch_header h = {.tag = 5};
    assert_int_equal(admit(&w, 6, 0, 64), -ESRCH);
    assert_int_equal(ucx_window_admit(&w, &h, sizeof h - 1, 64), -ESRCH);
    assert_int_equal(ucx_window_admit(&w, NULL, 0, 64), -ESRCH);
    assert_int_equal(w.bytes, 0);
    assert_int_equal(admit(&w, 5, 0, 64), 0);
}

static void test_a_window_is_held(void **state)
{
    (void)state;
    struct ucx_window w = {.tag = 5};
    assert_int_equal(admit(&w, 5, 0, 0), -EPROTO);
    assert_int_equal(admit(&w, 5, 0, 63), -EPROTO);
    assert_int_equal(admit(&w, 5, 0, GP_BATCH_MAX + 8), -EPROTO);
    assert_int_equal(admit(&w, 5, 0, SIZE_MAX - 7), -EPROTO);
    assert_int_equal(admit(&w, 5, UCX_WINDOW_BATCHES, 64), -EPROTO);
    assert_int_equal(admit(&w, 5, UINT64_MAX, 64), -EPROTO);
    /* In any order, each once. */
    assert_int_equal(admit(&w, 5, 3, 64), 3);
    assert_int_equal(admit(&w, 5, 3, 64), -EPROTO);
    assert_int_equal(admit(&w, 5, 0, 128), 0);
    ucx_window_consume(&w, 128);
    assert_int_equal(admit(&w, 5, 0, 64), -EPROTO);
    assert_int_equal(admit(&w, 5, UCX_WINDOW_BATCHES, 64), 0);
    assert_int_equal(w.bytes, 128);
}

static void test_a_window_has_bytes(void **state)
{
    (void)state;
    struct ucx_window w = {.tag = 5};
    struct ucx_debt d = {.tag = 5};
    uint64_t n = 0;
    while (ucx_debt_allows(&d, GP_BATCH_MAX)) {
        assert_true(admit(&w, 5, n, GP_BATCH_MAX) >= 0);
        d.bytes += GP_BATCH_MAX;
        d.batches = ++n;
    }
    assert_true(w.bytes <= UCX_WINDOW_BYTES);
    assert_int_equal(admit(&w, 5, n, GP_BATCH_MAX), -EPROTO);
}

static int credit(struct ucx_debt *d, uint64_t tag, uint64_t bytes, uint64_t batches)
{
    const struct ucx_credit c = {.tag = tag, .bytes = bytes, .batches = batches};
    return ucx_debt_credit(d, &c, sizeof c);
}

static void test_credit_only_rises(void **state)
{
    (void)state;
    struct ucx_debt d = {.tag = 9, .bytes = 1000, .batches = 4};
    assert_int_equal(credit(&d, 8, 500, 2), -ESRCH);
    assert_int_equal(ucx_debt_credit(&d, NULL, 0), -ESRCH);
    assert_int_equal(credit(&d, 9, 500, 2), 0);
    assert_int_equal(credit(&d, 9, 499, 2), -EPROTO);
    assert_int_equal(credit(&d, 9, 500, 1), -EPROTO);
    assert_int_equal(credit(&d, 9, 1001, 4), -EPROTO);
    assert_int_equal(credit(&d, 9, 1000, 5), -EPROTO);
    assert_int_equal(credit(&d, 9, 1000, 4), 0);
    assert_int_equal(d.credited_bytes, 1000);
}

static void test_notes(void **state)
{
    (void)state;
    struct ucx_note note = {.kind = UCX_NOTE_SENT};
    assert_true(ucx_note_ok(&note));
    note.zero = 1;
    assert_false(ucx_note_ok(&note));
    note = (struct ucx_note){.kind = 1};
    assert_false(ucx_note_ok(&note));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_hello),
        cmocka_unit_test(test_a_hello_is_proved),
        cmocka_unit_test(test_a_hello_has_limits),
        cmocka_unit_test(test_strangers_change_nothing),
        cmocka_unit_test(test_a_window_is_held),
        cmocka_unit_test(test_a_window_has_bytes),
        cmocka_unit_test(test_credit_only_rises),
        cmocka_unit_test(test_notes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
