/* The messages of joined workers, and their proofs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "peer_wire.h"

static uint64_t room[(GPW_PEER_FIXED_MAX + GP_CHUNK_MAX) / 8];

static size_t made(const struct gpw_peer_message *m)
{
    size_t fixed = gpw_peer_encode(m, room);
    if (m->kind == GPW_PEER_DATA)
        memset((char *)room + fixed, 0x5a, gp_align8(m->bytes));
    return ((struct gp_header *)room)->size;
}

static void test_what_is_encoded_is_decoded(void **state)
{
    (void)state;
    static const uint8_t nonce[GPW_PEER_NONCE] = {1, 2, 3}, proof[GPW_PEER_PROOF] = {4, 5, 6};
    const struct gpw_peer_message all[] = {
        {.kind = GPW_PEER_HELLO, .version = 7, .oldest = 3, .nonce = nonce},
        {.kind = GPW_PEER_CHALLENGE, .version = 5, .nonce = nonce, .proof = proof},
        {.kind = GPW_PEER_PROVE, .proof = proof},
        {.kind = GPW_PEER_WELCOME},
        {.kind = GPW_PEER_OFFER, .tag = UINT64_MAX, .bytes = 0},
        {.kind = GPW_PEER_READY, .tag = 1, .bytes = UINT64_MAX},
        {.kind = GPW_PEER_ABORT, .tag = 2, .result = 1},
        {.kind = GPW_PEER_REFUSE, .tag = 3, .result = 999},
        {.kind = GPW_PEER_DATA, .tag = 4, .offset = 1u << 31, .bytes = 1},
        {.kind = GPW_PEER_DATA, .tag = 5, .offset = 0, .bytes = GP_CHUNK_MAX},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct gpw_peer_message got;
        assert_int_equal(gpw_peer_decode(room, made(&all[i]), &got), 0);
        assert_int_equal(got.kind, all[i].kind);
        assert_int_equal(got.tag, all[i].tag);
        assert_int_equal(got.bytes, all[i].bytes);
        assert_int_equal(got.offset, all[i].offset);
        assert_int_equal(got.result, all[i].result);
        assert_int_equal(got.version, all[i].version);
        assert_int_equal(got.oldest, all[i].oldest);
        if (all[i].nonce)
            assert_memory_equal(got.nonce, nonce, sizeof nonce);
        if (all[i].proof)
            assert_memory_equal(got.proof, proof, sizeof proof);
        assert_int_equal(got.data != NULL, got.kind == GPW_PEER_DATA);
    }
}

static void refused(size_t size)
{
    struct gpw_peer_message got;
    ((struct gp_header *)room)->size = (uint32_t)size;
    assert_int_equal(gpw_peer_decode(room, size, &got), -EPROTO);
}

static void test_wrong_lengths(void **state)
{
    (void)state;
    static const uint8_t bytes[GPW_PEER_PROOF];
    for (int kind = GPW_PEER_HELLO; kind <= GPW_PEER_DATA; kind++) {
        struct gpw_peer_message m = {.kind = (enum gpw_peer_kind)kind,
                                     .bytes = 8,
                                     .result = 1,
                                     .nonce = bytes,
                                     .proof = bytes},
                                got;
        size_t right = made(&m);
        assert_int_equal(gpw_peer_decode(room, right, &got), 0);
        for (size_t size = 0; size < 128; size += 8)
            if (size != right)
                refused(size);
        made(&m);
        ((struct gp_header *)room)->op = 0; /* no kind */
        refused(right);
        ((struct gp_header *)room)->op = GPW_PEER_DATA + 1;
        refused(right);
    }
}

static void test_wrong_values(void **state)
{
    (void)state;
    struct gpw_peer_message data = {.kind = GPW_PEER_DATA, .offset = 8, .bytes = 16}, got;
    size_t size = made(&data);
    refused(size + 8);
    refused(size - 8);
    made(&data);
    ((uint64_t *)room)[2] = UINT64_MAX - 15; /* offset and length overflow */
    refused(size);
    made(&data);
    ((uint32_t *)room)[6] = 0; /* nothing */
    refused(size - 16);
    ((uint32_t *)room)[6] = UINT32_MAX; /* more than a piece */
    refused(size);
    made(&data);
    ((uint32_t *)room)[7] = 1;
    refused(size);
    made(&data);
    ((struct gp_header *)room)->flags = 1;
    refused(size);
    struct gpw_peer_message failure = {.kind = GPW_PEER_ABORT, .tag = 1, .result = 0};
    refused(made(&failure)); /* no failure */
    failure.result = -1;
    refused(made(&failure));
    static const uint8_t bytes[GPW_PEER_PROOF];
    struct gpw_peer_message hello = {
        .kind = GPW_PEER_HELLO, .version = 1, .oldest = 2, .nonce = bytes};
    refused(made(&hello)); /* no range */
    struct gpw_peer_message welcome = {.kind = GPW_PEER_WELCOME};
    size = made(&welcome);
    ((struct gp_header *)room)->size = 24; /* another length than it has */
    assert_int_equal(gpw_peer_decode(room, size, &got), -EPROTO);
}

/* RFC 4231 has no key of 16 bytes; this one is from Python's hmac. */
static void test_proof(void **state)
{
    (void)state;
    uint8_t secret[GPW_PEER_SECRET], one[GPW_PEER_NONCE], two[GPW_PEER_NONCE];
    uint8_t listening[GPW_PEER_PROOF], other[GPW_PEER_PROOF];
    for (unsigned i = 0; i < 16; i++) {
        secret[i] = (uint8_t)i;
        one[i] = (uint8_t)(0x10 + i);
        two[i] = (uint8_t)(0x20 + i);
    }
    static const uint8_t expected[GPW_PEER_PROOF] = {
        0x0d, 0xd9, 0x67, 0xe8, 0xf5, 0x24, 0x44, 0xd6, 0x28, 0x0c, 0x87,
        0x3f, 0xe2, 0xc4, 0x95, 0xce, 0x19, 0x0f, 0x05, 0xda, 0xa0, 0x61,
        0x6e, 0x15, 0x78, 0xb7, 0x54, 0xd9, 0x13, 0x86, 0xca, 0xaa};
    gpw_peer_proof(secret, true, one, two, listening);
    assert_memory_equal(listening, expected, sizeof expected);
    assert_true(gpw_peer_proof_same(listening, expected));
    gpw_peer_proof(secret, false, one, two, other); /* the other side's */
    assert_false(gpw_peer_proof_same(listening, other));
    gpw_peer_proof(secret, true, two, one, other);
    assert_false(gpw_peer_proof_same(listening, other));
    secret[15] ^= 1;
    gpw_peer_proof(secret, true, one, two, other);
    assert_false(gpw_peer_proof_same(listening, other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_encoded_is_decoded),
        cmocka_unit_test(test_wrong_lengths),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_proof),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
