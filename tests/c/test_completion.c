/* Waits that the GPU ends, over a driver that refuses steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "answer.h"
#include "graph.h"
#include "gpw_handlers.h"
#include "loop.h"
#include "memory_internal.h"
#include "module.h"

#define STREAM ((CUstream)(uintptr_t)2)
#define FIRST ((CUcontext)(uintptr_t)3)
#define SECOND ((CUcontext)(uintptr_t)4)
#define FROM 0x7000u

static _Alignas(64) unsigned char page[GP_COMPLETION_BYTES];

static struct {
    CUcontext current;
    CUresult register_fails, write_fails, copy_fails, capturing, stream_says;
    bool captures, prints, several, no_memory, not_device;
    unsigned registered, looked;
    unsigned asked;                  /* streams, before a wait */
    unsigned written, recorded, all; /* how waits end */
} gpu;

bool gpw_modules_print(const struct gpw_session *s)
{
    (void)s;
    return gpu.prints;
}

bool gpw_captures_any(const struct gpw_session *s)
{
    (void)s;
    return gpu.captures;
}

CUresult gpw_not_capturing(struct gpw_session *s, CUstream stream)
{
    (void)s, (void)stream;
    return gpu.capturing;
}

bool gpw_stream_tells(struct gpw_session *s, CUstream *stream)
{
    (void)s;
    gpu.looked++;
    *stream = CU_STREAM_LEGACY;
    return !gpu.several;
}

bool gpw_memory_is_device(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    (void)s, (void)bytes;
    return address == FROM && !gpu.not_device;
}

int gpw_answer_gp_context_complete(struct gpw_session *s, struct gpw_token t, CUresult result)
{
    (void)s, (void)t, (void)result;
    return 0;
}

CUresult gpw_answer_after_context(struct gpw_session *s, struct gpw_token token, CUcontext context,
                                  gpw_answer *send)
{
    (void)s, (void)token;
    assert_null(context);
    assert_ptr_equal(send, gpw_answer_gp_context_complete);
    gpu.all++;
    return GPW_DEFERRED;
}

static struct gpw_answer_wait {
    bool prepared;
} the_answer;

