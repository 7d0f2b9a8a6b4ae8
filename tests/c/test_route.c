/*
 * Where a call is made: what names a session, and that nothing of another one is taken once
 * something has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <string.h>

#include "call.h"
#include "fake_worker.h"
#include "handle.h"

#define WINDOW UINT64_C(0x200000000000)
#define WINDOW_SIZE (UINT64_C(1) << 40)

static struct gpc_session *session_with(uint32_t index, struct gp_snapshot *snapshot)
{
    struct gpc_session *s = gpc_session_at(index);
    snapshot->device_count = 1;
    s->index = index;
    s->first = (CUdevice)index;
    s->snapshot = snapshot;
    s->window_begin = WINDOW + index * WINDOW_SIZE;
    s->window_end = s->window_begin + WINDOW_SIZE;
    return s;
}

/* Two sessions with a device each, and no current context. */
static int set_up(void **state)
{
    static struct gp_snapshot *second;
    (void)state;
    struct gpc_session *first = fake_session();
    session_with(0, first->snapshot);
    if (!second)
        second = calloc(1, GP_SNAPSHOT_MAX);
    memset(gpc_session_at(1), 0, sizeof *first);
    session_with(1, second);
    gpc_sessions_set_count(2);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    gpc_sessions_set_count(0); /* the second one has nobody to say goodbye to */
    return 0;
}

static struct gpc_call call_of_nobody(void)
{
    return (struct gpc_call){.route = gpc_route_here()};
}

static void what_names_a_session(void **state)
{
    (void)state;
    uint64_t wire, stream = gpc_handle_new(GP_HANDLE_STREAM, 1);
    int32_t device;
    struct gpc_call call = call_of_nobody();
    assert_int_equal(gpc_stream_wire(&call, (CUstream)stream, &wire), CUDA_SUCCESS);
    assert_ptr_equal(call.route.session, gpc_session_at(1));
    assert_int_equal(call.route.stream, stream);
    call = call_of_nobody();
    assert_int_equal(gpc_device_wire(&call, 1, &device), CUDA_SUCCESS);
    assert_ptr_equal(call.route.session, gpc_session_at(1));
    assert_int_equal(device, 0); /* the first one over there */
    call = call_of_nobody();
    assert_int_equal(gpc_address_wire(&call, WINDOW + WINDOW_SIZE), CUDA_SUCCESS);
    assert_ptr_equal(call.route.session, gpc_session_at(1));
    call = call_of_nobody();
    assert_int_equal(gpc_address_wire(&call, 4096), CUDA_SUCCESS); /* no window: names none */
    assert_null(call.route.session);
    assert_int_equal(gpc_call_index(&call), 0); /* where the thread is */
    gpc_handle_drop(stream);
}

static void a_call_that_names_two_is_refused(void **state)
{
    (void)state;
    uint64_t wire, here = gpc_handle_new(GP_HANDLE_STREAM, 0);
    uint64_t graph = gpc_handle_new(GP_HANDLE_GRAPH, 1);
    int32_t device;
    struct gpc_call call = call_of_nobody();
    assert_int_equal(gpc_stream_wire(&call, (CUstream)here, &wire), CUDA_SUCCESS);
    assert_int_equal(gpc_handle_wire(&call, GP_HANDLE_GRAPH, graph, false, &wire),
                     CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(gpc_device_wire(&call, 1, &device), CUDA_ERROR_INVALID_DEVICE);
    assert_int_equal(gpc_address_wire(&call, WINDOW + WINDOW_SIZE), CUDA_ERROR_INVALID_VALUE);
    assert_ptr_equal(call.route.session, gpc_session_at(0)); /* and it stays where it was */
    call = (struct gpc_call){.route = gpc_route_to(gpc_session_at(1))};
    assert_int_equal(gpc_stream_wire(&call, (CUstream)here, &wire), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(gpc_handle_wire(&call, GP_HANDLE_GRAPH, graph, false, &wire), CUDA_SUCCESS);
    gpc_handle_drop(here);
    gpc_handle_drop(graph);
}

/* A dead handle names nothing, whatever its number says. */
static void a_dead_handle_names_nothing(void **state)
{
    (void)state;
    uint64_t wire, dead = gpc_handle_new(GP_HANDLE_EVENT, 1);
    gpc_handle_drop(dead);
    struct gpc_call call = call_of_nobody();
    assert_int_equal(gpc_handle_wire(&call, GP_HANDLE_EVENT, dead, false, &wire),
                     CUDA_ERROR_INVALID_HANDLE);
    assert_null(call.route.session);
    assert_int_equal(gpc_handle_wire(&call, GP_HANDLE_EVENT, 0, true, &wire), CUDA_SUCCESS);
    assert_null(call.route.session);
}

/* A route keeps the stream that it was resolved for, and no other one. */
static void a_stream_is_resolved_once(void **state)
{
    (void)state;
    uint64_t wire, one = gpc_handle_new(GP_HANDLE_STREAM, 0);
    uint64_t other = gpc_handle_new(GP_HANDLE_STREAM, 0);
    struct gpc_route on = gpc_route_here();
    assert_int_equal(gpc_route_stream(&on, (CUstream)one, &wire), CUDA_SUCCESS);
    assert_int_equal(wire, one);
    gpc_handle_drop(one); /* so a second look would find it dead */
    assert_int_equal(gpc_route_stream(&on, (CUstream)one, &wire), CUDA_SUCCESS);
    assert_int_equal(gpc_route_stream(&on, (CUstream)other, &wire), CUDA_SUCCESS);
    assert_int_equal(wire, other);
    for (int twice = 0; twice < 2; twice++)
        assert_int_equal(gpc_route_stream(&on, (CUstream)one, &wire), CUDA_ERROR_INVALID_HANDLE);
    gpc_handle_drop(other);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(what_names_a_session),
        CASE(a_call_that_names_two_is_refused),
        CASE(a_dead_handle_names_nothing),
        CASE(a_stream_is_resolved_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
