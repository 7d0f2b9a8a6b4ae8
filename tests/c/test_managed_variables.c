/*
 * Managed variables against a worker that this test is: where their pages are opened, and that a
 * worker which lies about that, or whose addresses are taken here, is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <sys/mman.h>
#include <unistd.h>

#include "context.h"
#include "fake_worker.h"
#include "gp_ids.h"
#include "handle.h"
#include "managed_internal.h"
#include "module.h"
#include "ranges.h"
#include "shared.h"

#define BYTES ((size_t)1 << 16)

/* What the worker says of any address. */
static struct {
    uint32_t managed;
    uint64_t begin, bytes;
    unsigned asked, uploads, streams;
    uint64_t brought;
    unsigned char gives;
} worker;

static struct gpc_context device_context;
static CUcontext context;

static void say_variable(const struct gp_header *h)
{
    struct gp_rep_gp_managed_variable reply = {
        .managed = worker.managed, .begin = worker.begin, .bytes = worker.bytes};
    worker.asked++;
    fake_answer(h->seq, &reply.r, sizeof reply, NULL, 0);
}

static void give_bytes(const struct gp_header *h)
{
    const struct gp_req_gp_dtoh *q = (const void *)h;
    struct gp_rep_gp_dtoh reply = {.n_data = q->bytes};
    char *data = malloc(q->bytes);
    worker.brought += q->bytes;
    memset(data, worker.gives, q->bytes);
    fake_answer(h->seq, &reply.r, sizeof reply, data, q->bytes);
    free(data);
}

static void *look(void *arg)
{
    return gpc_managed_has(0) ? arg : NULL;
}

/* A stream of this library's is made under a lock that comes before that of managed memory. */
static void expect_unlocked(void)
{
    struct timespec until;
    pthread_t other;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    assert_int_equal(pthread_create(&other, NULL, look, NULL), 0);
    assert_int_equal(pthread_timedjoin_np(other, NULL, &until), 0);
}

static void answer(const struct gp_header *h)
{
    struct gp_reply reply = {.result = CUDA_SUCCESS};
    worker.uploads += h->op == GP_OP_gp_htod;
    if (h->op == GP_OP_cuStreamCreate && ++worker.streams)
        expect_unlocked();
    if (h->op == GP_OP_gp_managed_variable)
        say_variable(h);
    else if (h->op == GP_OP_gp_dtoh)
        give_bytes(h);
    else if (h->flags & GP_FLAG_WAITED)
        fake_answer(h->seq, &reply, sizeof reply, NULL, 0);
}

