/* Copies through memory that is used again: it is given back when the GPU has done with it,
 * and what can be refused is refused before a copy is submitted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "answer.h"
#include "budget.h"
#include "gpw_handlers.h"
#include "handles.h"
#include "loop.h"
#include "memory_internal.h"

/* --- a driver with one stream --------------------------------------------------------- */

#define CONTEXT ((CUcontext)(uintptr_t)0xa0)
#define STREAM ((CUstream)(uintptr_t)0xb0)
#define EVENT ((CUevent)(uintptr_t)0xc0)
#define DEVICE ((CUdeviceptr)0xd000)
#define ARRAY ((CUarray)(uintptr_t)0xe0)
#define BYTES 512u

static struct {
    unsigned copies, records, done; /* work of the stream, and how much of it is over */
    unsigned marked;                /* by the event */
    CUresult create_fails, copy_fails, record_fails, stream_fails;
} gpu;

static CUresult fake_copy(void)
{
    gpu.copies += gpu.copy_fails == CUDA_SUCCESS;
    return gpu.copy_fails;
}

static CUresult fake_upload(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    assert_true(to == DEVICE && from && bytes == BYTES && stream == STREAM);
    return fake_copy();
}

static CUresult fake_download(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    assert_true(to && from == DEVICE && bytes == BYTES && stream == STREAM);
    return fake_copy();
}

static CUresult fake_box(const CUDA_MEMCPY3D *copy, CUstream stream)
{
    assert_true(copy->srcMemoryType == CU_MEMORYTYPE_ARRAY && copy->srcArray == ARRAY);
    assert_true(copy->dstMemoryType == CU_MEMORYTYPE_HOST && copy->dstHost && stream == STREAM);
    assert_int_equal(copy->WidthInBytes * copy->Height * copy->Depth, BYTES);
    return fake_copy();
}

/* 64 elements of 8 bytes a row, 4 rows, 2 layers. */
static CUresult fake_descriptor(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray array)
{
    assert_ptr_equal(array, ARRAY);
    *d = (CUDA_ARRAY3D_DESCRIPTOR){64, 4, 2, CU_AD_FORMAT_FLOAT, 2, CUDA_ARRAY3D_LAYERED};
    return CUDA_SUCCESS;
}

static CUresult fake_create(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = EVENT;
    return gpu.create_fails;
}

static CUresult fake_record(CUevent event, CUstream stream)
{
    assert_true(event == EVENT && stream == STREAM);
    gpu.marked = gpu.copies;
    gpu.records += gpu.record_fails == CUDA_SUCCESS;
    return gpu.record_fails;
}

