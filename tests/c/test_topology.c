/* The clusters of multiprocessors: asked of the driver in a context, which no greeting makes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "gpw_handlers.h"
#include "topology.h"

#define SLOTS 17

static struct gpw_driver driver;
static struct gpw_session session;
static uintptr_t table[SLOTS];
static uint8_t clusters[] = {0, 1, 2, 0, 1}, places[] = {0, 0, 0, 1, 1};
static int processors, retained, released, given_back;
static bool has_table;

static CUresult export_table(const void **out, const CUuuid *uuid)
{
    assert_int_equal((unsigned char)uuid->bytes[0], 0x17);
    *out = has_table ? table : NULL;
    return has_table ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult attribute(int *value, CUdevice_attribute which, CUdevice device)
{
    assert_int_equal(which, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    assert_int_equal(device, 3);
    *value = processors;
    return CUDA_SUCCESS;
}

static CUresult device_of(CUdevice *device)
{
    *device = 3;
    return CUDA_SUCCESS;
}

static CUresult current(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
    return context == (CUcontext)&retained || !context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    assert_int_equal(device, 3);
    *context = (CUcontext)&retained;
    retained++;
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
    assert_int_equal(device, 3);
    released++;
    return CUDA_SUCCESS;
}

static CUresult table_get(uint8_t **gpc, uint8_t **index)
{
    *gpc = clusters;
    *index = places;
    return CUDA_SUCCESS;
}

static CUresult table_free(uint8_t *gpc, uint8_t *index)
{
    assert_ptr_equal(gpc, clusters);
    assert_ptr_equal(index, places);
    given_back++;
    return CUDA_SUCCESS;
}

static int begin(void **state)
{
    (void)state;
    driver.cuGetExportTable = export_table;
    driver.cuDeviceGetAttribute = attribute;
    driver.cuCtxGetDevice = device_of;
    driver.cuCtxGetCurrent = current;
    driver.cuCtxSetCurrent = set_current;
    driver.cuDevicePrimaryCtxRetain = retain;
    driver.cuDevicePrimaryCtxRelease_v2 = release;
    memset(&session, 0, sizeof session);
    session.driver = &driver;
    memset(table, 0, sizeof table);
    table[0] = sizeof table;
    table[4] = (uintptr_t)table_get;
    table[13] = (uintptr_t)table_free;
    has_table = true;
    processors = 11;
    retained = released = given_back = 0;
    return 0;
}

static void a_client_asks_in_its_context(void **state)
{
    (void)state;
    uint8_t gpc[GP_TOPOLOGY_MAX], index[GP_TOPOLOGY_MAX];
    uint32_t pairs = 7, of_index = 7;
    assert_int_equal(gpw_gp_topology(&session, gpc, &pairs, index, &of_index), CUDA_SUCCESS);
    assert_int_equal(pairs, 5);
    assert_int_equal(of_index, 5);
    assert_memory_equal(gpc, clusters, 5);
    assert_memory_equal(index, places, 5);
    assert_int_equal(given_back, 1);
    assert_int_equal(retained, 0);
}

static uint32_t greeted(bool asks)
{
    struct gp_device_info info;
    memset(&info, 0, sizeof info);
    session.shared.partial = true;
    if (asks)
        session.shared.has[GP_OP_gp_topology / 64] |= UINT64_C(1) << GP_OP_gp_topology % 64;
    gpw_topology_fill(&session, 3, &info);
    assert_memory_equal(info.topology_gpc, clusters, info.topology_count);
    return info.topology_count;
}

static void no_context_is_made_for_who_asks(void **state)
{
    (void)state;
    assert_int_equal(greeted(true), 0);
    assert_int_equal(retained, 0);
}

static void an_earlier_client_is_told_in_its_greeting(void **state)
{
    (void)state;
    assert_int_equal(greeted(false), 5);
    assert_int_equal(retained, 1);
    assert_int_equal(released, 1);
}

static void not_known(void)
{
    uint8_t gpc[GP_TOPOLOGY_MAX], index[GP_TOPOLOGY_MAX];
    uint32_t pairs = 7, of_index = 7;
    assert_int_equal(gpw_gp_topology(&session, gpc, &pairs, index, &of_index), CUDA_SUCCESS);
    assert_int_equal(pairs + of_index, 0);
    assert_int_equal(given_back, 0);
}

static void another_table_is_none(void **state)
{
    (void)state;
    has_table = false;
    not_known();
    assert_int_equal(greeted(false), 0);
    assert_int_equal(retained, 0); /* nor is a context made to find that out */
    has_table = true;
    for (int bad = 0; bad < 5; bad++) {
        begin(NULL);
        table[0] -= bad == 0;
        table[4] = bad == 1 ? 0 : table[4];
        table[13] = bad == 2 ? 0 : table[13];
        processors = bad == 3 ? 1 : bad == 4 ? 2 * GP_TOPOLOGY_MAX + 2 : processors;
        not_known();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_client_asks_in_its_context, begin),
        cmocka_unit_test_setup(no_context_is_made_for_who_asks, begin),
        cmocka_unit_test_setup(an_earlier_client_is_told_in_its_greeting, begin),
        cmocka_unit_test_setup(another_table_is_none, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
