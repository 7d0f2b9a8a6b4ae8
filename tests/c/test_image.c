/* Images: what they are, how long they are, what is refused, what they are named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"
#include "sha256.h"

/* --- hand-made images, each in memory of exactly its size, so that a sanitizer
 * sees one byte too many --- */

static void put16(unsigned char *p, unsigned v)
{
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
}
static void put32(unsigned char *p, uint32_t v)
{
    put16(p, v & 0xFFFF);
    put16(p + 2, v >> 16);
}
static void put64(unsigned char *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static unsigned char *zeroes(size_t size)
{
    unsigned char *p = calloc(1, size);
    assert_non_null(p);
    return p;
}

#define TEXT "//\n.version 8.0\n"
#define FATBIN_SIZE (16u + 64 + 24 + 64 + 8)

/* PTX entry of 24 bytes as they are; an ELF entry of 8 bytes, Zstd. */
static unsigned char *fatbin_new(void)
{
    unsigned char *p = zeroes(FATBIN_SIZE), *e = p + 16;
    put32(p, GP_FATBIN_MAGIC);
    put16(p + 4, 1);
    put16(p + 6, 16);
    put64(p + 8, FATBIN_SIZE - 16);
    put16(e, GP_FATBIN_KIND_PTX);
    put16(e + 2, 0x101);
    put32(e + 4, 64);
    put64(e + 8, 24);
    put32(e + 28, 90);
    memcpy(e + 64, TEXT, sizeof TEXT);
    e += 64 + 24;
    put16(e, GP_FATBIN_KIND_ELF);
    put16(e + 2, 0x101);
    put32(e + 4, 64);
    put64(e + 8, 8);
    put32(e + 16, 6);
    put32(e + 28, 80);
    put64(e + 40, GP_FATBIN_FLAG_ZSTD);
    put64(e + 56, 4096);
    return p;
}

#define ELF_SIZE (64u + 56 + 3 * 64 + 32)

/* One segment, sections: null, 32 bytes of contents, one without bytes in the file. */
static unsigned char *elf_new(void)
{
    unsigned char *p = zeroes(ELF_SIZE), *s;
    memcpy(p,
           "\x7F"
           "ELF\x02\x01\x01",
           7);
    put16(p + 18, GP_ELF_MACHINE_CUDA);
    put64(p + 32, 64);
    put64(p + 40, 120);
    put16(p + 54, 56);
    put16(p + 56, 1);
    put16(p + 58, 64);
    put16(p + 60, 3);
    put64(p + 64 + 8, 64);
    put64(p + 64 + 32, 56);
    s = p + 120 + 64;
    put32(s + 4, 1);
    put64(s + 24, 120 + 192);
    put64(s + 32, 32);
    s += 64;
    put32(s + 4, 8);
    put64(s + 24, ELF_SIZE);
    put64(s + 32, UINT64_C(1) << 40);
    return p;
}

struct wrapper {
    uint32_t magic, version;
    const void *linked;
    const void *const *prelinked;
};

static void expect_one(const void *image, enum gp_image_kind kind, uint64_t size)
{
    struct gpc_image out;
    assert_int_equal(gpc_image_describe(image, &out), CUDA_SUCCESS);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.pieces[0].size, size);
    assert_int_equal(gp_image_sniff(out.pieces[0].data, size), kind);
    assert_int_equal(out.total, size);
    gpc_image_release(&out);
}

static void expect_invalid(const void *image)
{
    struct gpc_image out = {.count = 77};
    assert_int_equal(gpc_image_describe(image, &out), CUDA_ERROR_INVALID_IMAGE);
    assert_int_equal(out.count, 77);
}

/* --- what is accepted --- */

static void bare_images(void **state)
{
    (void)state;
    unsigned char *fatbin = fatbin_new(), *elf = elf_new(), *text = zeroes(sizeof TEXT);
    memcpy(text, TEXT, sizeof TEXT);
    expect_one(fatbin, GP_IMAGE_KIND_FATBIN, FATBIN_SIZE);
    expect_one(elf, GP_IMAGE_KIND_ELF, ELF_SIZE);
    expect_one(text, GP_IMAGE_KIND_PTX, sizeof TEXT);
    free(fatbin);
    free(elf);
    free(text);
    expect_one("P", GP_IMAGE_KIND_PTX, 2); /* the first byte of a fat binary */
    struct gpc_image out;
    assert_int_equal(gpc_image_describe(NULL, &out), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpc_image_describe("x", NULL), CUDA_ERROR_INVALID_VALUE);
    expect_invalid("");
    expect_invalid("\x01\x02");
}

