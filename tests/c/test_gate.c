/* The gate before the GPU, over a board and a driver that do what the test says, by a clock
 * that the test turns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gate.h"
#include "graph.h"
#include "handles.h"
#include "host_function.h"
#include "loop.h"
#include "memory.h"
#include "nccl.h"
#include "peer.h"
#include "quota.h"
#include "seat.h"
#include "slices.h"

#define MS UINT64_C(1000000)
#define CONTEXT ((CUcontext)(uintptr_t)0xa0)
#define STREAM ((CUstream)(uintptr_t)0xb0)
#define SEAT ((struct gp_seat *)(uintptr_t)0x10)
#define DEVICE 7
#define EVENTS 512

static struct {
    uint64_t now; /* ns */
    /* the board */
    bool closed, contended, must_yield, fresh;
    unsigned entered, idled, started, launches;
    /* the driver: events pass in the order in which they were recorded */
    unsigned records, passed, taken, given;
    unsigned order[EVENTS]; /* of an event */
    CUstreamCaptureStatus capture;
    bool stands;     /* a host function is under way */
    bool collective; /* another rank is waited for */
} world;

/* The made-up clock: everything that asks for the time asks here. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    *t = (struct timespec){(time_t)(world.now / (1000 * MS)), (long)(world.now % (1000 * MS))};
    return 0;
}

/* --- the board --------------------------------------------------------------------------- */

int gp_seat_open(int page_fd, int bell_fd, struct gp_seat **seat)
{
    assert_true(page_fd == 5 && bell_fd == 6);
    *seat = SEAT;
    return 0;
}

void gp_seat_leave(struct gp_seat *s)
{
    assert_ptr_equal(s, SEAT);
}

bool gp_seat_enter(struct gp_seat *s)
{
    assert_ptr_equal(s, SEAT);
    world.entered += !world.closed;
    return !world.closed;
}

bool gp_seat_fresh(struct gp_seat *s)
{
    (void)s;
    bool fresh = world.fresh;
    world.fresh = false;
    return fresh;
}

void gp_seat_started(struct gp_seat *s)
{
    (void)s;
    world.started++;
}

bool gp_seat_must_yield(struct gp_seat *s)
{
    (void)s;
    return world.must_yield;
}

bool gp_seat_contended(struct gp_seat *s)
{
    (void)s;
    return world.contended;
}

void gp_seat_idle(struct gp_seat *s, uint64_t idle_ns)
{
    (void)s, (void)idle_ns;
    world.idled++;
}

bool gp_seat_copy(struct gp_seat *s, enum gp_board_way way, uint64_t bytes)
{
    (void)s, (void)way, (void)bytes;
    return !world.closed;
}

void gp_seat_wait(struct gp_seat *s, int64_t timeout_us)
{
    (void)s;
    world.now += (uint64_t)timeout_us * 1000;
}

void gp_seat_count(struct gp_seat *s, uint64_t launches, uint64_t bytes)
{
    (void)s, (void)bytes;
    world.launches += (unsigned)launches;
}

void gp_seat_host_set(struct gp_seat *s, uint64_t bytes)
{
    (void)s, (void)bytes;
}

uint64_t gp_seat_slice_us(struct gp_seat *s)
{
    (void)s;
    return 0;
}

/* --- the driver -------------------------------------------------------------------------- */

static CUresult fake_current(CUcontext *context)
{
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult fake_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    assert_ptr_equal(stream, STREAM);
    *status = world.capture;
    return CUDA_SUCCESS;
}

static CUresult fake_record(CUevent event, CUstream stream)
{
    assert_ptr_equal(stream, STREAM);
    assert_int_equal(world.capture, CU_STREAM_CAPTURE_STATUS_NONE);
    world.order[(uintptr_t)event] = ++world.records;
    return CUDA_SUCCESS;
}

