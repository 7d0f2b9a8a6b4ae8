/* Records between a GPU host and an application's buffers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "queue.h"

/* One, as names are kept for good; each test leaves it empty. */
static struct gpc_queue q;
static const struct gpc_clock_pair first = {1000, 5000};
static const struct gpc_clock_pair latest = {2000, 7000}; /* twice as fast */

/* The records that were written, as they were. */
struct written {
    union {
        uint32_t kind;
        struct gp_cupti_kernel kernel;
        struct gp_cupti_memcpy copy;
        struct gp_cupti_memcpy2 peer;
        struct gp_cupti_external external;
        struct gp_cupti_api api;
    } list[8];
    size_t count, room;
};

static bool keep(void *arg, const void *record, size_t size)
{
    struct written *w = arg;
    if (w->count == w->room)
        return false;
    memcpy(&w->list[w->count++], record, size);
    return true;
}

static size_t write_all(struct written *w)
{
    size_t failed = gpc_queue_write(&q, &first, &latest, keep, w);
    gpc_queue_free(&q);
    return failed;
}

static void copy(struct gp_activity_record r, uint32_t correlation)
{
    r.kind = GP_ACTIVITY_COPY;
    assert_true(gpc_queue_activity(&q, &r, "", correlation));
}

static void calls_come_first_and_clocks_are_theirs(void **state)
{
    struct written w = {.room = 8};
    const struct gp_activity_record r = {
        .kind = GP_ACTIVITY_KERNEL, .start = 1500, .end = 1600, .grid = {3, 2, 1}};
    const struct gp_cupti_api api = {.kind = GP_CUPTI_DRIVER, .start = 900, .end = 1000};
    (void)state;
    assert_true(gpc_queue_activity(&q, &r, "add", 7));
    assert_true(gpc_queue_external(&q, 3, 42, 7));
    assert_true(gpc_queue_api(&q, &api));
    assert_int_equal(write_all(&w), 0);
    assert_int_equal(w.count, 3);
    assert_int_equal(w.list[0].external.external, 42);
    assert_int_equal(w.list[0].external.correlation, 7);
    assert_int_equal(w.list[1].api.start, 4800);
    assert_int_equal(w.list[1].api.end, 5000);
    assert_string_equal(w.list[2].kernel.name, "add");
    assert_int_equal(w.list[2].kernel.start, 6000);
    assert_int_equal(w.list[2].kernel.end, 6200);
    assert_int_equal(w.list[2].kernel.grid[1], 2);
}

static void pieces_of_a_copy_are_one(void **state)
{
    struct written w = {.room = 8};
    (void)state;
    copy((struct gp_activity_record){.start = 1100, .end = 1200, .bytes = 10, .copy = 1}, 7);
    copy((struct gp_activity_record){.start = 1200, .end = 1300, .bytes = 5, .copy = 1}, 7);
    copy((struct gp_activity_record){.start = 1300, .end = 1400, .bytes = 1, .copy = 1}, 8);
    copy((struct gp_activity_record){.start = 1400, .end = 1500, .bytes = 2, .copy = 2}, 8);
    /* of what is not known, and of a graph, whose copies are all one call's */
    copy((struct gp_activity_record){.start = 1, .end = 2, .bytes = 3, .copy = 2}, 0);
    copy((struct gp_activity_record){.start = 1, .end = 2, .bytes = 3, .copy = 2}, 0);
    copy((struct gp_activity_record){.start = 1, .end = 2, .graph = 1}, 9);
    copy((struct gp_activity_record){.start = 1, .end = 2, .graph = 1}, 9);
    assert_int_equal(write_all(&w), 0);
    assert_int_equal(w.count, 7);
    assert_int_equal(w.list[0].copy.bytes, 15);
    assert_int_equal(w.list[0].copy.start, 5200);
    assert_int_equal(w.list[0].copy.end, 5600);
    assert_int_equal(w.list[1].copy.correlation, 8);
}

static void copies_between_gpus_name_both(void **state)
{
    struct written w = {.room = 8};
    const struct gp_activity_record r = {.start = 1100,
                                         .end = 1200,
                                         .bytes = 10,
                                         .copy = GP_CUPTI_PTOP,
                                         .device = 1,
                                         .from_device = 1,
                                         .from_context = 4,
                                         .to_device = 3,
                                         .to_context = 6};
    (void)state;
    copy(r, 7);
    copy(r, 7); /* two copies, and no pieces of one */
    assert_int_equal(write_all(&w), 0);
    assert_int_equal(w.count, 2);
    assert_int_equal(w.list[0].kind, GP_CUPTI_MEMCPY2);
    assert_int_equal(w.list[0].peer.correlation, 7);
    assert_int_equal(w.list[0].peer.bytes, 10);
    assert_int_equal(w.list[0].peer.from_device, 1);
    assert_int_equal(w.list[0].peer.from_context, 4);
    assert_int_equal(w.list[0].peer.to_device, 3);
    assert_int_equal(w.list[0].peer.to_context, 6);
    assert_int_equal(w.list[0].peer.end, 5400);
}

static void far_times_stay_numbers(void **state)
{
    struct written w = {.room = 8};
    (void)state;
    copy((struct gp_activity_record){.start = 0, .end = INT64_MAX}, 1);
    copy((struct gp_activity_record){.start = UINT64_C(1) << 63, .end = UINT64_MAX}, 2);
    assert_int_equal(write_all(&w), 0);
    assert_int_equal(w.count, 2);
    assert_int_equal(w.list[0].copy.start, 3000);
    assert_int_equal(w.list[0].copy.end, 5000 + UINT64_C(9000000000000000000));
}

static void what_is_refused_is_counted(void **state)
{
    struct written w = {.room = 1};
    (void)state;
    assert_true(gpc_queue_external(&q, 3, 1, 1));
    assert_true(gpc_queue_external(&q, 3, 2, 2));
    assert_true(gpc_queue_external(&q, 3, 3, 3));
    assert_int_equal(write_all(&w), 2);
}

/* A host that tells of ever more takes no more memory. */
static void there_is_an_end(void **state)
{
    const struct gp_activity_record r = {.kind = GP_ACTIVITY_KERNEL, .start = 1, .end = 2};
    size_t taken = 0;
    (void)state;
    for (char name[32]; taken < (1u << 20); taken++) {
        snprintf(name, sizeof name, "kernel %zu", taken);
        if (!gpc_queue_activity(&q, &r, name, 0))
            break;
    }
    assert_int_equal(taken, 1u << 18);
    gpc_queue_free(&q);
    assert_true(gpc_queue_activity(&q, &r, "kernel 0", 0));
    gpc_queue_free(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_come_first_and_clocks_are_theirs),
        cmocka_unit_test(pieces_of_a_copy_are_one),
        cmocka_unit_test(copies_between_gpus_name_both),
        cmocka_unit_test(far_times_stay_numbers),
        cmocka_unit_test(what_is_refused_is_counted),
        cmocka_unit_test(there_is_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