static void wrapper_version_1(void **state)
{
    (void)state;
    unsigned char *fatbin = fatbin_new();
    /* the last member has no meaning in version 1 */
    struct wrapper w = {GP_FATBIN_WRAPPER_MAGIC, 1, fatbin, (const void *const *)(uintptr_t)8};
    struct gpc_image out;
    assert_int_equal(gpc_image_describe(&w, &out), CUDA_SUCCESS);
    assert_int_equal(out.count, 1);
    assert_ptr_equal(out.pieces[0].data, fatbin);
    assert_int_equal(out.pieces[0].size, FATBIN_SIZE);
    gpc_image_release(&out);
    w.version = 3;
    expect_invalid(&w);
    w.version = 1;
    w.linked = NULL;
    expect_invalid(&w);
    free(fatbin);
}

static void wrapper_version_2(void **state)
{
    (void)state;
    unsigned char *a = fatbin_new(), *b = fatbin_new(), *c = fatbin_new();
    const void *list[] = {b, c, NULL};
    struct wrapper w = {GP_FATBIN_WRAPPER_MAGIC, 2, a, list};
    struct gpc_image out;
    assert_int_equal(gpc_image_describe(&w, &out), CUDA_SUCCESS);
    assert_int_equal(out.count, 3);
    assert_ptr_equal(out.pieces[0].data, a);
    assert_ptr_equal(out.pieces[2].data, c);
    assert_int_equal(out.total, 3 * FATBIN_SIZE);
    gpc_image_release(&out);
    w.linked = NULL;
    assert_int_equal(gpc_image_describe(&w, &out), CUDA_SUCCESS);
    assert_int_equal(out.count, 3);
    assert_int_equal(out.pieces[0].size, GP_FATBIN_HEADER); /* it has no files */
    assert_ptr_equal(out.pieces[1].data, b);
    gpc_image_release(&out);
    /* one bad one spoils the lot, and nothing leaks */
    put16(c + 4, 9);
    expect_invalid(&w);
    w.prelinked = NULL;
    expect_invalid(&w);
    w.linked = a;
    assert_int_equal(gpc_image_describe(&w, &out), CUDA_SUCCESS);
    assert_int_equal(out.count, 1);
    gpc_image_release(&out);
    free(a);
    free(b);
    free(c);
}

/* --- what is refused --- */

static void fatbin_faults(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        unsigned width;
        uint64_t value;
        enum gp_image_fault fault;
    } rows[] = {
        {0, 4, 0, GP_IMAGE_NOT_ONE},
        {4, 2, 2, GP_IMAGE_BAD_HEADER},
        {6, 2, 15, GP_IMAGE_BAD_HEADER},
        {6, 2, 17, GP_IMAGE_TRUNCATED},
        {8, 8, FATBIN_SIZE - 15, GP_IMAGE_TRUNCATED},
        {8, 8, FATBIN_SIZE - 17, GP_IMAGE_BAD_SIZE}, /* bytes behind the end */
        {8, 8, UINT64_C(1) << 33, GP_IMAGE_TOO_LARGE},
        {8, 8, UINT64_MAX, GP_IMAGE_TOO_LARGE},
        {16 + 4, 4, 63, GP_IMAGE_BAD_HEADER},
        {16 + 4, 4, 0, GP_IMAGE_BAD_HEADER},
        {16 + 4, 4, UINT32_MAX, GP_IMAGE_TRUNCATED},
        {16 + 8, 8, 25, GP_IMAGE_TRUNCATED}, /* the next header is cut off */
        {16 + 8, 8, UINT64_MAX, GP_IMAGE_TRUNCATED},
        {16 + 8, 8, UINT64_MAX - 63, GP_IMAGE_TRUNCATED},
        {104 + 8, 8, 7, GP_IMAGE_TRUNCATED},
        {104 + 16, 4, 9, GP_IMAGE_BAD_SIZE}, /* compressed bytes over the payload's */
        {104 + 56, 8, (UINT64_C(1) << 32) + 1, GP_IMAGE_TOO_LARGE},
        {104 + 56, 8, UINT64_MAX, GP_IMAGE_TOO_LARGE},
        {104 + 40, 8, 0, GP_IMAGE_NOT_ONE}, /* then it must be a cubin as it is */
    };
    unsigned char *p = fatbin_new();
    assert_int_equal(gp_fatbin_check(p, FATBIN_SIZE), GP_IMAGE_SOUND);
    for (size_t size = 0; size < FATBIN_SIZE; size++)
        assert_int_not_equal(gp_fatbin_check(p, size), GP_IMAGE_SOUND);
    free(p);
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        p = fatbin_new();
        for (unsigned n = 0; n < rows[i].width; n++)
            p[rows[i].at + n] = (unsigned char)(rows[i].value >> (8 * n));
        assert_int_equal(gp_fatbin_check(p, FATBIN_SIZE), rows[i].fault);
        free(p);
    }
}

