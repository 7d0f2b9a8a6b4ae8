/* Waits for streams and contexts, over a driver whose streams finish when the test says so. */
#include "freed.h"
#include "waits_story.h"

/* --- after a stream ------------------------------------------------------------------- */

static void after_an_idle_stream_is_now(void **state)
{
    (void)state;
    struct answer a = {'a', 0, CUDA_ERROR_UNKNOWN};
    after(1, &a);
    expect_story("a");
    assert_int_equal(a.result, CUDA_SUCCESS);
    assert_null(session.waits);
}

static void after_a_busy_stream_is_when_it_has_done_that_much(void **state)
{
    (void)state;
    struct answer a = {'a', 0, CUDA_ERROR_UNKNOWN}, b = {'b', 0, CUDA_ERROR_UNKNOWN};
    submit(1);
    after(1, &a);
    submit(1);
    after(1, &b);
    gpw_waits_poll(&session);
    expect_story("");
    complete(1);
    gpw_waits_poll(&session);
    expect_story("a");
    complete(1);
    gpw_waits_poll(&session);
    expect_story("b");
    assert_int_equal(a.result, CUDA_SUCCESS);
    assert_int_equal(a.times + b.times, 2);
    /* The driver prints what kernels have printed when one waits for it. */
    for (unsigned i = 1; i <= gpu.event_last; i++)
        assert_true(gpu.events[i].synchronized);
}

static void streams_finish_in_their_own_order(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0}, b = {'b', 0, 0}, c = {'c', 0, 0};
    submit(1);
    after(1, &a);
    submit(2);
    after(2, &b);
    after(3, &c); /* over already, but not before what was asked earlier is looked at */
    expect_story("");
    complete(2);
    gpw_waits_poll(&session);
    expect_story("bc");
    complete(1);
    gpw_waits_poll(&session);
    expect_story("a");
}

static void a_failed_stream_says_so_at_once(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0};
    gpu.streams[1].error = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(gpw_after_stream(&session, stream_at(1), answered, &a),
                     CUDA_ERROR_ILLEGAL_ADDRESS);
    gpu.streams[2].capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_int_equal(gpw_after_stream(&session, stream_at(2), answered, &a),
                     CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(gpu.event_last, 0);
    gpw_waits_poll(&session);
    expect_story("");
}

static void a_stream_that_fails_later_answers_with_its_error(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0};
    submit(1);
    after(1, &a);
    gpu.streams[1].error = CUDA_ERROR_LAUNCH_FAILED;
    gpw_waits_poll(&session);
    expect_story("a");
    assert_int_equal(a.result, CUDA_ERROR_LAUNCH_FAILED);
    gpw_waits_poll(&session);
    assert_int_equal(a.times, 1);
}

static void a_driver_without_events_is_an_error_and_no_wait(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0};
    submit(1);
    gpu.create_fails = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(gpw_after_stream(&session, stream_at(1), answered, &a),
                     CUDA_ERROR_OUT_OF_MEMORY);
    gpu.create_fails = CUDA_SUCCESS;
    gpu.record_fails = CUDA_ERROR_INVALID_HANDLE;
    assert_int_equal(gpw_after_stream(&session, stream_at(1), answered, &a),
                     CUDA_ERROR_INVALID_HANDLE);
    assert_null(session.waits);
    expect_story("");
    gpu.record_fails = CUDA_SUCCESS;
    after(1, &a); /* with the event that could not be recorded */
    assert_int_equal(gpu.event_last, 1);
    complete(1);
    gpw_waits_poll(&session);
    expect_story("a");
}

static void the_end_of_the_session_answers_every_wait(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0}, b = {'b', 0, 0};
    submit(1);
    submit(2);
    after(1, &a);
    after(2, &b);
    gpw_waits_cancel(&session);
    expect_story("ab");
    assert_int_equal(a.result, CUDA_ERROR_DEINITIALIZED);
    assert_int_equal(b.result, CUDA_ERROR_DEINITIALIZED);
    complete(1);
    gpw_waits_poll(&session);
    expect_story("");
}

/* --- events are kept ------------------------------------------------------------------ */

static void events_are_made_once_and_used_again(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0};
    for (unsigned i = 0; i < 100; i++) {
        submit(1);
        after(1, &a);
        complete(1);
        gpw_waits_poll(&session);
    }
    assert_int_equal(a.times, 100);
    assert_int_equal(gpu.records, 100);
    assert_int_equal(gpu.event_last, 1);
}

static void no_more_events_are_kept_than_64(void **state)
{
    (void)state;
    CUevent events[100];
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(gpw_event_take(&session, CONTEXT_A, &events[i]), CUDA_SUCCESS);
    assert_int_equal(gpu.events_alive, 100);
    for (unsigned i = 0; i < 100; i++)
        gpw_event_give(&session, CONTEXT_A, events[i]);
    assert_int_equal(gpu.events_alive, 64);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(gpw_event_take(&session, CONTEXT_A, &events[i]), CUDA_SUCCESS);
    assert_int_equal(gpu.event_last, 100);
}

