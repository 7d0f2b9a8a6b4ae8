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

/* --- what the quota asks of the rest of the worker ------------------------------------ */

static struct gp_board *board;
static int member, neighbour;
static uint64_t held, freed_by_room;
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
    *bytes = held;
    return true;
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

static int begin(void **state)
{
    const struct gp_board_gpu gpu = {
        .policy = GP_POLICY_SHARE, .max_inst = 20, .prio_ratio = 90, .memory_total = 4096 * MIB};
    const struct gp_board_grant grant = {.memory_limit = LIMIT, .share = 1000, .ceiling = 1000};
    (void)state;
    if (gp_board_new(&board) != 0 || gp_board_gpu_set(board, &gpu) != 0 ||
        gp_board_tenant_set(board, "t", &grant) != 0)
        return -1;
    member = gp_board_join(board, "t");
    neighbour = gp_board_join(board, "t");
    held = used = freed_by_room = making = 0;
    given_up = 0;
    session = (struct gpw_session){.device_count = 1};
    ended[0] = '\0';
    return member < 0 || neighbour < 0;
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