static void fatbins_behind_each_other(void **state)
{
    (void)state;
    enum { SIZE = 2 * FATBIN_SIZE };
    unsigned char *one = fatbin_new(), *two = zeroes(SIZE);
    uint32_t count = 0;
    memcpy(two, one, FATBIN_SIZE);
    memcpy(two + FATBIN_SIZE, one, FATBIN_SIZE);
    assert_int_equal(gp_fatbins_check(one, FATBIN_SIZE, &count), GP_IMAGE_SOUND);
    assert_int_equal(count, 1);
    assert_int_equal(gp_fatbins_check(two, SIZE, &count), GP_IMAGE_SOUND);
    assert_int_equal(count, 2);
    for (size_t size = 0; size < SIZE; size++)
        if (size != FATBIN_SIZE)
            assert_int_not_equal(gp_fatbins_check(two, size, &count), GP_IMAGE_SOUND);
    put32(two + FATBIN_SIZE, 0);
    assert_int_equal(gp_fatbins_check(two, SIZE, &count), GP_IMAGE_NOT_ONE);
    /* the second would begin at an address that no compiler gives it */
    put64(one + 8, FATBIN_SIZE - 16 - 4);
    put64(one + 16 + 64 + 24 + 8, 4);
    put32(one + 16 + 64 + 24 + 16, 4);
    memcpy(two, one, FATBIN_SIZE);
    memmove(two + FATBIN_SIZE - 4, one, FATBIN_SIZE - 4);
    assert_int_equal(gp_fatbins_check(two, 2 * (FATBIN_SIZE - 4), &count), GP_IMAGE_BAD_SIZE);
    assert_int_equal(count, 2);
    free(one);
    free(two);
}

static void fatbin_entries(void **state)
{
    (void)state;
    unsigned char *p = fatbin_new();
    struct gp_fatbin_entry e;
    size_t offset = 0;
    bool more = false;
    assert_int_equal(gp_fatbin_next(p, FATBIN_SIZE, &offset, &e, &more), GP_IMAGE_SOUND);
    assert_true(more);
    assert_int_equal(e.kind, GP_FATBIN_KIND_PTX);
    assert_int_equal(e.sm, 90);
    assert_string_equal((const char *)e.payload, TEXT);
    assert_int_equal(e.uncompressed_size, 0);
    assert_int_equal(gp_fatbin_next(p, FATBIN_SIZE, &offset, &e, &more), GP_IMAGE_SOUND);
    assert_true(more);
    assert_int_equal(e.kind, GP_FATBIN_KIND_ELF);
    assert_int_equal(e.compressed_size, 6);
    assert_int_equal(e.uncompressed_size, 4096);
    assert_int_equal(gp_fatbin_next(p, FATBIN_SIZE, &offset, &e, &more), GP_IMAGE_SOUND);
    assert_false(more);
    free(p);
}

