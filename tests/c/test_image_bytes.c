/* Where the bytes of a kept image come from, whatever the file is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image_bytes.h"
#include "image_store.h"

static bool wants;

bool gpw_image_store_wants(const struct gpw_session *s, uint64_t total)
{
    (void)s, (void)total;
    return wants;
}

int gpw_image_store_file(uint64_t size)
{
    int file = memfd_create("image", MFD_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, (off_t)size), 0);
    return file;
}

static int file_of(uint64_t size)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    for (uint64_t i = 0; i < size; i++)
        assert_int_not_equal(putc((int)(i * 7 % 251), file), EOF);
    assert_int_equal(fflush(file), 0);
    int own = dup(fileno(file));
    assert_true(own >= 0);
    fclose(file);
    return own;
}

static void holds(struct gpw_image *image, bool mapped)
{
    assert_int_equal(image->mapped, mapped);
    assert_int_equal(image->file, -1);
    assert_true(image->stored);
    assert_int_equal(image->received, image->total);
    for (uint64_t i = 0; i < image->total; i++)
        assert_int_equal(image->bytes[i], i * 7 % 251);
    assert_int_equal(image->bytes[image->total], 0);
    gpw_image_bytes_free(image);
    assert_null(image->bytes);
}

/* Whether this kernel maps what is there already. */
static bool maps(void)
{
    struct gpw_image image = {.total = 1};
    int file = file_of(1);
    assert_true(gpw_image_bytes_stored(&image, file));
    bool mapped = image.mapped;
    gpw_image_bytes_free(&image);
    close(file);
    return mapped;
}

static void a_kept_file_is_mapped(void **state)
{
    (void)state;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t sizes[] = {1, page - 1, page + 1, 70 * page + 5};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct gpw_image image = {.total = sizes[i]};
        int file = file_of(sizes[i]);
        assert_true(gpw_image_bytes_stored(&image, file));
        close(file); /* the bytes stay */
        holds(&image, maps());
    }
}

/* Behind whole pages is no room for the NUL, and what is in its place may be something else. */
static void what_has_no_nul_is_read(void **state)
{
    (void)state;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const struct {
        uint64_t total, file;
    } cases[] = {{page, page}, {3 * page, 3 * page}, {page + 5, page + 9}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gpw_image image = {.total = cases[i].total};
        int file = file_of(cases[i].file);
        assert_true(gpw_image_bytes_stored(&image, file));
        close(file);
        holds(&image, false);
    }
}

/* No signal, wherever it ends. */
static void what_is_too_short_is_none(void **state)
{
    (void)state;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const struct {
        uint64_t total, file;
    } cases[] = {{1, 0}, {5 * page + 3, 5 * page}, {5 * page + 3, 7}, {2 * page, page}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gpw_image image = {.total = cases[i].total};
        int file = file_of(cases[i].file);
        assert_false(gpw_image_bytes_stored(&image, file));
        assert_null(image.bytes);
        close(file);
    }
    struct gpw_image image = {.total = 10};
    assert_false(gpw_image_bytes_stored(&image, -1));
}

static void what_comes_lies_where_it_may_be_kept(void **state)
{
    (void)state;
    for (int keeps = 0; keeps < 2; keeps++) {
        struct gpw_image image = {.total = 5000};
        wants = keeps;
        assert_true(gpw_image_bytes_new(NULL, &image));
        assert_int_equal(image.file >= 0, keeps);
        assert_int_equal(image.mapped, keeps);
        assert_int_equal(image.bytes[image.total], 0);
        memset(image.bytes, 7, image.total);
        gpw_image_bytes_free(&image);
        char last = 0;
        if (keeps) {
            assert_int_equal(pread(image.file, &last, 1, 4999), 1);
            assert_int_equal(last, 7);
            close(image.file);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kept_file_is_mapped),
        cmocka_unit_test(what_has_no_nul_is_read),
        cmocka_unit_test(what_is_too_short_is_none),
        cmocka_unit_test(what_comes_lies_where_it_may_be_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
