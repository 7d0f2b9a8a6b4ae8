/* The shared ring: what it holds in order, and what it says to a lying peer. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/ring.h"
#include "wire/wire.h"

#define CAPACITY 4096u

struct ring {
    struct gp_ring_shared shared;
    struct gp_ring_writer w;
    struct gp_ring_reader r;
    _Alignas(64) unsigned char bytes[CAPACITY];
};

static int ring_setup(void **state)
{
    struct ring *ring = aligned_alloc(GP_RING_LINE, sizeof *ring);
    if (!ring)
        return -1;
    memset(ring, 0, sizeof *ring);
    gp_ring_writer_init(&ring->w, &ring->shared, ring->bytes, CAPACITY);
    gp_ring_reader_init(&ring->r, &ring->shared, ring->bytes, CAPACITY);
    *state = ring;
    return 0;
}

static int ring_teardown(void **state)
{
    free(*state);
    return 0;
}

static int put(struct ring *ring, size_t size, int value)
{
    void *at;
    int rc = gp_ring_reserve(&ring->w, size, &at);
    if (rc)
        return rc;
    memset(at, value, size);
    gp_ring_publish(&ring->w);
    return 0;
}

static void take(struct ring *ring, size_t size, int value)
{
    const void *message;
    size_t got;
    assert_int_equal(gp_ring_peek(&ring->r, &message, &got), 0);
    assert_int_equal(got, size);
    for (size_t i = 0; i < size; i++)
        assert_int_equal(((const unsigned char *)message)[i], value & 0xff);
    gp_ring_consume(&ring->r);
}

static int peek(struct ring *ring)
{
    const void *message;
    size_t size;
    return gp_ring_peek(&ring->r, &message, &size);
}

static void test_wraps_in_order(void **state)
{
    struct ring *ring = *state;
    assert_int_equal(peek(ring), -EAGAIN);
    for (int n = 0; n < 2000; n++) {
        size_t size = 16 + (size_t)n * 37 % 1200;
        assert_int_equal(put(ring, size, n), 0);
        assert_int_equal(put(ring, 17, n + 1), 0);
        take(ring, size, n);
        take(ring, 17, n + 1);
    }
    assert_int_equal(peek(ring), -EAGAIN);
}

static void test_full_and_free_again(void **state)
{
    struct ring *ring = *state;
    int count = 0;
    while (put(ring, 56, count) == 0)
        count++;
    assert_int_equal(count, CAPACITY / 64); /* every byte of it */
    assert_int_equal(put(ring, 16, 0), -EAGAIN);
    take(ring, 56, 0);
    assert_int_equal(put(ring, 56, count), 0);
    assert_int_equal(put(ring, 16, 0), -EAGAIN);
    for (int n = 1; n <= count; n++)
        take(ring, 56, n);
    assert_int_equal(peek(ring), -EAGAIN);
}

/* Whether the reader looks for a writer that sleeps, once the next message is read. */
static bool looks(struct ring *ring)
{
    assert_int_equal(peek(ring), 0);
    return gp_ring_consume(&ring->r);
}

/* Not at each message; but a writer that sleeps is found, whatever the reader knew of. */
static void test_looks_for_a_writer_that_sleeps(void **state)
{
    struct ring *ring = *state;
    const int most = CAPACITY / 64, known = 3;
    for (int n = 0; n < known; n++)
        assert_int_equal(put(ring, 56, n), 0);
    assert_false(looks(ring));
    while (put(ring, 56, 0) == 0) /* it sleeps */
        ;
    assert_false(looks(ring));
    assert_true(looks(ring)); /* it knew of no more, and has not seen how full it is */
    for (int left = most - known; left >= 0; left--) /* one was put when one had been read */
        assert_int_equal(looks(ring), left == most / 2 || left == 0);
    assert_int_equal(peek(ring), -EAGAIN);
}

static void test_lying_reader(void **state)
{
    struct ring *ring = *state;
    while (put(ring, 56, 1) == 0)
        ;
    ring->shared.head = ring->w.tail + 8; /* read what was never written */
    assert_int_equal(put(ring, 56, 1), -EPROTO);
    ring->shared.head = ring->w.head_seen - 64; /* unread what was read */
    assert_int_equal(put(ring, 56, 1), -EPROTO);
}

static void test_lying_tail(void **state)
{
    static const uint64_t tails[] = {CAPACITY + 8, 23, UINT64_MAX - 7, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        struct ring *ring = *state;
        ring->shared.tail = tails[i];
        assert_int_equal(peek(ring), -EPROTO);
    }
}

static void entry_set(struct ring *ring, size_t at, uint32_t size, uint32_t kind)
{
    struct gp_ring_entry entry = {.size = size, .kind = kind};
    memcpy(ring->bytes + at, &entry, sizeof entry);
}

static void test_bad_entries(void **state)
{
    struct ring *ring = *state;
    static const struct gp_ring_entry bad[] = {
        {0, GP_RING_MESSAGE},
        {15, GP_RING_MESSAGE},
        {64, GP_RING_MESSAGE},
        {UINT32_MAX, GP_RING_MESSAGE},
        {GP_MESSAGE_MAX + 1, GP_RING_MESSAGE},
        {16, 0},
        {0, GP_RING_WRAP},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ring->shared.tail = 64; /* 56 bytes of message at most */
        ring->r.head = ring->r.tail_seen = 0;
        entry_set(ring, 0, bad[i].size, bad[i].kind);
        assert_int_equal(peek(ring), -EPROTO);
    }
    /* A wrap with nothing behind it. */
    ring->r.head = ring->r.tail_seen = CAPACITY - 64;
    ring->shared.tail = CAPACITY;
    entry_set(ring, CAPACITY - 64, 0, GP_RING_WRAP);
    assert_int_equal(peek(ring), -EPROTO);
    /* A message across the end. */
    ring->r.head = ring->r.tail_seen = CAPACITY - 64;
    ring->shared.tail = CAPACITY + 64;
    entry_set(ring, CAPACITY - 64, 100, GP_RING_MESSAGE);
    assert_int_equal(peek(ring), -EPROTO);
}

int main(void)
{
#define RING_TEST(f) cmocka_unit_test_setup_teardown(f, ring_setup, ring_teardown)
    const struct CMUnitTest tests[] = {
        RING_TEST(test_wraps_in_order),
        RING_TEST(test_full_and_free_again),
        RING_TEST(test_looks_for_a_writer_that_sleeps),
        RING_TEST(test_lying_reader),
        RING_TEST(test_lying_tail),
        RING_TEST(test_bad_entries),
    };
    return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