static CUresult fake_event_query(CUevent event)
{
    assert_ptr_equal(event, EVENT);
    return gpu.done >= gpu.marked ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult fake_stream_query(CUstream stream)
{
    assert_ptr_equal(stream, STREAM);
    if (gpu.stream_fails != CUDA_SUCCESS && gpu.copies) /* it strikes behind the copy */
        return gpu.stream_fails;
    return gpu.done >= gpu.copies ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult fake_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    assert_ptr_equal(stream, STREAM);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult fake_current(CUcontext *context)
{
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

static struct gpw_driver driver = {
    .cuMemcpyHtoDAsync_v2 = fake_upload,
    .cuMemcpyDtoHAsync_v2 = fake_download,
    .cuMemcpy3DAsync_v2 = fake_box,
    .cuArray3DGetDescriptor_v2 = fake_descriptor,
    .cuEventCreate = fake_create,
    .cuEventRecord = fake_record,
    .cuEventQuery = fake_event_query,
    .cuEventSynchronize = fake_event_query,
    .cuStreamQuery = fake_stream_query,
    .cuStreamIsCapturing = fake_capturing,
    .cuCtxGetCurrent = fake_current,
};

/* --- what copies ask of the rest of the worker ---------------------------------------- */

static struct gpw_session session;
static char memory[BYTES];
static struct gpw_staging piece;
static unsigned taken, given; /* pieces, and slots of the arena */
static unsigned answers;
static CUresult answer;

bool gpw_memory_is_device(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    (void)s;
    return address == DEVICE && bytes == BYTES;
}

bool gpw_memory_reach(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    return gpw_memory_is_device(s, address, bytes);
}

void *gpw_arena_at(struct gpw_session *s, uint64_t offset, uint64_t bytes)
{
    (void)s, (void)offset, (void)bytes;
    return memory;
}

void *gpw_pinned_find(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    (void)s, (void)address, (void)bytes;
    return NULL;
}

void *gpw_captured_find(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    return gpw_pinned_find(s, address, bytes);
}

struct gpw_staging *gpw_staging_take(struct gpw_session *s)
{
    (void)s;
    taken++;
    piece.memory = memory;
    return &piece;
}

void gpw_staging_give(struct gpw_session *s, struct gpw_staging *p)
{
    (void)s;
    assert_ptr_equal(p, &piece);
    given++;
}

/* With the channel's return; test_staging.c has it. */
void gpw_staging_leave(struct gpw_session *s, struct gpw_staging *p)
{
    assert_null(s->lends);
    gpw_staging_give(s, p);
}

int gpw_notify_gp_arena_free(struct gpw_session *s, uint32_t slot)
{
    (void)s;
    assert_int_equal(slot, 3);
    given++;
    return 0;
}

static int answered(CUresult result)
{
    answers++;
    answer = result;
    return 0;
}

int gpw_answer_gp_dtoh(struct gpw_session *s, struct gpw_token token, CUresult result,
                       const void *data, uint32_t n_data)
{
    (void)token;
    assert_ptr_equal(s->lends, data);
    assert_int_equal(n_data, result == CUDA_SUCCESS ? BYTES : 0);
    return answered(result);
}

int gpw_answer_gp_array_download(struct gpw_session *s, struct gpw_token token, CUresult result,
                                 const void *data, uint32_t n_data)
{
    return gpw_answer_gp_dtoh(s, token, result, data, n_data);
}

int gpw_answer_gp_dtoh_arena(struct gpw_session *s, struct gpw_token token, CUresult result)
{
    (void)s, (void)token;
    given++; /* the part of the arena is the client's again */
    return answered(result);
}

int gpw_notify_gp_pinned_data(struct gpw_session *s, uint64_t cookie, uint64_t offset,
                              uint32_t bytes, uint32_t last, const void *data)
{
    (void)cookie, (void)offset, (void)bytes, (void)last;
    assert_ptr_equal(s->lends, data);
    return 0;
}

/* --- every kind of copy --------------------------------------------------------------- */

static CUresult arena_up(void)
{
    taken++;
    return gpw_gp_htod_arena(&session, DEVICE, STREAM, 0, BYTES, 3);
}

static CUresult arena_down(void)
{
    struct gpw_answer_wait *wait = NULL; /* what gpgen writes for gp_dtoh_arena */
    taken++;
    CUresult r = gpw_answer_prepare(&session, (struct gpw_token){0}, STREAM,
                                    gpw_answer_gp_dtoh_arena, &wait);
    if (r == CUDA_SUCCESS)
        r = gpw_answer_submitted(&session, wait, STREAM,
                                 driver.cuMemcpyDtoHAsync_v2(memory, DEVICE, BYTES, STREAM));
    given += r != GPW_DEFERRED; /* the answer is the return value */
    return r;
}

static CUresult staged_down(void)
{
    return gpw_gp_dtoh(&session, (struct gpw_token){0}, DEVICE, STREAM, BYTES);
}

static CUresult pinned_down(void)
{
    return gpw_gp_dtoh_pinned(&session, DEVICE, STREAM, 1, 0, BYTES, 1);
}

/* The second row of the second layer. */
static const struct gp_array_box row = {.y = 1, .z = 1, .width = BYTES, .height = 1};

static CUresult array_down(void)
{
    return gpw_gp_array_download(&session, (struct gpw_token){0}, ARRAY, &row, STREAM, BYTES);
}

static CUresult array_pinned_down(void)
{
    return gpw_gp_array_download_pinned(&session, ARRAY, &row, STREAM, 1, 0, BYTES, 1);
}

static CUresult (*const copies[])(void) = {arena_up,    arena_down, staged_down,
                                           pinned_down, array_down, array_pinned_down};
#define KINDS (sizeof copies / sizeof copies[0])

static void begin(void)
{
    memset(&gpu, 0, sizeof gpu);
    gpw_budget_open(&session, GPW_BUDGET_HOST_MEMORY, 0);
    session = (struct gpw_session){.driver = &driver, .handles = gpw_handles_new()};
    taken = given = answers = 0;
    assert_non_null(session.handles);
}

static void end(void)
{
    gpw_waits_cancel(&session);
    gpw_waits_context_ended(&session, CONTEXT);
    gpw_handles_free(session.handles);
}

static bool is_under_way(CUresult r)
{
    return r == CUDA_SUCCESS || r == GPW_DEFERRED;
}

static void it_comes_back_when_the_copy_is_over(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KINDS; i++) {
        begin();
        assert_true(is_under_way(copies[i]()));
        gpw_waits_poll(&session);
        assert_int_equal(gpu.copies, 1);
        assert_int_equal(given, 0);
        gpu.done = 1;
        gpw_waits_poll(&session);
        assert_int_equal(given, 1);
        assert_int_equal(taken, 1);
        end();
    }
}

/* It was submitted, and what it used was given back at once. */
static void nothing_is_submitted_that_cannot_be_waited_for(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2 * KINDS; i++) {
        begin();
        if (i < KINDS) { /* the host memory that it may have is used up */
            gpw_budget_open(&session, GPW_BUDGET_HOST_MEMORY, 1);
        } else {
            gpu.create_fails = CUDA_ERROR_OUT_OF_MEMORY;
        }
        assert_int_equal(copies[i % KINDS](), CUDA_ERROR_OUT_OF_MEMORY);
        assert_int_equal(gpu.copies, 0);
        assert_int_equal(given, taken);
        assert_int_equal(answers, 0);
        assert_null(session.waits);
        end();
    }
}

static void a_copy_that_is_refused_leaves_no_wait(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KINDS; i++) {
        begin();
        gpu.copy_fails = CUDA_ERROR_INVALID_VALUE;
        assert_int_equal(copies[i](), CUDA_ERROR_INVALID_VALUE);
        assert_int_equal(gpu.records, 0);
        assert_int_equal(given, taken);
        assert_null(session.waits);
        assert_int_equal(gpw_budget_used(&session, GPW_BUDGET_HOST_MEMORY), 0);
        end();
    }
}