static void events_stay_with_their_context_and_go_with_it(void **state)
{
    (void)state;
    CUevent of_a, of_b, more;
    assert_int_equal(gpw_event_take(&session, CONTEXT_A, &of_a), CUDA_SUCCESS);
    assert_int_equal(gpw_event_take(&session, CONTEXT_B, &of_b), CUDA_SUCCESS);
    gpw_event_give(&session, CONTEXT_A, of_a);
    gpw_event_give(&session, CONTEXT_B, of_b);
    assert_int_equal(gpw_event_take(&session, CONTEXT_A, &more), CUDA_SUCCESS);
    assert_ptr_equal(more, of_a);
    assert_int_equal(gpw_event_take(&session, CONTEXT_A, &more), CUDA_SUCCESS);
    assert_ptr_not_equal(more, of_b);
    gpw_event_give(&session, CONTEXT_A, of_a);
    gpw_event_give(&session, CONTEXT_A, more);
    gpw_waits_context_ended(&session, CONTEXT_A);
    unsigned made = gpu.event_last;
    assert_int_equal(gpw_event_take(&session, CONTEXT_A, &more), CUDA_SUCCESS);
    assert_int_equal(gpu.event_last, made + 1); /* the dead context's are not used */
    assert_int_equal(gpw_event_take(&session, CONTEXT_B, &more), CUDA_SUCCESS);
    assert_ptr_equal(more, of_b);
}

/* --- after a context ------------------------------------------------------------------ */

static void name_streams(void)
{
    for (unsigned i = 1; i < STREAMS; i++)
        gpw_handle_put(&session, GP_HANDLE_STREAM, gp_handle_make(GP_HANDLE_STREAM, i, 0),
                       (uint64_t)(uintptr_t)stream_at(i), CUDA_SUCCESS);
}

static void after_all(struct answer *to)
{
    assert_int_equal(gpw_after_context(&session, answered, to), CUDA_SUCCESS);
}

static void after_a_context_waits_for_every_stream(void **state)
{
    (void)state;
    static const unsigned order[STREAMS] = {2, 0, 3, 1};
    struct answer a = {'a', 0, CUDA_ERROR_UNKNOWN};
    name_streams();
    for (unsigned i = 0; i < STREAMS; i++)
        submit(i);
    after_all(&a);
    for (unsigned i = 0; i < STREAMS; i++) {
        gpw_waits_poll(&session);
        expect_story("");
        complete(order[i]);
    }
    gpw_waits_poll(&session);
    expect_story("a");
    assert_int_equal(a.result, CUDA_SUCCESS);
}

static CUstream freed_in;

bool gpw_freed_in(const struct gpw_session *s, CUstream stream)
{
    (void)s;
    return freed_in && stream == freed_in;
}

static void after_a_context_the_driver_knows_what_is_freed(void **state)
{
    (void)state;
    struct answer a = {'a', 0, CUDA_ERROR_UNKNOWN};
    name_streams();
    freed_in = stream_at(2);
    after_all(&a);
    freed_in = NULL;
    expect_story("a");
    assert_int_equal(gpu.records, 2); /* in the legacy stream, and in that one */
}

static void after_an_idle_context_is_now(void **state)
{
    (void)state;
    struct answer a = {'a', 0, CUDA_ERROR_UNKNOWN};
    name_streams();
    after_all(&a);
    expect_story("a");
    assert_int_equal(gpu.records, 1); /* idle streams need no event */
}

static void other_contexts_and_captures_are_left_alone(void **state)
{
    (void)state;
    struct answer a = {'a', 0, CUDA_ERROR_UNKNOWN};
    name_streams();
    gpu.streams[1].context = CONTEXT_B;
    gpu.streams[1].error = CUDA_ERROR_LAUNCH_FAILED;
    gpu.streams[2].capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    submit(3);
    after_all(&a);
    complete(3);
    gpw_waits_poll(&session);
    expect_story("a");
    assert_int_equal(a.result, CUDA_SUCCESS);
}

static void a_stream_of_the_context_that_has_failed_says_so(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0};
    name_streams();
    submit(1);
    gpu.streams[2].error = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(gpw_after_context(&session, answered, &a), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_null(session.waits);
    gpu.streams[2].error = CUDA_SUCCESS;
    gpu.streams[0].capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_int_equal(gpw_after_context(&session, answered, &a),
                     CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_story("");
}

static void a_failure_among_many_events_gives_all_of_them_back(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0};
    name_streams();
    for (unsigned i = 0; i < STREAMS; i++)
        submit(i);
    after_all(&a);
    gpu.streams[3].error = CUDA_ERROR_LAUNCH_FAILED;
    for (unsigned i = 0; i < STREAMS; i++)
        complete(i);
    gpw_waits_poll(&session);
    expect_story("a");
    assert_int_equal(a.result, CUDA_ERROR_LAUNCH_FAILED);
    gpu.streams[3].error = CUDA_SUCCESS;
    unsigned made = gpu.event_last;
    for (unsigned i = 0; i < STREAMS; i++)
        submit(i);
    after_all(&a);
    assert_int_equal(gpu.event_last, made);
    for (unsigned i = 0; i < STREAMS; i++)
        complete(i);
    gpw_waits_poll(&session);
    expect_story("a");
    assert_int_equal(a.result, CUDA_SUCCESS);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(after_an_idle_stream_is_now),
        TEST(after_a_busy_stream_is_when_it_has_done_that_much),
        TEST(streams_finish_in_their_own_order),
        TEST(a_failed_stream_says_so_at_once),
        TEST(a_stream_that_fails_later_answers_with_its_error),
        TEST(a_driver_without_events_is_an_error_and_no_wait),
        TEST(the_end_of_the_session_answers_every_wait),
        TEST(events_are_made_once_and_used_again),
        TEST(no_more_events_are_kept_than_64),
        TEST(events_stay_with_their_context_and_go_with_it),
        TEST(after_a_context_waits_for_every_stream),
        TEST(after_an_idle_context_is_now),
        TEST(after_a_context_the_driver_knows_what_is_freed),
        TEST(other_contexts_and_captures_are_left_alone),
        TEST(a_stream_of_the_context_that_has_failed_says_so),
        TEST(a_failure_among_many_events_gives_all_of_them_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
