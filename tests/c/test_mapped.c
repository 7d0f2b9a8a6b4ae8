/*
 * Mapped memory against a worker that this test is: which words are sent and when, what a host that
 * polls is brought, and that a worker which lies about it does no more than give wrong bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <sched.h>
#include <sys/mman.h>

#include "context.h"
#include "fake_worker.h"
#include "gp_ids.h"
#include "handle.h"
#include "managed_internal.h"

#define BYTES ((size_t)1 << 20)

/* What the worker does, and what it was asked: also while a mere touch of memory faults. */
static volatile struct {
    int32_t opened;      /* the answer to an opening */
    int missing;         /* bytes that an answer lacks */
    unsigned char gives; /* what its memory is full of */
    bool works;          /* work does not end */
    uint64_t asked;      /* somebody waits for its end */
    unsigned opens, closes, writes, pieces, reads, looks;
    uint32_t blocks;        /* that it was asked for at once */
    uint64_t written, read; /* bytes */
} worker;

static struct gpc_context device_context;
static CUcontext context;

static void give_bytes(const struct gp_header *h)
{
    const struct gp_req_gp_mapped_read *q = (const void *)h;
    uint32_t bytes = (uint32_t)((int)q->bytes - worker.missing);
    struct gp_rep_gp_mapped_read reply = {.n_data = bytes};
    char *data = malloc(bytes);
    memset(data, worker.gives, bytes);
    worker.reads++;
    worker.read += q->bytes;
    fake_answer(h->seq, &reply.r, sizeof reply, data, bytes);
    free(data);
}

/* All that it is asked for is another than the client has. */
static void show_bytes(const struct gp_header *h)
{
    const struct gp_req_gp_mapped_look *q = (const void *)h;
    uint32_t bytes = (uint32_t)((int)q->bytes - worker.missing);
    struct gp_rep_gp_mapped_look reply = {.changed = (UINT64_C(1) << q->count) - 1,
                                          .n_data = bytes};
    char *data = malloc(bytes);
    memset(data, worker.gives, bytes);
    worker.looks++;
    if (q->count > worker.blocks)
        worker.blocks = q->count;
    fake_answer(h->seq, &reply.r, sizeof reply, data, bytes);
    free(data);
}

static void take_pieces(const struct gp_req_gp_mapped_write *q)
{
    worker.pieces += q->count;
    worker.written += q->bytes;
    worker.writes++;
}

static void answer(const struct gp_header *h)
{
    struct gp_reply reply = {.result = CUDA_SUCCESS};
    switch (h->op) {
    case GP_OP_gp_mapped_read:
        give_bytes(h);
        return;
    case GP_OP_gp_mapped_look:
        show_bytes(h);
        return;
    case GP_OP_gp_mapped_write:
        take_pieces((const void *)h);
        return;
    case GP_OP_gp_mapped_open:
        worker.opens++;
        reply.result = worker.opened;
        break;
    case GP_OP_gp_pinned_close:
        worker.closes++;
        break;
    case GP_OP_cuCtxSynchronize_v2:
        if (worker.works) {
            worker.asked = h->seq;
            return;
        }
        break;
    default:
        break;
    }
    if (h->flags & GP_FLAG_WAITED)
        fake_answer(h->seq, &reply, sizeof reply, NULL, 0);
}

static int set_up(void **state)
{
    (void)state;
    fake_session();
    memset((void *)(uintptr_t)&worker, 0, sizeof worker);
    fake_channel.on_send = answer;
    if (!context) {
        context = (CUcontext)gpc_handle_new(GP_HANDLE_CONTEXT, 0);
        gpc_handle_attach((uint64_t)context, &device_context);
    }
    gpc_thread()->current = context;
    return 0;
}

/* Pinned memory of this process's own, as cuMemHostAlloc makes it over a network. */
static volatile unsigned *pinned(void)
{
    void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    const struct gpc_range range = {.begin = (uint64_t)(uintptr_t)p,
                                    .size = BYTES - 5,
                                    .kind = GPC_RANGE_HOST,
                                    .context = context};
    assert_int_equal(gpc_range_add(&range), 0);
    return p;
}

