/* Calls that wait for an event which is recorded anew, over a driver that refuses steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "gpw_handlers.h"
#include "handles.h"
#include "loop.h"

#define EVENT ((CUevent)(uintptr_t)1)
#define COPY ((CUevent)(uintptr_t)2)

static struct {
    CUresult create_fails, wait_fails, record_fails;
    bool event_passed, copy_passed, copy_alive;
    unsigned streams, created, answers;
    CUevent synchronized;
    CUcontext current, made_in; /* made_in: where the stream of the copy was made */
} gpu;

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
    *stream = (CUstream)&gpu;
    gpu.made_in = gpu.current;
    gpu.streams++;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
    assert_ptr_equal(stream, &gpu);
    gpu.streams--;
    return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
    assert_int_equal(flags, CU_EVENT_DISABLE_TIMING);
    if (gpu.create_fails != CUDA_SUCCESS)
        return gpu.create_fails;
    *event = COPY;
    gpu.created++;
    gpu.copy_alive = true;
    return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent event)
{
    assert_ptr_equal(event, COPY); /* the client's own is not ours to destroy */
    assert_true(gpu.copy_alive);
    gpu.copy_alive = false;
    return CUDA_SUCCESS;
}

static CUresult fake_event_query(CUevent event)
{
    assert_true(event == EVENT || (event == COPY && gpu.copy_alive));
    bool passed = event == EVENT ? gpu.event_passed : gpu.copy_passed;
    return passed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult fake_event_synchronize(CUevent event)
{
    gpu.synchronized = event;
    return fake_event_query(event);
}

static CUresult fake_stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return gpu.wait_fails;
}

static CUresult fake_event_record(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    return gpu.record_fails;
}

static CUresult fake_current(CUcontext *context)
{
    *context = gpu.current;
    return CUDA_SUCCESS;
}

static CUresult fake_set_current(CUcontext context)
{
    gpu.current = context;
    return CUDA_SUCCESS;
}

static struct gpw_driver driver = {
    .cuStreamCreate = fake_stream_create,
    .cuStreamDestroy_v2 = fake_stream_destroy,
    .cuEventCreate = fake_event_create,
    .cuEventDestroy_v2 = fake_event_destroy,
    .cuEventQuery = fake_event_query,
    .cuEventSynchronize = fake_event_synchronize,
    .cuStreamWaitEvent = fake_stream_wait,
    .cuEventRecord = fake_event_record,
    .cuCtxGetCurrent = fake_current,
    .cuCtxSetCurrent = fake_set_current,
};

int gpw_answer_cuEventSynchronize(struct gpw_session *s, struct gpw_token token, CUresult result)
{
    (void)s, (void)token;
    assert_int_equal(result, CUDA_SUCCESS);
    gpu.answers++;
    return 0;
}

static struct gpw_session session;

static int begin(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof gpu);
    session = (struct gpw_session){.driver = &driver, .handles = gpw_handles_new()};
    return session.handles ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    gpw_waits_cancel(&session);
    gpw_handles_free(session.handles);
    return 0;
}

static void wait_for_event(void)
{
    struct gpw_token token = {0};
    assert_int_equal(gpw_cuEventSynchronize(&session, token, EVENT), GPW_DEFERRED);
    assert_int_equal(gpu.answers, 0);
}

static void a_wait_is_for_what_was_recorded_before(void **state)
{
    (void)state;
    wait_for_event();
    assert_int_equal(gpw_event_anew(&session, EVENT), CUDA_SUCCESS);
    gpu.event_passed = true; /* what is recorded now */
    gpw_waits_poll(&session);
    assert_int_equal(gpu.answers, 0);
    gpu.copy_passed = true;
    gpw_waits_poll(&session);
    assert_int_equal(gpu.answers, 1);
    assert_ptr_equal(gpu.synchronized, COPY);
    assert_false(gpu.copy_alive);
    assert_int_equal(gpu.streams, 0);
}

static void one_copy_is_for_all_who_wait(void **state)
{
    (void)state;
    wait_for_event();
    wait_for_event();
    wait_for_event();
    assert_int_equal(gpw_event_anew(&session, EVENT), CUDA_SUCCESS); /* COPY is there once */
    assert_int_equal(gpw_event_anew(&session, EVENT), CUDA_SUCCESS); /* for nobody */
    assert_int_equal(gpu.created, 1);
    gpu.copy_passed = true;
    gpw_waits_poll(&session);
    assert_int_equal(gpu.answers, 3);
    assert_false(gpu.copy_alive);
    assert_int_equal(session.event_waits, 0);
}

/* cuCtxRecordEvent names a context, which needs not be current. */
static void the_copy_is_made_where_the_event_is(void **state)
{
    (void)state;
    CUcontext its = (CUcontext)(uintptr_t)7;
    wait_for_event();
    assert_int_equal(gpw_event_anew_in(&session, its, EVENT), CUDA_SUCCESS);
    assert_ptr_equal(gpu.made_in, its);
    assert_null(gpu.current);
    gpu.event_passed = true; /* what is recorded now */
    gpw_waits_poll(&session);
    assert_int_equal(gpu.answers, 0);
    gpu.copy_passed = true;
    gpw_waits_poll(&session);
    assert_int_equal(gpu.answers, 1);
}

/* Nothing is recorded then, so the wait goes on for the event itself. */
static void expect_refused(CUresult error)
{
    wait_for_event();
    assert_int_equal(gpw_event_anew(&session, EVENT), error);
    assert_false(gpu.copy_alive);
    assert_int_equal(gpu.streams, 0);
    gpw_waits_poll(&session);
    assert_int_equal(gpu.answers, 0);
    gpu.event_passed = true;
    gpw_waits_poll(&session);
    assert_int_equal(gpu.answers, 1);
    assert_ptr_equal(gpu.synchronized, EVENT);
}

static void a_driver_without_memory_for_the_copy(void **state)
{
    (void)state;
    gpu.create_fails = CUDA_ERROR_OUT_OF_MEMORY;
    expect_refused(CUDA_ERROR_OUT_OF_MEMORY);
}

static void an_event_that_no_stream_may_wait_for(void **state)
{
    (void)state;
    gpu.wait_fails = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    expect_refused(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

static void a_copy_that_cannot_be_recorded(void **state)
{
    (void)state;
    gpu.record_fails = CUDA_ERROR_LAUNCH_FAILED;
    expect_refused(CUDA_ERROR_LAUNCH_FAILED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_wait_is_for_what_was_recorded_before), TEST(one_copy_is_for_all_who_wait),
        TEST(a_driver_without_memory_for_the_copy),   TEST(an_event_that_no_stream_may_wait_for),
        TEST(a_copy_that_cannot_be_recorded),         TEST(the_copy_is_made_where_the_event_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
