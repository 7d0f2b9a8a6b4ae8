/* The worker's allocator over a driver that only keeps books: what is mapped where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "allocator_driver.h"

static CUdeviceptr take(size_t bytes)
{
    CUdeviceptr at = 0;
    assert_int_equal(gpw_allocator_take(a, bytes, &at), CUDA_SUCCESS);
    assert_int_equal(at % SMALLEST, 0);
    assert_true(is_mapped(at, bytes));
    assert_int_equal(gpw_allocator_size(a, at), bytes);
    assert_int_equal(gpw_allocator_bytes(a), gpu.used);
    return at;
}

static void give(CUdeviceptr at)
{
    gpw_allocator_give(a, at);
    assert_int_equal(gpw_allocator_size(a, at), 0);
    assert_int_equal(gpw_allocator_bytes(a), gpu.used);
}

static void refuse(size_t bytes, CUresult wanted)
{
    CUdeviceptr at = 77;
    uint64_t used = gpu.used;
    assert_int_equal(gpw_allocator_take(a, bytes, &at), wanted);
    assert_int_equal(at, 77);
    assert_true(gpu.used <= used);
    assert_int_equal(gpw_allocator_bytes(a), gpu.used);
}

/* --- tests ---------------------------------------------------------------------- */

static void sizes_at_every_boundary(void **state)
{
    (void)state;
    static const size_t sizes[] = {1,           511,         512,         513,         4096,
                                   4097,        MIB / 2 - 1, MIB / 2,     MIB / 2 + 1, MIB,
                                   GRANULE - 1, GRANULE,     GRANULE + 1, 5 * GRANULE, 7 * MIB};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    CUdeviceptr at[COUNT];
    begin(1024 * MIB, 1024 * MIB);
    for (unsigned i = 0; i < COUNT; i++) {
        at[i] = take(sizes[i]);
        for (unsigned k = 0; k < i; k++)
            assert_true(at[k] >= at[i] + sizes[i] || at[i] >= at[k] + sizes[k]);
    }
    for (unsigned i = 0; i < COUNT; i++)
        give(at[i]);
    end();
}

static void small_ones_share_a_granule_and_large_ones_do_not(void **state)
{
    (void)state;
    begin(64 * MIB, 64 * MIB);
    CUdeviceptr first = take(100), second = take(512);
    assert_int_equal(gpu.used, GRANULE);
    assert_int_equal(first / GRANULE, second / GRANULE);
    take(MIB / 2 + 1);
    take(MIB / 2 + 1);
    assert_int_equal(gpu.used, 3 * GRANULE);
    end();
}

static void a_full_granule_is_followed_by_another(void **state)
{
    (void)state;
    enum { PIECES = GRANULE / (512 * 1024) };
    CUdeviceptr at[PIECES + 1];
    begin(64 * MIB, 64 * MIB);
    for (unsigned i = 0; i < PIECES; i++)
        at[i] = take(MIB / 2);
    assert_int_equal(gpu.used, GRANULE);
    at[PIECES] = take(MIB / 2);
    assert_int_equal(gpu.used, 2 * GRANULE);
    for (unsigned i = 0; i <= PIECES; i++)
        give(at[i]);
    assert_int_equal(gpu.used, GRANULE); /* one is kept for the next */
    take(MIB / 2);
    assert_int_equal(gpu.used, GRANULE);
    end();
}

/* A program that allocates and frees again and again. */
static void a_whole_granule_is_kept_for_the_next(void **state)
{
    (void)state;
    begin(64 * MIB, 64 * MIB);
    CUdeviceptr one = take(MIB), two = take(GRANULE);
    give(one);
    give(two);
    assert_int_equal(gpu.used, GRANULE); /* one of them */
    CUmemGenericAllocationHandle last = gpu.last;
    for (unsigned i = 0; i < 10; i++)
        give(take(i % 2 ? MIB : GRANULE));
    assert_int_equal(gpu.last, last); /* the driver has made no other */
    assert_false(gpw_allocator_holds(a, one, 1) || gpw_allocator_holds(a, two, 1));
    give(take(GRANULE + 1));
    assert_int_equal(gpu.used, GRANULE);
    end();
}