static void elf_faults(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        unsigned width;
        uint64_t value;
        enum gp_image_fault fault;
    } rows[] = {
        {4, 1, 1, GP_IMAGE_BAD_HEADER},              /* 32 bits */
        {5, 1, 2, GP_IMAGE_BAD_HEADER},              /* big endian */
        {18, 2, 62, GP_IMAGE_BAD_HEADER},            /* of this machine */
        {32, 8, ELF_SIZE - 8, GP_IMAGE_TRUNCATED},   /* segments */
        {40, 8, UINT64_MAX - 8, GP_IMAGE_TOO_LARGE}, /* sections */
        {58, 2, 40, GP_IMAGE_BAD_HEADER},
        {54, 2, 0, GP_IMAGE_BAD_HEADER},
        {60, 2, 4000, GP_IMAGE_TRUNCATED},
        {60, 2, 0, GP_IMAGE_SOUND},                              /* section 0 says none */
        {56, 2, 0xFFFF, GP_IMAGE_SOUND},                         /* likewise for segments */
        {64 + 32, 8, UINT64_MAX, GP_IMAGE_TOO_LARGE},            /* segment's bytes */
        {120 + 64 + 24, 8, UINT64_MAX - 31, GP_IMAGE_TOO_LARGE}, /* section's offset */
        {120 + 64 + 32, 8, 33, GP_IMAGE_TRUNCATED},
    };
    unsigned char *p = elf_new();
    assert_int_equal(gp_elf_check(p, ELF_SIZE), GP_IMAGE_SOUND);
    for (size_t size = 0; size < ELF_SIZE; size++)
        assert_int_not_equal(gp_elf_check(p, size), GP_IMAGE_SOUND);
    free(p);
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        p = elf_new();
        for (unsigned n = 0; n < rows[i].width; n++)
            p[rows[i].at + n] = (unsigned char)(rows[i].value >> (8 * n));
        assert_int_equal(gp_elf_check(p, ELF_SIZE), rows[i].fault);
        free(p);
    }
}

/* Counts that the header cannot hold stand in section 0. */
static void elf_extended_counts(void **state)
{
    (void)state;
    unsigned char *p = elf_new();
    uint64_t size = 0;
    put16(p + 60, 0);
    put64(p + 120 + 32, 3);
    assert_int_equal(gp_elf_size(p, ELF_SIZE, &size), GP_IMAGE_SOUND);
    assert_int_equal(size, ELF_SIZE);
    put64(p + 120 + 32, UINT64_MAX / 32);
    assert_int_equal(gp_elf_check(p, ELF_SIZE), GP_IMAGE_TOO_LARGE);
    put64(p + 120 + 32, 1000);
    assert_int_equal(gp_elf_check(p, ELF_SIZE), GP_IMAGE_TRUNCATED);
    free(p);
}

static void any_kind_checked(void **state)
{
    (void)state;
    enum gp_image_kind kind;
    unsigned char *fatbin = fatbin_new(), *elf = elf_new();
    assert_int_equal(gp_image_check(fatbin, FATBIN_SIZE, &kind), GP_IMAGE_SOUND);
    assert_int_equal(kind, GP_IMAGE_KIND_FATBIN);
    assert_int_equal(gp_image_check(elf, ELF_SIZE, NULL), GP_IMAGE_SOUND);
    assert_int_equal(gp_image_check(TEXT, sizeof TEXT, &kind), GP_IMAGE_SOUND);
    assert_int_equal(kind, GP_IMAGE_KIND_PTX);
    assert_int_equal(gp_ptx_check(TEXT, sizeof TEXT - 1), GP_IMAGE_NOT_TERMINATED);
    assert_int_equal(gp_ptx_check("ab\0cd", 6), GP_IMAGE_NOT_TERMINATED);
    assert_int_equal(gp_image_check("", 0, &kind), GP_IMAGE_NOT_ONE);
    assert_int_equal(kind, GP_IMAGE_KIND_UNKNOWN);
    for (int i = -1; i <= GP_IMAGE_FAULTS; i++)
        assert_non_null(gp_image_fault_text((enum gp_image_fault)i));
    free(fatbin);
    free(elf);
}

/* --- names --- */

