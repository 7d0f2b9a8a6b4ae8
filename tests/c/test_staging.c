/* Staging memory: ready before it is needed, and waited for when there is none left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "later.h"
#include "loop.h"
#include "memory_internal.h"

#define SECOND UINT64_C(1000000000)
#define PIECES 2000

static struct {
    unsigned allocated, limit;
    CUcontext current;
    CUstreamCaptureMode mode;
} gpu;

/* As a driver with a capture of this thread's under way. */
static CUresult fake_register(void *bytes_at, size_t bytes, unsigned flags)
{
    assert_non_null(bytes_at);
    assert_int_equal(bytes, GP_CHUNK_MAX);
    assert_int_equal(flags, CU_MEMHOSTREGISTER_PORTABLE);
    if (gpu.mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (gpu.allocated >= gpu.limit)
        return CUDA_ERROR_OUT_OF_MEMORY;
    gpu.allocated++;
    return CUDA_SUCCESS;
}

static CUresult fake_current(CUcontext *context)
{
    *context = gpu.current;
    return CUDA_SUCCESS;
}

static CUresult fake_exchange(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = gpu.mode;
    gpu.mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static struct gpw_driver driver = {.cuMemHostRegister_v2 = fake_register,
                                   .cuCtxGetCurrent = fake_current,
                                   .cuThreadExchangeStreamCaptureMode = fake_exchange};
static struct gpw_memory memory;
static struct gpw_session session;
static struct gpw_staging *pieces[PIECES];
static bool blocked;

bool gpw_streams_blocked(struct gpw_session *s)
{
    (void)s;
    return blocked;
}

static const struct gp_header copies = {.op = GP_OP_gp_dtoh_pinned};
static const struct gp_header other = {.op = GP_OP_cuMemsetD8Async};

static int begin(void **state)
{
    (void)state;
    memset(&memory, 0, sizeof memory);
    memset(&gpu, 0, sizeof gpu);
    gpu.limit = PIECES;
    gpu.mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    session = (struct gpw_session){.driver = &driver, .memory = &memory};
    return 0;
}

static int end(void **state)
{
    (void)state;
    gpw_staging_context_ended(&session, gpu.current);
    return memory.staging.count == 0 && !memory.staging.all ? 0 : -1;
}

static unsigned take_all(unsigned most)
{
    unsigned n = 0;
    while (n < most && (pieces[n] = gpw_staging_take(&session)) != NULL)
        n++;
    return n;
}

static void give_back(unsigned count)
{
    while (count-- > 0)
        gpw_staging_give(&session, pieces[count]);
}

static bool admitted(const struct gp_header *h, uint64_t held_ns, bool streams_blocked)
{
    blocked = streams_blocked;
    return gpw_staging_admit(&session, h, held_ns);
}

static void some_is_ready_before_the_first_copy(void **state)
{
    (void)state;
    gpw_staging_prepare(&session);
    assert_true(gpu.allocated > 0);
    unsigned made = gpu.allocated;
    give_back(take_all(made));
    give_back(take_all(made));
    assert_int_equal(gpu.allocated, made); /* and is used again */
}

/* A copy of one context goes on with what was pinned in another one that has ended. */
static void what_is_in_use_outlives_a_context(void **state)
{
    (void)state;
    gpu.current = (CUcontext)(uintptr_t)0xa0;
    assert_int_equal(take_all(2), 2);
    gpu.current = (CUcontext)(uintptr_t)0xb0;
    pieces[2] = gpw_staging_take(&session);
    gpw_staging_context_ended(&session, (CUcontext)(uintptr_t)0xa0);
    memset(pieces[0]->memory, 7, GP_CHUNK_MAX);
    memset(pieces[1]->memory, 7, GP_CHUNK_MAX);
    give_back(3);
    assert_int_equal(memory.staging.count, 1); /* the others are not taken for pinned again */
    unsigned made = gpu.allocated;
    give_back(take_all(1));
    assert_int_equal(gpu.allocated, made);
}

/* It is the worker's own need: a capture of the thread that copies must not mind. */
static void no_capture_forbids_it(void **state)
{
    (void)state;
    gpw_strict(&session, true);
    assert_int_equal(gpu.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(take_all(3), 3);
    assert_int_equal(gpu.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    gpw_strict(&session, false);
    give_back(3);
}

static void without_memory_a_copy_waits_for_others(void **state)
{
    (void)state;
    gpu.limit = 5;
    assert_int_equal(take_all(10), 5);
    assert_false(admitted(&copies, 0, false));
    assert_true(admitted(&other, 0, false)); /* which needs none */
    gpw_staging_give(&session, pieces[4]);
    assert_true(admitted(&copies, 0, false));
    give_back(4);
    assert_true(admitted(&copies, 0, false));
}

static void nobody_waits_where_nothing_comes_back(void **state)
{
    (void)state;
    gpu.limit = 0;
    assert_int_equal(take_all(1), 0);
    assert_true(admitted(&copies, 0, false)); /* and gets its error */
}

static void many_copies_wait_for_each_other(void **state)
{
    (void)state;
    unsigned n = 0;
    while (n < PIECES && admitted(&copies, 0, false))
        assert_non_null(pieces[n++] = gpw_staging_take(&session));
    assert_in_range(n, 16, 256);
    give_back(n);
}

/* What a stream waits for may come behind the copy: then more is taken, though not for ever. */
static struct {
    uint64_t lent, returned;
} channel;

static uint64_t fake_lent(const struct gp_channel *ch)
{
    assert_null(ch);
    return channel.lent;
}

static uint64_t fake_returned(const struct gp_channel *ch)
{
    assert_null(ch);
    return channel.returned;
}

/* Each comes back with the message that it was sent with, and not before. */
static void what_is_lent_comes_back_when_the_channel_returns_it(void **state)
{
    static const struct gp_transport lends = {.lent = fake_lent, .returned = fake_returned};
    (void)state;
    session.transport = &lends;
    assert_int_equal(take_all(3), 3);
    for (unsigned i = 0; i < 3; i++) {
        channel.lent = 8 + i;
        channel.returned = 7;
        gpw_staging_leave(&session, pieces[i]);
    }
    for (unsigned i = 3; i > 0; i--) {
        assert_int_equal(memory.staging.used, i);
        gpw_waits_poll(&session);
        assert_int_equal(memory.staging.used, i);
        channel.returned++;
        gpw_waits_poll(&session);
    }
    assert_int_equal(memory.staging.used, 0);
    assert_null(session.waits);
}

/* It is back already, or the channel never lends. */
static void what_is_not_lent_is_back_at_once(void **state)
{
    static const struct gp_transport lends = {.lent = fake_lent, .returned = fake_returned};
    static const struct gp_transport never = {.name = "never"};
    (void)state;
    channel.lent = channel.returned = 9;
    assert_int_equal(take_all(2), 2);
    session.transport = &lends;
    gpw_staging_leave(&session, pieces[0]);
    session.transport = &never;
    gpw_staging_leave(&session, pieces[1]);
    assert_int_equal(memory.staging.used, 0);
    assert_null(session.waits);
}

static void a_wait_that_cannot_end_is_given_up(void **state)
{
    (void)state;
    unsigned n = 0;
    while (admitted(&copies, 0, false))
        assert_non_null(pieces[n++] = gpw_staging_take(&session));
    assert_true(admitted(&copies, 0, true));
    assert_false(admitted(&copies, SECOND / 2, false));
    assert_true(admitted(&copies, 2 * SECOND, false));
    assert_true(admitted(&copies, 0, false)); /* the next does not wait as long again */
    while (n < PIECES && (pieces[n] = gpw_staging_take(&session)) != NULL)
        n++;
    assert_in_range(n, 512, PIECES - 1);
    gpw_staging_give(&session, pieces[--n]);
    pieces[n] = gpw_staging_take(&session);
    assert_false(admitted(&copies, 0, false)); /* something came back: one waits again */
    give_back(n + 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(some_is_ready_before_the_first_copy),
        TEST(what_is_in_use_outlives_a_context),
        TEST(no_capture_forbids_it),
        TEST(without_memory_a_copy_waits_for_others),
        TEST(nobody_waits_where_nothing_comes_back),
        TEST(many_copies_wait_for_each_other),
        TEST(a_wait_that_cannot_end_is_given_up),
        TEST(what_is_lent_comes_back_when_the_channel_returns_it),
        TEST(what_is_not_lent_is_back_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