static void let_go(void *arg, struct gpw_shareable *one, CUdeviceptr at)
{
    (void)at;
    *(struct gpw_shareable **)arg = one;
}

/* Who imported it may still have it. */
static void what_others_have_is_not_kept(void **state)
{
    (void)state;
    struct gpw_shareable *const mine = (struct gpw_shareable *)(uintptr_t)0x10, *gone = NULL;
    struct gpw_pages pages;
    begin(64 * MIB, 64 * MIB);
    const struct gpw_allocator_limit limit = {.let_go = let_go, .arg = &gone};
    gpw_allocator_set_limit(a, &limit);
    CUdeviceptr at = take(MIB);
    assert_true(gpw_allocator_pages(a, at, &pages));
    *pages.shareable = mine;
    give(at);
    assert_ptr_equal(gone, mine);
    assert_int_equal(gpu.used, 0);
    end();
}

static void nothing_and_too_much_are_refused(void **state)
{
    (void)state;
    begin(1024 * MIB, 64 * MIB);
    refuse(0, CUDA_ERROR_INVALID_VALUE);
    refuse(64 * MIB + 1, CUDA_ERROR_OUT_OF_MEMORY);
    refuse(SIZE_MAX, CUDA_ERROR_OUT_OF_MEMORY);
    refuse(SIZE_MAX - GRANULE + 2, CUDA_ERROR_OUT_OF_MEMORY); /* rounded up, it would be 0 */
    refuse((size_t)1 << 63, CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr all = take(64 * MIB);
    refuse(1, CUDA_ERROR_OUT_OF_MEMORY);
    give(all);
    take(1);
    end();
}

/* As large as the window in bytes asked for, larger in pages. */
static void a_window_of_odd_size_is_not_overrun(void **state)
{
    (void)state;
    begin(1024 * MIB, 3 * MIB);
    refuse(3 * MIB, CUDA_ERROR_OUT_OF_MEMORY);
    refuse(GRANULE + 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(take(GRANULE), WINDOW);
    refuse(MIB, CUDA_ERROR_OUT_OF_MEMORY);
    end();
}

static void the_devices_memory_runs_out_and_comes_back(void **state)
{
    (void)state;
    begin(8 * MIB, 1024 * MIB);
    CUdeviceptr at[4];
    for (unsigned i = 0; i < 4; i++)
        at[i] = take(GRANULE);
    refuse(1, CUDA_ERROR_OUT_OF_MEMORY);
    refuse(GRANULE, CUDA_ERROR_OUT_OF_MEMORY);
    give(at[1]);
    refuse(2 * GRANULE, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(take(MIB), at[1]); /* the lowest gap */
    end();
}

/* Granules that are kept for the next small one are nobody's memory. */
static void what_is_kept_is_given_up_when_it_is_needed(void **state)
{
    (void)state;
    begin(3 * GRANULE, 1024 * MIB);
    give(take(512));
    give(take(4096));
    give(take(65536));
    assert_int_equal(gpu.used, 3 * GRANULE);
    give(take(1024)); /* of another class */
    CUdeviceptr all = take(3 * GRANULE);
    give(all);
    CUdeviceptr small = take(512);
    give(take(4096));
    refuse(3 * GRANULE, CUDA_ERROR_OUT_OF_MEMORY); /* of which one lives */
    assert_int_equal(gpw_allocator_size(a, small), 512);
    assert_int_equal(gpu.used, GRANULE);
    end();
}

static void trimming_leaves_only_what_lives(void **state)
{
    (void)state;
    begin(64 * MIB, 64 * MIB);
    assert_false(gpw_allocator_trim(a));
    give(take(512));
    CUdeviceptr lives = take(4096);
    give(take(65536));
    assert_int_equal(gpu.used, 3 * GRANULE);
    assert_true(gpw_allocator_trim(a));
    assert_int_equal(gpu.used, GRANULE);
    assert_int_equal(gpw_allocator_bytes(a), GRANULE);
    assert_int_equal(gpw_allocator_size(a, lives), 4096);
    assert_false(gpw_allocator_trim(a));
    end();
}

static void gaps_are_used_again(void **state)
{
    (void)state;
    begin(1024 * MIB, 6 * GRANULE);
    CUdeviceptr one = take(GRANULE), two = take(2 * GRANULE), three = take(GRANULE);
    give(two);
    assert_int_equal(take(GRANULE), two);
    refuse(3 * GRANULE, CUDA_ERROR_OUT_OF_MEMORY); /* free, but not in one piece */
    assert_int_equal(take(GRANULE), two + GRANULE);
    assert_int_equal(take(2 * GRANULE), three + GRANULE);
    give(one);
    assert_int_equal(take(1), one);
    end();
}

static void only_what_was_given_can_be_given_back(void **state)
{
    (void)state;
    begin(64 * MIB, 64 * MIB);
    CUdeviceptr small = take(1000), large = take(3 * MIB), near = take(1000);
    const CUdeviceptr wrong[] = {0,
                                 1,
                                 WINDOW - 1,
                                 small + 1,
                                 small + 512,
                                 small + 1023,
                                 large + 1,
                                 large + GRANULE,
                                 large - 1,
                                 WINDOW + 32 * MIB,
                                 WINDOW + 64 * MIB,
                                 UINT64_MAX};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(gpw_allocator_size(a, wrong[i]), 0);
        gpw_allocator_give(a, wrong[i]);
    }
    assert_int_equal(gpw_allocator_size(a, small), 1000);
    assert_int_equal(gpw_allocator_size(a, large), 3 * MIB);
    assert_int_equal(gpw_allocator_size(a, near), 1000);
    for (int twice = 0; twice < 2; twice++) {
        give(small);
        give(large);
    }
    assert_int_equal(gpw_allocator_size(a, near), 1000);
    assert_int_equal(gpu.used, GRANULE);
    end();
}

static void a_range_is_held_inside_one_allocation_only(void **state)
{
    (void)state;
    begin(64 * MIB, 64 * MIB);
    CUdeviceptr small = take(1000), next = take(1000), large = take(3 * MIB);
    assert_int_equal(next, small + 1024);
    assert_true(gpw_allocator_holds(a, small, 1000));
    assert_true(gpw_allocator_holds(a, small + 999, 1));
    assert_true(gpw_allocator_holds(a, small + 500, 0));
    assert_false(gpw_allocator_holds(a, small, 1001));
    assert_false(gpw_allocator_holds(a, small + 999, 2));
    assert_false(gpw_allocator_holds(a, small + 1001, 1));  /* between the two */
    assert_false(gpw_allocator_holds(a, small + 999, 100)); /* from one into the other */
    assert_false(gpw_allocator_holds(a, small + 10, UINT64_MAX));
    assert_false(gpw_allocator_holds(a, small + 10, UINT64_MAX - small));
    assert_true(gpw_allocator_holds(a, large + MIB, 2 * MIB));
    assert_false(gpw_allocator_holds(a, large + MIB, 2 * MIB + 1)); /* mapped, not asked for */
    assert_false(gpw_allocator_holds(a, WINDOW - 1, 1));
    give(small);
    assert_false(gpw_allocator_holds(a, small, 1));
    assert_false(gpw_allocator_holds(a, small, 0));
    assert_true(gpw_allocator_holds(a, next, 1000));
    end();
}

static void a_driver_that_fails_leaves_nothing_behind(void **state)
{
    (void)state;
    begin(64 * MIB, 64 * MIB);
    gpu.map_fails = CUDA_ERROR_INVALID_VALUE;
    refuse(GRANULE, CUDA_ERROR_INVALID_VALUE);
    refuse(1, CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpu.created, 0);
    gpu.map_fails = CUDA_SUCCESS;
    gpu.access_fails = CUDA_ERROR_ILLEGAL_ADDRESS;
    refuse(GRANULE, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(gpu.created, 0);
    assert_int_equal(gpu.count, 0);
    gpu.access_fails = CUDA_SUCCESS;
    assert_int_equal(take(GRANULE), WINDOW);
    end();
}

struct purse {
    uint64_t left;
    unsigned asked;
};

static bool purse_take(void *arg, uint64_t bytes)
{
    struct purse *p = arg;
    p->asked++;
    if (bytes > p->left)
        return false;
    p->left -= bytes;
    return true;
}

static void purse_give(void *arg, uint64_t bytes)
{
    ((struct purse *)arg)->left += bytes;
}

static void the_limit_is_asked_for_pages_and_paid_back(void **state)
{
    (void)state;
    struct purse purse = {.left = 3 * GRANULE};
    begin(64 * MIB, 64 * MIB);
    const struct gpw_allocator_limit limit = {
        .take = purse_take, .give = purse_give, .arg = &purse};
    gpw_allocator_set_limit(a, &limit);
    CUdeviceptr two = take(GRANULE + 1), small = take(1);
    assert_int_equal(purse.left, 0);
    unsigned asked = purse.asked;
    take(1); /* there are pages for it */
    assert_int_equal(purse.asked, asked);
    refuse(MIB, CUDA_ERROR_OUT_OF_MEMORY);
    give(two);
    assert_int_equal(purse.left, 2 * GRANULE);
    gpu.map_fails = CUDA_ERROR_UNKNOWN;
    refuse(MIB, CUDA_ERROR_UNKNOWN);
    assert_int_equal(purse.left, 2 * GRANULE);
    gpu.map_fails = CUDA_SUCCESS;
    give(small);
    gpw_allocator_clear(a);
    assert_int_equal(purse.left, 3 * GRANULE);
    end();
}

static void clear_leaves_a_usable_allocator(void **state)
{
    (void)state;
    begin(64 * MIB, 64 * MIB);
    CUdeviceptr small = take(1), large = take(GRANULE);
    gpw_allocator_clear(a);
    assert_int_equal(gpu.used, 0);
    assert_int_equal(gpw_allocator_size(a, small), 0);
    give(small);
    give(large);
    assert_int_equal(take(1), WINDOW);
    end();
    gpw_allocator_delete(NULL);
}

#define LIVE 400

/* A fixed sequence of takes and gives, against a plain list of what is live. */
static void a_long_life_keeps_the_books(void **state)
{
    (void)state;
    struct {
        CUdeviceptr at;
        size_t size;
    } live[LIVE] = {{0}};
    uint32_t seed = 1;
    begin(MAPPINGS_MAX * GRANULE, UINT64_C(1) << 40);
    for (unsigned turn = 0; turn < 4000; turn++) {
        seed = seed * 1664525u + 1013904223u;
        unsigned i = (seed >> 8) % LIVE;
        if (live[i].size) {
            assert_int_equal(gpw_allocator_size(a, live[i].at), live[i].size);
            give(live[i].at);
            live[i].size = 0;
            continue;
        }
        size_t size = (size_t)1 + (seed >> 4) % ((size_t)1 << (seed >> 28) % 14);
        CUdeviceptr at = take(size);
        for (unsigned k = 0; k < LIVE; k++)
            assert_true(!live[k].size || at >= live[k].at + live[k].size ||
                        at + size <= live[k].at);
        live[i].at = at;
        live[i].size = size;
        gpu.last = gpu.last > 200 ? 0 : gpu.last; /* handles may come again once released */
        while (gpu.sizes[gpu.last + 1])
            gpu.last++;
    }
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_at_every_boundary),
        cmocka_unit_test(small_ones_share_a_granule_and_large_ones_do_not),
        cmocka_unit_test(a_full_granule_is_followed_by_another),
        cmocka_unit_test(a_whole_granule_is_kept_for_the_next),
        cmocka_unit_test(what_others_have_is_not_kept),
        cmocka_unit_test(nothing_and_too_much_are_refused),
        cmocka_unit_test(a_window_of_odd_size_is_not_overrun),
        cmocka_unit_test(the_devices_memory_runs_out_and_comes_back),
        cmocka_unit_test(what_is_kept_is_given_up_when_it_is_needed),
        cmocka_unit_test(trimming_leaves_only_what_lives),
        cmocka_unit_test(gaps_are_used_again),
        cmocka_unit_test(only_what_was_given_can_be_given_back),
        cmocka_unit_test(a_range_is_held_inside_one_allocation_only),
        cmocka_unit_test(a_driver_that_fails_leaves_nothing_behind),
        cmocka_unit_test(the_limit_is_asked_for_pages_and_paid_back),
        cmocka_unit_test(clear_leaves_a_usable_allocator),
        cmocka_unit_test(a_long_life_keeps_the_books),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
