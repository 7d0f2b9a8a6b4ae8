/* Which images are taken for ones whose kernels may print. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <lz4.h>
#include <string.h>
#include <zstd.h>

#include "fatbin.h"
#include "image_prints.h"

#define ROOM 8192
#define SILENT ".version 7.0\n.target sm_90\n.visible .entry nothing() { ret; }\n"
#define PRINTS                                                                                     \
    ".version 7.0\n.target sm_90\n.extern .func (.param .b32 r) vprintf(.param .b64 f);\n"

static struct gpw_session session;
static uint64_t budget, held;

bool gpw_budget_take(struct gpw_session *s, enum gpw_use use, uint64_t amount)
{
    (void)s;
    assert_int_equal(use, GPW_USE_IMAGES);
    if (amount > budget - held)
        return false;
    held += amount;
    return true;
}

void gpw_budget_give(struct gpw_session *s, enum gpw_use use, uint64_t amount)
{
    (void)s, (void)use;
    held -= amount;
}

static CUresult fake_attribute(int *value, CUdevice_attribute which, CUdevice device)
{
    (void)device;
    assert_int_equal(which, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    *value = 9;
    return CUDA_SUCCESS;
}

static struct gpw_driver driver = {.cuDeviceGetAttribute = fake_attribute};

static unsigned char bytes[ROOM];
static size_t used;

static int begin(void **state)
{
    (void)state;
    memset(bytes, 0, sizeof bytes);
    used = GP_FATBIN_HEADER;
    budget = 1 << 20;
    held = 0;
    session = (struct gpw_session){.driver = &driver, .device_count = 1};
    return 0;
}

static void put(size_t at, uint64_t value, size_t size)
{
    memcpy(bytes + at, &value, size);
}

/* An entry with a text, as it is or packed; where its payload begins. */
static size_t entry(unsigned kind, unsigned sm, uint64_t flags, const char *text)
{
    size_t at = used, length = strlen(text) + 1, packed = 0;
    char *to = (char *)bytes + at + 64;
    if (flags & GP_FATBIN_FLAG_LZ4)
        packed = (size_t)LZ4_compress_default(text, to, (int)length, 1024);
    else if (flags & GP_FATBIN_FLAG_ZSTD)
        packed = ZSTD_compress(to, 1024, text, length, 1);
    else
        memcpy(to, text, length);
    size_t payload = ((packed ? packed : length) + 7) & ~(size_t)7;
    put(at, kind, 2);
    put(at + 2, 0x101, 2);
    put(at + 4, 64, 4);
    put(at + 8, payload, 8);
    put(at + 16, packed, 4);
    put(at + 28, sm, 4);
    put(at + 40, flags, 8);
    put(at + 56, packed ? length : 0, 8);
    used = at + 64 + payload;
    return at + 64;
}

static bool prints(void)
{
    put(0, GP_FATBIN_MAGIC, 4);
    put(4, 1, 2);
    put(6, GP_FATBIN_HEADER, 2);
    put(8, used - GP_FATBIN_HEADER, 8);
    const struct gpw_image image = {.bytes = bytes, .total = used};
    bool said = gpw_image_prints(&session, &image);
    assert_int_equal(held, 0);
    return said;
}

static void a_text_is_searched(void **state)
{
    (void)state;
    struct gpw_image image = {.bytes = (unsigned char *)(uintptr_t)SILENT, .total = sizeof SILENT};
    assert_false(gpw_image_prints(&session, &image));
    image = (struct gpw_image){.bytes = (unsigned char *)(uintptr_t)PRINTS, .total = sizeof PRINTS};
    assert_true(gpw_image_prints(&session, &image));
}

static void every_entry_is_searched(void **state)
{
    (void)state;
    assert_false(prints()); /* none */
    entry(GP_FATBIN_KIND_ELF, 90, 0, "machine code");
    entry(GP_FATBIN_KIND_PTX, 90, 0, SILENT);
    assert_false(prints());
    entry(GP_FATBIN_KIND_PTX, 75, 0, PRINTS);
    assert_true(prints());
}

static void packed_ones_too(void **state)
{
    (void)state;
    const uint64_t ways[] = {GP_FATBIN_FLAG_LZ4, GP_FATBIN_FLAG_ZSTD};
    for (int i = 0; i < 2; i++) {
        begin(state);
        entry(GP_FATBIN_KIND_ELF, 90, ways[i], SILENT SILENT SILENT);
        assert_false(prints());
        entry(GP_FATBIN_KIND_ELF, 90, ways[i], SILENT SILENT PRINTS);
        assert_true(prints());
    }
}

static void other_machines_code_is_not_run(void **state)
{
    (void)state;
    entry(GP_FATBIN_KIND_ELF, 80, 0, "vprintf");
    entry(GP_FATBIN_KIND_ELF, 120, GP_FATBIN_FLAG_LZ4, PRINTS PRINTS);
    assert_false(prints());
    session.device_count = 0; /* of no device */
    entry(GP_FATBIN_KIND_ELF, 90, 0, "vprintf");
    assert_false(prints());
    session.device_count = 1;
    assert_true(prints());
}

static void what_is_not_understood_may_print(void **state)
{
    (void)state;
    entry(8, 90, 0, "another kind");
    assert_true(prints());
    for (int i = 0; i < 2; i++) {
        begin(state);
        size_t at = entry(GP_FATBIN_KIND_ELF, 90, i ? GP_FATBIN_FLAG_LZ4 : GP_FATBIN_FLAG_ZSTD,
                          SILENT SILENT);
        assert_false(prints());
        memset(bytes + at, 0xff, 8); /* damaged */
        assert_true(prints());
        begin(state);
        at = entry(GP_FATBIN_KIND_ELF, 90, i ? GP_FATBIN_FLAG_LZ4 : GP_FATBIN_FLAG_ZSTD, SILENT);
        put(at - 64 + 56, 12345, 8); /* of another size than it says */
        assert_true(prints());
    }
}

static void so_may_what_there_is_no_memory_for(void **state)
{
    (void)state;
    entry(GP_FATBIN_KIND_ELF, 90, GP_FATBIN_FLAG_ZSTD, SILENT);
    budget = sizeof SILENT - 1;
    assert_true(prints());
    budget = sizeof SILENT;
    assert_false(prints());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_text_is_searched, begin),
        cmocka_unit_test_setup(every_entry_is_searched, begin),
        cmocka_unit_test_setup(packed_ones_too, begin),
        cmocka_unit_test_setup(other_machines_code_is_not_run, begin),
        cmocka_unit_test_setup(what_is_not_understood_may_print, begin),
        cmocka_unit_test_setup(so_may_what_there_is_no_memory_for, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