static struct gpc_range range_of(volatile unsigned *p)
{
    struct gpc_range range;
    assert_true(gpc_range_find((uint64_t)(uintptr_t)p, &range));
    return range;
}

static volatile unsigned *mapped(void)
{
    volatile unsigned *p = pinned();
    assert_int_equal(gpc_mapped_open((uint64_t)(uintptr_t)p), CUDA_SUCCESS);
    assert_int_equal(range_of(p).kind, GPC_RANGE_SHARED);
    assert_int_equal(range_of(p).device_address, (uint64_t)(uintptr_t)p);
    return p;
}

static void release(volatile unsigned *p)
{
    const struct gpc_range range = range_of(p);
    assert_true(gpc_range_forget(&range));
    gpc_mapped_close(&range);
    assert_false(gpc_managed_touch(&(struct gpc_touch){.address = (uint64_t)(uintptr_t)p}));
}

/* As a kernel's launch is to the client: it names no address. */
static void some_work(void)
{
    const struct gpc_route on = gpc_route_in(context);
    const CUDA_MEMCPY3D box = {.WidthInBytes = 1};
    assert_int_equal(gpc_wire_gp_copy_3d_on(&on, &box, CU_STREAM_LEGACY), CUDA_SUCCESS);
}

static void work_ends(void)
{
    struct gp_reply reply = {.result = CUDA_SUCCESS};
    worker.works = false;
    if (worker.asked)
        fake_answer(worker.asked, &reply, sizeof reply, NULL, 0);
    worker.asked = 0;
}

static bool is_busy(void)
{
    gpc_managed_lock();
    bool busy = gpc_managed_busy_mapped();
    gpc_managed_unlock();
    return busy;
}

/* The thread that waits for the end of work is through, before the session is another. */
static int tear_down(void **state)
{
    (void)state;
    while (is_busy() || gpc_hot_asks()) {
        if (gpc_session_works(gpc_session_at(0)))
            release(
                mapped()); /* which has it asked for, if nobody was asking before the last work */
        sched_yield();
    }
    return 0;
}

/* --- an honest one ------------------------------------------------------------------------- */

static void only_changed_words_go_over(void **state)
{
    (void)state;
    volatile unsigned *p = pinned();
    p[3] = 1; /* before anybody asks for its address */
    assert_int_equal(gpc_mapped_open((uint64_t)(uintptr_t)p), CUDA_SUCCESS);
    assert_int_equal(gpc_mapped_open((uint64_t)(uintptr_t)(p + 9)), CUDA_SUCCESS);
    assert_int_equal(worker.opens, 1);
    p[100000] = 2;
    p[100001] = 3;
    some_work();
    assert_int_equal(worker.writes, 1);
    assert_int_equal(worker.pieces, 2);
    assert_int_equal(worker.written, 12);
    some_work();
    assert_int_equal(worker.writes, 1);
    worker.gives = 1;
    assert_int_equal(p[50], 0x01010101);
    p[50] = 0x01010101; /* what it is already */
    p[51] = 7;
    some_work();
    assert_int_equal(worker.written, 16);
    release(p);
    assert_int_equal(worker.closes, 1);
}

/* One message has so many pieces. */
static void many_words_go_in_many_messages(void **state)
{
    (void)state;
    volatile unsigned *p = mapped();
    const unsigned words = BYTES / 4;
    for (unsigned i = 0; i < words; i += 2)
        p[i] = i + 1;
    some_work();
    assert_int_equal(worker.pieces, words / 2);
    assert_int_equal(worker.written, 2 * words);
    assert_true(worker.writes >= words / 2 / 1024);
    worker.written = 0;
    for (unsigned i = 0; i < words; i++)
        p[i] = i + 1;
    some_work();
    assert_true(worker.written >= 2 * words);
    release(p);
}

