/* The gate before the GPU, over a board and a driver that do what the test says, by a clock
 * that the test turns. */
#ifndef TEST_GATE_WORLD_H
#define TEST_GATE_WORLD_H

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
    bool closed, contended, must_yield, fresh, waits;
    unsigned asked, entered, idled, started, launches;
    bool lost; /* it was told that work may go on behind the turn, before that ended */
    /* the driver: events pass in the order in which they were recorded */
    unsigned records, passed, taken, given;
    unsigned order[EVENTS]; /* of an event */
    bool over;              /* all that was submitted, whether it is marked or not */
    CUstreamCaptureStatus capture;
    bool stands;                              /* a host function is under way */
    bool collective;                          /* another rank is waited for */
    bool crowded;                             /* of this process */
    unsigned collectives, others_collectives; /* that this rank has begun, and another one */
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
    bool open = !world.closed && !(world.must_yield && world.idled < world.entered);
    world.entered += open;
    world.waits = !open;
    world.asked += !open;
    return open;
}

bool gp_seat_waits(const struct gp_seat *s)
{
    (void)s;
    return world.waits;
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

void gp_seat_collective(struct gp_seat *s, uint32_t communicator, uint32_t number)
{
    (void)s, (void)communicator;
    world.collectives = number;
}

bool gp_seat_behind(const struct gp_seat *s)
{
    (void)s;
    return (int32_t)(world.others_collectives - world.collectives) > 0;
}

void gp_seat_lost_sight(struct gp_seat *s)
{
    (void)s;
    world.lost = !world.idled;
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

static CUresult fake_set_current(CUcontext context)
{
    assert_ptr_equal(context, CONTEXT);
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

static CUresult fake_stream_query(CUstream stream)
{
    assert_ptr_equal(stream, STREAM);
    assert_int_equal(world.capture, CU_STREAM_CAPTURE_STATUS_NONE);
    return world.over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static struct gpw_driver driver = {.cuCtxGetCurrent = fake_current,
                                   .cuCtxSetCurrent = fake_set_current,
                                   .cuStreamIsCapturing = fake_capturing,
                                   .cuStreamQuery = fake_stream_query,
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

void *gpw_pinned_find(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    (void)s, (void)address, (void)bytes;
    return NULL;
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

bool gpw_nccl_crowded(const struct gpw_session *s)
{
    (void)s;
    return world.crowded;
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

static unsigned ahead(void)
{
    unsigned n = 0;
    while (n < 100 && submit())
        n++;
    return n;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

#endif
