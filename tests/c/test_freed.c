/* What is freed in stream order, until the driver has seen that it is free. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "freed.h"
#include "graph.h"
#include "handles.h"
#include "memory_internal.h"

#define STREAM ((CUstream)(uintptr_t)16)
#define OTHER ((CUstream)(uintptr_t)32)
#define SECOND_NS UINT64_C(1000000000)

static struct gpw_session session;
static struct gpw_memory memory;
static uint64_t word;

/* --- what stands in for the worker around it ------------------------------------------------ */

static struct {
    gpw_done *done;
    void *arg;
    CUstream stream;
} waits[128];
static unsigned waited;
static bool captures, refuses;
static CUstream ended;

bool gpw_captures_any(const struct gpw_session *s)
{
    (void)s;
    return captures;
}

uint64_t gpw_handle_find(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real)
{
    (void)s;
    assert_int_equal(kind, GP_HANDLE_STREAM);
    return (CUstream)real == ended ? 0 : 1;
}

CUresult gpw_after_stream(struct gpw_session *s, CUstream stream, gpw_done *done, void *arg)
{
    (void)s;
    if (refuses)
        return CUDA_ERROR_OUT_OF_MEMORY;
    waits[waited].done = done;
    waits[waited].arg = arg;
    waits[waited++].stream = stream;
    return CUDA_SUCCESS;
}

static void over(unsigned i)
{
    waits[i].done(&session, waits[i].arg, CUDA_SUCCESS);
}

static bool admitted(uint16_t op, uint64_t held_ns)
{
    const struct gp_header h = {.op = op};
    return gpw_freed_admit(&session, &h, held_ns);
}

static int begin(void **state)
{
    (void)state;
    memset(&memory, 0, sizeof memory);
    session = (struct gpw_session){.memory = &memory};
    waited = 0;
    captures = refuses = false;
    ended = NULL;
    word = 0;
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_null(memory.freed.sights);
    assert_int_equal(memory.freed.sighted, 0);
    return 0;
}

/* --- who is waited for ------------------------------------------------------------------------ */

static void only_the_first_number_behind_a_free_is_looked_behind(void **state)
{
    (void)state;
    gpw_freed_written(&session, STREAM, false, &word, 1);
    assert_int_equal(waited, 0);
    gpw_freed_note(&session, STREAM);
    gpw_freed_note(&session, STREAM);
    gpw_freed_written(&session, OTHER, false, &word, 2);
    assert_int_equal(waited, 0);
    gpw_freed_written(&session, STREAM, false, &word, 3);
    gpw_freed_written(&session, STREAM, false, &word, 4);
    assert_int_equal(waited, 1);
    assert_ptr_equal(waits[0].stream, STREAM);
    over(0);
}

static void the_end_of_a_context_is_that_of_its_streams(void **state)
{
    (void)state;
    gpw_freed_note(&session, STREAM);
    gpw_freed_note(&session, OTHER);
    gpw_freed_note(&session, CU_STREAM_LEGACY);
    ended = OTHER;
    gpw_freed_written(&session, CU_STREAM_LEGACY, true, &word, 1);
    assert_int_equal(waited, 2);
    assert_ptr_equal(waits[0].stream, STREAM);
    assert_ptr_equal(waits[1].stream, CU_STREAM_LEGACY);
    over(0);
    over(1);
}

static void a_capture_is_left_alone(void **state)
{
    (void)state;
    gpw_freed_note(&session, STREAM);
    captures = true;
    gpw_freed_written(&session, STREAM, false, &word, 1);
    assert_int_equal(waited, 0);
    captures = false;
    gpw_freed_written(&session, STREAM, false, &word, 2);
    assert_int_equal(waited, 1);
    over(0);
}

static void there_is_an_end_to_what_is_kept(void **state)
{
    (void)state;
    for (uintptr_t i = 1; i <= GPW_FREED_STREAMS + 1; i++)
        gpw_freed_note(&session, (CUstream)i);
    gpw_freed_written(&session, (CUstream)1, false, &word, 1);
    assert_int_equal(waited, 0);
    for (unsigned i = 0; i < 100; i++) {
        gpw_freed_note(&session, STREAM);
        gpw_freed_written(&session, STREAM, false, &word, 1);
    }
    assert_int_equal(waited, 64);
    for (unsigned i = 0; i < waited; i++)
        over(i);
    refuses = true;
    gpw_freed_note(&session, STREAM);
    gpw_freed_written(&session, STREAM, false, &word, 1);
}

/* --- who waits -------------------------------------------------------------------------------- */

static void who_asks_for_the_memory_waits_once_the_client_knows(void **state)
{
    (void)state;
    assert_true(admitted(GP_OP_cuMemPoolTrimTo, 0));
    gpw_freed_note(&session, STREAM);
    gpw_freed_written(&session, STREAM, false, &word, 5);
    assert_true(admitted(GP_OP_cuMemPoolTrimTo, 0)); /* nobody knows yet */
    word = 5;
    assert_false(admitted(GP_OP_cuMemPoolTrimTo, 0));
    assert_false(admitted(GP_OP_cuMemPoolGetAttribute, 0));
    assert_false(admitted(GP_OP_cuMemGetInfo_v2, 0));
    assert_true(admitted(GP_OP_cuLaunchKernel, 0));
    word = 6; /* of a later wait */
    assert_false(admitted(GP_OP_cuMemPoolTrimTo, SECOND_NS));
    over(0);
    assert_true(admitted(GP_OP_cuMemPoolTrimTo, 0));
}

static void nobody_waits_for_ever(void **state)
{
    (void)state;
    gpw_freed_note(&session, STREAM);
    gpw_freed_written(&session, STREAM, false, &word, 1);
    word = 1;
    assert_false(admitted(GP_OP_cuMemPoolTrimTo, SECOND_NS));
    assert_true(admitted(GP_OP_cuMemPoolTrimTo, SECOND_NS + 1));
    assert_true(admitted(GP_OP_cuMemPoolTrimTo, 0));
    over(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_the_first_number_behind_a_free_is_looked_behind, begin,
                                        end),
        cmocka_unit_test_setup_teardown(the_end_of_a_context_is_that_of_its_streams, begin, end),
        cmocka_unit_test_setup_teardown(a_capture_is_left_alone, begin, end),
        cmocka_unit_test_setup_teardown(there_is_an_end_to_what_is_kept, begin, end),
        cmocka_unit_test_setup_teardown(who_asks_for_the_memory_waits_once_the_client_knows, begin,
                                        end),
        cmocka_unit_test_setup_teardown(nobody_waits_for_ever, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