static CUresult fake_query(CUevent event)
{
    return world.order[(uintptr_t)event] <= world.passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static struct gpw_driver driver = {.cuCtxGetCurrent = fake_current,
                                   .cuStreamIsCapturing = fake_capturing,
                                   .cuEventRecord = fake_record,
                                   .cuEventQuery = fake_query};

/* --- the rest of the worker -------------------------------------------------------------- */

CUresult gpw_event_take(struct gpw_session *s, CUcontext context, CUevent *event)
{
    (void)s;
    assert_ptr_equal(context, CONTEXT);
    assert_true(world.taken + 1 < EVENTS);
    *event = (CUevent)(uintptr_t)++world.taken;
    return CUDA_SUCCESS;
}

void gpw_event_give(struct gpw_session *s, CUcontext context, CUevent event)
{
    (void)s, (void)event;
    assert_ptr_equal(context, CONTEXT);
    world.given++;
}

CUresult gpw_handle_get(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, bool nullable,
                        uint64_t *real)
{
    (void)s, (void)id, (void)nullable;
    assert_int_equal(kind, GP_HANDLE_STREAM);
    *real = (uint64_t)STREAM;
    return CUDA_SUCCESS;
}

int gpw_current_ordinal(struct gpw_session *s)
{
    (void)s;
    return 0;
}

bool gpw_captures_any(const struct gpw_session *s)
{
    (void)s;
    return world.capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool gpw_memory_is_device(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    (void)s, (void)address, (void)bytes;
    return true;
}

bool gpw_host_functions_pending(struct gpw_session *s)
{
    (void)s;
    return world.stands;
}

bool gpw_peers_pending(const struct gpw_session *s)
{
    (void)s;
    return false;
}

bool gpw_nccl_pending(struct gpw_session *s)
{
    (void)s;
    return world.collective;
}

void gpw_nccl_context_ended(struct gpw_session *s, CUcontext context)
{
    (void)s, (void)context;
}

void gpw_slices_set(uint32_t device, uint64_t us)
{
    (void)device, (void)us;
}

/* --- one session, one device ------------------------------------------------------------- */

static struct gpw_session session;
static const struct gp_req_cuMemsetD8Async work = {
    .h = {.op = GP_OP_cuMemsetD8Async, .size = sizeof work},
    .N = 1,
    .hStream = 16};
static const struct gpw_place here = {.context = CONTEXT};
static const struct gp_req_cuEventCreate other = {
    .h = {.op = GP_OP_cuEventCreate, .size = sizeof other}};

static int begin(void **state)
{
    (void)state;
    memset(&world, 0, sizeof world);
    world.now = 1000 * MS;
    session = (struct gpw_session){.driver = &driver, .device_count = 1, .devices = {DEVICE}};
    return gpw_gate_open(&session, 0, 5, 6);
}

static int end(void **state)
{
    (void)state;
    gpw_gate_close(&session);
    free(session.gates);
    return 0;
}

/* False: it has to wait. */
static bool submit(void)
{
    if (!gpw_gate_admit(&session, &work.h, &here))
        return false;
    gpw_gate_passed(&session, &work.h, &here);
    return true;
}

/* All that was submitted takes so long. */
static void run(uint64_t ns)
{
    world.now += ns;
    world.passed = world.records;
    gpw_gate_poll(&session);
}

static void finish_all(void)
{
    for (unsigned i = 0; i < 8 && gpw_gate_busy(&session); i++)
        run(0);
    assert_false(gpw_gate_busy(&session));
}

static void a_closed_gate_holds_work_and_nothing_else(void **state)
{
    (void)state;
    world.closed = true;
    assert_false(submit());
    assert_true(gpw_gate_admit(&session, &other.h, &here));
    assert_false(gpw_gate_busy(&session));
    uint64_t before = world.now;
    assert_false(submit());
    gpw_gate_wait(&session, 500); /* sleeps at the board */
    assert_int_equal(world.now - before, 500000);
    world.closed = false;
    assert_true(submit());
    assert_true(gpw_gate_busy(&session));
}

static void work_that_is_over_gives_the_turn_back(void **state)
{
    (void)state;
    assert_true(submit());
    assert_int_equal(world.records, 1); /* the first is marked at once */
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 0);
    run(MS);
    assert_int_equal(world.idled, 1);
    assert_false(gpw_gate_busy(&session));
    assert_int_equal(world.given, world.taken);
}

static unsigned ahead(void)
{
    unsigned n = 0;
    while (n < 100 && submit())
        n++;
    return n;
}

/* Others who come must not wait for what was submitted before. */
static void little_is_submitted_ahead_while_others_wait(void **state)
{
    (void)state;
    world.contended = true;
    assert_int_equal(ahead(), 2);
    world.now += MS;
    world.passed = 1;
    assert_int_equal(ahead(), 1);
    end(NULL);
    begin(NULL);
    assert_int_equal(ahead(), 4); /* alone */
}

static unsigned submissions_to_the_next_mark(void)
{
    unsigned before = world.records, n = 0;
    while (world.records == before && n < 1000) {
        assert_true(submit());
        n++;
    }
    return n;
}

/* Marks cost: short work has few of them, and long work soon one each again. */
static void marks_follow_the_length_of_the_work(void **state)
{
    (void)state;
    static const unsigned while_short[] = {1, 2, 4, 8, 16, 32, 32};
    static const unsigned while_long[] = {32, 16, 8, 4, 2, 1, 1};
    world.contended = true; /* aims at 1 ms between marks */
    for (unsigned i = 0; i < 7; i++) {
        assert_int_equal(submissions_to_the_next_mark(), while_short[i]);
        run(MS / 10);
        assert_false(gpw_gate_busy(&session));
    }
    for (unsigned i = 0; i < 7; i++) {
        assert_int_equal(submissions_to_the_next_mark(), while_long[i]);
        run(50 * MS);
    }
    assert_int_equal(submissions_to_the_next_mark(), 1);
    run(MS); /* as it should be */
    assert_int_equal(submissions_to_the_next_mark(), 1);
}

/* A kernel of a collective waits for another rank's, whose tenant may wait for this GPU. */
static void a_turn_does_not_wait_for_a_collective(void **state)
{
    (void)state;
    assert_true(submit());
    world.must_yield = world.collective = true;
    gpw_gate_poll(&session);
    world.now += 49 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 0);
    world.now += 2 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 1);
}

