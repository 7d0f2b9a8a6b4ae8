/* What a pitched copy touches: as the driver counts it, and against counting every byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "span.h"

#define FAR (UINT64_MAX - 7)

static void packed_where_nothing_is_said(void **state)
{
    struct gp_span span;
    (void)state;
    assert_true(gp_span_make(&(struct gp_span_end){0}, &(struct gp_span_box){64, 8, 1}, &span));
    assert_int_equal(span.pitch, 64);
    assert_int_equal(span.bytes, 512);
    assert_true(
        gp_span_make(&(struct gp_span_end){.pitch = 100}, &(struct gp_span_box){64, 8, 3}, &span));
    assert_int_equal(span.rows, 8);
    assert_int_equal(span.bytes, 100 * 8 * 2 + 100 * 7 + 64);
    assert_true(
        gp_span_make(&(struct gp_span_end){.rows = 10}, &(struct gp_span_box){64, 8, 3}, &span));
    assert_int_equal(span.bytes, 64 * 10 * 2 + 64 * 7 + 64);
}

struct refused {
    struct gp_span_end end;
    struct gp_span_box box;
};

static void refused_as_by_the_driver(void **state)
{
    static const struct refused table[] = {
        {{.pitch = 63}, {64, 8, 1}},
        {{.x = 8, .pitch = 64}, {64, 8, 1}},
        {{.rows = 7}, {64, 8, 2}},
        {{.y = 1, .rows = 8}, {64, 8, 2}},
        {{.x = FAR}, {64, 1, 1}},
        {{.y = FAR}, {64, 8, 1}},
        {{.z = FAR}, {64, 8, 1}},
        {{.y = FAR / 64, .pitch = 64}, {64, 64, 1}},
        {{.z = 1, .pitch = FAR}, {1, 2, 1}},
        {{0}, {FAR, 2, 1}},
        {{0}, {64, FAR, 1}},
        {{0}, {64, 8, FAR}},
        {{.pitch = UINT64_C(1) << 33}, {1, UINT64_C(1) << 33, 1}},
        {{.pitch = 1 << 16, .rows = UINT64_C(1) << 48}, {1, 1, 2}},
        {{0}, {0, 1, 1}},
        {{0}, {1, 0, 1}},
        {{0}, {1, 1, 0}},
    };
    struct gp_span span;
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (gp_span_make(&table[i].end, &table[i].box, &span))
            fail_msg("case %zu is not refused", i);
}

/* First and behind the last, by looking at every row. */
static void by_rows(const struct gp_span *s, const struct gp_span_end *end,
                    const struct gp_span_box *box, uint64_t *first, uint64_t *last)
{
    *first = UINT64_MAX;
    *last = 0;
    for (uint64_t z = 0; z < box->depth; z++)
        for (uint64_t y = 0; y < box->height; y++) {
            uint64_t at = (end->z + z) * s->pitch * s->rows + (end->y + y) * s->pitch + end->x;
            *first = at < *first ? at : *first;
            *last = at + box->width > *last ? at + box->width : *last;
        }
}

static uint64_t up_to(unsigned *seed, uint64_t most)
{
    *seed = *seed * 1103515245u + 12345u;
    return (*seed >> 8) % (most + 1);
}

static void every_byte_lies_within(void **state)
{
    unsigned seed = 7, sound = 0;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        const struct gp_span_box box = {1 + up_to(&seed, 9), 1 + up_to(&seed, 4),
                                        1 + up_to(&seed, 3)};
        const struct gp_span_end end = {up_to(&seed, 4), up_to(&seed, 2), up_to(&seed, 2),
                                        up_to(&seed, 1) * up_to(&seed, 20),
                                        up_to(&seed, 1) * up_to(&seed, 9)};
        struct gp_span span;
        uint64_t first, last;
        if (!gp_span_make(&end, &box, &span))
            continue;
        sound++;
        by_rows(&span, &end, &box, &first, &last);
        assert_int_equal(span.offset, first);
        assert_int_equal(span.offset + span.bytes, last);
    }
    assert_true(sound > 5000);
}

static void rows_of_elements(void **state)
{
    (void)state;
    assert_int_equal(gp_span_rows(0, 8, 4, 4), 128);
    assert_int_equal(gp_span_rows(64, 8, 4, 4), 64 * 3 + 32);
    assert_int_equal(gp_span_rows(1, 8, 4, 1), 32); /* of one row the pitch means nothing */
    assert_int_equal(gp_span_rows(31, 8, 4, 2), GP_SPAN_NONE);
    assert_int_equal(gp_span_rows(64, UINT64_C(1) << 62, 4, 2), GP_SPAN_NONE);
    assert_int_equal(gp_span_rows(UINT64_C(1) << 62, 1, 4, 8), GP_SPAN_NONE);
    assert_int_equal(gp_span_rows(64, 8, 4, 0), 0);
    assert_int_equal(gp_span_line(UINT64_C(1) << 62, 4), GP_SPAN_NONE);
    assert_int_equal(gp_span_line(3, 4), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_where_nothing_is_said),
        cmocka_unit_test(refused_as_by_the_driver),
        cmocka_unit_test(every_byte_lies_within),
        cmocka_unit_test(rows_of_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
