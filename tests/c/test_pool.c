/* Pools as the worker keeps them: when they end, and which ones the driver has no memory of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "allocator.h"
#include "gpw_handlers.h"
#include "growth.h"
#include "memory_internal.h"
#include "pool.h"
#include "quota.h"
#include "shareable.h"

#define MIB (UINT64_C(1) << 20)
#define OURS 0x70000000u /* what our allocator gives */
#define OWN ((CUmemoryPool)(uintptr_t)16)
#define MADE ((CUmemoryPool)(uintptr_t)32)

/* --- what stands in for the worker around it ------------------------------------------------ */

static uint64_t charged;

bool gpw_quota_take(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    (void)s, (void)ordinal;
    charged += bytes;
    return true;
}

void gpw_quota_give(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    (void)s, (void)ordinal;
    assert_true(bytes <= charged);
    charged -= bytes;
}

bool gpw_quota_fits(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    (void)s, (void)ordinal, (void)bytes;
    return true;
}

bool gpw_location_take(struct gpw_session *s, CUmemLocation *location)
{
    location->id = s->devices[0];
    return true;
}

int gpw_current_ordinal(struct gpw_session *s)
{
    (void)s;
    return 0;
}

CUresult gpw_memory_make_room(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    (void)s, (void)ordinal, (void)bytes;
    return CUDA_SUCCESS;
}

void gpw_growth_in_graphs(struct gpw_session *s)
{
    (void)s;
}

CUresult gpw_graph_memory_note(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    (void)s, (void)address, (void)bytes;
    return CUDA_SUCCESS;
}

CUresult gpw_after_stream(struct gpw_session *s, CUstream stream, gpw_done *done, void *arg)
{
    (void)s, (void)stream, (void)done, (void)arg;
    return CUDA_SUCCESS;
}

CUresult gpw_allocator_take(struct gpw_allocator *a, size_t bytes, CUdeviceptr *out)
{
    (void)a, (void)bytes;
    *out = OURS;
    return CUDA_SUCCESS;
}

void gpw_allocator_give(struct gpw_allocator *a, CUdeviceptr address)
{
    (void)a, (void)address;
}

size_t gpw_allocator_size(const struct gpw_allocator *a, CUdeviceptr base)
{
    (void)a, (void)base;
    return 0;
}

CUresult gpw_allocator_share(struct gpw_allocator *a, CUdevice peer)
{
    (void)a, (void)peer;
    return CUDA_SUCCESS;
}

CUresult gpw_shareable_pool(struct gpw_session *s, CUmemoryPool pool, uint32_t ordinal,
                            struct gpw_shareable **out)
{
    (void)s, (void)pool, (void)ordinal, (void)out;
    return CUDA_SUCCESS;
}

static uint64_t frees, over; /* how many were begun, and are over */

uint64_t gpw_memory_last_free(const struct gpw_session *s)
{
    (void)s;
    return frees;
}

bool gpw_memory_frees_under_way(struct gpw_session *s, uint64_t number)
{
    (void)s;
    return over < frees && over < number;
}

/* --- the driver ------------------------------------------------------------------------------- */

static struct {
    uint64_t used, reserved;
    uint64_t freeing; /* used no more, and what its stream has not come by yet */
    unsigned alive;
    CUmemoryPool current;
} gpu;

static CUresult fake_create(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    assert_int_equal(props->handleTypes, CU_MEM_HANDLE_TYPE_NONE);
    assert_int_equal(props->location.id, 5);
    *pool = MADE;
    gpu.alive++;
    return CUDA_SUCCESS;
}

static CUresult fake_destroy(CUmemoryPool pool)
{
    if (pool == OWN)
        return CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(gpu.used + gpu.freeing, 0); /* of which it would die */
    gpu.alive--;
    return CUDA_SUCCESS;
}

static CUresult fake_trim(CUmemoryPool pool, size_t keep)
{
    (void)pool;
    uint64_t least = gpu.used + gpu.freeing > keep ? gpu.used + gpu.freeing : keep;
    gpu.reserved = gpu.reserved < least ? gpu.reserved : least;
    return CUDA_SUCCESS;
}