/* The made-up clock stands: who waits for a host function of a client waits for ever. */
static void a_turn_does_not_wait_for_a_stream_that_is_blocked(void **state)
{
    (void)state;
    assert_true(submit());
    world.must_yield = world.stands = true;
    gpw_gate_poll(&session);
    world.now += 49 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 0);
    assert_false(submit());
    world.now += 2 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 1);
    assert_false(gpw_gate_busy(&session));
}

static void a_turn_that_ends_waits_for_its_work(void **state)
{
    (void)state;
    assert_true(submit());
    world.must_yield = true;
    world.now += 1000 * MS;
    gpw_gate_poll(&session);
    assert_int_equal(world.idled, 0); /* the GPU is at it */
    run(0);
    assert_int_equal(world.idled, 1);
}

static void a_turn_begins_when_the_gpu_has_changed_over(void **state)
{
    (void)state;
    world.fresh = true;
    assert_true(submit());
    assert_int_equal(world.records, 2); /* in front of the work, and behind it */
    gpw_gate_poll(&session);
    assert_int_equal(world.started, 0);
    world.passed = 1;
    gpw_gate_poll(&session);
    assert_int_equal(world.started, 1);
    assert_int_equal(world.idled, 0);
}

/* fake_record says if one is. */
static void a_stream_that_captures_is_never_marked(void **state)
{
    (void)state;
    world.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    world.fresh = true;
    assert_true(submit());
    gpw_gate_poll(&session);
    assert_int_equal(world.records, 0);
    finish_all();
}

static void events_of_a_dead_context_are_forgotten(void **state)
{
    (void)state;
    assert_true(submit());
    gpw_gate_context_ended(&session, CONTEXT);
    unsigned given = world.given;
    finish_all();
    assert_int_equal(world.given, given);
}

static void without_a_board_the_gate_is_open(void **state)
{
    (void)state;
    struct gpw_session free_one = session;
    free_one.gates = NULL;
    world.closed = true;
    assert_true(gpw_gate_admit(&free_one, &work.h, &here));
    gpw_gate_passed(&free_one, &work.h, &here);
    gpw_gate_poll(&free_one);
    gpw_gate_wait(&free_one, 1000);
    gpw_gate_tick(&free_one);
    assert_false(gpw_gate_busy(&free_one));
    assert_int_equal(gpw_gate_patience(&free_one, 1234), 1234);
    assert_int_equal(world.entered, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(a_closed_gate_holds_work_and_nothing_else),
        TEST(work_that_is_over_gives_the_turn_back),
        TEST(little_is_submitted_ahead_while_others_wait),
        TEST(marks_follow_the_length_of_the_work),
        TEST(a_turn_does_not_wait_for_a_collective),
        TEST(a_turn_does_not_wait_for_a_stream_that_is_blocked),
        TEST(a_turn_that_ends_waits_for_its_work),
        TEST(a_turn_begins_when_the_gpu_has_changed_over),
        TEST(a_stream_that_captures_is_never_marked),
        TEST(events_of_a_dead_context_are_forgotten),
        TEST(without_a_board_the_gate_is_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
