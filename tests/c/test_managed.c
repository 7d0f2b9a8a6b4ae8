/*
 * Managed memory against a worker that this test is: what is sent before work, what a touch
 * brings, and that a worker which lies about either does no more than give wrong bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <malloc.h>
#include <stdio.h>
#include <sys/mman.h>

#include "context.h"
#include "fake_worker.h"
#include "gp_ids.h"
#include "handle.h"
#include "managed.h"

#define WINDOW GP_WINDOW_BASE
#define SANITIZED 0
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef SANITIZED
#define SANITIZED 1
#endif
#endif
#define BYTES ((size_t)1 << 20)

/* What the worker does, and what it was asked: also while a mere touch of memory faults. */
static volatile struct {
    CUdeviceptr next;     /* the address of the next allocation */
    int32_t synchronized; /* the answer of a synchronization */
    int missing;          /* bytes that an answer with device memory lacks */
    unsigned char gives;  /* what device memory is full of */
    unsigned allocations, frees, uploads, downloads, waits, fences, sets;
    uint64_t uploaded, downloaded; /* bytes */
} worker;

static struct gpc_context device_context;
static CUcontext context;

static void give_memory(const struct gp_header *h)
{
    struct gp_rep_cuMemAlloc_v2 reply = {.dptr = worker.next};
    worker.allocations++;
    fake_answer(h->seq, &reply.r, sizeof reply, NULL, 0);
}

static void give_bytes(const struct gp_header *h)
{
    const struct gp_req_gp_dtoh *q = (const void *)h;
    uint32_t bytes = (uint32_t)((int)q->bytes - worker.missing);
    struct gp_rep_gp_dtoh reply = {.n_data = bytes};
    char *data = malloc(bytes);
    memset(data, worker.gives, bytes);
    worker.downloads++;
    worker.downloaded += q->bytes;
    fake_answer(h->seq, &reply.r, sizeof reply, data, bytes);
    free(data);
}

static void answer(const struct gp_header *h)
{
    struct gp_reply reply = {.result = worker.synchronized};
    switch (h->op) {
    case GP_OP_cuMemAlloc_v2:
        give_memory(h);
        return;
    case GP_OP_gp_dtoh:
        give_bytes(h);
        return;
    case GP_OP_gp_htod:
        worker.uploads++;
        worker.uploaded += ((const struct gp_req_gp_htod *)(const void *)h)->bytes;
        return;
    case GP_OP_cuMemFree_v2:
        worker.frees++;
        return;
    case GP_OP_gp_fence:
        worker.fences++;
        return;
    case GP_OP_cuMemsetD8Async:
        worker.sets++;
        return;
    default:
        break;
    }
    if (h->flags & GP_FLAG_WAITED) {
        worker.waits += h->op == GP_OP_cuCtxSynchronize;
        fake_answer(h->seq, &reply, sizeof reply, NULL, 0);
    }
}

static int set_up(void **state)
{
    (void)state;
    static uint64_t window = WINDOW; /* of its own for each case: areas stay */
    struct gpc_session *s = fake_session();
    window += (uint64_t)1 << 32;
    struct gp_device_info *d = &s->snapshot->devices[0];
    d->window_begin = s->window_begin = window;
    d->window_end = s->window_end = window + ((uint64_t)1 << 31);
    assert_null(gpc_windows_keep(s));
    memset((void *)(uintptr_t)&worker, 0, sizeof worker);
    worker.next = window + (4u << 20);
    fake_channel.on_send = answer;
    if (!context) {
        context = (CUcontext)gpc_handle_new(GP_HANDLE_CONTEXT, 0);
        gpc_handle_attach((uint64_t)context, &device_context);
    }
    gpc_thread()->current = context;
    return 0;
}

