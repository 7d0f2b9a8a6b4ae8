/* What batches of copies say, also where it is impossible. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "copy_batch.h"

#define COUNT 4

static const CUdeviceptr addresses[COUNT] = {16, 32, 48, 64};
static const size_t bytes[COUNT] = {8, 8, 8, 8};

static struct gp_copy_lines lines(const CUmemcpyAttributes *attrs, const size_t *first, size_t n)
{
    return (struct gp_copy_lines){addresses, addresses, bytes, COUNT, attrs, first, n};
}

static void each_copy_has_attributes(void **state)
{
    const CUmemcpyAttributes attrs[3] = {
        {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM},
        {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL},
        {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY}};
    const size_t first[3] = {0, 1, 3};
    const struct gp_copy_lines l = lines(attrs, first, 3);
    const CUmemcpySrcAccessOrder expected[COUNT] = {
        CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL,
        CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, CU_MEMCPY_SRC_ACCESS_ORDER_ANY};
    (void)state;
    assert_true(gp_copy_lines_hold(&l));
    for (size_t i = 0, at = 0; i < COUNT; i++)
        assert_int_equal(gp_copy_lines_order(&l, i, &at), expected[i]);
}

static void lists_that_cannot_be_are_refused(void **state)
{
    const CUmemcpyAttributes good[2] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY},
                                        {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY}};
    const CUmemcpyAttributes none[1] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID}};
    const CUmemcpyAttributes beyond[1] = {{.srcAccessOrder = (CUmemcpySrcAccessOrder)4}};
    const CUmemcpyAttributes flags[1] = {
        {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY, .flags = 2}};
    const struct {
        const CUmemcpyAttributes *attrs;
        size_t first[2], n;
    } table[] = {
        {good, {0, 0}, 2}, {good, {0, COUNT}, 2}, {good, {0, SIZE_MAX}, 2},
        {good, {1, 2}, 2}, {good, {0, 1}, 0},     {none, {0}, 1},
        {beyond, {0}, 1},  {flags, {0}, 1},       {good, {0, 1}, SIZE_MAX},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct gp_copy_lines l = lines(table[i].attrs, table[i].first, table[i].n);
        assert_false(gp_copy_lines_hold(&l));
    }
    struct gp_copy_lines l = lines(good, (const size_t[]){0}, 1);
    assert_true(gp_copy_lines_hold(&l));
    l.bytes = NULL;
    assert_false(gp_copy_lines_hold(&l));
    l = lines(NULL, (const size_t[]){0}, 1);
    assert_false(gp_copy_lines_hold(&l));
    l = lines(good, NULL, 1);
    assert_false(gp_copy_lines_hold(&l));
}

static CUDA_MEMCPY3D_BATCH_OP memory(size_t width, size_t row, size_t layer)
{
    CUDA_MEMCPY3D_BATCH_OP op = {.extent = {width, 4, 2},
                                 .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = 4096;
    op.dst.op.ptr.ptr = 8192;
    op.src.op.ptr.rowLength = row;
    op.src.op.ptr.layerHeight = layer;
    return op;
}

static CUDA_MEMCPY3D_BATCH_OP to_array(size_t width, size_t row, size_t x)
{
    CUDA_MEMCPY3D_BATCH_OP op = memory(width, row, 0);
    op.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    op.dst.op.array.array = (CUarray)1;
    op.dst.op.array.offset = (CUoffset3D){x, 5, 6};
    return op;
}

static void boxes_are_counted_in_elements(void **state)
{
    CUDA_MEMCPY3D box;
    CUDA_MEMCPY3D_BATCH_OP op = memory(10, 0, 0);
    (void)state;
    assert_true(gp_copy_box_make(&op, 0, 0, &box));
    assert_int_equal(box.WidthInBytes, 10);
    assert_int_equal(box.srcPitch, 10);
    assert_int_equal(box.srcHeight, 4);
    op = to_array(10, 12, 3);
    assert_true(gp_copy_box_make(&op, 0, 8, &box));
    assert_int_equal(box.WidthInBytes, 80);
    assert_int_equal(box.srcPitch, 96);
    assert_int_equal(box.dstXInBytes, 24);
    assert_int_equal(box.dstY, 5);
    assert_int_equal(box.dstZ, 6);
    assert_int_equal(box.dstMemoryType, CU_MEMORYTYPE_ARRAY);
    op.src = op.dst;
    assert_true(gp_copy_box_make(&op, 8, 8, &box));
    assert_false(gp_copy_box_make(&op, 8, 4, &box));
}

static void boxes_that_cannot_be_are_refused(void **state)
{
    CUDA_MEMCPY3D box;
    const CUDA_MEMCPY3D_BATCH_OP wrong[] = {
        memory(0, 0, 0),
        memory(10, 9, 0),
        memory(10, 0, 3),
        to_array(SIZE_MAX, 0, 0),
        to_array(SIZE_MAX / 8 + 1, 0, 0),
        to_array(1, SIZE_MAX / 8 + 1, 0),
        to_array(1, 0, SIZE_MAX / 8 + 1),
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(gp_copy_box_make(&wrong[i], 0, 8, &box));
    CUDA_MEMCPY3D_BATCH_OP op = to_array(4, 0, 0);
    assert_false(gp_copy_box_make(&op, 0, 0, &box)); /* of an element that nobody knows */
    op = memory(4, 0, 0);
    op.src.type = (CUmemcpy3DOperandType)0;
    assert_false(gp_copy_box_make(&op, 0, 0, &box));
    op = memory(4, 0, 0);
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    assert_false(gp_copy_box_make(&op, 0, 0, &box));
    op = memory(4, 0, 0);
    op.flags = 2;
    assert_false(gp_copy_box_make(&op, 0, 0, &box));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_copy_has_attributes),
        cmocka_unit_test(lists_that_cannot_be_are_refused),
        cmocka_unit_test(boxes_are_counted_in_elements),
        cmocka_unit_test(boxes_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