static void a_host_that_polls_sees_it(void **state)
{
    (void)state;
    volatile unsigned *p = mapped();
    some_work();
    worker.works = true;
    for (unsigned char round = 1; round < 20; round++) {
        worker.gives = round;
        while ((p[7] & 0xff) != round)
            sched_yield();
        assert_int_equal(p[BYTES / 4 - 1] & 0xff, round); /* nothing is older */
    }
    work_ends();
    release(p);
}

/* Nobody submits anything: what is written goes over by itself, and alone. */
static void what_is_written_meanwhile_goes_over(void **state)
{
    (void)state;
    volatile unsigned *p = mapped();
    some_work();
    worker.works = true;
    worker.gives = 99;
    for (unsigned round = 1; round < 20; round++) {
        p[4] = round;
        while (worker.written < 4 * round)
            sched_yield();
        assert_int_equal(worker.written, 4 * round);
    }
    p[4] = 100; /* and before another block is opened */
    p[BYTES / 8] = 1;
    assert_true(worker.written >= 80);
    work_ends();
    release(p);
}

/* They are open together, and brought together: whoever reads one after another finds none older. */
static void few_blocks_stay_open(void **state)
{
    (void)state;
    volatile unsigned *p = mapped();
    const unsigned words = BYTES / 4;
    some_work();
    worker.works = true;
    worker.gives = 3;
    for (unsigned at = 0; at < words; at += words / 32)
        assert_int_equal(p[at] & 0xff, 3);
    assert_int_equal(worker.blocks, 4);
    for (unsigned char round = 4; round < 20; round++) {
        worker.gives = round;
        while ((p[words - 1] & 0xff) != round)
            sched_yield();
        assert_int_equal(p[words - words / 32] & 0xff, round);
        assert_int_equal(p[0] & 0xff, round);
    }
    work_ends();
    release(p);
}

/* Which the worker says it has otherwise, at the same time. */
static void what_the_host_writes_stays_until_it_is_sent(void **state)
{
    (void)state;
    volatile unsigned *p = mapped();
    some_work();
    worker.works = true;
    worker.gives = 200;
    for (unsigned round = 1; round < 50; round++) {
        uint64_t before = worker.written;
        unsigned value = round << 8;
        p[round] = value;
        while (worker.written == before) {
            unsigned seen = p[round];
            assert_true(seen == value || worker.written != before);
        }
    }
    assert_int_equal(worker.written, 49 * 4);
    work_ends();
    release(p);
}

/* One that knows no gp_mapped_look: a block at a time is brought as before. */
static void an_older_worker(void **state)
{
    (void)state;
    struct gpc_session *s = gpc_session_at(0);
    s->shared.partial = true;
    memset(s->shared.has, 0xff, sizeof s->shared.has);
    s->shared.has[GP_OP_gp_mapped_look / 64] &= ~(UINT64_C(1) << GP_OP_gp_mapped_look % 64);
    a_host_that_polls_sees_it(state);
    what_is_written_meanwhile_goes_over(state);
    assert_int_equal(worker.looks, 0);
}

static struct gpc_range registered(char *p, size_t bytes)
{
    const struct gpc_range range = {.begin = (uint64_t)(uintptr_t)p,
                                    .size = bytes,
                                    .kind = GPC_RANGE_HOST,
                                    .registered = true,
                                    .context = context};
    assert_int_equal(gpc_range_add(&range), 0);
    return range_of((volatile unsigned *)(void *)p);
}

/* With what the GPU has written to it, and nobody has touched since. */
static void registered_memory_is_given_back(void **state)
{
    (void)state;
    char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (unsigned char round = 1; round < 4; round++) {
        struct gpc_range range = registered(p, BYTES);
        p[7] = 100;
        assert_null(gpc_registered_why_not(&range));
        assert_int_equal(gpc_mapped_open(range.begin + 9), CUDA_SUCCESS);
        some_work();
        worker.gives = round;
        assert_int_equal(worker.read, (round - 1) * BYTES);
        range = range_of((volatile unsigned *)(void *)p);
        assert_true(gpc_range_forget(&range));
        assert_int_equal(gpc_mapped_close(&range), CUDA_SUCCESS);
        assert_int_equal(worker.read, round * BYTES);
        assert_int_equal(worker.closes, round);
        assert_false(gpc_managed_touch(&(struct gpc_touch){.address = range.begin}));
        for (size_t i = 0; i < BYTES; i += 1000)
            assert_int_equal(p[i], round);
    }
    munmap(p, BYTES);
}

