/* What CUDA_VISIBLE_DEVICES makes visible of five devices, of which two are parts of one GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "visible.h"

#define DEVICES 5

static struct gp_device_info info[DEVICES];
static const struct gp_device_info *devices[DEVICES];

static int setup(void **state)
{
    (void)state;
    /* 89… twice: only the fourth byte tells the first from the second */
    static const uint8_t begins[DEVICES][4] = {{0x89, 0x32, 0xf9, 0x37},
                                               {0x89, 0x32, 0xf9, 0x38},
                                               {0xa0, 0, 0, 1},
                                               {0x11, 0, 0, 1},
                                               {0x22, 0, 0, 1}};
    for (int i = 0; i < DEVICES; i++) {
        memcpy(info[i].uuid, begins[i], sizeof begins[i]);
        strcpy(info[i].name, i < 3 ? "NVIDIA H100" : "NVIDIA H100 MIG 1g.10gb");
        devices[i] = &info[i];
    }
    return 0;
}

static const struct {
    const char *list, *sees;
} lists[] = {
    {"0,1,2,3,4", "01234"},
    {"2,1", "21"},
    {"4", "4"},
    {" 1 , 0", "10"},
    {"+1", "1"},
    {"1st,2nd", "12"}, /* what is behind the digits is not looked at */
    {"", ""},
    {"-1", ""},
    {"NoDevFiles", ""},
    {"0,2,-1,1", "02"}, /* CUDA's own example */
    {"0,,1", "0"},
    {"0,5,1", "0"},
    {"5", ""},
    {"0,0", "twice"},
    {"1,2,1", "twice"},
    {"99999999999999999999", ""},
    {"4294967298", "2"},
    {"0,GPU-a0", "0"}, /* of one kind */
    {"GPU-a0000001-0000-0000-0000-000000000000", "2"},
    {"GPU-a0000001-0000-0000-0000-0000000000000", "2"},
    {"GPU-A0000001-0000", "2"},
    {"GPU-a0", "2"},
    {"GPU-8932f938,GPU-a", "12"},
    {"GPU-8932f9", ""}, /* of two */
    {"GPU-a,GPU-8932f9,GPU-8932f937", "2"},
    {"GPU-a,0", "2"},
    {"GPU-a,GPU-a0", "twice"},
    {"GPU-", ""},
    {"GPU-11", ""}, /* a part is no GPU */
    {"a0000001", ""},
    {"MIG-11", "3"},
    {"MIG-11,MIG-22", "3"}, /* of parts a process sees one */
    {"MIG-89", ""},
    {"MIG-GPU-8932f937-0000-0000-0000-000000000000/1/0", ""},
    {"GPU", ""},
    {"MI", ""},
};

static void lists_are_read_as_cuda_reads_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        struct gpc_visible seen;
        char text[GP_DEVICES_MAX + 1] = "";
        gpc_visible_read(lists[i].list, devices, DEVICES, &seen);
        for (unsigned k = 0; k < seen.count; k++)
            text[k] = (char)('0' + seen.at[k]);
        if (strcmp(seen.twice ? "twice" : text, lists[i].sees) != 0)
            fail_msg("%s: sees '%s', not '%s'", lists[i].list, text, lists[i].sees);
        if (gpc_visible_nothing(lists[i].list) && seen.count)
            fail_msg("%s: sees '%s', not nothing", lists[i].list, text);
    }
}

static void what_hides_all_asks_nobody(void **state)
{
    (void)state;
    assert_true(gpc_visible_nothing(""));
    assert_true(gpc_visible_nothing("-1"));
    assert_true(gpc_visible_nothing("NoDevFiles"));
    assert_true(gpc_visible_nothing("64"));
    assert_false(gpc_visible_nothing("63"));
    assert_false(gpc_visible_nothing("GPU-89"));
    assert_false(gpc_visible_nothing("MIG-89"));
}

/* Among no devices nothing is visible. */
static void without_devices_there_is_none(void **state)
{
    (void)state;
    struct gpc_visible seen;
    gpc_visible_read("0", devices, 0, &seen);
    assert_int_equal(seen.count, 0);
    gpc_visible_read("GPU-", devices, 0, &seen);
    assert_int_equal(seen.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_as_cuda_reads_them),
        cmocka_unit_test(what_hides_all_asks_nobody),
        cmocka_unit_test(without_devices_there_is_none),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
