/* What memory arrays have mapped, as the worker keeps it: which is let go of, and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "handles.h"
#include "later.h"
#include "mapped_array.h"
#include "memory_internal.h"

#define STREAM ((CUstream)(uintptr_t)8)
#define MEMORIES 4

struct physical {
    unsigned references;
};

/* --- what stands in for the worker around it, and for the driver --------------------------------- */

static struct physical memory[MEMORIES];

static struct {
    CUresult prepares, maps; /* what these answer */
    unsigned asked;          /* how often the driver was */
    bool held;               /* streams do not come on */
    gpw_done *done;          /* what is held */
    void *arg;
    uint64_t dead; /* an id that is not live */
} here;

void gpw_physical_keep(struct physical *p)
{
    p->references++;
}

void gpw_physical_drop(struct gpw_session *s, struct physical *p)
{
    (void)s;
    assert_true(p->references > 0);
    p->references--;
}

uint64_t gpw_handle_birth(struct gpw_session *s, uint64_t id)
{
    (void)s;
    return id == here.dead ? 0 : id;
}

void gpw_when_none_blocked(struct gpw_session *s, void (*run)(struct gpw_session *s, void *arg),
                           void *arg)
{
    run(s, arg);
}

CUresult gpw_after_prepare(struct gpw_session *s, CUstream stream, gpw_done *done, void *arg,
                           struct gpw_after **after)
{
    (void)s;
    assert_ptr_equal(stream, STREAM);
    *after = NULL;
    here.done = done;
    here.arg = arg;
    return here.prepares;
}

static void come_on(struct gpw_session *s)
{
    gpw_done *done = here.done;
    here.done = NULL;
    if (done)
        done(s, here.arg, CUDA_SUCCESS);
}

CUresult gpw_after_submitted(struct gpw_session *s, struct gpw_after *after, CUstream stream,
                             CUresult r)
{
    (void)after, (void)stream;
    if (r == CUDA_SUCCESS && !here.held)
        come_on(s);
    return r;
}

static CUresult fake_map(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    (void)list, (void)count, (void)stream;
    here.asked++;
    return here.maps;
}

static struct gpw_driver driver = {.cuMemMapArrayAsync = fake_map};
static struct gpw_memory of_session;
static struct gpw_session session = {.driver = &driver, .memory = &of_session};

/* --- calls ------------------------------------------------------------------------------------- */

/* A box of tiles of one array; with no memory it is taken away. */
static struct gp_array_map box(uint64_t x, uint64_t y, uint64_t w, uint64_t h)
{
    return (struct gp_array_map){.resource = 1, .at = {x, y, 0}, .extent = {w, h, 1}};
}

static CUresult change(const struct gp_array_map *entries, struct physical *const *physicals,
                       uint32_t count, bool whole)
{
    bool wholes[8];
    struct physical *own[8];
    for (uint32_t i = 0; i < count; i++) {
        wholes[i] = whole;
        own[i] = physicals[i];
    }
    const struct gpw_array_change c = {
        .stream = STREAM, .count = count, .entries = entries, .physicals = own, .whole = wholes};
    return gpw_mapped_arrays_change(&session, &c);
}

static CUresult map(struct gp_array_map entry, struct physical *p)
{
    return change(&entry, &p, 1, false);
}

/* All of it is let go of, and nothing is left in the books. */
static int begin(void **state)
{
    (void)state;
    here.prepares = here.maps = CUDA_SUCCESS;
    here.asked = 0;
    here.held = false;
    here.dead = 0;
    session.budget.of[GPW_BUDGET_HOST_MEMORY].limit = 0;
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (here.dead = 1; here.dead <= 2; here.dead++)
        gpw_mapped_arrays_forget(&session);
    assert_null(of_session.mapped_parts);
    assert_int_equal(of_session.ordered_frees, 0);
    for (int i = 0; i < MEMORIES; i++)
        assert_int_equal(memory[i].references, 0);
    assert_int_equal(gpw_budget_used(&session, GPW_BUDGET_HOST_MEMORY), 0);
    return 0;
}

/* --- tests ------------------------------------------------------------------------------------- */

static void test_memory_goes_when_the_stream_has_passed(void **state)
{
    (void)state;
    assert_int_equal(map(box(0, 0, 4, 4), &memory[0]), CUDA_SUCCESS);
    here.held = true;
    assert_int_equal(map(box(0, 0, 4, 4), NULL), CUDA_SUCCESS);
    assert_int_equal(memory[0].references, 1);
    assert_int_equal(of_session.ordered_frees, 1); /* who asks what is free has it looked for */
    come_on(&session);
    assert_int_equal(memory[0].references, 0);
}

static void test_a_hole_leaves_what_is_around_it(void **state)
{
    (void)state;
    assert_int_equal(map(box(0, 0, 4, 4), &memory[0]), CUDA_SUCCESS);
    assert_int_equal(map(box(1, 1, 2, 2), &memory[1]), CUDA_SUCCESS);
    assert_int_equal(memory[0].references, 4);
    assert_int_equal(map(box(0, 0, 4, 1), NULL), CUDA_SUCCESS);
    assert_int_equal(map(box(0, 3, 4, 1), NULL), CUDA_SUCCESS);
    assert_int_equal(map(box(0, 0, 1, 4), NULL), CUDA_SUCCESS);
    assert_int_equal(memory[0].references, 1);
    assert_int_equal(map(box(3, 0, 1, 4), NULL), CUDA_SUCCESS);
    assert_int_equal(memory[0].references, 0);
    assert_int_equal(memory[1].references, 1);
}