static void nobody_uses_it_where_its_end_cannot_be_told(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KINDS; i++) {
        begin();
        gpu.record_fails = CUDA_ERROR_UNKNOWN;
        assert_true(is_under_way(copies[i]()));
        assert_int_equal(gpu.copies, 1);
        assert_int_equal(given, 0);
        assert_true(session.ended); /* so nothing comes that could */
        end();
    }
}

static void an_error_that_ends_all_work_ends_the_copy(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KINDS; i++) {
        begin();
        gpu.record_fails = CUDA_ERROR_ILLEGAL_ADDRESS;
        gpu.stream_fails = CUDA_ERROR_ILLEGAL_ADDRESS;
        assert_true(is_under_way(copies[i]()));
        assert_int_equal(given, taken);
        assert_true(answers == 0 || answer == CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_false(session.ended);
        end();
    }
}

/* What a client says of an array's bytes is held against the array and the message. */
static void rows_that_an_array_has_not_are_refused(void **state)
{
    (void)state;
    const struct gp_array_box wrong[] = {
        {.width = BYTES - 8, .height = 1},                  /* fewer than the message has */
        {.width = BYTES, .height = 2},                      /* more */
        {.width = UINT64_MAX / 2 + 1, .height = 2},         /* their product overflows */
        {.width = 0, .height = BYTES},                      /* none */
        {.x = 8, .width = BYTES, .height = 1},              /* behind the row */
        {.x = UINT64_MAX - 7, .width = BYTES, .height = 1}, /* likewise, with overflow */
        {.y = 4, .width = BYTES, .height = 1},              /* behind the last row */
        {.y = 3, .width = BYTES / 2, .height = 2},          /* likewise */
        {.y = UINT64_MAX, .width = BYTES / 2, .height = 2}, /* with overflow */
        {.z = 2, .width = BYTES, .height = 1},              /* behind the last layer */
        {.x = 4, .width = BYTES / 2, .height = 2},          /* within an element */
        {.width = 4, .height = BYTES / 4},                  /* half elements */
    };
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct gp_array_box *at = &wrong[i];
        begin();
        assert_int_equal(
            gpw_gp_array_download(&session, (struct gpw_token){0}, ARRAY, at, STREAM, BYTES),
            CUDA_ERROR_INVALID_VALUE);
        assert_int_equal(gpw_gp_array_download_pinned(&session, ARRAY, at, STREAM, 1, 0, BYTES, 1),
                         CUDA_ERROR_INVALID_VALUE);
        assert_int_equal(gpw_gp_array_upload(&session, ARRAY, at, STREAM, BYTES, memory),
                         CUDA_ERROR_INVALID_VALUE);
        assert_true(gpu.copies == 0 && taken == 0);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_comes_back_when_the_copy_is_over),
        cmocka_unit_test(nothing_is_submitted_that_cannot_be_waited_for),
        cmocka_unit_test(a_copy_that_is_refused_leaves_no_wait),
        cmocka_unit_test(nobody_uses_it_where_its_end_cannot_be_told),
        cmocka_unit_test(an_error_that_ends_all_work_ends_the_copy),
        cmocka_unit_test(rows_that_an_array_has_not_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
