/* Numbers of polled events, in a page and in notices, over a driver that refuses steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "graph.h"
#include "gpw_handlers.h"
#include "memory_internal.h"

#define EVENT ((CUevent)(uintptr_t)1)
#define STREAM ((CUstream)(uintptr_t)2)
#define FIRST ((CUcontext)(uintptr_t)3)
#define SECOND ((CUcontext)(uintptr_t)4)

static _Alignas(8) uint64_t page[GP_EVENT_PAGE_ALL / sizeof(uint64_t)];

static struct {
    CUcontext current;
    CUresult register_fails, write_fails;
    CUresult record_fails, prepare_fails, capturing;
    unsigned registered, written, recorded;
} gpu;

/* Waits that were begun, and what was said when they ended. */
static struct {
    gpw_done *done[128];
    void *arg[128];
    unsigned waits, dropped;
    uint32_t place;
    uint64_t number;
    unsigned said, untold, first;
    int first_fails;
} told;

CUresult gpw_not_capturing(struct gpw_session *s, CUstream stream)
{
    (void)s, (void)stream;
    return gpu.capturing;
}

CUresult gpw_after_prepare(struct gpw_session *s, CUstream stream, gpw_done *done, void *arg,
                           struct gpw_after **after)
{
    (void)s, (void)stream, (void)after;
    if (gpu.prepare_fails == CUDA_SUCCESS) {
        told.done[told.waits] = done;
        told.arg[told.waits++] = arg;
    }
    return gpu.prepare_fails;
}

/* Of what could not be submitted nothing is told. */
CUresult gpw_after_submitted(struct gpw_session *s, struct gpw_after *after, CUstream stream,
                             CUresult r)
{
    (void)s, (void)after, (void)stream;
    told.dropped += r != CUDA_SUCCESS;
    return r;
}

int gpw_session_tell_first(struct gpw_session *s)
{
    (void)s;
    told.first++;
    return told.first_fails;
}

int gpw_notify_gp_event_over(struct gpw_session *s, uint32_t place, uint32_t over, uint64_t number)
{
    (void)s;
    told.place = place;
    told.number = number;
    if (over)
        told.said++;
    else
        told.untold++;
    return 0;
}

static CUresult fake_register(void *at, size_t bytes, unsigned flags)
{
    assert_ptr_equal(at, page);
    assert_int_equal(bytes, sizeof page);
    assert_true(flags & CU_MEMHOSTREGISTER_DEVICEMAP);
    gpu.registered++;
    return gpu.register_fails;
}

static CUresult fake_pointer(CUdeviceptr *device, void *at, unsigned flags)
{
    (void)flags;
    *device = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

static CUresult fake_current(CUcontext *context)
{
    *context = gpu.current;
    return CUDA_SUCCESS;
}

/* The GPU is done with everything at once. */
static CUresult fake_write(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    assert_ptr_equal(stream, STREAM);
    assert_int_equal(flags, CU_STREAM_WRITE_VALUE_DEFAULT);
    assert_true(at >= (uintptr_t)page && at <= (uintptr_t)page + sizeof page - sizeof value);
    assert_int_equal(gpu.recorded, gpu.written); /* before the record */
    gpu.written++;
    if (gpu.write_fails == CUDA_SUCCESS)
        *(uint64_t *)(uintptr_t)at = value;
    return gpu.write_fails;
}

static CUresult fake_record(CUevent event, CUstream stream)
{
    assert_ptr_equal(event, EVENT);
    assert_ptr_equal(stream, STREAM);
    gpu.recorded++;
    return gpu.record_fails;
}

static struct gpw_driver driver = {
    .cuMemHostRegister_v2 = fake_register,
    .cuMemHostGetDevicePointer_v2 = fake_pointer,
    .cuCtxGetCurrent = fake_current,
    .cuStreamWriteValue64_v2 = fake_write,
    .cuEventRecord = fake_record,
};

static struct gpw_memory memory;
static struct gpw_session session;

static int begin(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof gpu);
    memset(&told, 0, sizeof told);
    memset(&memory, 0, sizeof memory);
    memset(page, 0, sizeof page);
    gpu.current = FIRST;
    memory.event_page.share = (struct gp_share){.addr = page, .size = sizeof page};
    memory.event_page.open = true;
    session = (struct gpw_session){.driver = &driver, .memory = &memory};
    return 0;
}