static void hash_expect(const char *text, size_t repeat, const char *hex)
{
    struct gp_sha256 h;
    unsigned char out[32], plain[32];
    char got[65];
    gp_sha256_start(&h);
    for (size_t i = 0; i < repeat; i++)
        gp_sha256_add(&h, text, strlen(text));
    gp_sha256_finish(&h, out);
    for (unsigned i = 0; i < 32; i++)
        snprintf(got + 2 * i, 3, "%02x", out[i]);
    assert_string_equal(got, hex);
    gp_sha256(text, strlen(text), plain);
    if (repeat == 1)
        assert_memory_equal(plain, out, 32);
}

/* The examples of FIPS 180 and NIST's further ones. */
static void sha256_vectors(void **state)
{
    (void)state;
    hash_expect("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hash_expect("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash_expect("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    hash_expect("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
                1, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    hash_expect("aaaaaaaaaa", 100000,
                "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* The processor's instructions and the plain rounds, over every length of tail. */
static void sha256_ways_agree(void **state)
{
    (void)state;
    unsigned char data[256], whole[32], parts[32];
    for (unsigned i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 167 + 13);
    for (size_t size = 0; size <= sizeof data; size++) {
        struct gp_sha256 h;
        gp_sha256(data, size, whole);
        gp_sha256_start(&h);
        for (size_t at = 0; at < size; at += 7)
            gp_sha256_add(&h, data + at, size - at < 7 ? size - at : 7);
        gp_sha256_finish(&h, parts);
        assert_memory_equal(whole, parts, 32);
    }
    uint32_t a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    gp_sha256_blocks(a, data, 4);
    gp_sha256_blocks_plain(b, data, 4);
    assert_memory_equal(a, b, sizeof a);
}

static void image_name(void **state)
{
    (void)state;
    unsigned char *a = fatbin_new(), *b = fatbin_new(), one[32], joined[2 * FATBIN_SIZE], two[32];
    unsigned char expected[32];
    const void *list[] = {b, NULL};
    struct wrapper w = {GP_FATBIN_WRAPPER_MAGIC, 2, a, list};
    struct gpc_image out;
    b[16 + 64] = 'x';
    memcpy(joined, a, FATBIN_SIZE);
    memcpy(joined + FATBIN_SIZE, b, FATBIN_SIZE);
    assert_int_equal(gpc_image_describe(a, &out), CUDA_SUCCESS);
    gpc_image_name(NULL, &out, one);
    gp_image_name_of(a, FATBIN_SIZE, expected);
    assert_memory_equal(one, expected, 32);
    gpc_image_release(&out);
    assert_int_equal(gpc_image_describe(&w, &out), CUDA_SUCCESS);
    gpc_image_name(NULL, &out, two);
    gp_image_name_of(joined, sizeof joined, expected);
    assert_memory_equal(two, expected, 32);
    gpc_image_release(&out);
    free(a);
    free(b);
}

/* With the movers, in parts that are no multiples of anything. */
static void long_image_name(void **state)
{
    (void)state;
    enum { TOTAL = 5 * GP_IMAGE_EAGER + 77 };
    unsigned char *bytes = malloc(TOTAL), expected[32], got[32];
    assert_non_null(bytes);
    for (size_t i = 0; i < TOTAL; i++)
        bytes[i] = (unsigned char)(i * 167 + (i >> 11));
    gp_image_name_of(bytes, TOTAL, expected);
    for (size_t cut = 0; cut <= TOTAL; cut += TOTAL / 7) {
        const struct gp_image_part parts[] = {{bytes, cut}, {bytes + cut, TOTAL - cut}};
        const struct gpc_image image = {.count = 2, .pieces = parts, .total = TOTAL};
        gpc_image_name(NULL, &image, got);
        assert_memory_equal(got, expected, 32);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bare_images),
        cmocka_unit_test(wrapper_version_1),
        cmocka_unit_test(wrapper_version_2),
        cmocka_unit_test(fatbin_faults),
        cmocka_unit_test(fatbins_behind_each_other),
        cmocka_unit_test(fatbin_entries),
        cmocka_unit_test(elf_faults),
        cmocka_unit_test(elf_extended_counts),
        cmocka_unit_test(any_kind_checked),
        cmocka_unit_test(sha256_vectors),
        cmocka_unit_test(sha256_ways_agree),
        cmocka_unit_test(image_name),
        cmocka_unit_test(long_image_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
