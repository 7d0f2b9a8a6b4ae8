/*
 * How a copy is planned: what its ends are, with made-up ranges and sessions, and that every
 * cell of the table has a strategy or says why there is none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <string.h>

#include "copy.h"
#include "fake_worker.h"

#define WINDOW UINT64_C(0x200000000000)
#define DEVICE_HERE WINDOW
#define DEVICE_THERE (WINDOW + (UINT64_C(1) << 40))
#define SHARED_HERE UINT64_C(0x100000000000)
#define SHARED_THERE UINT64_C(0x100000100000)
#define PINNED UINT64_C(0x7000000000)
#define POOL UINT64_C(0x7100000000)
#define MAPPED (WINDOW + 0x1000000)
#define UNKNOWN UINT64_C(0x7200000000)
#define SIZE 4096u

static void put(uint64_t begin, enum gpc_range_kind kind, CUdevice device)
{
    const struct gpc_range range = {.begin = begin, .size = SIZE, .kind = kind, .device = device};
    assert_int_equal(gpc_range_add(&range), 0);
}

/* Two sessions with a device each; the route is the first one's. */
static int set_up(void **state)
{
    static struct gpc_route on;
    static struct gp_snapshot *second;
    struct gpc_session *here = fake_session(), *there = gpc_session_at(1);
    here->window_begin = DEVICE_HERE;
    here->window_end = DEVICE_THERE;
    if (!second)
        second = calloc(1, GP_SNAPSHOT_MAX);
    second->device_count = 1;
    *there = (struct gpc_session){.index = 1, .first = 1, .snapshot = second};
    there->window_begin = DEVICE_THERE;
    there->window_end = DEVICE_THERE + (UINT64_C(1) << 40);
    gpc_sessions_set_count(2);
    on = (struct gpc_route){.session = here};
    put(DEVICE_HERE, GPC_RANGE_DEVICE, 0);
    put(DEVICE_THERE, GPC_RANGE_DEVICE, 1);
    put(SHARED_HERE, GPC_RANGE_SHARED, 0);
    put(SHARED_THERE, GPC_RANGE_SHARED, 1);
    put(PINNED, GPC_RANGE_HOST, 0);
    put(POOL, GPC_RANGE_POOL, 0);
    put(MAPPED, GPC_RANGE_MAPPED, -1);
    *state = &on;
    return 0;
}

static int tear_down(void **state)
{
    const uint64_t all[] = {DEVICE_HERE, DEVICE_THERE, SHARED_HERE, SHARED_THERE,
                            PINNED,      POOL,         MAPPED};
    struct gpc_range removed;
    (void)state;
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        assert_true(gpc_range_remove(all[i], &removed));
    gpc_sessions_set_count(0); /* the second one has nobody to say goodbye to */
    return 0;
}

static struct gpc_copy plan(void **state, struct gpc_end_named dst, struct gpc_end_named src,
                            size_t bytes)
{
    struct gpc_copy c = {.on = *state, .box = {bytes, 1, 1}};
    c.dst = (struct gpc_end){.at = dst.at, .said = dst.said, .span = {bytes, 1, 0, 0, bytes}};
    c.src = (struct gpc_end){.at = src.at, .said = src.said, .span = {bytes, 1, 0, 0, bytes}};
    return c;
}

static void ends_are_classified(void **state)
{
    const struct {
        struct gpc_end_named end;
        size_t bytes;
        enum gpc_end_kind kind;
    } rows[] = {
        {{GPC_SAID_ANY, UNKNOWN}, 8, GPC_END_PAGEABLE},
        {{GPC_SAID_HOST, UNKNOWN}, 8, GPC_END_PAGEABLE},
        {{GPC_SAID_DEVICE, UNKNOWN}, 8, GPC_END_DEVICE}, /* the driver will know */
        {{GPC_SAID_ANY, PINNED + 8}, SIZE - 8, GPC_END_PINNED},
        {{GPC_SAID_ANY, PINNED + 8}, SIZE, GPC_END_PAGEABLE}, /* the host has more */
        {{GPC_SAID_DEVICE, PINNED}, SIZE, GPC_END_PINNED},
        {{GPC_SAID_HOST, SHARED_HERE}, SIZE, GPC_END_SHARED},
        {{GPC_SAID_HOST, SHARED_HERE}, SIZE + 1, GPC_END_PAGEABLE},
        {{GPC_SAID_HOST, SHARED_THERE}, SIZE, GPC_END_PINNED}, /* that worker has it, ours not */
        {{GPC_SAID_ANY, DEVICE_HERE}, SIZE, GPC_END_DEVICE},
        {{GPC_SAID_DEVICE, DEVICE_THERE}, SIZE, GPC_END_REMOTE},
        {{GPC_SAID_ANY, POOL}, 8, GPC_END_DEVICE},
        {{GPC_SAID_HOST, POOL}, 8, GPC_END_PAGEABLE},       /* this process has it as well */
        {{GPC_SAID_ANY, MAPPED}, 2 * SIZE, GPC_END_DEVICE}, /* the next mapping may follow */
        {{GPC_SAID_ARRAY, 0}, 0, GPC_END_ARRAY},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gpc_copy c = plan(state, rows[i].end, rows[i].end, rows[i].bytes);
        assert_int_equal(gpc_copy_classify(&c), CUDA_SUCCESS);
        assert_int_equal(c.src.kind, rows[i].kind);
        assert_int_equal(c.dst.kind, rows[i].kind);
    }
}

