/* Records of what a GPU did, from a worker that tells them as it should, and from one that does
 * not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "activity_record.h"

static const char name[] = "add";

/* A record with a name, at any address: what follows another is not aligned in a message. */
static size_t put(char *at, struct gp_activity_record r)
{
    if (!r.kind)
        r.kind = GP_ACTIVITY_KERNEL;
    if (!r.size)
        r.size = (uint32_t)gp_activity_size(r.name_bytes);
    memset(at, 0, gp_activity_size(sizeof name));
    memcpy(at, &r, sizeof r);
    memcpy(at + sizeof r, name, sizeof name);
    return r.size;
}

static void one_behind_the_other(void **state)
{
    char bytes[1024];
    struct gp_activity_record r = {0};
    const char *named = NULL;
    size_t at = 0, end = 1;
    (void)state;
    end += put(bytes + end, (struct gp_activity_record){.seq = 7, .name_bytes = sizeof name});
    end += put(bytes + end, (struct gp_activity_record){.seq = 8, .kind = GP_ACTIVITY_SET});
    end -= 1;
    assert_true(gp_activity_next(bytes + 1, end, &at, &r, &named));
    assert_int_equal(r.seq, 7);
    assert_string_equal(named, name);
    assert_true(gp_activity_next(bytes + 1, end, &at, &r, &named));
    assert_int_equal(r.seq, 8);
    assert_string_equal(named, "");
    assert_false(gp_activity_next(bytes + 1, end, &at, &r, &named));
    assert_int_equal(at, end);
}

static void refused(void **state)
{
    static const struct gp_activity_record table[] = {
        {.name_bytes = sizeof name, .size = 8},
        {.name_bytes = sizeof name, .size = UINT32_MAX},
        {.name_bytes = sizeof name, .size = sizeof(struct gp_activity_record)},
        {.name_bytes = UINT32_MAX, .size = sizeof(struct gp_activity_record)},
        {.name_bytes = GP_ACTIVITY_NAME + 1},
        {.name_bytes = GP_ACTIVITY_NAME}, /* longer than the message */
        {.name_bytes = sizeof name - 1},  /* its end is missing */
        {.name_bytes = sizeof name, .kind = GP_ACTIVITY_SET + 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char bytes[512];
        struct gp_activity_record r;
        const char *named;
        size_t at = 0;
        put(bytes, table[i]);
        if (gp_activity_next(bytes, gp_activity_size(sizeof name), &at, &r, &named))
            fail_msg("case %zu is not refused", i);
        assert_int_equal(at, 0);
    }
}

/* No piece of a good record is one; the heap's end is where the piece's is. */
static void cut(void **state)
{
    char whole[512];
    const size_t size = put(whole, (struct gp_activity_record){.name_bytes = sizeof name});
    (void)state;
    for (size_t length = 0; length < size; length++) {
        char *bytes = malloc(length ? length : 1);
        struct gp_activity_record r;
        const char *named;
        size_t at = 0;
        assert_non_null(bytes);
        memcpy(bytes, whole, length);
        assert_false(gp_activity_next(bytes, length, &at, &r, &named));
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_behind_the_other),
        cmocka_unit_test(refused),
        cmocka_unit_test(cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
