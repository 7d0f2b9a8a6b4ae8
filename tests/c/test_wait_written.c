/* Waits that the GPU ends, and which stream's end is a context's, over a driver whose streams finish
 * when the test says so. */
#include <time.h>

#include "waits_story.h"

/* --- what the GPU writes --------------------------------------------------------------- */

static uint64_t now_ns = 1000000000u;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    *t = (struct timespec){(time_t)(now_ns / 1000000000u), (long)(now_ns % 1000000000u)};
    return 0;
}

static void written(const uint64_t *word, uint64_t number, struct answer *to)
{
    struct gpw_after *a;
    assert_int_equal(gpw_after_prepare_unasked(&session, answered, to, &a), CUDA_SUCCESS);
    gpw_after_written(&session, a, word, number);
}

static void a_number_ends_a_wait_and_no_event_is_recorded(void **state)
{
    (void)state;
    struct answer a = {'a', 0, CUDA_ERROR_UNKNOWN}, b = {'b', 0, CUDA_ERROR_UNKNOWN};
    uint64_t words[2] = {6, 0};
    submit(1);
    written(&words[0], 7, &a);
    written(&words[1], 8, &b);
    gpw_waits_poll(&session);
    expect_story("");
    words[1] = 8;
    gpw_waits_poll(&session);
    expect_story("b");
    words[0] = 7;
    gpw_waits_poll(&session);
    expect_story("a");
    assert_int_equal(a.result, CUDA_SUCCESS);
    assert_int_equal(gpu.records, 0);
    assert_null(session.waits);
}

static void it_is_answered_in_its_turn(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0}, b = {'b', 0, 0};
    uint64_t word = 0;
    submit(1);
    after(1, &a);
    written(&word, 7, &b);
    complete(1);
    word = 7;
    gpw_waits_poll(&session);
    expect_story("ab");
}

/* What has failed writes nothing: the driver is asked for that now and then. */
static void what_fails_is_found_without_a_number(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0};
    uint64_t word = 0;
    submit(1);
    written(&word, 7, &a);
    gpu.streams[0].error = CUDA_ERROR_ILLEGAL_ADDRESS; /* of an event that nobody has recorded */
    gpw_waits_poll(&session);
    expect_story("");
    now_ns += 2000000;
    gpw_waits_poll(&session);
    expect_story("a");
    assert_int_equal(a.result, CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void it_ends_with_its_context_and_its_session(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0}, b = {'b', 0, 0};
    uint64_t word = 0;
    written(&word, 7, &a);
    now_ns += 2000000;
    gpw_waits_poll(&session); /* nothing has failed */
    expect_story("");
    gpw_waits_context_ended(&session, CONTEXT_A);
    gpw_waits_poll(&session);
    expect_story("a");
    assert_int_equal(a.result, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    written(&word, 7, &b);
    gpw_waits_cancel(&session);
    expect_story("b");
    assert_int_equal(b.result, CUDA_ERROR_DEINITIALIZED);
}

/* --- waits that end together ----------------------------------------------------------- */

static void after_message(uint64_t message, unsigned stream, struct answer *to)
{
    session.at_message = message;
    assert_int_equal(gpw_after_stream(&session, stream_at(stream), answered, to), CUDA_SUCCESS);
}

static void who_waits_right_behind_a_wait_ends_with_it(void **state)
{
    (void)state;
    struct answer a = {'a', 0, CUDA_ERROR_UNKNOWN}, b = {'b', 0, CUDA_ERROR_UNKNOWN};
    submit(1);
    after_message(5, 1, &a);
    after_message(6, 1, &b);
    assert_int_equal(gpu.records, 1);
    gpw_waits_poll(&session);
    expect_story("");
    complete(1);
    gpw_waits_poll(&session);
    expect_story("ab");
    assert_int_equal(a.result, CUDA_SUCCESS);
    assert_int_equal(b.result, CUDA_SUCCESS);
}

static void and_nobody_else(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0}, b = {'b', 0, 0}, c = {'c', 0, 0}, d = {'d', 0, 0};
    submit(1);
    submit(2);
    after_message(5, 1, &a);
    submit(1);
    after_message(7, 1, &b); /* something was submitted between them */
    after_message(8, 2, &c);
    assert_int_equal(gpu.records, 3);
    after_message(9, 2, &d);
    assert_int_equal(gpu.records, 3);
    complete(1);
    gpw_waits_poll(&session);
    expect_story("a");
    complete(2);
    gpw_waits_poll(&session);
    expect_story("cd");
    complete(1);
    gpw_waits_poll(&session);
    expect_story("b");
}

