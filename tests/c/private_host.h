/* A host for the private tables that tests can set up: include once per test. */
#ifndef TEST_PRIVATE_HOST_H
#define TEST_PRIVATE_HOST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include "private_internal.h"

#define TEST_CONTEXT(n) ((CUcontext)(uintptr_t)(0x100000 + (n)))
#define TEST_PRIMARY TEST_CONTEXT(1)
#define TEST_DEAD TEST_CONTEXT(0xDEAD)
#define TEST_MODULE ((CUmodule)(uintptr_t)0x200010)
#define TEST_STREAM ((CUstream)(uintptr_t)0x300010)

static struct {
    CUcontext current;
    const void *loaded;
    struct gpc_private_device devices[2];
    int device_count;
    struct gpc_private_topology topology;
    unsigned unknown_calls;
    const char *unknown_table;
    unsigned unknown_slot;
} fake;

static CUcontext fake_current(void)
{
    return fake.current;
}
static CUresult fake_primary(CUcontext *out, CUdevice device)
{
    if (device != 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = TEST_PRIMARY;
    return CUDA_SUCCESS;
}
static bool fake_is_live(CUcontext context)
{
    return context != TEST_DEAD;
}
static CUresult fake_id(CUcontext context, uint64_t *id)
{
    *id = (uintptr_t)context * 3;
    return CUDA_SUCCESS;
}
static CUresult fake_load(CUmodule *out, const void *image)
{
    fake.loaded = image;
    *out = TEST_MODULE;
    return CUDA_SUCCESS;
}
static CUresult fake_functions(CUmodule module, gpc_private_visit visit, void *user)
{
    if (module != TEST_MODULE)
        return CUDA_ERROR_INVALID_HANDLE;
    visit(user, (CUfunction)(uintptr_t)0x10, "_Z3addPf");
    visit(user, (CUfunction)(uintptr_t)0x20, "_Z3mulPf");
    return CUDA_SUCCESS;
}
static CUresult fake_stream(CUcontext context, CUstream stream, uint64_t *identity)
{
    (void)context;
    if (stream != TEST_STREAM && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    *identity = 0x5000 + (uintptr_t)stream;
    return CUDA_SUCCESS;
}
static int fake_count(void)
{
    return fake.device_count;
}
static bool fake_device(int ordinal, struct gpc_private_device *out)
{
    if (ordinal < 0 || ordinal >= fake.device_count)
        return false;
    *out = fake.devices[ordinal];
    return true;
}
static int fake_version(void)
{
    return 13000;
}
static CUresult fake_topology(struct gpc_private_topology *out)
{
    *out = fake.topology;
    return CUDA_SUCCESS;
}
static void fake_unknown(const char *table, unsigned slot)
{
    fake.unknown_calls++;
    fake.unknown_table = table;
    fake.unknown_slot = slot;
}

static const struct gpc_private_host fake_host = {
    .context_current = fake_current,
    .context_primary = fake_primary,
    .context_is_live = fake_is_live,
    .context_id = fake_id,
    .module_load = fake_load,
    .module_functions = fake_functions,
    .stream_identity = fake_stream,
    .device_count = fake_count,
    .device_get = fake_device,
    .driver_version = fake_version,
    .topology = fake_topology,
    .unknown_slot = fake_unknown,
};

/* From the text of a UUID, hyphens and all. */
static inline void uuid_parse(const char *text, unsigned char out[16])
{
    unsigned n = 0;
    for (const char *p = text; *p && n < 32; p++) {
        if (*p == '-')
            continue;
        unsigned digit = (unsigned)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
        out[n / 2] = (unsigned char)(n % 2 ? out[n / 2] | digit : digit << 4);
        n++;
    }
    assert_int_equal(n, 32);
}

static inline const void *const *table_of(const char *text)
{
    const void *table = NULL;
    unsigned char uuid[16];
    uuid_parse(text, uuid);
    assert_int_equal(gpc_private_table(&table, uuid, &fake_host), CUDA_SUCCESS);
    assert_non_null(table);
    return table;
}

/* The slot as a function of the given type. */
#define SLOT_OF(table, n, type) ((type)(uintptr_t)(table)[n])

#endif
