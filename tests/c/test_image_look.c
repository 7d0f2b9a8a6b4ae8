/* What is found out of an image beside the driver that loads it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "fatbin.h"
#include "image_look.h"
#include "image_name.h"

static struct gpw_session session;

/* PTX of so many bytes, with a word at its end. */
static struct gpw_image image_new(uint64_t total, const char *last)
{
    struct gpw_image image = {.total = total, .bytes = malloc(total + 1)};
    assert_non_null(image.bytes);
    memset(image.bytes, ' ', total);
    memcpy(image.bytes, ".version", 8);
    memcpy(image.bytes + total - strlen(last), last, strlen(last));
    image.bytes[total] = 0;
    gp_image_name_of(image.bytes, total, image.hash);
    return image;
}

static struct gpw_image_look look_at(const struct gpw_image *image, bool asks_prints)
{
    struct gpw_image_look look;
    gpw_image_look_begin(&look, &session, image, asks_prints);
    assert_int_equal(look.names_beside, image->total > GP_IMAGE_EAGER);
    assert_int_equal(look.prints_beside, asks_prints && image->total > GP_IMAGE_EAGER);
    gpw_image_look_end(&look);
    assert_false(look.names_beside || look.prints_beside);
    return look;
}

static void both_are_found(uint64_t total)
{
    struct gpw_image prints = image_new(total, "vprintf"), silent = image_new(total, "nothing");
    assert_true(look_at(&prints, true).is_genuine);
    assert_true(look_at(&prints, true).prints);
    assert_false(look_at(&prints, false).prints); /* nobody asked */
    assert_true(look_at(&silent, true).is_genuine);
    assert_false(look_at(&silent, true).prints);
    const struct gp_image_part whole = {silent.bytes, total};
    gp_image_name_before(&whole, 1, silent.hash); /* a client of a release before */
    assert_true(look_at(&silent, true).is_genuine);
    silent.bytes[total / 2] ^= 1;
    assert_false(look_at(&silent, true).is_genuine);
    free(prints.bytes);
    free(silent.bytes);
}

static void a_short_image(void **state)
{
    (void)state;
    both_are_found(4000);
    both_are_found(GP_IMAGE_EAGER);
}

static void a_long_image(void **state)
{
    (void)state;
    both_are_found(GP_IMAGE_EAGER + 1);
    both_are_found(3 * (uint64_t)GP_IMAGE_EAGER + 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_image),
        cmocka_unit_test(a_long_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