static CUresult fake_attribute(CUmemoryPool pool, CUmemPool_attribute what, void *value)
{
    *(cuuint64_t *)value = pool != MADE                               ? 0
                           : what == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? gpu.used
                                                                      : gpu.reserved;
    return CUDA_SUCCESS;
}

static CUresult fake_alloc(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    assert_ptr_equal(pool, MADE);
    (void)stream;
    gpu.used += bytes;
    gpu.reserved += 32 * MIB;
    *dptr = 0x1000;
    return CUDA_SUCCESS;
}

static CUresult fake_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult fake_default(CUmemoryPool *pool, CUdevice device)
{
    assert_int_equal(device, 5);
    *pool = OWN;
    return CUDA_SUCCESS;
}

static CUresult fake_current(CUmemoryPool *pool, CUdevice device)
{
    (void)device;
    *pool = gpu.current;
    return CUDA_SUCCESS;
}

static CUresult fake_choose(CUdevice device, CUmemoryPool pool)
{
    (void)device;
    gpu.current = pool;
    return CUDA_SUCCESS;
}

static struct gpw_driver driver = {
    .cuMemPoolCreate = fake_create,
    .cuMemPoolDestroy = fake_destroy,
    .cuMemPoolTrimTo = fake_trim,
    .cuMemPoolGetAttribute = fake_attribute,
    .cuMemAllocFromPoolAsync = fake_alloc,
    .cuStreamIsCapturing = fake_capturing,
    .cuDeviceGetDefaultMemPool = fake_default,
    .cuDeviceGetMemPool = fake_current,
    .cuDeviceSetMemPool = fake_choose,
};

static struct gpw_session session;
static struct gpw_memory memory;

static int begin(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof gpu);
    memset(&memory, 0, sizeof memory);
    gpu.current = OWN;
    charged = frees = over = 0;
    session = (struct gpw_session){
        .driver = &driver, .memory = &memory, .device_count = 1, .devices = {5}};
    return 0;
}

static CUmemoryPool made(CUmemAllocationHandleType handles)
{
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .handleTypes = handles,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool;
    assert_int_equal(gpw_cuMemPoolCreate(&session, &pool, &props), CUDA_SUCCESS);
    return pool;
}

/* --- when they end ------------------------------------------------------------------------------ */

static void a_pool_ends_when_its_memory_is_free(void **state)
{
    CUdeviceptr at;
    (void)state;
    CUmemoryPool pool = made(CU_MEM_HANDLE_TYPE_NONE);
    assert_int_equal(gpw_pool_alloc(&session, &at, 4 * MIB, pool, NULL), CUDA_SUCCESS);
    assert_int_equal(charged, 32 * MIB);
    gpu.current = pool;
    assert_int_equal(gpw_cuMemPoolDestroy(&session, pool), CUDA_SUCCESS);
    assert_ptr_equal(gpu.current, OWN);
    gpw_pools_count(&session);
    assert_int_equal(gpu.alive, 1);
    gpu.used = 0; /* cuMemFreeAsync, on a stream that is at work */
    gpu.freeing = 4 * MIB;
    gpw_pools_count(&session);
    assert_int_equal(gpu.alive, 1);
    gpu.freeing = 0;
    gpw_pools_count(&session);
    assert_int_equal(gpu.alive, 0);
    assert_null(memory.pools);
    assert_int_equal(charged, 0);
}

/* What it keeps for later is nobody's. */
static void a_pool_that_is_not_used_ends_at_once(void **state)
{
    CUdeviceptr at;
    (void)state;
    CUmemoryPool pool = made(CU_MEM_HANDLE_TYPE_NONE);
    assert_int_equal(gpw_pool_alloc(&session, &at, 4 * MIB, pool, NULL), CUDA_SUCCESS);
    gpu.used = 0;
    assert_int_equal(gpw_cuMemPoolDestroy(&session, pool), CUDA_SUCCESS);
    assert_int_equal(gpu.alive, 0);
    assert_int_equal(charged, 0);
}