static void registered_memory_that_others_have_too(void **state)
{
    (void)state;
    char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct gpc_range range = registered(p, BYTES);
    assert_non_null(strstr(gpc_registered_why_not(&range), "other processes"));
    assert_int_equal(gpc_mapped_open(range.begin), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(worker.opens, 0);
    assert_true(gpc_range_forget(&range));
    munmap(p, BYTES);
}

static void what_a_kernel_is_given_is_opened(void **state)
{
    (void)state;
    volatile unsigned *p = pinned();
    uint64_t parameters[] = {7, (uint64_t)(uintptr_t)(p + 4), 0};
    assert_int_equal(gpc_mapped_open_named((const void *)parameters, sizeof parameters), 0);
    assert_int_equal(worker.opens, gpc_pinned_may(parameters[1]) ? 1 : 0);
    parameters[1] = UINT64_C(0x100000000000); /* where pinned memory may be, and is none */
    assert_int_equal(gpc_mapped_open_named((const void *)parameters, sizeof parameters), 0);
    assert_int_equal(gpc_mapped_open(4096), CUDA_ERROR_INVALID_VALUE);
    release(p);
}

/* --- one that lies, or cannot --------------------------------------------------------------- */

static void a_worker_that_has_no_room(void **state)
{
    (void)state;
    const int32_t answers[] = {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY, -7};
    volatile unsigned *p = pinned();
    p[5] = 6;
    for (unsigned i = 0; i < 3; i++) {
        worker.opened = answers[i];
        assert_int_not_equal(gpc_mapped_open((uint64_t)(uintptr_t)p), CUDA_SUCCESS);
        assert_int_equal(range_of(p).kind, GPC_RANGE_HOST);
    }
    assert_int_equal(worker.closes, 0);
    some_work();
    p[6] = p[5];
    assert_int_equal(p[6], 6);
    assert_int_equal(worker.writes + worker.reads, 0);
    release(p);
}

static void bytes_that_are_missing(void **state)
{
    (void)state;
    volatile unsigned *p = mapped(), *q = mapped();
    some_work();
    worker.missing = 1000;
    worker.gives = 1;
    p[0] = 0x01010101; /* the program goes on */
    assert_int_equal(p[0], 0x01010101);
    assert_true(gpc_session_works(gpc_session_at(0)));
    worker.missing = -1000; /* more than there is room for is no answer */
    q[0] = 2;
    assert_int_equal(q[0], 2);
    assert_false(gpc_session_works(gpc_session_at(0)));
    p[BYTES / 4 - 1] = 5;
    q[BYTES / 4 - 1] = 6;
    release(p);
    release(q);
}

static void a_session_that_is_lost(void **state)
{
    (void)state;
    volatile unsigned *p = mapped();
    p[1] = 4;
    some_work();
    fake_fail_sends();
    assert_int_equal(p[1], 4); /* the last that was known */
    p[1] = 5;
    assert_int_equal(p[1], 5);
    release(p);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(only_changed_words_go_over),
        CASE(many_words_go_in_many_messages),
        CASE(a_host_that_polls_sees_it),
        CASE(what_is_written_meanwhile_goes_over),
        CASE(few_blocks_stay_open),
        CASE(what_the_host_writes_stays_until_it_is_sent),
        CASE(an_older_worker),
        CASE(registered_memory_is_given_back),
        CASE(registered_memory_that_others_have_too),
        CASE(what_a_kernel_is_given_is_opened),
        CASE(a_worker_that_has_no_room),
        CASE(bytes_that_are_missing),
        CASE(a_session_that_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