CUresult gpw_answer_prepare_unasked(struct gpw_session *s, struct gpw_token token, gpw_answer *send,
                                    struct gpw_answer_wait **answer)
{
    (void)s, (void)token;
    assert_ptr_equal(send, gpw_answer_gp_context_complete);
    if (gpu.no_memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    the_answer.prepared = true;
    *answer = &the_answer;
    return CUDA_SUCCESS;
}

CUresult gpw_answer_submitted(struct gpw_session *s, struct gpw_answer_wait *answer,
                              CUstream stream, CUresult r)
{
    (void)s, (void)stream;
    assert_true(answer->prepared);
    answer->prepared = false;
    gpu.recorded += r == CUDA_SUCCESS;
    return r == CUDA_SUCCESS ? GPW_DEFERRED : r;
}

/* It is read where it has been written. */
CUresult gpw_answer_written(struct gpw_session *s, struct gpw_answer_wait *answer,
                            const uint64_t *word, uint64_t number)
{
    (void)s;
    assert_true(answer->prepared);
    answer->prepared = false;
    assert_int_equal(*word, number);
    gpu.written++;
    return GPW_DEFERRED;
}

static CUresult fake_register(void *at, size_t bytes, unsigned flags)
{
    assert_ptr_equal(at, page);
    assert_int_equal(bytes, sizeof page);
    assert_true(flags & CU_MEMHOSTREGISTER_PORTABLE);
    gpu.registered++;
    return gpu.register_fails;
}

static CUresult fake_pointer(CUdeviceptr *device, void *at, unsigned flags)
{
    (void)flags;
    *device = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_query(CUstream stream)
{
    assert_ptr_equal(stream, STREAM);
    gpu.asked++;
    return gpu.stream_says;
}

static CUresult fake_current(CUcontext *context)
{
    *context = gpu.current;
    return CUDA_SUCCESS;
}

/* The GPU is done with everything at once. */
static CUresult fake_write(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    assert_true(stream == STREAM || stream == CU_STREAM_LEGACY);
    assert_int_equal(flags, CU_STREAM_WRITE_VALUE_DEFAULT);
    assert_true(at >= (uintptr_t)page && at <= (uintptr_t)page + GP_COMPLETION_DATA - sizeof value);
    if (gpu.write_fails == CUDA_SUCCESS)
        memcpy((void *)(uintptr_t)at, &value, sizeof value);
    return gpu.write_fails;
}

static CUresult fake_copy(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    assert_ptr_equal(stream, STREAM);
    assert_int_equal(from, FROM);
    assert_true((unsigned char *)to >= page + GP_COMPLETION_DATA);
    assert_true((unsigned char *)to + bytes <= page + sizeof page);
    memset(to, 0x5a, bytes);
    return gpu.copy_fails;
}

static struct gpw_driver driver = {
    .cuMemHostRegister_v2 = fake_register,
    .cuMemHostGetDevicePointer_v2 = fake_pointer,
    .cuCtxGetCurrent = fake_current,
    .cuStreamQuery = fake_stream_query,
    .cuStreamWriteValue64_v2 = fake_write,
    .cuMemcpyDtoHAsync_v2 = fake_copy,
};

static struct gpw_memory memory;
static struct gpw_session session;
static const struct gpw_token nobody;

static int begin(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof gpu);
    memset(&memory, 0, sizeof memory);
    the_answer.prepared = false;
    memset(page, 0, sizeof page);
    gpu.current = FIRST;
    memory.completions.share = (struct gp_share){.addr = page, .size = sizeof page};
    memory.completions.open = true;
    session = (struct gpw_session){.driver = &driver, .memory = &memory};
    return 0;
}

static uint64_t word(uint32_t place)
{
    uint64_t number;
    memcpy(&number, page + place * GP_COMPLETION_WORD_STEP, sizeof number);
    return number;
}

static CUresult wait_for(uint32_t place, uint64_t number)
{
    assert_false(the_answer.prepared);
    the_answer.prepared = true;
    return gpw_complete(&session, &the_answer, 0, STREAM, 0, place, number);
}

static CUresult download(uint32_t bytes, uint32_t place, uint64_t number)
{
    assert_false(the_answer.prepared);
    the_answer.prepared = true;
    return gpw_complete(&session, &the_answer, FROM, STREAM, bytes, place, number);
}

static void a_number_is_written(void **state)
{
    (void)state;
    assert_int_equal(wait_for(0, 41), GPW_DEFERRED);
    assert_int_equal(wait_for(GP_COMPLETION_PLACES - 1, 42), GPW_DEFERRED);
    assert_int_equal(word(0), 41);
    assert_int_equal(word(GP_COMPLETION_PLACES - 1), 42);
    assert_int_equal(gpu.registered, 1);
    assert_int_equal(gpu.written, 2);
    assert_int_equal(gpu.asked + gpu.recorded, 0);
}

static void bytes_come_to_their_place(void **state)
{
    (void)state;
    const uint32_t last = GP_COMPLETION_PLACES - 1;
    const unsigned char *to = page + GP_COMPLETION_DATA + last * GP_COMPLETION_DATA_MAX;
    assert_int_equal(download(GP_COMPLETION_DATA_MAX, last, 7), GPW_DEFERRED);
    assert_int_equal(word(last), 7);
    assert_int_equal(to[0], 0x5a);
    assert_int_equal(to[-1], 0);
    assert_int_equal(to[GP_COMPLETION_DATA_MAX - 1], 0x5a);
}

static void places_and_bytes_lie_in_the_page(void **state)
{
    (void)state;
    assert_int_equal(wait_for(GP_COMPLETION_PLACES, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(wait_for(UINT32_MAX, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(download(4, GP_COMPLETION_PLACES, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(download(GP_COMPLETION_DATA_MAX + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(download(UINT32_MAX, 0, 1), CUDA_ERROR_INVALID_VALUE);
    memory.completions.open = false;
    assert_int_equal(wait_for(0, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(download(4, 0, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpu.registered, 0);
}

static void assert_not_written(void)
{
    assert_int_equal(wait_for(1, 5), GPW_DEFERRED);
    assert_int_equal(word(1), 0);
    assert_int_equal(gpu.written, 0);
    assert_int_equal(gpu.recorded, 1);
}

static void what_may_print_is_answered_alone(void **state)
{
    (void)state;
    gpu.prints = true;
    assert_not_written();
    assert_int_equal(download(4, 2, 6), GPW_DEFERRED); /* its bytes come, and the number does not */
    assert_int_equal(word(2), 0);
}

static void so_is_what_captures(void **state)
{
    (void)state;
    gpu.captures = true;
    gpu.capturing = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    assert_not_written();
    gpu.capturing = CUDA_SUCCESS; /* another stream does */
    assert_int_equal(wait_for(1, 5), GPW_DEFERRED);
    assert_int_equal(word(1), 5);
}

/* The client is told of it by a message, which another of its threads may be reading. */
static void behind_a_failure_it_is_answered_alone(void **state)
{
    (void)state;
    session.failures.told = 1;
    assert_not_written();
    session.failures.told = 0; /* an answer has told it */
    assert_int_equal(wait_for(1, 5), GPW_DEFERRED);
    assert_int_equal(word(1), 5);
}

static void without_the_page_bytes_are_asked_for(void **state)
{
    (void)state;
    gpu.register_fails = CUDA_ERROR_OUT_OF_MEMORY;
    assert_not_written();
    assert_int_equal(download(4, 2, 6), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(gpu.registered, 1);
}

static void what_cannot_be_written_is_answered(void **state)
{
    (void)state;
    gpu.write_fails = CUDA_ERROR_NOT_SUPPORTED;
    assert_not_written();
    assert_int_equal(download(4, 2, 6), GPW_DEFERRED);
}

static void a_copy_that_fails_is_not_over(void **state)
{
    (void)state;
    gpu.copy_fails = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(download(4, 2, 6), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(word(2), 0);
}

static void without_memory_a_context_is_not_waited_for(void **state)
{
    (void)state;
    gpu.no_memory = true;
    assert_int_equal(gpw_gp_context_complete(&session, nobody, 1, 5), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(word(1), 0);
}

/* As a number would be written into a graph, and not behind what has failed. */
static void a_stream_is_asked_before_its_event_is_recorded(void **state)
{
    (void)state;
    gpu.prints = true;
    gpu.stream_says = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    assert_int_equal(wait_for(1, 5), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    gpu.stream_says = CUDA_ERROR_NOT_READY;
    assert_int_equal(wait_for(1, 5), GPW_DEFERRED);
    assert_int_equal(gpu.asked, 2);
    assert_int_equal(gpu.recorded, 1);
}

/* Only where one stream comes behind all the others. */
static void a_context_is_over_when_one_stream_is(void **state)
{
    (void)state;
    assert_int_equal(gpw_gp_context_complete(&session, nobody, 3, 8), GPW_DEFERRED);
    assert_int_equal(word(3), 8);
    assert_int_equal(gpu.written, 1);
    gpu.several = true;
    assert_int_equal(gpw_gp_context_complete(&session, nobody, 3, 9), GPW_DEFERRED);
    assert_int_equal(word(3), 8);
    assert_int_equal(gpu.all, 1);
    assert_int_equal(gpw_gp_context_complete(&session, nobody, GP_COMPLETION_PLACES, 9),
                     CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpu.all + gpu.written, 2);
}

/* Whether others are busy is asked of every stream, and that would end a capture. */
static void nothing_is_asked_of_streams_while_one_captures(void **state)
{
    (void)state;
    gpu.captures = true;
    assert_int_equal(gpw_gp_context_complete(&session, nobody, 3, 8), GPW_DEFERRED);
    assert_int_equal(gpu.looked, 0);
    assert_int_equal(word(3), 0);
    assert_int_equal(gpu.all, 1);
}

/* The end of the context in which it was pinned has undone that. */
static void the_next_context_has_the_page(void **state)
{
    (void)state;
    assert_int_equal(wait_for(0, 1), GPW_DEFERRED);
    gpu.current = SECOND;
    gpu.written = 0;
    assert_not_written();
    gpu.recorded = gpu.written = 0;
    gpw_gpu_pages_context_ended(&session, SECOND);
    gpu.current = FIRST;
    assert_int_equal(wait_for(0, 2), GPW_DEFERRED);
    assert_int_equal(word(0), 2);
    gpw_gpu_pages_context_ended(&session, FIRST);
    gpu.current = SECOND;
    assert_int_equal(wait_for(0, 3), GPW_DEFERRED);
    assert_int_equal(word(0), 3);
    assert_int_equal(gpu.registered, 2);
}

/* --- signals ------------------------------------------------------------------------------ */

static CUresult signal(uint32_t place, uint64_t number)
{
    return gpw_signal(&session, 0, STREAM, 0, place, number);
}

static CUresult download_signal(uint32_t bytes, uint32_t place, uint64_t number)
{
    return gpw_signal(&session, FROM, STREAM, bytes, place, number);
}

/* Nothing is made ready for an answer, nothing asked, and no event recorded. */
static void a_signal_is_a_number_alone(void **state)
{
    (void)state;
    assert_int_equal(signal(0, 41), CUDA_SUCCESS);
    assert_int_equal(download_signal(4, 1, 42), CUDA_SUCCESS);
    assert_int_equal(gpw_gp_context_signal(&session, 2, 43), CUDA_SUCCESS);
    for (uint32_t place = 0; place < 3; place++)
        assert_int_equal(word(place), 41 + place);
    assert_int_equal(page[GP_COMPLETION_DATA + GP_COMPLETION_DATA_MAX + 3], 0x5a);
    assert_int_equal(gpu.asked + gpu.recorded + gpu.written + gpu.all, 0);
    assert_int_equal(session.signal.number, 43);
    assert_ptr_equal(session.signal.word, page + 2 * GP_COMPLETION_WORD_STEP);
}

/* Who waits asks then, and is told why. */
static void assert_no_signal(void)
{
    assert_int_equal(signal(1, 5), CUDA_SUCCESS);
    assert_int_equal(download_signal(4, 1, 6), CUDA_SUCCESS);
    assert_int_equal(gpw_gp_context_signal(&session, 1, 7), CUDA_SUCCESS);
    assert_int_equal(word(1), 0);
    assert_null(session.signal.word);
}

static void a_signal_that_may_not_be_is_none(void **state)
{
    (void)state;
    gpu.prints = true;
    assert_no_signal();
    gpu.prints = false;
    session.failures.told = 1;
    assert_no_signal();
    session.failures.told = 0;
    gpu.captures = true;
    gpu.capturing = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    assert_no_signal();
    gpu.captures = false;
    gpu.write_fails = CUDA_ERROR_NOT_SUPPORTED;
    assert_no_signal();
    gpu.write_fails = CUDA_SUCCESS;
    gpu.current = SECOND; /* the page is the first's */
    assert_no_signal();
}

static void bytes_that_cannot_be_copied_are_not_signalled(void **state)
{
    (void)state;
    gpu.copy_fails = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(download_signal(4, 1, 6), CUDA_SUCCESS);
    gpu.copy_fails = CUDA_SUCCESS;
    gpu.not_device = true;
    assert_int_equal(download_signal(4, 1, 6), CUDA_SUCCESS);
    assert_int_equal(word(1), 0);
}

static void signals_lie_in_the_page(void **state)
{
    (void)state;
    for (unsigned closed = 0; closed < 2; closed++) {
        const uint32_t place = closed ? 0 : GP_COMPLETION_PLACES;
        memory.completions.open = !closed;
        assert_int_equal(signal(place, 1), CUDA_ERROR_INVALID_VALUE);
        assert_int_equal(download_signal(4, place, 1), CUDA_ERROR_INVALID_VALUE);
        assert_int_equal(gpw_gp_context_signal(&session, place, 1), CUDA_ERROR_INVALID_VALUE);
    }
    memory.completions.open = true;
    assert_int_equal(download_signal(GP_COMPLETION_DATA_MAX + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(download_signal(UINT32_MAX, 0, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpu.registered, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_number_is_written, begin),
        cmocka_unit_test_setup(bytes_come_to_their_place, begin),
        cmocka_unit_test_setup(places_and_bytes_lie_in_the_page, begin),
        cmocka_unit_test_setup(what_may_print_is_answered_alone, begin),
        cmocka_unit_test_setup(so_is_what_captures, begin),
        cmocka_unit_test_setup(behind_a_failure_it_is_answered_alone, begin),
        cmocka_unit_test_setup(without_the_page_bytes_are_asked_for, begin),
        cmocka_unit_test_setup(what_cannot_be_written_is_answered, begin),
        cmocka_unit_test_setup(a_copy_that_fails_is_not_over, begin),
        cmocka_unit_test_setup(without_memory_a_context_is_not_waited_for, begin),
        cmocka_unit_test_setup(a_stream_is_asked_before_its_event_is_recorded, begin),
        cmocka_unit_test_setup(a_context_is_over_when_one_stream_is, begin),
        cmocka_unit_test_setup(nothing_is_asked_of_streams_while_one_captures, begin),
        cmocka_unit_test_setup(the_next_context_has_the_page, begin),
        cmocka_unit_test_setup(a_signal_is_a_number_alone, begin),
        cmocka_unit_test_setup(a_signal_that_may_not_be_is_none, begin),
        cmocka_unit_test_setup(bytes_that_cannot_be_copied_are_not_signalled, begin),
        cmocka_unit_test_setup(signals_lie_in_the_page, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
