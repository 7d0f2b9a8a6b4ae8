/* What a session may have of a device's memory, where the driver takes by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "board.h"
#include "seat.h"
#include "gate.h"
#include "held.h"
#include "memory_internal.h"
#include "nccl.h"
#include "pool.h"
#include "quota.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (256 * MIB)
#define PLENTY (2048 * MIB)

/* --- what the quota asks of the rest of the worker ------------------------------------ */

static struct gp_board *board;
static int member, neighbour;
static uint64_t held, freed_by_room;
static bool hidden; /* nobody says what is held */
static unsigned questions;
static char ended[512];

struct gp_seat *gpw_gate_seat(struct gpw_session *s, uint32_t ordinal)
{
    (void)s, (void)ordinal;
    return (struct gp_seat *)&member;
}

/* The seat asks the board without an arbiter between them. */
static uint64_t used;

bool gp_seat_memory_take(struct gp_seat *s, uint64_t bytes)
{
    (void)s;
    if (!gp_board_memory_take(board, member, used + bytes))
        return false;
    gp_board_memory_use(board, member, used += bytes);
    return true;
}

void gp_seat_memory_charge(struct gp_seat *s, uint64_t bytes)
{
    (void)s;
    gp_board_memory_use(board, member, used += bytes);
}

void gp_seat_memory_give(struct gp_seat *s, uint64_t bytes)
{
    (void)s;
    gp_board_memory_use(board, member, used -= bytes);
}

uint64_t gp_seat_memory_limit(struct gp_seat *s)
{
    uint64_t limit;
    (void)s;
    gp_board_memory_others(board, member, &limit);
    return limit;
}

uint64_t gp_seat_memory_left(struct gp_seat *s)
{
    uint64_t limit, all = used + gp_board_memory_others(board, member, &limit);
    (void)s;
    return all < limit ? limit - all : 0;
}

uint64_t gp_seat_memory_over(struct gp_seat *s)
{
    uint64_t limit, all = used + gp_board_memory_others(board, member, &limit);
    (void)s;
    return all > limit ? all - limit : 0;
}

bool gp_seat_memory_fits(struct gp_seat *s, uint64_t bytes)
{
    return bytes <= gp_seat_memory_left(s);
}

bool gpw_held_bytes(struct gpw_session *s, uint32_t ordinal, uint64_t *bytes)
{
    (void)s, (void)ordinal;
    questions++;
    *bytes = held;
    return !hidden;
}

uint64_t gpw_held_ahead(struct gpw_session *s)
{
    (void)s;
    return 0;
}

void gpw_pools_trim(struct gpw_session *s, uint32_t ordinal)
{
    (void)s, (void)ordinal;
}

void gpw_memory_trim(struct gpw_session *s, uint32_t ordinal)
{
    (void)s, (void)ordinal;
    held -= freed_by_room;
    freed_by_room = 0;
}

void gpw_session_end(struct gpw_session *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(ended, sizeof ended, format, args);
    va_end(args);
    s->ended = true;
}

/* What communicators that are being made hold, and how often they were given up. */
static uint64_t making;
static unsigned given_up;

bool gpw_nccl_give_up(struct gpw_session *s, uint32_t ordinal, uint64_t over)
{
    (void)s, (void)ordinal;
    assert_true(over > 0);
    given_up += making != 0;
    return making != 0;
}

/* --- a tenant with two sessions ------------------------------------------------------- */

static struct gpw_session session;

static int begin_with(uint64_t limit)
{
    const struct gp_board_gpu gpu = {
        .policy = GP_POLICY_SHARE, .max_inst = 20, .prio_ratio = 90, .memory_total = 4096 * MIB};
    const struct gp_board_grant grant = {.memory_limit = limit, .share = 1000, .ceiling = 1000};
    if (gp_board_new(&board) != 0 || gp_board_gpu_set(board, &gpu) != 0 ||
        gp_board_tenant_set(board, "t", &grant) != 0)
        return -1;
    member = gp_board_join(board, "t");
    neighbour = gp_board_join(board, "t");
    held = used = freed_by_room = making = 0;
    given_up = questions = 0;
    hidden = false;
    session = (struct gpw_session){.device_count = 1};
    ended[0] = '\0';
    return member < 0 || neighbour < 0;
}

