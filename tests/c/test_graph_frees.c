/* Launches of graphs behind the free of what they had left: they wait for it, and not for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "allocator.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "in_use.h"
#include "later.h"
#include "memory_internal.h"
#include "pool.h"

#define GRAPHS 0x1000u
#define POOLS 0x2000u
#define SECOND UINT64_C(1000000000)

/* --- what stands in for the worker around it ------------------------------------------------ */

static bool blocked;
static gpw_done *over;
static void *over_arg;

CUresult gpw_after_users(struct gpw_session *s, const struct gpw_window *w, bool past_captures,
                         gpw_done *done, void *arg)
{
    (void)s, (void)w, (void)past_captures;
    over = done;
    over_arg = arg;
    return CUDA_SUCCESS;
}

bool gpw_users_capture(struct gpw_session *s)
{
    (void)s;
    return false;
}

bool gpw_streams_blocked(struct gpw_session *s)
{
    (void)s;
    return blocked;
}

void gpw_when_none_blocked(struct gpw_session *s, void (*run)(struct gpw_session *s, void *arg),
                           void *arg)
{
    run(s, arg);
}

void gpw_wait_add(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s, (void)w;
    fail();
}

CUresult gpw_forbidden(struct gpw_session *s)
{
    (void)s;
    return CUDA_SUCCESS;
}

uint64_t gpw_handle_find(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    (void)s, (void)kind, (void)real;
    return 0;
}

struct gpw_window *gpw_window_of(struct gpw_session *s, CUdeviceptr address)
{
    (void)s, (void)address;
    return NULL;
}

bool gpw_memory_is_device(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    (void)s, (void)address, (void)bytes;
    return true;
}

bool gpw_graph_memory_begins(struct gpw_session *s, uint64_t address)
{
    (void)s;
    return address == GRAPHS;
}

void gpw_pools_freed(struct gpw_session *s)
{
    (void)s;
}

void gpw_graph_memory_freed(struct gpw_session *s)
{
    (void)s;
}

/* None of these is asked of a graph's memory. */
void gpw_allocator_settle(struct gpw_allocator *a)
{
    (void)a;
    fail();
}

size_t gpw_allocator_size(const struct gpw_allocator *a, CUdeviceptr base)
{
    (void)a, (void)base;
    fail();
    return 0;
}

bool gpw_allocator_keep(struct gpw_allocator *a, CUdeviceptr address, uint64_t behind)
{
    (void)a, (void)address, (void)behind;
    fail();
    return false;
}

void gpw_allocator_give(struct gpw_allocator *a, CUdeviceptr address)
{
    (void)a, (void)address;
    fail();
}

bool gpw_allocator_choose(struct gpw_allocator *a, CUdeviceptr address, size_t bytes)
{
    (void)a, (void)address, (void)bytes;
    fail();
    return false;
}

int gpw_notify_gp_memory_spare(struct gpw_session *s, uint64_t at, uint64_t behind)
{
    (void)s, (void)at, (void)behind;
    fail();
    return -1;
}

/* --- the driver ------------------------------------------------------------------------------- */

static CUresult no_context(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult any_context(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult any_mode(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

static CUresult no_stream(CUstream *stream, unsigned flags)
{
    (void)stream, (void)flags;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static struct gpw_driver driver = {.cuCtxGetCurrent = no_context,
                                   .cuCtxSetCurrent = any_context,
                                   .cuThreadExchangeStreamCaptureMode = any_mode,
                                   .cuStreamCreate = no_stream};

/* --- the stories ------------------------------------------------------------------------------ */

static struct gpw_memory memory;
static struct gpw_session session = {.memory = &memory, .driver = &driver};

static bool admits(uint16_t op, uint64_t held_ns)
{
    return gpw_memory_admit(&session, &(struct gp_header){.op = op}, held_ns);
}

static bool launches(uint64_t held_ns)
{
    return admits(GP_OP_cuGraphLaunch, held_ns);
}

static void begins_to_free(CUdeviceptr at)
{
    assert_int_equal(gpw_memory_free(&session, at, false, false), CUDA_SUCCESS);
}

static void the_gpu_is_through(void)
{
    over(&session, over_arg, CUDA_SUCCESS);
}

static void launches_wait_for_a_graphs_memory(void **state)
{
    (void)state;
    assert_true(launches(0));
    begins_to_free(POOLS);
    assert_true(launches(0));
    the_gpu_is_through();
    begins_to_free(GRAPHS);
    assert_true(admits(GP_OP_cuLaunchKernel, 0));
    assert_false(launches(0));
    blocked = true; /* by what comes as a message behind it */
    assert_true(launches(0));
    blocked = false;
    assert_false(launches(SECOND));
    the_gpu_is_through();
    assert_true(launches(SECOND));
}

/* Beside a kernel without end each launch would be late by as much. */
static void one_waits_for_what_does_not_end(void **state)
{
    (void)state;
    begins_to_free(GRAPHS);
    assert_false(launches(0));
    assert_true(launches(SECOND + 1));
    assert_true(launches(0));
    void *first = over_arg;
    begins_to_free(GRAPHS);
    assert_false(launches(0));
    the_gpu_is_through();
    assert_true(launches(0));
    over(&session, first, CUDA_SUCCESS);
    assert_null(memory.frees);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_wait_for_a_graphs_memory),
        cmocka_unit_test(one_waits_for_what_does_not_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