static void test_an_entry_takes_from_those_before_it(void **state)
{
    (void)state;
    const struct gp_array_map list[] = {box(0, 0, 2, 1), box(0, 0, 1, 1), box(1, 0, 1, 1)};
    struct physical *physicals[] = {&memory[0], NULL, &memory[1]};
    assert_int_equal(change(list, physicals, 3, false), CUDA_SUCCESS);
    assert_int_equal(memory[0].references, 0);
    assert_int_equal(memory[1].references, 1);
}

static void test_other_arrays_levels_layers_and_tails_are_others(void **state)
{
    (void)state;
    struct gp_array_map other[] = {box(0, 0, 1, 1), box(0, 0, 1, 1), box(0, 0, 1, 1),
                                   box(0, 0, 1, 1)};
    other[0].resource = 2;
    other[1].level = 1;
    other[2].layer = 1;
    other[3].subresource = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    assert_int_equal(map(box(0, 0, 1, 1), &memory[0]), CUDA_SUCCESS);
    for (int i = 0; i < 4; i++)
        assert_int_equal(map(other[i], NULL), CUDA_SUCCESS);
    assert_int_equal(memory[0].references, 1);
}

static void test_of_a_whole_array_parts_mean_nothing(void **state)
{
    (void)state;
    const struct gp_array_map one = box(UINT64_MAX, 3, 9, 9), two = box(0, 0, 1, 1);
    struct physical *first = &memory[0], *second = &memory[1];
    assert_int_equal(change(&one, &first, 1, true), CUDA_SUCCESS);
    assert_int_equal(change(&two, &second, 1, true), CUDA_SUCCESS);
    assert_int_equal(memory[0].references, 0);
    assert_int_equal(memory[1].references, 1);
}

static void test_what_the_driver_refuses_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(map(box(0, 0, 2, 2), &memory[0]), CUDA_SUCCESS);
    here.maps = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(map(box(0, 0, 2, 2), &memory[1]), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(map(box(0, 0, 2, 2), NULL), CUDA_ERROR_INVALID_VALUE);
    here.asked = 0;
    here.prepares = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    assert_int_equal(map(box(0, 0, 2, 2), &memory[1]), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(here.asked, 0);
    assert_int_equal(memory[0].references, 1);
    assert_int_equal(memory[1].references, 0);
}

static void test_a_box_beyond_all_numbers_is_refused(void **state)
{
    (void)state;
    const struct gp_array_map list[] = {box(0, 0, 1, 1), box(UINT64_MAX, 0, 1, 1)};
    struct physical *physicals[] = {&memory[0], &memory[1]};
    assert_int_equal(change(list, physicals, 2, false), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(here.asked, 0);
    assert_int_equal(memory[0].references, 0);
}

/* Without room in the budget: nothing new, and what cannot be cut counts as a whole. */
static void test_without_room_memory_counts_longer(void **state)
{
    (void)state;
    assert_int_equal(map(box(0, 0, 3, 3), &memory[0]), CUDA_SUCCESS);
    session.budget.of[GPW_BUDGET_HOST_MEMORY].limit = 1;
    assert_int_equal(map(box(1, 1, 1, 1), &memory[1]), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(here.asked, 1);
    assert_int_equal(map(box(0, 0, 3, 2), NULL), CUDA_SUCCESS);
    assert_int_equal(memory[0].references, 1);
    assert_int_equal(map(box(0, 0, 3, 3), NULL), CUDA_SUCCESS);
    assert_int_equal(memory[0].references, 0);
}

static void test_memory_goes_with_its_array(void **state)
{
    (void)state;
    struct gp_array_map other = box(0, 0, 1, 1);
    other.resource = 2;
    assert_int_equal(map(box(0, 0, 1, 1), &memory[0]), CUDA_SUCCESS);
    assert_int_equal(map(other, &memory[1]), CUDA_SUCCESS);
    here.dead = 1;
    gpw_mapped_arrays_forget(&session);
    assert_int_equal(memory[0].references, 0);
    assert_int_equal(memory[1].references, 1);
}

/* Against a table of tiles. */
#define SIDE 6
static void test_random_boxes(void **state)
{
    int tiles[SIDE][SIDE], wrong = 0;
    unsigned seed = 1;
    (void)state;
    for (int i = 0; i < SIDE * SIDE; i++)
        tiles[i / SIDE][i % SIDE] = -1;
    for (int step = 0; step < 3000; step++) {
        unsigned r = seed = seed * 1103515245u + 12345u;
        unsigned x = r >> 8 & 3, y = r >> 12 & 3, w = 1 + (r >> 16) % (SIDE - x),
                 h = 1 + (r >> 20) % (SIDE - y);
        int which = (int)(r >> 24) % (MEMORIES + 1) - 1;
        assert_int_equal(map(box(x, y, w, h), which < 0 ? NULL : &memory[which]), CUDA_SUCCESS);
        for (unsigned i = 0; i < w * h; i++)
            tiles[y + i / w][x + i % w] = which;
        bool there[MEMORIES] = {false};
        for (int i = 0; i < SIDE * SIDE; i++)
            if (tiles[i / SIDE][i % SIDE] >= 0)
                there[tiles[i / SIDE][i % SIDE]] = true;
        for (int i = 0; i < MEMORIES; i++)
            wrong += there[i] != (memory[i].references > 0);
    }
    assert_int_equal(wrong, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_memory_goes_when_the_stream_has_passed),
        TEST(test_a_hole_leaves_what_is_around_it),
        TEST(test_an_entry_takes_from_those_before_it),
        TEST(test_other_arrays_levels_layers_and_tails_are_others),
        TEST(test_of_a_whole_array_parts_mean_nothing),
        TEST(test_what_the_driver_refuses_changes_nothing),
        TEST(test_a_box_beyond_all_numbers_is_refused),
        TEST(test_without_room_memory_counts_longer),
        TEST(test_memory_goes_with_its_array),
        TEST(test_random_boxes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