/* It saw memory that was being freed as in use, and what the pool kept counted on. */
static void a_trim_waits_for_the_frees_before(void **state)
{
    CUdeviceptr at;
    (void)state;
    CUmemoryPool pool = made(CU_MEM_HANDLE_TYPE_NONE);
    assert_int_equal(gpw_pool_alloc(&session, &at, 4 * MIB, pool, NULL), CUDA_SUCCESS);
    frees = 1; /* cuMemFree, while the GPU is at work */
    assert_int_equal(gpw_cuMemPoolTrimTo(&session, pool, 2 * MIB), CUDA_SUCCESS);
    assert_int_equal(gpw_cuMemPoolTrimTo(&session, pool, 8 * MIB), CUDA_SUCCESS);
    frees = 2;
    gpw_pools_freed(&session);
    assert_int_equal(charged, 32 * MIB);
    gpu.used = 0;
    over = 1;
    gpw_pools_freed(&session);
    assert_int_equal(charged, 2 * MIB);
    over = 2;
    gpw_pools_freed(&session);
    assert_int_equal(charged, 2 * MIB); /* once */
    assert_int_equal(gpw_cuMemPoolTrimTo(&session, pool, 0), CUDA_SUCCESS);
    assert_int_equal(charged, 0);
    assert_int_equal(gpw_cuMemPoolDestroy(&session, pool), CUDA_SUCCESS);
}

static void a_device_keeps_its_own(void **state)
{
    CUdeviceptr at;
    (void)state;
    assert_int_equal(gpw_cuMemPoolDestroy(&session, OWN), CUDA_ERROR_INVALID_VALUE);
    gpu.current = made(CU_MEM_HANDLE_TYPE_NONE);
    assert_int_equal(gpw_pool_alloc(&session, &at, 4 * MIB, NULL, NULL), CUDA_SUCCESS);
    assert_int_equal(gpu.used, 4 * MIB);
    gpu.used = 0;
    assert_int_equal(gpw_cuMemPoolDestroy(&session, MADE), CUDA_SUCCESS);
    assert_ptr_equal(gpu.current, OWN);
}

/* --- whose memory they have ------------------------------------------------------------------- */

static void memory_of_a_shareable_pool_is_our_allocator_s(void **state)
{
    struct gpw_shareable *one;
    CUdeviceptr at;
    (void)state;
    CUmemoryPool pool = made(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    assert_int_equal(gpw_pool_alloc(&session, &at, 4 * MIB, pool, NULL), CUDA_SUCCESS);
    assert_int_equal(at, OURS);
    assert_int_equal(gpu.used, 0);
    assert_int_equal(gpw_pool_share(&session, pool, &one), CUDA_SUCCESS);
    assert_int_equal(gpw_pool_share(&session, OWN, &one), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpw_cuMemPoolDestroy(&session, pool), CUDA_SUCCESS);
    assert_int_equal(gpw_pool_share(&session, pool, &one), CUDA_ERROR_INVALID_VALUE);
}

static void handles_of_another_kind_are_refused(void **state)
{
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    (void)state;
    assert_int_equal(gpw_cuMemPoolCreate(&session, &pool, &props), CUDA_ERROR_NOT_SUPPORTED);
    props.handleTypes |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    assert_int_equal(gpw_cuMemPoolCreate(&session, &pool, &props), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(gpu.alive, 0);
}

static void nothing_is_allocated_from_another_process_s(void **state)
{
    struct gpw_shareable *one;
    CUmemoryPool pool;
    CUdeviceptr at;
    (void)state;
    assert_int_equal(gpw_pool_import(&session, 0, &pool), CUDA_SUCCESS);
    assert_int_equal(gpw_pool_alloc(&session, &at, 4 * MIB, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpw_pool_share(&session, pool, &one), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(gpw_cuMemPoolDestroy(&session, pool), CUDA_SUCCESS);
    assert_int_equal(gpu.alive, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_pool_ends_when_its_memory_is_free, begin),
        cmocka_unit_test_setup(a_pool_that_is_not_used_ends_at_once, begin),
        cmocka_unit_test_setup(a_trim_waits_for_the_frees_before, begin),
        cmocka_unit_test_setup(a_device_keeps_its_own, begin),
        cmocka_unit_test_setup(memory_of_a_shareable_pool_is_our_allocator_s, begin),
        cmocka_unit_test_setup(handles_of_another_kind_are_refused, begin),
        cmocka_unit_test_setup(nothing_is_allocated_from_another_process_s, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
