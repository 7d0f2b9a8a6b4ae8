/* Memory of the worker's allocator that the client hands out by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "allocator_driver.h"

/* The message that is dealt with. */
static uint64_t now;

static void start(uint64_t memory)
{
    begin(memory, 64 * MIB);
    gpw_allocator_follow(a, &now);
    now = 1;
}

static CUdeviceptr take(size_t bytes)
{
    CUdeviceptr at;
    assert_int_equal(gpw_allocator_take(a, bytes, &at), CUDA_SUCCESS);
    now++;
    return at;
}

/* Freed by the message that is dealt with, and the client's. */
static CUdeviceptr keep(CUdeviceptr at)
{
    assert_true(gpw_allocator_keep(a, at, now));
    gpw_allocator_give(a, at);
    gpw_allocator_settle(a);
    now++;
    return at;
}

static void what_is_chosen_is_allocated(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 512, 513, 4096, MIB / 2, MIB / 2 + 1, MIB, GRANULE};
    start(64 * MIB);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CUdeviceptr at = keep(take(sizes[i]));
        assert_false(gpw_allocator_holds(a, at, 1));
        assert_true(gpw_allocator_choose(a, at, sizes[i]));
        assert_int_equal(gpw_allocator_size(a, at), sizes[i]);
        assert_true(gpw_allocator_holds(a, at, sizes[i]) && is_mapped(at, sizes[i]));
        assert_false(gpw_allocator_choose(a, at, sizes[i]));
        gpw_allocator_give(a, at);
    }
    end();
}

static void only_free_pieces_of_that_granule_are_chosen(void **state)
{
    (void)state;
    start(64 * MIB);
    CUdeviceptr lives = take(4096), small = take(4096), other = take(512);
    assert_false(gpw_allocator_choose(a, small + 4096, 4096)); /* of no granule that is kept */
    keep(small);
    const struct {
        CUdeviceptr at;
        size_t bytes;
    } wrong[] = {{lives, 4096},       {small + 1, 4096},
                 {small + 512, 4096}, {small, 512},
                 {small, 4097},       {small, 0},
                 {small, SIZE_MAX},   {other + 512, 512},
                 {0, 4096},           {small + GRANULE, 4096},
                 {WINDOW - 1, 4096},  {WINDOW + 64 * MIB, 4096},
                 {UINT64_MAX, 4096},  {small + 8192, 512},
                 {other, 512}};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(gpw_allocator_choose(a, wrong[i].at, wrong[i].bytes));
    assert_true(gpw_allocator_choose(a, small, 4000));
    assert_true(gpw_allocator_choose(a, small + 4096, 4096)); /* was free all the time */
    assert_int_equal(gpw_allocator_size(a, lives), 4096);
    end();
}

static void what_is_larger_is_not_kept(void **state)
{
    (void)state;
    start(64 * MIB);
    CUdeviceptr at = take(GRANULE + 1);
    assert_false(gpw_allocator_keep(a, at, now));
    assert_false(gpw_allocator_keep(a, WINDOW - 1, now));
    assert_false(gpw_allocator_keep(a, at + 32 * MIB, now));
    gpw_allocator_give(a, at);
    assert_int_equal(gpu.used, 0);
    end();
}

static void one_granule_of_a_size_is_kept(void **state)
{
    (void)state;
    start(64 * MIB);
    CUdeviceptr one = take(MIB), two = take(MIB), three = take(MIB);
    keep(one);
    keep(two);
    assert_int_equal(gpu.used, 2 * GRANULE); /* the first has gone */
    assert_false(gpw_allocator_choose(a, one, MIB));
    /* a free that was long in coming does not take the place of a later one */
    assert_false(gpw_allocator_keep(a, three, 1));
    gpw_allocator_give(a, three);
    assert_int_equal(gpu.used, GRANULE);
    assert_true(gpw_allocator_choose(a, two, MIB));
    end();
}

/* A call that was put off comes behind the client's choice, whose message may be under way. */
static void a_late_call_leaves_alone_what_is_the_clients(void **state)
{
    (void)state;
    CUdeviceptr at;
    start(2 * GRANULE);
    CUdeviceptr one = take(MIB), two = take(4096);
    uint64_t late = now++;
    keep(one);
    keep(two);
    uint64_t then = now;
    now = late;
    assert_false(gpw_allocator_trim(a));
    assert_int_equal(gpw_allocator_take(a, MIB, &at), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(gpw_allocator_take(a, 4096, &at), CUDA_ERROR_OUT_OF_MEMORY);
    now = 0; /* the worker's own need: not known to the client either */
    assert_false(gpw_allocator_trim(a));
    now = then;
    assert_true(gpw_allocator_choose(a, one, MIB));
    assert_true(gpw_allocator_choose(a, two, 4096));
    end();
}

/* One that comes behind it has all there is: the client knows. */
static void a_call_in_its_order_has_all_that_is_free(void **state)
{
    (void)state;
    start(2 * GRANULE);
    CUdeviceptr one = take(MIB), two = take(4096);
    keep(one);
    keep(two);
    take(2 * GRANULE);
    assert_false(gpw_allocator_choose(a, one, MIB));
    assert_false(gpw_allocator_choose(a, two, 4096));
    end();
}

static void what_others_have_is_kept_until_it_is_needed(void **state)
{
    (void)state;
    struct gpw_pages pages;
    start(2 * GRANULE);
    CUdeviceptr at = take(MIB);
    assert_true(gpw_allocator_pages(a, at, &pages));
    *pages.shareable = (struct gpw_shareable *)&now;
    keep(at);
    assert_true(gpw_allocator_choose(a, at, MIB));
    keep(at);
    take(2 * GRANULE);
    end();
}

static void nothing_is_kept_when_all_is_cleared(void **state)
{
    (void)state;
    start(64 * MIB);
    CUdeviceptr at = keep(take(MIB));
    gpw_allocator_clear(a);
    assert_int_equal(gpu.used, 0);
    assert_false(gpw_allocator_choose(a, at, MIB));
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_chosen_is_allocated),
        cmocka_unit_test(only_free_pieces_of_that_granule_are_chosen),
        cmocka_unit_test(what_is_larger_is_not_kept),
        cmocka_unit_test(one_granule_of_a_size_is_kept),
        cmocka_unit_test(a_late_call_leaves_alone_what_is_the_clients),
        cmocka_unit_test(a_call_in_its_order_has_all_that_is_free),
        cmocka_unit_test(what_others_have_is_kept_until_it_is_needed),
        cmocka_unit_test(nothing_is_kept_when_all_is_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