static CUresult record(uint32_t place, uint64_t number)
{
    return gpw_event_record(&session, EVENT, STREAM, place, number, false);
}

static void a_number_is_written_before_the_record(void **state)
{
    (void)state;
    assert_int_equal(record(7, 41), CUDA_SUCCESS);
    assert_int_equal(record(7, 42), CUDA_SUCCESS);
    assert_int_equal(page[7], 42);
    assert_int_equal(page[GP_EVENT_PAGE_CLOSED], 0);
    assert_int_equal(gpu.registered, 1);
    assert_int_equal(gpu.recorded, 2);
}

static void no_number_is_no_matter_of_the_page(void **state)
{
    (void)state;
    memory.event_page.open = false;
    assert_int_equal(record(UINT32_MAX, 0), CUDA_SUCCESS);
    assert_int_equal(gpu.recorded, 1);
    assert_int_equal(gpu.registered, 0);
}

static void a_place_lies_in_the_page(void **state)
{
    (void)state;
    const uint32_t places = GP_EVENT_PAGE_BYTES / sizeof page[0];
    assert_int_equal(record(places - 1, 1), CUDA_SUCCESS);
    assert_int_equal(record(places, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(record(UINT32_MAX, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpu.written, 1);
    assert_int_equal(gpu.recorded, 1);
}

/* Behind the events' places, and only if there is room. */
static void it_says_that_kernels_print(void **state)
{
    (void)state;
    memory.event_page.share.size = GP_EVENT_PAGE_BYTES;
    gpw_event_page_print(&session);
    assert_int_equal(page[GP_EVENT_PAGE_PRINTS], 0);
    memory.event_page.share.size = GP_EVENT_PAGE_ALL;
    gpw_event_page_print(&session);
    assert_int_equal(page[GP_EVENT_PAGE_PRINTS], 1);
    assert_int_equal(record(GP_EVENT_PAGE_PRINTS, 7), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(page[GP_EVENT_PAGE_PRINTS], 1);
    memory.event_page = (struct gpw_gpu_page){.open = false};
    gpw_event_page_print(&session); /* there is none yet */
}

static void without_a_page_there_is_no_place(void **state)
{
    (void)state;
    memory.event_page = (struct gpw_gpu_page){.open = false};
    assert_int_equal(record(1, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpu.recorded, 0);
}

static void assert_closed_by_record(void)
{
    unsigned before = gpu.recorded;
    assert_int_equal(page[GP_EVENT_PAGE_CLOSED], 0);
    gpu.written = gpu.recorded; /* what was refused counts for nothing */
    assert_int_equal(record(9, 5), CUDA_SUCCESS);
    assert_int_equal(gpu.recorded, before + 1);
    assert_int_equal(page[GP_EVENT_PAGE_CLOSED], 1);
    assert_int_equal(page[9], 0);
}

static void what_cannot_be_pinned_is_closed(void **state)
{
    (void)state;
    gpu.register_fails = CUDA_ERROR_OUT_OF_MEMORY;
    assert_closed_by_record();
    assert_int_equal(record(9, 6), CUDA_SUCCESS);
    assert_int_equal(gpu.registered, 1);
}

static void what_cannot_be_written_is_closed(void **state)
{
    (void)state;
    gpu.write_fails = CUDA_ERROR_NOT_SUPPORTED;
    assert_closed_by_record();
}

static void another_context_does_not_write(void **state)
{
    (void)state;
    assert_int_equal(record(1, 1), CUDA_SUCCESS);
    gpu.current = SECOND;
    assert_closed_by_record();
}

/* Its end has undone the pinning, also for one that the driver makes at the same place. */
static void nothing_is_written_behind_the_end_of_the_context(void **state)
{
    (void)state;
    assert_int_equal(record(1, 1), CUDA_SUCCESS);
    gpw_gpu_pages_context_ended(&session, SECOND);
    assert_int_equal(record(1, 2), CUDA_SUCCESS);
    assert_int_equal(page[1], 2);
    gpw_gpu_pages_context_ended(&session, FIRST);
    assert_closed_by_record();
}

static CUresult record_told(uint32_t place, uint64_t number)
{
    return gpw_event_record(&session, EVENT, STREAM, place, number, true);
}

static void end(unsigned wait, CUresult result)
{
    told.done[wait](&session, told.arg[wait], result);
}

static void what_is_over_is_told(void **state)
{
    (void)state;
    assert_int_equal(record_told(7, 41), CUDA_SUCCESS);
    assert_int_equal(record_told(8, 42), CUDA_SUCCESS);
    assert_int_equal(gpu.recorded, 2);
    assert_int_equal(told.said, 0);
    end(1, CUDA_SUCCESS);
    assert_int_equal(told.first, 1); /* what was printed and what failed */
    assert_int_equal(told.place, 8);
    assert_int_equal(told.number, 42);
    end(0, CUDA_SUCCESS);
    assert_int_equal(told.place, 7);
    assert_int_equal(told.number, 41);
    assert_int_equal(memory.events_told, 0);
}

static void what_fails_is_not_over(void **state)
{
    (void)state;
    assert_int_equal(record_told(7, 41), CUDA_SUCCESS);
    end(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(told.said, 0);
    assert_int_equal(told.untold, 1);
    assert_int_equal(told.number, 41);
    assert_int_equal(memory.events_told, 0);
}

static void nothing_is_told_to_who_is_gone(void **state)
{
    (void)state;
    told.first_fails = -1;
    assert_int_equal(record_told(7, 41), CUDA_SUCCESS);
    end(0, CUDA_SUCCESS);
    assert_int_equal(told.said, 0);
    assert_int_equal(memory.events_told, 0);
}

static void a_record_that_fails_leaves_nothing(void **state)
{
    (void)state;
    gpu.record_fails = CUDA_ERROR_INVALID_HANDLE;
    assert_int_equal(record_told(7, 41), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(told.dropped, 1);
    assert_int_equal(memory.events_told, 0);
}

/* Recorded it is, and the client knows that it has to ask. */
static void assert_recorded_untold(void)
{
    unsigned waits = told.waits, recorded = gpu.recorded, untold = told.untold;
    assert_int_equal(record_told(7, 41), CUDA_SUCCESS);
    assert_int_equal(gpu.recorded, recorded + 1);
    assert_int_equal(told.waits, waits);
    assert_int_equal(told.untold, untold + 1);
}

static void without_memory_or_in_a_capture_nobody_is_told(void **state)
{
    (void)state;
    gpu.prepare_fails = CUDA_ERROR_OUT_OF_MEMORY;
    assert_recorded_untold();
    gpu.prepare_fails = CUDA_SUCCESS;
    gpu.capturing = CUDA_ERROR_NOT_SUPPORTED;
    assert_recorded_untold();
    assert_int_equal(memory.events_told, 0);
}

static void only_so_many_are_told(void **state)
{
    (void)state;
    unsigned most;
    for (most = 0; most < 127 && told.waits == most; most++)
        assert_int_equal(record_told(most, 1 + most), CUDA_SUCCESS);
    most = told.waits;
    assert_in_range(most, 1, 126);
    assert_recorded_untold();
    end(0, CUDA_SUCCESS);
    assert_int_equal(record_told(9, 99), CUDA_SUCCESS);
    assert_int_equal(told.waits, most + 1);
    for (unsigned i = 1; i <= most; i++)
        end(i, CUDA_SUCCESS);
    assert_int_equal(told.number, 99);
    assert_int_equal(memory.events_told, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_number_is_written_before_the_record, begin),
        cmocka_unit_test_setup(no_number_is_no_matter_of_the_page, begin),
        cmocka_unit_test_setup(a_place_lies_in_the_page, begin),
        cmocka_unit_test_setup(it_says_that_kernels_print, begin),
        cmocka_unit_test_setup(without_a_page_there_is_no_place, begin),
        cmocka_unit_test_setup(what_cannot_be_pinned_is_closed, begin),
        cmocka_unit_test_setup(what_cannot_be_written_is_closed, begin),
        cmocka_unit_test_setup(another_context_does_not_write, begin),
        cmocka_unit_test_setup(nothing_is_written_behind_the_end_of_the_context, begin),
        cmocka_unit_test_setup(what_is_over_is_told, begin),
        cmocka_unit_test_setup(what_fails_is_not_over, begin),
        cmocka_unit_test_setup(nothing_is_told_to_who_is_gone, begin),
        cmocka_unit_test_setup(a_record_that_fails_leaves_nothing, begin),
        cmocka_unit_test_setup(without_memory_or_in_a_capture_nobody_is_told, begin),
        cmocka_unit_test_setup(only_so_many_are_told, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