/* Addresses that nobody has here, far from where the kernel puts what others ask for meanwhile. */
static uint64_t free_pages(void)
{
    void *far = (void *)UINT64_C(0x200000000000);
    void *p = mmap(far, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_equal(p, far);
    munmap(p, BYTES);
    return (uint64_t)(uintptr_t)p;
}

static int set_up(void **state)
{
    (void)state;
    fake_session();
    memset(&worker, 0, sizeof worker);
    assert_int_equal(gpc_faults_watch(), 0); /* whose thread has a stack */
    worker.managed = 1;
    worker.begin = free_pages();
    worker.bytes = BYTES;
    fake_channel.on_send = answer;
    if (!context) {
        context = (CUcontext)gpc_handle_new(GP_HANDLE_CONTEXT, 0);
        gpc_handle_attach((uint64_t)context, &device_context);
    }
    gpc_thread()->current = context;
    return 0;
}

static void they_are_opened_once_and_brought(void **state)
{
    (void)state;
    worker.gives = 3;
    assert_int_equal(gpc_managed_variable(worker.begin + 100, 4), CUDA_SUCCESS);
    assert_int_equal(gpc_managed_variable(worker.begin + 5000, 40), CUDA_SUCCESS);
    assert_int_equal(worker.asked, 1);
    assert_int_equal(worker.streams, 1);
    volatile unsigned char *p = (volatile unsigned char *)(uintptr_t)worker.begin;
    assert_int_equal(p[100], 3);
    p[101] = 9;
    assert_int_equal(p[102] + p[101], 12);
    assert_true(gpc_managed_has(worker.begin + BYTES - 1));
    worker.managed = 0; /* its module is gone */
    gpc_managed_variables_ended();
    assert_false(gpc_managed_has(worker.begin));
    assert_int_equal(worker.asked, 2);
    /* and the pages are nobody's */
    void *again = mmap((void *)(uintptr_t)worker.begin, BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    assert_ptr_equal(again, (void *)(uintptr_t)worker.begin);
    munmap(again, BYTES);
}

static void others_stay_the_gpus(void **state)
{
    (void)state;
    worker.managed = 0;
    assert_int_equal(gpc_managed_variable(worker.begin + 100, 4), CUDA_SUCCESS);
    assert_int_equal(gpc_managed_variable(worker.begin + 100, 4), CUDA_SUCCESS);
    assert_false(gpc_managed_has(worker.begin + 100));
    assert_int_equal(worker.asked, 1);
    gpc_managed_variables_ended(); /* another module may have it now */
    assert_int_equal(gpc_managed_variable(worker.begin + 100, 4), CUDA_SUCCESS);
    assert_int_equal(worker.asked, 2);
}

/* What this process has is never replaced. */
static void taken_addresses_are_refused(void **state)
{
    (void)state;
    char *mine = mmap((void *)(uintptr_t)worker.begin, 4096, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    mine[0] = 77;
    assert_int_equal(gpc_managed_variable(worker.begin + 8192, 4), CUDA_ERROR_NOT_SUPPORTED);
    assert_false(gpc_managed_has(worker.begin + 8192));
    assert_int_equal(mine[0], 77);
    munmap(mine, 4096);
    assert_int_equal(gpc_managed_variable(worker.begin + 8192, 4), CUDA_SUCCESS);
    gpc_managed_variable_drop(worker.begin, BYTES);
}

/* Each is copied by itself, and stays when another goes. */
/* Registered memory may be where the driver over there has put a variable. */
static void memory_of_this_process_is_no_variable(void **state)
{
    (void)state;
    const struct gpc_range own = {
        .begin = worker.begin, .size = 4096, .kind = GPC_RANGE_HOST, .registered = true};
    struct gpc_range found;
    uint64_t module = gpc_handle_new(GP_HANDLE_MODULE, 0);
    struct gpc_image_shadow *image = gpc_image_shadow_new(module, false);
    worker.managed = 0;
    assert_int_equal(gpc_range_add(&own), 0);
    assert_int_equal(gpc_memory_note_global(module, worker.begin + 64, 4),
                     CUDA_ERROR_NOT_SUPPORTED);
    assert_true(gpc_range_find(worker.begin + 64, &found) && found.kind == GPC_RANGE_HOST);
    assert_true(gpc_range_forget(&found));
    assert_int_equal(gpc_memory_note_global(module, worker.begin + 64, 4), CUDA_SUCCESS);
    assert_int_equal(gpc_memory_note_global(module, worker.begin + 64, 4), CUDA_SUCCESS);
    assert_true(gpc_range_find(worker.begin + 64, &found) && found.from == module);
    gpc_handle_drop(module);
    gpc_image_shadow_free(image);
    assert_false(gpc_range_find(worker.begin + 64, &found));
}

static void several_lie_on_a_page(void **state)
{
    (void)state;
    const uint64_t at = worker.begin;
    volatile unsigned char *p = (volatile unsigned char *)(uintptr_t)at;
    worker.bytes = 4;
    worker.gives = 3;
    assert_int_equal(gpc_managed_variable(at, 4), CUDA_SUCCESS);
    assert_int_equal(p[0] + p[3], 6);
    assert_int_equal(worker.brought, 4);
    p[0] = 50;
    worker.begin = at + 512;
    worker.bytes = 5000;
    worker.gives = 4;
    assert_int_equal(gpc_managed_variable(at + 512, 5000), CUDA_SUCCESS);
    assert_int_equal(worker.asked, 2);
    assert_int_equal(p[0], 50);
    assert_int_equal(p[512], 4);
    assert_int_equal(p[512 + 4999], 4);
    assert_int_equal(worker.brought, 5004);
    assert_int_equal(p[4] + p[511] + p[512 + 5000], 0);
    assert_false(gpc_managed_has(at + 100));
    assert_true(gpc_managed_has(at + 512 + 4999));
    gpc_managed_variable_drop(at, 4);
    assert_false(gpc_managed_has(at));
    assert_int_equal(p[512], 4);
    gpc_managed_variable_drop(at + 512, 5000);
    assert_false(gpc_managed_has(at + 512 + 4999));
    assert_int_equal(msync((void *)(uintptr_t)at, 8192, MS_ASYNC), -1); /* nothing is there */
}

/* One that cannot be opened whole is not opened, and what was there before stays. */
static void half_of_one_is_none(void **state)
{
    (void)state;
    const uint64_t at = worker.begin, page = (uint64_t)sysconf(_SC_PAGESIZE);
    worker.bytes = 4;
    assert_int_equal(gpc_managed_variable(at, 4), CUDA_SUCCESS);
    char *mine = mmap((void *)(uintptr_t)(at + page), page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    worker.begin = at + 512;
    worker.bytes = page;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(gpc_managed_variable(at + 512, 4), CUDA_ERROR_NOT_SUPPORTED);
        assert_false(gpc_managed_has(at + 512));
        assert_true(gpc_managed_has(at));
    }
    munmap(mine, page);
    assert_int_equal(gpc_managed_variable(at + 512, 4), CUDA_SUCCESS);
    assert_true(gpc_managed_has(at + 512 + page - 1));
    gpc_managed_variable_drop(at, 512 + page);
}

static void a_worker_that_lies(void **state)
{
    (void)state;
    const uint64_t at = worker.begin;
    const uint64_t lies[][2] = {
        {at, 100},       {at + 8192, BYTES},        {at, 4096},         {at, UINT64_MAX},
        {0, at + BYTES}, {UINT64_MAX - 4095, 4096}, {GP_WINDOW_END, 4}, {0, 0}};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        worker.begin = lies[i][0];
        worker.bytes = lies[i][1];
        assert_int_equal(gpc_managed_variable(at + 4096, 4), CUDA_ERROR_UNKNOWN);
        assert_false(gpc_managed_has(at + 4096));
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        CASE(they_are_opened_once_and_brought),
        CASE(others_stay_the_gpus),
        CASE(taken_addresses_are_refused),
        CASE(memory_of_this_process_is_no_variable),
        CASE(several_lie_on_a_page),
        CASE(half_of_one_is_none),
        CASE(a_worker_that_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
