/* Pages of the worker's allocator that several processes have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "allocator_driver.h"

/* What the allocator has told of pages that were shared. */
static struct {
    struct gpw_shareable *let_go;
    CUdeviceptr at;
    uint64_t given;
} told;

static void note_give(void *arg, uint64_t bytes)
{
    (void)arg;
    told.given += bytes;
}

static bool note_take(void *arg, uint64_t bytes)
{
    (void)arg, (void)bytes;
    return true;
}

static void note_let_go(void *arg, struct gpw_shareable *one, CUdeviceptr at)
{
    (void)arg;
    told.let_go = one;
    told.at = at;
}

static void start(void)
{
    const struct gpw_allocator_limit limit = {note_take, note_give, note_let_go, NULL};
    begin(64 * MIB, 64 * MIB);
    memset(&told, 0, sizeof told);
    gpw_allocator_set_limit(a, &limit);
}

/* Any address will do: the allocator looks at none of them. */
static struct gpw_shareable *const shared = (struct gpw_shareable *)&told;

static CUdeviceptr allocated(size_t bytes)
{
    CUdeviceptr at;
    assert_int_equal(gpw_allocator_take(a, bytes, &at), CUDA_SUCCESS);
    return at;
}

static void pages_can_be_exported(void **state)
{
    (void)state;
    start();
    allocated(MIB);
    assert_int_equal(gpu.exportable, 1);
    end();
}

static void a_driver_that_exports_nothing_is_asked_once(void **state)
{
    (void)state;
    start();
    gpu.exports_nothing = true;
    allocated(MIB);
    gpu.exports_nothing = false;
    allocated(MIB);
    assert_int_equal(gpu.created, 2);
    assert_int_equal(gpu.exportable, 0);
    end();
}

static void pages_say_where_an_allocation_lies(void **state)
{
    struct gpw_pages pages;
    (void)state;
    start();
    CUdeviceptr first = allocated(1000), second = allocated(1000);
    assert_true(gpw_allocator_pages(a, second + 999, &pages));
    assert_int_equal(pages.bytes, GRANULE);
    assert_int_equal(pages.offset, second - WINDOW);
    assert_int_equal(pages.size, 1000);
    gpw_allocator_give(a, second);
    assert_false(gpw_allocator_pages(a, second, &pages));
    assert_true(gpw_allocator_pages(a, first, &pages));
    assert_false(gpw_allocator_pages(a, WINDOW + 32 * MIB, &pages));
    end();
}

static void shared_pages_are_let_go_of_and_not_given(void **state)
{
    struct gpw_pages pages;
    (void)state;
    start();
    CUdeviceptr at = allocated(GRANULE);
    assert_true(gpw_allocator_pages(a, at, &pages));
    *pages.shareable = shared;
    gpw_allocator_give(a, at);
    assert_ptr_equal(told.let_go, shared);
    assert_int_equal(told.at, at);
    assert_int_equal(told.given, 0);
    end();
}

static void foreign_pages_are_no_allocation(void **state)
{
    CUmemGenericAllocationHandle handle;
    struct gpw_pages pages;
    CUdeviceptr at;
    (void)state;
    start();
    const CUmemAllocationProp prop = {.location.id = 5};
    assert_int_equal(gpu_create(&handle, GRANULE, &prop, 0), CUDA_SUCCESS);
    assert_int_equal(gpw_allocator_map(a, handle, GRANULE, shared, &at), CUDA_SUCCESS);
    assert_true(is_mapped(at, GRANULE));
    assert_true(gpw_allocator_holds(a, at, GRANULE));
    assert_int_equal(gpw_allocator_bytes(a), 0);
    assert_int_equal(gpw_allocator_size(a, at), 0);
    assert_false(gpw_allocator_pages(a, at, &pages));
    gpw_allocator_give(a, at);
    assert_false(gpw_allocator_trim(a));
    assert_true(is_mapped(at, GRANULE));
    gpw_allocator_unmap(a, at + 512);
    assert_null(told.let_go);
    gpw_allocator_unmap(a, at);
    assert_ptr_equal(told.let_go, shared);
    assert_false(is_mapped(at, 1));
    end();
}

static void foreign_pages_that_cannot_be_mapped_stay_the_callers(void **state)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    (void)state;
    start();
    const CUmemAllocationProp prop = {.location.id = 5};
    assert_int_equal(gpu_create(&handle, GRANULE, &prop, 0), CUDA_SUCCESS);
    gpu.access_fails = CUDA_ERROR_UNKNOWN;
    assert_int_equal(gpw_allocator_map(a, handle, GRANULE, shared, &at), CUDA_ERROR_UNKNOWN);
    assert_int_equal(gpu.created, 1);
    assert_null(told.let_go);
    gpu_release(handle);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_can_be_exported),
        cmocka_unit_test(a_driver_that_exports_nothing_is_asked_once),
        cmocka_unit_test(pages_say_where_an_allocation_lies),
        cmocka_unit_test(shared_pages_are_let_go_of_and_not_given),
        cmocka_unit_test(foreign_pages_are_no_allocation),
        cmocka_unit_test(foreign_pages_that_cannot_be_mapped_stay_the_callers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