/* A client may send as many as it likes: none is asked through all of the others. */
static void no_more_than_two_end_together(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0};
    submit(1);
    for (uint64_t i = 1; i <= 100; i++)
        after_message(i, 1, &a);
    assert_int_equal(gpu.records, 50);
    complete(1);
    gpw_waits_poll(&session);
    assert_int_equal(a.times, 100);
}

static void a_failure_is_both_ones(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0}, b = {'b', 0, 0};
    submit(1);
    after_message(5, 1, &a);
    after_message(6, 1, &b);
    gpu.streams[1].error = CUDA_ERROR_LAUNCH_FAILED;
    gpw_waits_poll(&session);
    expect_story("ab");
    assert_int_equal(a.result, CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(b.result, CUDA_ERROR_LAUNCH_FAILED);
    gpu.streams[1].error = CUDA_SUCCESS;
    after_message(7, 1, &a);
    after_message(8, 1, &b);
    gpw_waits_context_ended(&session, CONTEXT_A);
    gpw_waits_poll(&session);
    expect_story("ab");
    assert_int_equal(b.result, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    after_message(9, 1, &a);
    after_message(10, 1, &b);
    gpw_waits_cancel(&session);
    expect_story("ab");
    assert_int_equal(b.result, CUDA_ERROR_DEINITIALIZED);
}

/* --- which stream's end is the context's ----------------------------------------------- */

static void name_streams(void)
{
    for (unsigned i = 1; i < STREAMS; i++)
        gpw_handle_put(&session, GP_HANDLE_STREAM, gp_handle_make(GP_HANDLE_STREAM, i, 0),
                       (uint64_t)(uintptr_t)stream_at(i), CUDA_SUCCESS);
}

static void expect_teller(CUstream wanted)
{
    CUstream stream;
    assert_true(gpw_stream_tells(&session, &stream));
    assert_ptr_equal(stream, wanted);
}

static void expect_no_teller(void)
{
    CUstream stream;
    assert_false(gpw_stream_tells(&session, &stream));
}

static void the_legacy_stream_tells_what_it_waits_for(void **state)
{
    (void)state;
    name_streams();
    expect_teller(CU_STREAM_LEGACY);
    submit(0);
    submit(1);
    submit(2);
    gpu.per_thread_busy = true;
    expect_teller(CU_STREAM_LEGACY);
}

static void one_beside_it_tells_if_nothing_else_is_at_work(void **state)
{
    (void)state;
    name_streams();
    gpu.streams[2].flags = gpu.streams[3].flags = CU_STREAM_NON_BLOCKING;
    submit(2);
    expect_teller(stream_at(2));
    for (unsigned other = 0; other < STREAMS; other++) {
        if (other == 2)
            continue;
        submit(other);
        expect_no_teller();
        complete(other);
    }
    gpu.per_thread_busy = true;
    expect_no_teller();
    gpu.per_thread_busy = false;
    expect_teller(stream_at(2));
}

static void streams_of_other_contexts_tell_nothing(void **state)
{
    (void)state;
    name_streams();
    gpu.streams[2].flags = CU_STREAM_NON_BLOCKING;
    gpu.streams[2].context = CONTEXT_B;
    submit(2);
    expect_teller(CU_STREAM_LEGACY);
    gpu.streams[2].context = CONTEXT_A;
    gpu.streams[2].error =
        CUDA_ERROR_LAUNCH_FAILED; /* which the driver says of what is put there */
    expect_teller(stream_at(2));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(a_number_ends_a_wait_and_no_event_is_recorded),
        TEST(it_is_answered_in_its_turn),
        TEST(what_fails_is_found_without_a_number),
        TEST(it_ends_with_its_context_and_its_session),
        TEST(who_waits_right_behind_a_wait_ends_with_it),
        TEST(and_nobody_else),
        TEST(no_more_than_two_end_together),
        TEST(a_failure_is_both_ones),
        TEST(the_legacy_stream_tells_what_it_waits_for),
        TEST(one_beside_it_tells_if_nothing_else_is_at_work),
        TEST(streams_of_other_contexts_tell_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
