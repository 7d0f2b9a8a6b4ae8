/* How often the worker asks the driver for anything beside what a message is for, over a driver
 * that does nothing and by a clock that the test turns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <time.h>

#include "null_driver.h"

#define MESSAGES 1000u
#define BETWEEN_NS 2000u /* a launch natively takes about as long */
#define READING_NS 10u   /* the time goes on while somebody looks at it */

static uint64_t now_ns;

/* The made-up clock: everything that asks for the time asks here. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    now_ns += READING_NS;
    *t = (struct timespec){(time_t)(now_ns / 1000000000u), (long)(now_ns % 1000000000u)};
    return 0;
}

static void time_passes(void)
{
    now_ns += BETWEEN_NS;
}

static struct null_counts run(enum null_kind kind, bool behind)
{
    null_session_behind(behind);
    null_session_run(kind, MESSAGES, time_passes); /* marks find their distance */
    return null_session_run(kind, MESSAGES, time_passes);
}

static int open_session(void **state)
{
    (void)state;
    now_ns = 1000000000u;
    null_session_open(true);
    return 0;
}

static void each_message_makes_its_call_once(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NULL_KINDS; kind++) {
        struct null_counts c = run((enum null_kind)kind, false);
        assert_in_range(c.calls[null_kind_call[kind]], MESSAGES, MESSAGES + MESSAGES / 10);
    }
}

/* Whether work is over is asked behind the messages that are there and once in a while, not
 * behind each: a question costs as much as the message. */
static void events_are_not_asked_for_each_message(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NULL_KINDS; kind++)
        for (int behind = 0; behind < 2; behind++) {
            struct null_counts c = run((enum null_kind)kind, behind);
            assert_in_range(c.calls[NULL_cuEventQuery], 0, MESSAGES / 10);
            assert_in_range(c.calls[NULL_cuStreamIsCapturing], 0, MESSAGES / 10);
            if (kind != NULL_RECORD)
                assert_in_range(c.calls[NULL_cuEventRecord], 0, MESSAGES / 10);
        }
}

/* Where a call is made is found once, and handed down. */
static void the_context_is_asked_for_once(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NULL_KINDS; kind++) {
        struct null_counts c = run((enum null_kind)kind, false);
        assert_in_range(c.calls[NULL_cuCtxGetCurrent], 0, MESSAGES + MESSAGES / 10);
        assert_int_equal(c.calls[NULL_cuCtxGetDevice], 0);
        assert_int_equal(c.calls[NULL_cuStreamGetCtx], 0);
        assert_int_equal(c.calls[NULL_cuCtxSetCurrent], 0);
    }
}

/* What is pinned memory is known here. */
static void of_pinned_memory_the_driver_is_asked_nothing(void **state)
{
    (void)state;
    struct null_counts c = run(NULL_READ, false);
    assert_int_equal(c.calls[NULL_cuMemcpyDtoHAsync], MESSAGES);
    assert_int_equal(c.calls[NULL_cuPointerGetAttribute], 0);
}

/* What is put into the same stream comes behind what the fence is for. */
static void a_fence_lets_the_stream_s_own_work_through(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < NULL_KINDS; kind++) {
        bool own = kind != NULL_LAUNCH_LEGACY && kind != NULL_RECORD && kind != NULL_WAIT;
        assert_int_equal(null_session_fence((enum null_kind)kind, false), own);
        assert_false(null_session_fence((enum null_kind)kind, true));
    }
}

/* A program that allocates and frees again and again has its memory mapped once. */
static void memory_that_is_freed_is_not_mapped_anew(void **state)
{
    (void)state;
    for (uint64_t bytes = 1024; bytes <= UINT64_C(2) << 20; bytes *= 2) {
        null_session_churn(bytes, 1);
        struct null_counts c = null_session_churn(bytes, 100);
        assert_int_equal(c.calls[NULL_cuMemCreate] + c.calls[NULL_cuMemMap], 0);
        assert_int_equal(c.calls[NULL_cuMemUnmap] + c.calls[NULL_cuMemRelease], 0);
    }
}

/* Before the worker waits for more it has looked, so that its turn can end. */
static void the_gate_looks_before_the_worker_waits(void **state)
{
    (void)state;
    run(NULL_LAUNCH, false); /* marks are far apart now */
    struct null_counts c = null_session_run(NULL_LAUNCH, 1, time_passes);
    assert_int_equal(c.calls[NULL_cuStreamQuery], 1);
    assert_int_equal(c.calls[NULL_cuEventRecord], 0); /* the stream is idle */
}

/* Who waits for each launch sends the next as soon as the GPU has written: what the driver is asked
 * meanwhile would be in its way. */
static void a_wait_that_the_gpu_ends_asks_the_driver_for_nothing(void **state)
{
    (void)state;
    for (int signals = 0; signals < 2; signals++) {
        null_session_waits(signals, MESSAGES, time_passes);
        struct null_counts c = null_session_waits(signals, MESSAGES, time_passes);
        assert_int_equal(c.calls[NULL_cuLaunchKernel], MESSAGES);
        assert_int_equal(c.calls[NULL_cuStreamWriteValue64], MESSAGES);
        assert_in_range(c.calls[NULL_cuEventRecord], 0, MESSAGES / 10);
        assert_in_range(c.calls[NULL_cuEventQuery], 0, MESSAGES / 10);
        assert_in_range(c.calls[NULL_cuEventSynchronize], 0, MESSAGES / 10);
        assert_in_range(c.calls[NULL_cuStreamQuery], 0, MESSAGES / 10);
        assert_in_range(c.calls[NULL_cuStreamIsCapturing], 0, MESSAGES / 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_message_makes_its_call_once),
        cmocka_unit_test(events_are_not_asked_for_each_message),
        cmocka_unit_test(the_context_is_asked_for_once),
        cmocka_unit_test(of_pinned_memory_the_driver_is_asked_nothing),
        cmocka_unit_test(a_fence_lets_the_stream_s_own_work_through),
        cmocka_unit_test(memory_that_is_freed_is_not_mapped_anew),
        cmocka_unit_test(the_gate_looks_before_the_worker_waits),
        cmocka_unit_test(a_wait_that_the_gpu_ends_asks_the_driver_for_nothing),
    };
    return cmocka_run_group_tests(tests, open_session, NULL);
}