static volatile unsigned char *allocate(size_t bytes)
{
    CUdeviceptr at = 0;
    assert_int_equal(gpc_managed_alloc(&at, bytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    assert_int_equal(at, worker.next);
    worker.next += (bytes + (2u << 20)) & ~(uint64_t)0x1fffff;
    worker.sets = worker.fences = 0;
    return (volatile unsigned char *)(uintptr_t)at;
}

/* Work that may see all of it, as a kernel's launch is to the client: it names no address. */
static void some_work(void)
{
    const struct gpc_route on = gpc_route_in(context);
    const CUDA_MEMCPY3D box = {.WidthInBytes = 1};
    assert_int_equal(gpc_wire_gp_copy_3d_on(&on, &box, CU_STREAM_LEGACY), CUDA_SUCCESS);
}

static void release(volatile unsigned char *p)
{
    struct gpc_range range;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    assert_true(gpc_range_find(at, &range) && gpc_range_forget(&range));
    assert_int_equal(gpc_managed_free(NULL, at), CUDA_SUCCESS);
    assert_false(gpc_managed_touch(&(struct gpc_touch){.address = at}));
}

/* --- an honest one ------------------------------------------------------------------------- */

static void only_what_was_touched_goes_over(void **state)
{
    (void)state;
    volatile unsigned char *p = allocate(BYTES);
    some_work();
    assert_int_equal(worker.uploads, 0);
    assert_int_equal(worker.fences, 0);
    worker.gives = 9;
    p[70000] = 1;
    assert_int_equal(worker.downloads, 1);
    some_work();
    assert_int_equal(worker.uploads, 1);
    assert_int_equal(worker.fences, 1);
    assert_true(worker.uploaded <= 65536);
    some_work();
    assert_int_equal(worker.uploads, 1);
    assert_int_equal(worker.fences, 1);
    release(p);
    assert_int_equal(worker.frees, 1);
}

static void a_touch_waits_once_and_brings_more_and_more(void **state)
{
    (void)state;
    const size_t bytes = 64 * BYTES;
    volatile unsigned char *p = allocate(bytes);
    some_work();
    worker.gives = 7;
    for (size_t i = 0; i < bytes; i += 4096)
        assert_int_equal(p[i], 7);
    assert_int_equal(worker.waits, 1);
    assert_int_equal(worker.downloaded, bytes);
    assert_true(worker.downloads < 80); /* of 4,096 blocks; a message carries 1 MiB */
    worker.gives = 8;
    assert_int_equal(p[5], 7); /* nothing was submitted since */
    some_work();
    assert_int_equal(p[5], 8);
    assert_int_equal(worker.waits, 2);
    release(p);
}

static void what_a_call_is_given_is_read_by_its_alias(void **state)
{
    volatile unsigned char *p = allocate(BYTES);
    some_work();
    worker.gives = 'x';
    const char *seen = gpc_managed_view((const void *)(uintptr_t)(p + 100), 50000, false);
    assert_ptr_not_equal(seen, p + 100);
    assert_true(seen[0] == 'x' && seen[49999] == 'x');
    char *filled = gpc_managed_view((const void *)(uintptr_t)(p + 100), 3, true);
    filled[0] = 'y';
    assert_int_equal(p[100], 'y');
    some_work();
    assert_int_equal(worker.uploads, 1);
    /* what does not lie in it whole is what it is */
    assert_ptr_equal(gpc_managed_view((const void *)(uintptr_t)p, BYTES + 1, false), p);
    assert_ptr_equal(gpc_managed_view(state, sizeof *state, true), state);
    release(p);
}

/* The kernel gives a process 65,530 mappings; who has used them all up still has its memory. */
static void too_many_mappings(void **state)
{
    (void)state;
    const size_t page = 4096, pages = SANITIZED ? 0 : 140000; /* whose own memory is mappings */
    if (!pages)
        skip();
    volatile unsigned char *p = allocate(BYTES);
    for (size_t i = 0; i < BYTES; i += page)
        p[i] = (unsigned char)(i / page);
    some_work();
    char *hog = mmap(NULL, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                     0);
    assert_ptr_not_equal(hog, MAP_FAILED);
    size_t taken = 0;
    while (taken < pages && mprotect(hog + taken * page, page, PROT_READ) == 0)
        taken += 2;
    if (taken < pages) { /* the machine's limit is higher than any that is usual */
        worker.gives = 3;
        p[500000] = 9;
        assert_int_equal(p[500000], 9);
        assert_int_equal(p[0], 3);
        assert_int_equal(p[BYTES - 1], 3);
    }
    munmap(hog, pages * page);
    release(p);
}

/* --- one that lies ------------------------------------------------------------------------- */

static void addresses_that_cannot_be(void **state)
{
    (void)state;
    volatile unsigned char *p = allocate(BYTES);
    const struct gp_device_info *d = gpc_device_info(0);
    const CUdeviceptr wrong[] = {0,
                                 4096,
                                 d->window_begin - 4096,
                                 d->window_begin + 8,
                                 d->window_end,
                                 d->window_end - 4096,
                                 UINT64_MAX - 4095,
                                 (CUdeviceptr)(uintptr_t)p,
                                 (CUdeviceptr)(uintptr_t)p + BYTES - 4096,
                                 (CUdeviceptr)(uintptr_t)p - 4096,
                                 (CUdeviceptr)(uintptr_t)&worker & ~(CUdeviceptr)4095};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CUdeviceptr at = 77;
        worker.next = wrong[i];
        assert_int_equal(gpc_managed_alloc(&at, BYTES, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_UNKNOWN);
        assert_int_equal(at, 77);
    }
    assert_int_equal(worker.frees, sizeof wrong / sizeof wrong[0]);
    p[0] = 3; /* is what it was */
    release(p);
}

static void bytes_that_are_missing(void **state)
{
    (void)state;
    volatile unsigned char *p = allocate(BYTES), *q = allocate(BYTES);
    some_work();
    worker.missing = 1000;
    p[0] = 1; /* the program goes on */
    assert_int_equal(p[0], 1);
    assert_true(gpc_session_works(gpc_session_at(0)));
    worker.missing = -1000; /* more than there is room for is no answer */
    q[0] = 2;
    assert_int_equal(q[0], 2);
    assert_false(gpc_session_works(gpc_session_at(0)));
    p[BYTES - 1] = 5;
    q[BYTES - 1] = 6;
    gpc_managed_drop((CUdeviceptr)(uintptr_t)p);
    gpc_managed_drop((CUdeviceptr)(uintptr_t)q);
}

static void a_session_that_is_lost(void **state)
{
    (void)state;
    volatile unsigned char *p = allocate(BYTES);
    p[1] = 4;
    some_work();
    fake_fail_sends();
    assert_int_equal(p[1], 4); /* the last that was known */
    p[1] = 5;
    assert_int_equal(p[1], 5);
    gpc_managed_drop((CUdeviceptr)(uintptr_t)p);
}

static void work_that_has_failed(void **state)
{
    (void)state;
    volatile unsigned char *p = allocate(BYTES);
    some_work();
    worker.synchronized = CUDA_ERROR_ILLEGAL_ADDRESS;
    worker.gives = 1;
    assert_int_equal(p[0], 1);
    worker.synchronized = 0;
    release(p);
}

int main(void)
{
    /* the worker's answers need no mappings of their own (too_many_mappings) */
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 28);
    mallopt(M_TOP_PAD, 1 << 26);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(only_what_was_touched_goes_over, set_up),
        cmocka_unit_test_setup(a_touch_waits_once_and_brings_more_and_more, set_up),
        cmocka_unit_test_setup(what_a_call_is_given_is_read_by_its_alias, set_up),
        cmocka_unit_test_setup(too_many_mappings, set_up),
        cmocka_unit_test_setup(addresses_that_cannot_be, set_up),
        cmocka_unit_test_setup(bytes_that_are_missing, set_up),
        cmocka_unit_test_setup(a_session_that_is_lost, set_up),
        cmocka_unit_test_setup(work_that_has_failed, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
