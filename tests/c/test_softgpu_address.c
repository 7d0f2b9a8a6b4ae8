/* The soft GPU's map of addresses: what a running operation holds stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <time.h>

#include "softgpu.h"

#define BEGIN UINT64_C(0x10000)
#define SIZE UINT64_C(0x1000)

static void add(uint64_t begin)
{
    struct sg_extent extent = {.begin = begin, .end = begin + SIZE, .space = SG_SPACE_HOST};
    assert_int_equal(sg_address_add(&extent), CUDA_SUCCESS);
}

static const void *at(uint64_t address)
{
    return (const void *)(uintptr_t)address;
}

static bool removed;

static void *take_away(void *arg)
{
    (void)arg;
    sg_address_remove(BEGIN, NULL);
    __atomic_store_n(&removed, true, __ATOMIC_SEQ_CST);
    return NULL;
}

/* A wait for a value looks at memory that another context may free: not while it looks. */
static void held_stays(void **state)
{
    (void)state;
    pthread_t thread;
    const struct timespec moment = {0, 20000000};
    add(BEGIN);
    removed = false;
    assert_true(sg_address_hold(at(BEGIN + 8), 8, NULL, 0));
    assert_int_equal(pthread_create(&thread, NULL, take_away, NULL), 0);
    nanosleep(&moment, NULL);
    assert_false(__atomic_load_n(&removed, __ATOMIC_SEQ_CST));
    sg_address_let_go();
    pthread_join(thread, NULL);
    assert_true(removed);
    assert_false(sg_address_hold(at(BEGIN + 8), 8, NULL, 0));
}

/* Whoever was refused holds nothing. */
static void both_ends_or_none(void **state)
{
    (void)state;
    add(BEGIN);
    assert_false(sg_address_hold(at(BEGIN), SIZE, at(BEGIN + SIZE), 1));
    assert_false(sg_address_hold(at(BEGIN), SIZE + 1, NULL, 0));
    assert_false(sg_address_hold(at(BEGIN), UINT64_MAX, NULL, 0));
    add(BEGIN + SIZE);
    assert_true(sg_address_hold(at(BEGIN), SIZE, at(BEGIN + SIZE), SIZE));
    sg_address_let_go();
    assert_true(sg_address_remove(BEGIN, NULL) && sg_address_remove(BEGIN + SIZE, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(held_stays),
        cmocka_unit_test(both_ends_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