static int begin(void **state)
{
    (void)state;
    return begin_with(LIMIT);
}

static int begin_plenty(void **state)
{
    (void)state;
    if (begin_with(PLENTY) != 0)
        return -1;
    held = 100 * MIB;
    gpw_quota_reconcile(&session, 0);
    questions = 0;
    return 0;
}

static int finish(void **state)
{
    (void)state;
    gp_board_free(board);
    return 0;
}

static void look(unsigned times)
{
    while (times--)
        gpw_quota_enforce(&session, 0);
}

/* A host that is given access would be the worker's, and the program is on another. */
static void test_no_host_is_given_access(void **state)
{
    (void)state;
    CUmemAccessDesc own[2];
    const CUmemAccessDesc asked[2] = {
        {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    assert_int_equal(gpw_access_take(&session, asked, 1, own, 2), CUDA_SUCCESS);
    assert_int_equal(gpw_access_take(&session, asked, 2, own, 2), CUDA_ERROR_NOT_SUPPORTED);
}

static void test_overhead_within_the_limit(void **state)
{
    (void)state;
    held = 200 * MIB;
    look(5);
    assert_false(session.ended);
    assert_int_equal(used, held);
}

/* Code of a kernel that was launched into a full account. */
static void test_a_little_over_is_borne(void **state)
{
    (void)state;
    held = LIMIT;
    look(1);
    held += 100 * MIB;
    look(5);
    assert_false(session.ended);
    assert_false(gpw_quota_take(&session, 0, 1));
}

static void test_far_over_is_ended(void **state)
{
    (void)state;
    held = LIMIT + 400 * MIB;
    look(1);
    assert_false(session.ended); /* it may be that something is given back */
    look(1);
    assert_true(session.ended);
    assert_non_null(strstr(ended, "656 MiB"));
    assert_non_null(strstr(ended, "256"));
}

static void test_what_can_be_given_back_saves_it(void **state)
{
    (void)state;
    held = LIMIT + 400 * MIB;
    freed_by_room = 350 * MIB;
    look(5);
    assert_false(session.ended);
}

/* The one that went over ends, not the one that happened to be there. */
static void test_a_neighbour_of_the_same_tenant_is_spared(void **state)
{
    (void)state;
    held = 100 * MIB;
    look(1);
    gp_board_memory_use(board, neighbour, LIMIT + 400 * MIB);
    look(5);
    held += 50 * MIB;
    look(5);
    assert_false(session.ended);
}

static void test_communicators_are_given_up_first(void **state)
{
    (void)state;
    making = 400 * MIB;
    held = LIMIT + making;
    look(5);
    assert_false(session.ended);
    assert_int_equal(given_up, 1);
    held -= making; /* NCCL takes its time */
    look(5);
    assert_false(session.ended);
}

/* --- estimates --- */

static void test_a_little_of_plenty_is_charged_unasked(void **state)
{
    (void)state;
    size_t free_bytes = PLENTY, total = PLENTY;
    assert_true(gpw_quota_estimate(&session, 0, 10 * MIB));
    assert_int_equal(used, 110 * MIB);
    assert_int_equal(questions, 0);
    held = 104 * MIB; /* the rest was another process's */
    gpw_quota_info(&session, 0, &free_bytes, &total);
    assert_int_equal(used, held);
    assert_int_equal(free_bytes, PLENTY - held);
    assert_int_equal(questions, 1);
    gpw_quota_info(&session, 0, &free_bytes, &total);
    assert_int_equal(questions, 1); /* there is no estimate any more */
}

/* One session loads as much as another one of its tenant frees at that moment. */
static void test_an_estimate_that_was_too_low_is_found_soon(void **state)
{
    (void)state;
    unsigned looks = 0;
    assert_false(gpw_quota_is_doubtful(&session, 0));
    assert_true(gpw_quota_estimate(&session, 0, 10 * MIB));
    held = PLENTY + 400 * MIB;
    for (; gpw_quota_is_doubtful(&session, 0); looks++)
        look(1);
    assert_true(session.ended);
    assert_int_equal(looks, 2);
}

static void test_much_is_not_estimated(void **state)
{
    (void)state;
    assert_false(gpw_quota_estimate(&session, 0, 65 * MIB));
    assert_false(gpw_quota_estimate(&session, 0, UINT64_MAX));
    for (unsigned i = 0; i < 6; i++)
        assert_true(gpw_quota_estimate(&session, 0, 10 * MIB));
    assert_false(gpw_quota_estimate(&session, 0, 10 * MIB)); /* nor by and by */
    held += 60 * MIB;
    gpw_quota_reconcile(&session, 0);
    assert_true(gpw_quota_estimate(&session, 0, 10 * MIB));
    assert_int_equal(used, held + 10 * MIB);
}

static void test_near_the_limit_nothing_is(void **state)
{
    (void)state;
    held = PLENTY - 1024 * MIB;
    gpw_quota_reconcile(&session, 0);
    assert_false(gpw_quota_estimate(&session, 0, MIB));
    held = 100 * MIB;
    gp_board_memory_use(board, neighbour, PLENTY - 1024 * MIB); /* it is the tenant's */
    gpw_quota_reconcile(&session, 0);
    assert_false(gpw_quota_estimate(&session, 0, MIB));
}

static void test_an_estimate_takes_nothing_away(void **state)
{
    (void)state;
    assert_true(gpw_quota_estimate(&session, 0, 60 * MIB)); /* of which nothing was its own */
    assert_true(gpw_quota_fits(&session, 0, PLENTY - held));
    assert_true(gpw_quota_estimate(&session, 0, 60 * MIB));
    assert_true(gpw_quota_take(&session, 0, PLENTY - held));
    assert_int_equal(used, PLENTY);
    assert_false(gpw_quota_take(&session, 0, 1));
}

static void test_without_an_answer_nothing_is_charged(void **state)
{
    (void)state;
    assert_true(gpw_quota_estimate(&session, 0, 10 * MIB));
    hidden = true;
    assert_true(gpw_quota_reconcile(&session, 0));
    assert_int_equal(used, held);
    session.soft = true; /* which is asked quickly */
    assert_false(gpw_quota_estimate(&session, 0, 10 * MIB));
}

/* What waits for a rank that never comes does not keep the limit from holding. */
static void test_communicators_spare_it_once(void **state)
{
    (void)state;
    making = 1;
    held = LIMIT + 400 * MIB;
    look(20);
    assert_true(session.ended);
    assert_int_equal(given_up, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_host_is_given_access, begin, finish),
        cmocka_unit_test_setup_teardown(test_overhead_within_the_limit, begin, finish),
        cmocka_unit_test_setup_teardown(test_communicators_are_given_up_first, begin, finish),
        cmocka_unit_test_setup_teardown(test_communicators_spare_it_once, begin, finish),
        cmocka_unit_test_setup_teardown(test_a_little_over_is_borne, begin, finish),
        cmocka_unit_test_setup_teardown(test_far_over_is_ended, begin, finish),
        cmocka_unit_test_setup_teardown(test_what_can_be_given_back_saves_it, begin, finish),
        cmocka_unit_test_setup_teardown(test_a_neighbour_of_the_same_tenant_is_spared, begin,
                                        finish),
        cmocka_unit_test_setup_teardown(test_a_little_of_plenty_is_charged_unasked, begin_plenty,
                                        finish),
        cmocka_unit_test_setup_teardown(test_an_estimate_that_was_too_low_is_found_soon,
                                        begin_plenty, finish),
        cmocka_unit_test_setup_teardown(test_much_is_not_estimated, begin_plenty, finish),
        cmocka_unit_test_setup_teardown(test_near_the_limit_nothing_is, begin_plenty, finish),
        cmocka_unit_test_setup_teardown(test_an_estimate_takes_nothing_away, begin_plenty, finish),
        cmocka_unit_test_setup_teardown(test_without_an_answer_nothing_is_charged, begin_plenty,
                                        finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
