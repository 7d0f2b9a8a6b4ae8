/* The application's address ranges: look-up, boundaries, many of them, ended contexts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "ranges.h"

#define CONTEXT_A ((CUcontext)(uintptr_t)0xa0)
#define CONTEXT_B ((CUcontext)(uintptr_t)0xb0)

static unsigned here;

unsigned gpc_range_place(void)
{
    return here;
}

static void add(uint64_t begin, uint64_t size, CUcontext context)
{
    struct gpc_range range = {.begin = begin, .size = size, .context = context};
    assert_int_equal(gpc_range_add(&range), 0);
}

static bool lies_in(uint64_t address, uint64_t begin)
{
    struct gpc_range found = {0};
    return gpc_range_find(address, &found) && found.begin == begin;
}

static bool known(uint64_t address)
{
    struct gpc_range found;
    return gpc_range_find(address, &found);
}

static void take_out(uint64_t begin)
{
    struct gpc_range removed = {0};
    assert_true(gpc_range_remove(begin, &removed));
    assert_int_equal(removed.begin, begin);
}

static void nothing_is_known_at_first(void **state)
{
    (void)state;
    struct gpc_range untouched = {.begin = 77};
    assert_false(gpc_range_find(0, &untouched));
    assert_false(gpc_range_find(UINT64_MAX, &untouched));
    assert_false(gpc_range_remove(0x1000, &untouched));
    assert_int_equal(untouched.begin, 77);
}

static void an_address_is_in_from_first_to_last_byte(void **state)
{
    (void)state;
    add(0x3000, 0x1000, CONTEXT_A);
    add(0x1000, 0x800, CONTEXT_A);
    add(0x4000, 1, CONTEXT_A); /* right behind the first one */
    assert_false(known(0xfff));
    assert_true(lies_in(0x1000, 0x1000));
    assert_true(lies_in(0x17ff, 0x1000));
    assert_false(known(0x1800));
    assert_false(known(0x2fff));
    assert_true(lies_in(0x3000, 0x3000));
    assert_true(lies_in(0x3fff, 0x3000));
    assert_true(lies_in(0x4000, 0x4000));
    assert_false(known(0x4001));
    take_out(0x3000);
    assert_false(known(0x3800));
    assert_true(lies_in(0x4000, 0x4000));
    take_out(0x1000);
    take_out(0x4000);
}

/* The driver gives an address anew when a graph's memory there has gone. */
static void memory_of_graphs_gives_way(void **state)
{
    (void)state;
    static const struct gpc_range graph[] = {
        {.begin = 0x1000, .size = 0x1000, .kind = GPC_RANGE_GRAPH},
        {.begin = 0x2000, .size = 0x1000, .kind = GPC_RANGE_GRAPH},
        {.begin = 0x4000, .size = 0x1000, .kind = GPC_RANGE_GRAPH}};
    struct gpc_range found;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(gpc_range_add(&graph[i]), 0);
    add(0x3000, 0x800, CONTEXT_A); /* beside them */
    assert_true(lies_in(0x1fff, 0x1000) && lies_in(0x2000, 0x2000) && lies_in(0x4000, 0x4000));
    add(0x1800, 0x900, CONTEXT_A); /* over two of them */
    assert_false(known(0x1000) || known(0x17ff) || known(0x2100));
    assert_true(lies_in(0x20ff, 0x1800) && lies_in(0x3000, 0x3000) && lies_in(0x4000, 0x4000));
    assert_int_equal(gpc_range_add(&graph[2]), 0); /* another graph's, at the same place */
    assert_true(gpc_range_find(0x4000, &found) && found.kind == GPC_RANGE_GRAPH);
    take_out(0x1800);
    take_out(0x3000);
    take_out(0x4000);
    assert_false(known(0x4000));
}

