/* What this process holds of a device, as an NVML says it that is opened beside all else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "held.h"
#include "quota.h"
#include "slices.h"

struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static struct gpw_driver driver;
static struct gpw_session session = {.driver = &driver, .device_count = 2, .devices = {0, 1}};
static bool kernel, has_groups;
static struct process_info *processes;
static unsigned *count, *inits;

bool gpw_slices_kernel(void)
{
    return kernel;
}

unsigned gpw_slices_groups(void)
{
    return kernel && has_groups;
}

int gpw_current_ordinal(struct gpw_session *s)
{
    (void)s;
    return 0;
}

static CUresult memory_info(size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = 0;
    return CUDA_SUCCESS;
}

static CUresult context(CUcontext *current)
{
    *current = NULL;
    return CUDA_SUCCESS;
}

static CUresult context_set(CUcontext current)
{
    return current ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult bus_id(char *text, int size, CUdevice device)
{
    snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
    return CUDA_SUCCESS;
}

static int begin(void **state)
{
    (void)state;
    driver.cuDeviceGetPCIBusId = bus_id;
    driver.cuMemGetInfo_v2 = memory_info;
    driver.cuCtxGetCurrent = context;
    driver.cuCtxSetCurrent = context_set;
    kernel = has_groups = true;
    *count = 0;
    *inits = 0;
    session.soft = false;
    session.held = NULL;
    return 0;
}

static int end(void **state)
{
    uint64_t bytes;
    (void)state;
    has_groups = true;
    gpw_held_bytes(&session, 0, &bytes); /* behind its thread */
    free(session.held);
    return 0;
}

static void own_memory_is_told(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    gpw_held_open(&session);
    assert_non_null(session.held);
    assert_false(gpw_held_bytes(&session, 0, &bytes)); /* it has no context */
    processes[0] = (struct process_info){.pid = 1, .used = 1 << 20};
    processes[1] = (struct process_info){.pid = (unsigned)getpid(), .used = 5 << 20};
    *count = 2;
    assert_true(gpw_held_bytes(&session, 0, &bytes));
    assert_int_equal(bytes, 5 << 20);
    processes[1].used = ~0ull; /* NVML does not know */
    assert_false(gpw_held_bytes(&session, 0, &bytes));
    assert_false(gpw_held_bytes(&session, 1, &bytes)); /* nor of this device at all */
    processes[1].used = 5 << 20;
    has_groups = false;
    assert_false(gpw_held_bytes(&session, 0, &bytes)); /* and it is not asked without a context */
    gpw_held_open(&session);
    assert_int_equal(*inits, 1);
}

static void it_is_opened_late_where_it_was_not(void **state)
{
    (void)state;
    uint64_t bytes;
    kernel = false;
    gpw_held_open(&session);
    assert_null(session.held);
    assert_false(gpw_held_bytes(&session, 0, &bytes));
    assert_int_equal(*inits, 0);
    kernel = true;
    processes[0] = (struct process_info){.pid = (unsigned)getpid(), .used = 77};
    *count = 1;
    assert_true(gpw_held_bytes(&session, 0, &bytes));
    assert_int_equal(bytes, 77);
    assert_int_equal(*inits, 1);
}

static void a_soft_gpu_has_none(void **state)
{
    (void)state;
    session.soft = true;
    uint64_t bytes = 7;
    gpw_held_open(&session);
    assert_true(gpw_held_bytes(&session, 0, &bytes)); /* it is asked itself */
    assert_int_equal(bytes, 0);
    assert_null(session.held);
    assert_int_equal(*inits, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(own_memory_is_told, begin, end),
        cmocka_unit_test_setup_teardown(it_is_opened_late_where_it_was_not, begin, end),
        cmocka_unit_test_setup_teardown(a_soft_gpu_has_none, begin, end),
    };
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    processes = nvml ? dlsym(nvml, "held_processes") : NULL;
    count = nvml ? dlsym(nvml, "held_count") : NULL;
    inits = nvml ? dlsym(nvml, "held_inits") : NULL;
    if (!processes || !count || !inits)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
