/* Waits that the GPU ends, and which stream's end is a context's, over a driver whose streams finish
 * when the test says so. */
#include <time.h>

#include "gp_messages.h"
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

static uint64_t out_of_turn; /* calls that had been put off, and were made by now */

static void at_message(uint64_t message)
{
    session.at_message = message;
    session.handled = message + out_of_turn;
}

static void after_message(uint64_t message, unsigned stream, struct answer *to)
{
    at_message(message);
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

/* A launch whose node kernels may update, in no capture, is put off where a stream is blocked. */
static void what_came_out_of_turn_is_waited_for(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0}, b = {'b', 0, 0};
    submit(1);
    after_message(5, 1, &a);
    out_of_turn++;
    submit(1);
    after_message(6, 1, &b);
    complete(1);
    gpw_waits_poll(&session);
    expect_story("a");
    complete(1);
    gpw_waits_poll(&session);
    expect_story("b");
}

/* As a transfer blocks its stream: it came behind the wait of the message before. */
static void what_a_message_has_submitted_is_waited_for(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0}, b = {'b', 0, CUDA_ERROR_UNKNOWN};
    struct gpw_after *after;
    submit(1);
    after_message(5, 1, &a);
    at_message(6);
    assert_int_equal(gpw_after_prepare(&session, stream_at(1), answered, &b, &after), CUDA_SUCCESS);
    submit(1);
    assert_int_equal(gpw_after_submitted(&session, after, stream_at(1), CUDA_SUCCESS),
                     CUDA_SUCCESS);
    complete(1);
    gpw_waits_poll(&session);
    expect_story("a");
    complete(1);
    gpw_waits_poll(&session);
    expect_story("b");
    assert_int_equal(b.result, CUDA_SUCCESS);
}

/* The stream comes by while waits are asked: behind the younger, in front of the older. */
static CUresult passed_late(CUevent event)
{
    CUresult r = streams_driver.cuEventQuery(event);
    if (session.driver != &streams_driver)
        complete(1);
    session.driver = &streams_driver;
    return r;
}

/* What ends with another wait has no event of its own: what was submitted behind that one's is not over. */
static void nobody_ends_with_one_that_ends_with_another(void **state)
{
    (void)state;
    struct answer a = {'a', 0, 0}, b = {'b', 0, 0}, c = {'c', 0, 0};
    struct gpw_driver late = streams_driver;
    late.cuEventQuery = passed_late;
    submit(1);
    after_message(5, 1, &a);
    submit(1);
    after_message(6, 1, &b); /* of what was there before this message */
    session.driver = &late;
    gpw_waits_poll(&session);
    expect_story("a");
    after_message(7, 1, &c);
    gpw_waits_poll(&session);
    expect_story("b");
    complete(1);
    gpw_waits_poll(&session);
    expect_story("c");
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
    gpw_working_forget(&session);
    assert_true(gpw_stream_tells(&session, &stream));
    assert_ptr_equal(stream, wanted);
}

static void expect_no_teller(void)
{
    CUstream stream;
    gpw_working_forget(&session);
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

/* The client's messages, as far as they matter here. */
static void launch_in(unsigned i)
{
    const uint64_t id = i ? gp_handle_make(GP_HANDLE_STREAM, i, 0) : GP_STREAM_LEGACY;
    const struct gp_req_gp_launch q = {.h = {.size = sizeof q, .op = GP_OP_gp_launch},
                                       .stream = id};
    gpw_working_note(&session, &q.h);
    submit(i);
}

static void expect_known(CUstream wanted, unsigned questions)
{
    CUstream stream;
    unsigned before = gpu.stream_queries;
    assert_true(gpw_stream_tells(&session, &stream));
    assert_ptr_equal(stream, wanted);
    assert_int_equal(gpu.stream_queries - before, questions);
}

/* Of streams that were idle, and in which nothing was put since, nothing is asked. */
static void the_only_stream_at_work_is_known(void **state)
{
    (void)state;
    const struct gp_header other = {.op = GP_OP_gp_context_set};
    const struct gp_header quiet = {.op = GP_OP_gp_memory_free};
    name_streams();
    gpu.streams[2].flags = gpu.streams[3].flags = CU_STREAM_NON_BLOCKING;
    launch_in(2);
    expect_known(stream_at(2), STREAMS - 1 + 2);
    complete(2);
    for (unsigned i = 0; i < 3; i++) {
        launch_in(2);
        gpw_working_note(&session, &quiet);
        expect_known(stream_at(2), 0);
        complete(2);
    }
    launch_in(3); /* which of the two, the driver knows */
    expect_known(stream_at(3), STREAMS - 1 + 2);
    launch_in(3);
    expect_known(stream_at(3), 0);
    complete(3);
    complete(3);
    launch_in(0);
    expect_known(CU_STREAM_LEGACY, STREAMS - 1);
    launch_in(0);
    launch_in(1);
    expect_known(CU_STREAM_LEGACY, 0);
    gpw_working_note(&session, &other);
    expect_known(CU_STREAM_LEGACY, STREAMS - 1);
}

/* All that are at work count, and so do those of which nothing is known any more. */
static void what_is_known_misses_no_stream(void **state)
{
    (void)state;
    CUstream stream;
    name_streams();
    gpu.streams[2].flags = gpu.streams[3].flags = CU_STREAM_NON_BLOCKING;
    launch_in(2);
    expect_known(stream_at(2), STREAMS - 1 + 2);
    launch_in(3);
    assert_false(gpw_stream_tells(&session, &stream));
    complete(3);
    launch_in(0);
    assert_false(gpw_stream_tells(&session, &stream));
    complete(0);
    expect_known(stream_at(2), STREAMS - 1 + 2);
    gpu.current = CONTEXT_B; /* has none of them */
    expect_known(CU_STREAM_LEGACY, STREAMS - 1);
    gpu.current = CONTEXT_A;
    expect_known(stream_at(2), STREAMS - 1 + 2);
    uint64_t gone;
    assert_int_equal(gpw_handle_take(&session, GP_HANDLE_STREAM,
                                     gp_handle_make(GP_HANDLE_STREAM, 2, 0), false, &gone),
                     CUDA_SUCCESS);
    expect_known(CU_STREAM_LEGACY, 0);
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
        TEST(what_came_out_of_turn_is_waited_for),
        TEST(what_a_message_has_submitted_is_waited_for),
        TEST(nobody_ends_with_one_that_ends_with_another),
        TEST(no_more_than_two_end_together),
        TEST(a_failure_is_both_ones),
        TEST(the_only_stream_at_work_is_known),
        TEST(what_is_known_misses_no_stream),
        TEST(the_legacy_stream_tells_what_it_waits_for),
        TEST(one_beside_it_tells_if_nothing_else_is_at_work),
        TEST(streams_of_other_contexts_tell_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