/* Nor is a variable's memory given to another while its module is there. */
static void variables_give_way_and_go_with_their_image(void **state)
{
    (void)state;
    static const struct gpc_range small = {
        .begin = 0x1000, .size = 4, .kind = GPC_RANGE_GLOBAL, .from = 7};
    static const struct gpc_range beside = {
        .begin = 0x1100, .size = 4, .kind = GPC_RANGE_GLOBAL, .from = 7};
    static const struct gpc_range large = {
        .begin = 0x1000, .size = 64, .kind = GPC_RANGE_GLOBAL, .from = 8};
    static const struct gpc_range host = {.begin = 0x1000, .size = 0x80, .kind = GPC_RANGE_HOST};
    struct gpc_range found;
    assert_int_equal(gpc_range_add(&small), 0);
    assert_int_equal(gpc_range_add(&beside), 0);
    assert_int_equal(gpc_range_add(&large), 0);
    assert_true(gpc_range_find(0x1000, &found) && found.size == 64 && found.from == 8);
    gpc_range_image_ended(7);
    assert_false(known(0x1100));
    assert_true(lies_in(0x103f, 0x1000));
    assert_int_equal(gpc_range_add(&host), 0); /* this host chooses its addresses itself */
    take_out(0x1000);
    assert_true(known(0x1000));
    gpc_range_image_ended(8);
    assert_false(known(0x1000));
    assert_int_equal(gpc_range_add(&small), 0);
    add(0x0800, 0x1000, CONTEXT_A); /* of a pool, say */
    assert_true(lies_in(0x1000, 0x0800));
    take_out(0x0800);
    assert_false(known(0x1000));
}

static void what_was_added_comes_back(void **state)
{
    (void)state;
    int owner;
    struct gpc_range range = {.begin = 0x5000,
                              .size = 64,
                              .kind = GPC_RANGE_SHARED,
                              .context = CONTEXT_B,
                              .device = 3,
                              .flags = 5,
                              .device_address = 0x7000,
                              .registered = true,
                              .owner = &owner};
    struct gpc_range found, removed;
    assert_int_equal(gpc_range_add(&range), 0);
    assert_true(gpc_range_find(0x503f, &found));
    assert_int_equal(found.size, 64);
    assert_int_equal(found.kind, GPC_RANGE_SHARED);
    assert_ptr_equal(found.context, CONTEXT_B);
    assert_int_equal(found.device, 3);
    assert_int_equal(found.flags, 5);
    assert_int_equal(found.device_address, 0x7000);
    assert_true(found.registered);
    assert_ptr_equal(found.owner, &owner);
    assert_true(gpc_range_is_host(&found));
    assert_true(gpc_range_remove(0x5000, &removed));
    assert_int_equal(removed.id, found.id);
    assert_ptr_equal(removed.owner, &owner);
}

static void only_the_beginning_removes_and_only_once(void **state)
{
    (void)state;
    struct gpc_range removed;
    add(0x1000, 0x1000, CONTEXT_A);
    assert_false(gpc_range_remove(0xfff, &removed));
    assert_false(gpc_range_remove(0x1001, &removed));
    assert_false(gpc_range_remove(0x2000, &removed));
    assert_true(known(0x1800));
    take_out(0x1000);
    assert_false(gpc_range_remove(0x1000, &removed));
    assert_false(known(0x1000));
}

/* An address that is used again is another buffer. */
static void every_range_has_an_id_of_its_own(void **state)
{
    (void)state;
    uint64_t last = 0;
    for (int i = 0; i < 5; i++) {
        struct gpc_range found;
        add(0x1000, 0x1000, CONTEXT_A);
        assert_true(gpc_range_find(0x1000, &found));
        assert_true(found.id > last);
        last = found.id;
        take_out(0x1000);
    }
}

static void a_range_may_end_where_addresses_do(void **state)
{
    (void)state;
    const uint64_t top = UINT64_MAX - 0xfff;
    add(top, 0x1000, CONTEXT_A);
    add(0x1000, 0x1000, CONTEXT_A);
    assert_false(known(top - 1));
    assert_true(lies_in(top, top));
    assert_true(lies_in(UINT64_MAX, top));
    assert_true(lies_in(0x1fff, 0x1000));
    take_out(top);
    assert_false(known(UINT64_MAX));
    take_out(0x1000);
    add(0, UINT64_MAX, CONTEXT_A);
    assert_true(lies_in(UINT64_MAX - 1, 0));
    assert_false(known(UINT64_MAX));
    take_out(0);
}

