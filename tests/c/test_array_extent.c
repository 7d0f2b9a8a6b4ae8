/* How large arrays are, and which boxes lie in them, also where numbers are hostile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "array_extent.h"

static void elements_have_the_sizes_of_their_formats(void **state)
{
    (void)state;
    assert_int_equal(gp_array_element(CU_AD_FORMAT_UNSIGNED_INT8, 1), 1);
    assert_int_equal(gp_array_element(CU_AD_FORMAT_HALF, 4), 8);
    assert_int_equal(gp_array_element(CU_AD_FORMAT_FLOAT, 4), 16);
    assert_int_equal(gp_array_element(CU_AD_FORMAT_SIGNED_INT32, 2), 8);
    assert_int_equal(gp_array_element(CU_AD_FORMAT_UNORM_INT16X2, 1), 4);
    assert_int_equal(gp_array_element(CU_AD_FORMAT_FLOAT, UINT32_MAX), 0);
    assert_int_equal(gp_array_element(CU_AD_FORMAT_NV12, 3), 0);
    assert_int_equal(gp_array_element((CUarray_format)12345, 1), 0);
}

static void sizes_that_overflow_are_more_than_there_is(void **state)
{
    (void)state;
    struct gp_array_extent e = gp_array_extent(64, 0, 0, CU_AD_FORMAT_FLOAT, 2);
    assert_int_equal(gp_array_bytes(&e), 512);
    e = gp_array_extent(64, 8, 3, CU_AD_FORMAT_FLOAT, 2);
    assert_int_equal(gp_array_bytes(&e), 512 * 24);
    e = gp_array_extent(UINT64_MAX, 1, 1, CU_AD_FORMAT_FLOAT, 1);
    assert_true(gp_array_bytes(&e) == GP_SPAN_NONE);
    e = gp_array_extent(UINT64_C(1) << 40, UINT64_C(1) << 20, UINT64_C(1) << 10, CU_AD_FORMAT_FLOAT,
                        4);
    assert_true(gp_array_bytes(&e) == GP_SPAN_NONE);
    assert_int_equal(gp_array_least(64, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0), 2048);
    assert_int_equal(gp_array_least(64, 8, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE), 0);
}

#define FAR (UINT64_MAX - 7)

/* 64 elements of 8 bytes, 4 rows, 2 slices. */
static void boxes_lie_within(void **state)
{
    static const struct {
        struct gp_span_end at;
        struct gp_span_box box;
        bool holds;
    } table[] = {
        {{0}, {512, 4, 2}, true},
        {{.x = 8, .y = 1, .z = 1}, {504, 3, 1}, true},
        {{.x = 504, .y = 3, .z = 1}, {8, 1, 1}, true},
        {{.x = 8}, {512, 1, 1}, false},
        {{.y = 1}, {8, 4, 1}, false},
        {{.z = 1}, {8, 1, 2}, false},
        {{.x = 512}, {8, 1, 1}, false},
        {{.y = 4}, {8, 1, 1}, false},
        {{.z = 2}, {8, 1, 1}, false},
        {{.x = FAR}, {16, 1, 1}, false},
        {{.x = 8}, {FAR, 1, 1}, false},
        {{.y = UINT64_MAX}, {8, 2, 1}, false},
        {{.z = 1}, {8, 1, UINT64_MAX}, false},
        {{.x = 4}, {8, 1, 1}, false}, /* within an element */
        {{0}, {12, 1, 1}, false},
    };
    const struct gp_array_extent e = gp_array_extent(64, 4, 2, CU_AD_FORMAT_FLOAT, 2);
    const struct gp_array_extent unknown = gp_array_extent(64, 4, 2, CU_AD_FORMAT_NV12, 3);
    (void)state;
    for (unsigned i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_int_equal(gp_array_holds(&e, &table[i].at, &table[i].box), table[i].holds);
    /* how long a row is only the driver knows; how many there are is known */
    assert_true(gp_array_holds(&unknown, &table[3].at, &table[3].box));
    assert_false(gp_array_holds(&unknown, &table[4].at, &table[4].box));
    assert_false(gp_array_holds(&unknown, &table[12].at, &table[12].box));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_have_the_sizes_of_their_formats),
        cmocka_unit_test(sizes_that_overflow_are_more_than_there_is),
        cmocka_unit_test(boxes_lie_within),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
