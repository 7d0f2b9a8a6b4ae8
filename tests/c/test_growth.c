/* What the driver takes by itself around calls, and what of it is more than the limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gate.h"
#include "growth.h"
#include "quota.h"

#define MIB (UINT64_C(1) << 20)
#define SEAT ((struct gp_seat *)(uintptr_t)0x10)

/* --- the driver and the rest of the worker ---------------------------------------------- */

static struct {
    uint64_t free_bytes, left, over;
    int ordinal;
    bool has_board;
    unsigned looks, settled, reconciled; /* at free memory, at what is held */
    uint64_t estimated;
    bool plenty;
    CUstreamCaptureMode mode;
} gpu;

static CUresult fake_info(size_t *free_bytes, size_t *total)
{
    assert_int_equal(gpu.mode, CU_STREAM_CAPTURE_MODE_RELAXED); /* it is our own need */
    gpu.looks++;
    *free_bytes = gpu.free_bytes;
    *total = 4096 * MIB;
    return CUDA_SUCCESS;
}

static CUresult fake_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    assert_int_equal(device, 7);
    *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 4 : 2048;
    return CUDA_SUCCESS;
}

static CUresult fake_exchange(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = gpu.mode;
    gpu.mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

int gpw_current_ordinal(struct gpw_session *s)
{
    (void)s;
    return gpu.ordinal;
}

struct gp_seat *gpw_gate_seat(struct gpw_session *s, uint32_t ordinal)
{
    (void)s, (void)ordinal;
    return gpu.has_board ? SEAT : NULL;
}

bool gpw_quota_fits(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    (void)s, (void)ordinal;
    return bytes <= gpu.left;
}

bool gpw_quota_settle(struct gpw_session *s, uint32_t ordinal, uint64_t *over)
{
    (void)s, (void)ordinal;
    gpu.settled++;
    *over = gpu.over;
    return gpu.over == 0;
}

bool gpw_quota_estimate(struct gpw_session *s, uint32_t ordinal, uint64_t bytes)
{
    (void)s, (void)ordinal;
    gpu.estimated += gpu.plenty ? bytes : 0;
    return gpu.plenty;
}

bool gpw_quota_reconcile(struct gpw_session *s, uint32_t ordinal)
{
    (void)s, (void)ordinal;
    gpu.reconciled++;
    return true;
}

static struct gpw_driver driver = {.cuMemGetInfo_v2 = fake_info,
                                   .cuDeviceGetAttribute = fake_attribute,
                                   .cuThreadExchangeStreamCaptureMode = fake_exchange};
static struct gpw_session session;
static struct gpw_growth growth;

static int begin(void **state)
{
    (void)state;
    gpu = (__typeof__(gpu)){.free_bytes = 1024 * MIB,
                            .left = 64 * MIB,
                            .has_board = true,
                            .mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    session = (struct gpw_session){.driver = &driver, .device_count = 1, .devices = {7}};
    return 0;
}

/* The call, in which the driver takes so much. */
static bool over_after(uint16_t op, int64_t bytes)
{
    gpw_growth_begin(&session, op, &growth);
    gpu.free_bytes -= (uint64_t)bytes;
    return gpw_growth_over(&session, &growth);
}

/* --- loads ------------------------------------------------------------------------------ */

static void nothing_is_charged_where_nothing_was_taken(void **state)
{
    (void)state;
    assert_false(over_after(GP_OP_gp_module_load, 0));
    assert_int_equal(gpu.settled, 0);
}

static void what_fits_is_charged(void **state)
{
    (void)state;
    assert_false(over_after(GP_OP_gp_module_load, 10 << 20));
    assert_int_equal(gpu.settled, 1);
}

/* What others have given back meanwhile cannot be told from what this call has. */
static void while_there_is_plenty_nobody_is_asked(void **state)
{
    (void)state;
    gpu.plenty = true;
    assert_false(over_after(GP_OP_gp_module_load, 10 << 20));
    assert_int_equal(gpu.estimated, 10 << 20);
    assert_int_equal(gpu.settled, 0);
    assert_false(over_after(GP_OP_gp_module_load, -(4 << 20)));
    assert_int_equal(gpu.estimated, 10 << 20);
    assert_int_equal(gpu.settled, 1);
}

static void what_does_not_fit_is_undone(void **state)
{
    (void)state;
    gpu.over = 40 * MIB;
    assert_true(over_after(GP_OP_gp_module_load, 40 << 20));
    assert_true(gpw_growth_far(&growth));
    gpw_growth_undone(&session, &growth);
    assert_int_equal(gpu.reconciled, 1);
    gpu.over = 2 * MIB;
    assert_true(over_after(GP_OP_gp_module_load, 2 << 20));
    assert_false(gpw_growth_far(&growth)); /* code alone may be as much */
}

/* A call that gives back does not pay for what others have taken. */
static void what_is_given_back_is_charged_and_never_refused(void **state)
{
    (void)state;
    gpu.over = 40 * MIB;
    assert_false(over_after(GP_OP_gp_module_load, -(4 << 20)));
    assert_int_equal(gpu.settled, 1);
}

static void without_a_limit_nobody_looks(void **state)
{
    (void)state;
    gpu.has_board = false;
    assert_false(over_after(GP_OP_gp_module_load, 40 << 20));
    begin(NULL);
    gpu.ordinal = -1; /* no context */
    assert_false(over_after(GP_OP_gp_module_load, 40 << 20));
    assert_int_equal(gpu.looks, 0);
}

/* The thread that captures is strict; to look is the worker's own affair. */
static void a_look_is_made_in_relaxed_mode(void **state)
{
    (void)state;
    gpw_strict(&session, true);
    assert_false(over_after(GP_OP_gp_module_load, 1 << 20));
    assert_int_equal(gpu.looks, 2);
    assert_int_equal(gpu.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* --- graphs ------------------------------------------------------------------------------ */

static void graphs_are_looked_at_once_one_allocates(void **state)
{
    (void)state;
    assert_false(over_after(GP_OP_cuGraphLaunch, 40 << 20));
    assert_int_equal(gpu.looks, 0);
    gpw_growth_in_graphs(&session);
    assert_false(over_after(GP_OP_cuGraphLaunch, 40 << 20));
    assert_int_equal(gpu.settled, 1);
}

/* --- local memory ------------------------------------------------------------------------ */

#define THREADS (4 * 2048)

static void local_memory_is_for_all_threads_that_fit(void **state)
{
    (void)state;
    const uint32_t most = (uint32_t)(64 * MIB / THREADS);
    assert_true(gpw_growth_local_fits(&session, most));
    assert_false(gpw_growth_local_fits(&session, most + 1));
    gpw_growth_local_taken(&session, most);
    assert_int_equal(gpu.reconciled, 1);
    gpu.left = 0;
    assert_true(gpw_growth_local_fits(&session, most)); /* the driver has it */
    assert_false(gpw_growth_local_fits(&session, most + 1));
    gpw_growth_local_taken(&session, most);
    assert_int_equal(gpu.reconciled, 1);
}

static void each_session_has_its_own(void **state)
{
    (void)state;
    struct gpw_session other = session;
    gpw_growth_local_taken(&session, 4096);
    gpw_growth_in_graphs(&session);
    gpu.left = 0;
    assert_true(gpw_growth_local_fits(&session, 4096));
    assert_false(gpw_growth_local_fits(&other, 4096));
    gpw_growth_begin(&other, GP_OP_cuGraphLaunch, &growth);
    assert_int_equal(gpu.looks, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, begin)
    const struct CMUnitTest tests[] = {
        TEST(nothing_is_charged_where_nothing_was_taken),
        TEST(what_fits_is_charged),
        TEST(while_there_is_plenty_nobody_is_asked),
        TEST(what_does_not_fit_is_undone),
        TEST(what_is_given_back_is_charged_and_never_refused),
        TEST(without_a_limit_nobody_looks),
        TEST(a_look_is_made_in_relaxed_mode),
        TEST(graphs_are_looked_at_once_one_allocates),
        TEST(local_memory_is_for_all_threads_that_fit),
        TEST(each_session_has_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