#define MANY 3000 /* more than the table begins with, and not a power of two */

/* In an order that is neither up nor down: 7 and MANY have no common divisor. */
static uint64_t place(unsigned n)
{
    return 0x100000 + (uint64_t)(n * 7u % MANY) * 0x1000;
}

static void many_ranges_in_any_order(void **state)
{
    (void)state;
    for (unsigned n = 0; n < MANY; n++)
        add(place(n), 0x800, CONTEXT_A);
    for (unsigned n = 0; n < MANY; n++) {
        assert_true(lies_in(place(n) + 0x7ff, place(n)));
        assert_false(known(place(n) + 0x800));
    }
    for (unsigned n = 0; n < MANY; n += 2)
        take_out(place(n));
    for (unsigned n = 0; n < MANY; n++)
        assert_int_equal(known(place(n)), n % 2);
    for (unsigned n = 1; n < MANY; n += 2)
        take_out(place(n));
}

static struct {
    uint64_t begins[64];
    unsigned count;
} ended;

static void note_ended(const struct gpc_range *range)
{
    assert_true(ended.count < 64);
    ended.begins[ended.count++] = range->begin;
    assert_false(known(range->begin)); /* it is gone already, and no lock is held */
}

static void a_context_takes_its_ranges_with_it(void **state)
{
    (void)state;
    ended.count = 0;
    for (uint64_t n = 0; n < 20; n++)
        add(n << 12, 0x1000, n % 3 ? CONTEXT_A : CONTEXT_B);
    gpc_range_context_ended(CONTEXT_B, note_ended);
    assert_int_equal(ended.count, 7);
    for (unsigned i = 0; i < ended.count; i++)
        assert_int_equal(ended.begins[i], (uint64_t)i * 3 << 12);
    gpc_range_context_ended(CONTEXT_B, note_ended);
    assert_int_equal(ended.count, 7);
    for (uint64_t n = 0; n < 20; n++)
        assert_int_equal(known(n << 12), n % 3 != 0);
    gpc_range_context_ended(CONTEXT_A, note_ended);
    assert_int_equal(ended.count, 20);
}

/* As another thread would: takes out one that lies lower than all that end. */
static void note_ended_and_meddle(const struct gpc_range *range)
{
    struct gpc_range lower;
    assert_true(gpc_range_remove((uint64_t)ended.count << 12, &lower));
    note_ended(range);
}

static void none_is_missed_while_others_come_and_go(void **state)
{
    (void)state;
    ended.count = 0;
    for (uint64_t n = 0; n < 40; n++)
        add(n << 12, 0x1000, n < 20 ? CONTEXT_A : CONTEXT_B);
    gpc_range_context_ended(CONTEXT_B, note_ended_and_meddle);
    assert_int_equal(ended.count, 20);
    for (uint64_t n = 0; n < 40; n++)
        assert_false(known(n << 12));
}

struct worker {
    uint64_t base;
    unsigned wrong;
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    for (unsigned turn = 0; turn < 300; turn++)
        for (uint64_t n = 0; n < 8; n++) {
            struct gpc_range range = {.begin = w->base + (n << 12), .size = 0x1000}, out;
            w->wrong += gpc_range_add(&range) != 0;
            w->wrong += !lies_in(range.begin + 0xfff, range.begin);
            w->wrong += n % 2 && !gpc_range_remove(range.begin - 0x1000, &out);
            w->wrong += n % 2 && !gpc_range_remove(range.begin, &out);
        }
    return NULL;
}