static void what_cuda_sees_at_once_is_refused(void **state)
{
    const struct {
        struct gpc_end_named end;
        size_t bytes;
    } rows[] = {
        {{GPC_SAID_HOST, DEVICE_HERE}, 8}, /* the two ends mixed up */
        {{GPC_SAID_ANY, DEVICE_HERE}, SIZE + 1}, {{GPC_SAID_DEVICE, DEVICE_THERE + 1}, SIZE},
        {{GPC_SAID_DEVICE, PINNED}, SIZE + 1},   {{GPC_SAID_ANY, POOL + SIZE - 1}, SIZE_MAX},
        {{GPC_SAID_ANY, DEVICE_HERE + SIZE}, 8}, /* freed, perhaps: nothing of this process's */
    };
    const struct gpc_end_named fine = {GPC_SAID_ANY, UNKNOWN};
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gpc_copy c = plan(state, rows[i].end, fine, rows[i].bytes);
        assert_int_equal(gpc_copy_classify(&c), CUDA_ERROR_INVALID_VALUE);
        c = plan(state, fine, rows[i].end, rows[i].bytes);
        assert_int_equal(gpc_copy_classify(&c), CUDA_ERROR_INVALID_VALUE);
    }
}

static void ends_are_seen_from_a_route(void **state)
{
    const struct gpc_end_named there = {GPC_SAID_ANY, DEVICE_THERE};
    const struct gpc_end_named here = {GPC_SAID_HOST, SHARED_HERE};
    const struct gpc_route other = {.session = gpc_session_at(1)};
    struct gpc_copy c = plan(state, there, here, 8);
    assert_int_equal(gpc_copy_classify(&c), CUDA_SUCCESS);
    assert_int_equal(c.dst.kind, GPC_END_REMOTE);
    assert_int_equal(c.src.kind, GPC_END_SHARED);
    assert_int_equal(gpc_end_seen_from(&c.dst, &other), GPC_END_DEVICE);
    assert_int_equal(gpc_end_seen_from(&c.src, &other), GPC_END_PINNED);
}

/* A strategy or the reason why there is none, and never both. */
static void is_complete(const struct gpc_strategy *s)
{
    assert_non_null(s);
    assert_non_null(s->name);
    assert_int_equal(s->run == NULL, s->refusal != NULL);
    if (s->in_graph) {
        assert_null(s->in_graph->in_graph);
        is_complete(s->in_graph);
    }
}

static void every_cell_has_a_strategy_or_a_refusal(void **state)
{
    (void)state;
    unsigned run = 0;
    for (unsigned by = 0; by < GPC_COPY_TRANSPORTS; by++)
        for (unsigned src = 0; src < GPC_END_KINDS; src++)
            for (unsigned dst = 0; dst < GPC_END_KINDS; dst++) {
                const struct gpc_strategy *s = gpc_copy_strategy(by, src, dst);
                is_complete(s);
                run += s->run != NULL;
                if (src == GPC_END_FAR || dst == GPC_END_FAR)
                    assert_non_null(s->refusal);
            }
    assert_true(run >= 54); /* of 98, of which 26 are of arrays on another host */
}

static const char *name(enum gpc_copy_transport by, enum gpc_end_kind src, enum gpc_end_kind dst)
{
    return gpc_copy_strategy(by, src, dst)->name;
}

static void the_table_is_this(void **state)
{
    (void)state;
    const enum gpc_copy_transport shm = GPC_COPY_SHM, net = GPC_COPY_NETWORK;
    assert_string_equal(name(shm, GPC_END_PAGEABLE, GPC_END_DEVICE), "upload_arena");
    assert_string_equal(name(net, GPC_END_PAGEABLE, GPC_END_DEVICE), "upload_message");
    assert_string_equal(name(net, GPC_END_PINNED, GPC_END_DEVICE), "upload_pinned_message");
    assert_string_equal(name(shm, GPC_END_SHARED, GPC_END_DEVICE), "device");
    assert_string_equal(name(shm, GPC_END_DEVICE, GPC_END_PAGEABLE), "download_arena");
    assert_string_equal(name(net, GPC_END_DEVICE, GPC_END_PINNED), "download_pinned_message");
    assert_string_equal(name(net, GPC_END_DEVICE, GPC_END_DEVICE), "device");
    assert_string_equal(name(shm, GPC_END_DEVICE, GPC_END_REMOTE), "peer");
    assert_string_equal(name(net, GPC_END_PAGEABLE, GPC_END_REMOTE), "remote");
    assert_string_equal(name(shm, GPC_END_PINNED, GPC_END_SHARED), "host");
    assert_string_equal(name(net, GPC_END_SHARED, GPC_END_DEVICE), "device"); /* mapped memory */
    assert_string_equal(name(net, GPC_END_PAGEABLE, GPC_END_ARRAY), "upload_array");
    assert_string_equal(name(shm, GPC_END_ARRAY, GPC_END_PINNED), "download_pinned_array");
    assert_string_equal(name(shm, GPC_END_SHARED, GPC_END_ARRAY), "device");
    assert_string_equal(name(net, GPC_END_ARRAY, GPC_END_REMOTE), "far_memory");
    assert_string_equal(name(net, GPC_END_FAR, GPC_END_DEVICE), "far_array");
    const struct gpc_strategy *pinned = gpc_copy_strategy(net, GPC_END_PINNED, GPC_END_DEVICE);
    assert_string_equal(pinned->in_graph->name, "captured");
    const struct gpc_strategy *plain = gpc_copy_strategy(net, GPC_END_DEVICE, GPC_END_PAGEABLE);
    assert_string_equal(plain->in_graph->name, "captured");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(ends_are_classified),        CASE(what_cuda_sees_at_once_is_refused),
        CASE(ends_are_seen_from_a_route), CASE(every_cell_has_a_strategy_or_a_refusal),
        CASE(the_table_is_this),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
