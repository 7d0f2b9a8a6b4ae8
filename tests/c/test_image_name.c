/* Names of images: as the page says, whoever makes them and however. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image_name.h"
#include "sha256.h"

#define LEAF ((uint64_t)GP_IMAGE_LEAF)
#define MOST (5 * LEAF + 3)

static unsigned char bytes[MOST];

static const uint64_t sizes[] = {0,        1,        64,           LEAF - 1,     LEAF,
                                 LEAF + 1, 2 * LEAF, 2 * LEAF + 1, 3 * LEAF - 7, MOST};
#define SIZES (sizeof sizes / sizeof sizes[0])

static int fill(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 7 + (i >> 12));
    return 0;
}

/* By the definition, in one go. */
static void define(uint64_t size, unsigned char name[32])
{
    unsigned char list[24 + 6 * 32] = "gpupool image 1";
    size_t at = 24;
    for (unsigned i = 0; i < 8; i++)
        list[16 + i] = (unsigned char)(size >> (8 * i));
    for (uint64_t from = 0; from < size; from += LEAF, at += 32)
        gp_sha256(bytes + from, (size_t)(size - from < LEAF ? size - from : LEAF), list + at);
    gp_sha256(list, at, name);
}

static void a_name_is_by_definition(void **state)
{
    (void)state;
    unsigned char expected[32], got[32];
    for (unsigned i = 0; i < SIZES; i++) {
        define(sizes[i], expected);
        gp_image_name_of(bytes, sizes[i], got);
        assert_memory_equal(got, expected, 32);
    }
}

/* As tests/python/test_image_name.py has them. */
static void python_has_the_same(void **state)
{
    (void)state;
    static const struct {
        uint64_t size;
        const char *name;
    } known[] = {
        {0, "0fdd374bc253032a50be925c5ef3c069b6ef01649e50613812bc9aad65670439"},
        {3, "6c2931bc9cb6ae63b710e56430633b39a61cab89a5d379cc344e14fc168d11af"},
        {MOST, "c2c80a5211af2e78aab25cb455287eb50d88634b343d4fa84e75a75c4f9bacb4"},
    };
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++) {
        unsigned char name[32];
        char hex[65];
        gp_image_name_of(bytes, known[i].size, name);
        for (unsigned n = 0; n < sizeof name; n++)
            snprintf(hex + 2 * n, 3, "%02x", name[n]);
        assert_string_equal(hex, known[i].name);
    }
}

/* Wherever it is cut, and with parts of nothing between. */
static void parts_are_one_image(void **state)
{
    (void)state;
    unsigned char expected[32], got[32];
    for (unsigned i = 0; i < SIZES; i++)
        for (unsigned k = 0; k < SIZES; k++) {
            uint64_t cut = sizes[k] < sizes[i] ? sizes[k] : sizes[i];
            const struct gp_image_part parts[] = {
                {NULL, 0}, {bytes, cut}, {bytes, 0}, {bytes + cut, sizes[i] - cut}, {NULL, 0}};
            define(sizes[i], expected);
            gp_image_name(parts, 5, sizes[i], got);
            assert_memory_equal(got, expected, 32);
        }
}

/* Not by a byte, nor by where a leaf begins, nor by what looks like a list of leaves. */
static void others_have_other_names(void **state)
{
    (void)state;
    unsigned char name[32], other[32], list[24 + 6 * 32] = "gpupool image 1";
    gp_image_name_of(bytes, MOST, name);
    for (uint64_t at = 0; at < MOST; at += LEAF - 1) {
        bytes[at] ^= 1;
        gp_image_name_of(bytes, MOST, other);
        bytes[at] ^= 1;
        assert_memory_not_equal(name, other, 32);
    }
    gp_image_name_of(bytes, MOST - 1, other);
    assert_memory_not_equal(name, other, 32);
    gp_image_name_of(list, sizeof list, name);
    gp_sha256(list, sizeof list, other);
    assert_memory_not_equal(name, other, 32);
}

/* Its bytes are what the other one's name is made of, and so its name of before would be that. */
static void none_goes_by_the_name_of_another(void **state)
{
    (void)state;
    unsigned char name[32], other[32], root[24 + 32] = "gpupool image 1";
    const struct gp_image_part whole = {bytes, 3}, made = {root, sizeof root};
    root[16] = 3;
    gp_sha256(bytes, 3, root + 24);
    gp_image_name_of(bytes, 3, name);
    gp_image_name_before(&made, 1, other);
    assert_memory_equal(name, other, 32);
    assert_false(gp_image_is_named(root, sizeof root, name));
    assert_true(gp_image_is_named(bytes, 3, name));
    gp_image_name_before(&whole, 1, name);
    assert_true(gp_image_is_named(bytes, 3, name));
    gp_image_name_of(root, sizeof root, name);
    assert_true(gp_image_is_named(root, sizeof root, name));
    name[0] ^= 1;
    assert_false(gp_image_is_named(root, sizeof root, name));
    assert_false(gp_image_is_named(bytes, 3, name));
}

static void *help(void *naming)
{
    gp_image_naming_work(naming);
    return NULL;
}

static void threads_make_the_same(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SIZES; i++) {
        const struct gp_image_part part = {bytes, sizes[i]};
        struct gp_image_naming naming;
        unsigned char expected[32], got[32];
        pthread_t threads[3];
        assert_true(gp_image_naming_begin(&naming, &part, 1, sizes[i]));
        for (unsigned n = 0; n < 3; n++)
            assert_int_equal(pthread_create(&threads[n], NULL, help, &naming), 0);
        gp_image_naming_work(&naming);
        for (unsigned n = 0; n < 3; n++)
            assert_int_equal(pthread_join(threads[n], NULL), 0);
        gp_image_naming_end(&naming, got);
        define(sizes[i], expected);
        assert_memory_equal(got, expected, 32);
    }
}

/* Two messages at once, by the processor's instructions where it has them, and by plain rounds. */
static void two_at_once_are_as_one(void **state)
{
    (void)state;
    for (size_t blocks = 0; blocks < 9; blocks++) {
        struct gp_sha256 one, other;
        unsigned char expected[2][32], got[2][32];
        uint32_t plain[8];
        gp_sha256(bytes, blocks * 64, expected[0]);
        gp_sha256(bytes + 777, blocks * 64, expected[1]);
        gp_sha256_start(&one);
        gp_sha256_start(&other);
        memcpy(plain, one.state, sizeof plain);
        gp_sha256_add_two(&one, bytes, &other, bytes + 777, blocks);
        gp_sha256_blocks_plain(plain, bytes + 777, blocks);
        assert_memory_equal(plain, other.state, sizeof plain);
        gp_sha256_finish(&one, got[0]);
        gp_sha256_finish(&other, got[1]);
        assert_memory_equal(got, expected, sizeof got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_by_definition),
        cmocka_unit_test(python_has_the_same),
        cmocka_unit_test(parts_are_one_image),
        cmocka_unit_test(others_have_other_names),
        cmocka_unit_test(none_goes_by_the_name_of_another),
        cmocka_unit_test(threads_make_the_same),
        cmocka_unit_test(two_at_once_are_as_one),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