static void threads_have_their_own_ranges(void **state)
{
    (void)state;
    pthread_t threads[4];
    struct worker workers[4] = {{0}};
    for (uint64_t i = 0; i < 4; i++) {
        workers[i].base = i << 32;
        assert_int_equal(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
        assert_false(known(workers[i].base));
    }
}

static void what_encloses_a_range_meets_it(void **state)
{
    (void)state;
    add(1000, 100, NULL);
    assert_true(gpc_range_meets(1000, 100));
    assert_true(gpc_range_meets(1050, 1));
    assert_true(gpc_range_meets(500, 2000)); /* neither end lies in it */
    assert_true(gpc_range_meets(999, 2));
    assert_false(gpc_range_meets(900, 100));
    assert_false(gpc_range_meets(1100, 100));
    assert_false(gpc_range_meets(1050, 0));
    take_out(1000);
    assert_false(gpc_range_meets(0, UINT64_MAX));
}

/* A worker gives memory that lies where the client has some: what is freed is what was found. */
static void only_what_was_found_is_forgotten(void **state)
{
    (void)state;
    struct gpc_range found, own = {.begin = 0x1000, .size = 0x100, .kind = GPC_RANGE_SHARED};
    struct gpc_range given = {.begin = 0x1000, .size = 0x800, .kind = GPC_RANGE_POOL};
    assert_int_equal(gpc_range_add(&own), 0);
    assert_true(gpc_range_find(0x1000, &own));
    assert_int_equal(gpc_range_add(&given), 0);
    assert_true(gpc_range_forget(&own));
    assert_false(gpc_range_forget(&own));
    assert_true(gpc_range_find(0x1000, &found));
    assert_int_equal(found.kind, GPC_RANGE_POOL);
    assert_true(gpc_range_forget(&found));
    assert_false(known(0x1000));
}

static void one_address_may_be_in_two_places(void **state)
{
    (void)state;
    struct gpc_range found, one = {.begin = 0x1000, .size = 0x100, .place = 1, .flags = 1};
    struct gpc_range two = {.begin = 0x1080, .size = 0x100, .place = 2, .flags = 2};
    assert_int_equal(gpc_range_add(&one), 0);
    assert_int_equal(gpc_range_add(&two), 0);
    here = 2;
    assert_true(gpc_range_find(0x1090, &found));
    assert_int_equal(found.flags, 2);
    assert_true(gpc_range_find(0x1000, &found)); /* here is none: another's, then */
    assert_int_equal(found.flags, 1);
    here = 1;
    assert_true(gpc_range_find(0x1090, &found));
    assert_int_equal(found.flags, 1);
    assert_true(gpc_range_meets(0x1170, 1));
    assert_false(gpc_range_remove(0x1010, &found));
    take_out(0x1080);
    take_out(0x1000);
    assert_false(known(0x1090));
    here = 0;
}

/* A call on another host's stream, wherever the thread is. */
static void a_place_is_removed_from_before_others(void **state)
{
    (void)state;
    struct gpc_range removed, one = {.begin = 0x1000, .size = 0x100, .place = 1};
    struct gpc_range two = {.begin = 0x1000, .size = 0x100, .place = 2};
    assert_int_equal(gpc_range_add(&one), 0);
    assert_int_equal(gpc_range_add(&two), 0);
    here = 1;
    assert_true(gpc_range_remove_at(2, 0x1000, &removed));
    assert_int_equal(removed.place, 2);
    assert_true(gpc_range_remove_at(2, 0x1000, &removed)); /* there is none: another's, then */
    assert_int_equal(removed.place, 1);
    assert_false(gpc_range_remove_at(2, 0x1000, &removed));
    here = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_at_first),
        cmocka_unit_test(an_address_is_in_from_first_to_last_byte),
        cmocka_unit_test(memory_of_graphs_gives_way),
        cmocka_unit_test(variables_give_way_and_go_with_their_image),
        cmocka_unit_test(what_was_added_comes_back),
        cmocka_unit_test(only_the_beginning_removes_and_only_once),
        cmocka_unit_test(every_range_has_an_id_of_its_own),
        cmocka_unit_test(a_range_may_end_where_addresses_do),
        cmocka_unit_test(what_encloses_a_range_meets_it),
        cmocka_unit_test(many_ranges_in_any_order),
        cmocka_unit_test(a_context_takes_its_ranges_with_it),
        cmocka_unit_test(none_is_missed_while_others_come_and_go),
        cmocka_unit_test(threads_have_their_own_ranges),
        cmocka_unit_test(only_what_was_found_is_forgotten),
        cmocka_unit_test(one_address_may_be_in_two_places),
        cmocka_unit_test(a_place_is_removed_from_before_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
