/* The environment as lines of a question; what they mean is the server's to say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "request.h"

static int set_up(void **state)
{
    (void)state;
    return clearenv();
}

static void expect(const char *lines)
{
    char out[4096] = "", why[256] = "";
    int length = gpc_request_fields(out, sizeof out, why, sizeof why);
    assert_string_equal(why, "");
    assert_string_equal(out, lines);
    assert_int_equal(length, (int)strlen(lines));
}

static void nothing_set_is_nothing_asked(void **state)
{
    (void)state;
    setenv("GPUPOOL_MEMORY", "", 1);
    setenv("GPUPOOL_SHARE", " \t\n", 1);
    setenv("GPUPOOL_LOG", "debug", 1);
    expect("");
}

static void every_variable_is_a_line(void **state)
{
    (void)state;
    static const char *const names[] = {"GPUPOOL_GROUP",
                                        "GPUPOOL_GPUS",
                                        "GPUPOOL_DEVICES",
                                        "GPUPOOL_MEMORY",
                                        "GPUPOOL_SHARE",
                                        "GPUPOOL_CEILING",
                                        "GPUPOOL_WEIGHT",
                                        "GPUPOOL_PRIORITY",
                                        "ALIYUN_COM_GPU_MEM_DEV",
                                        "ALIYUN_COM_GPU_MEM_CONTAINER",
                                        "ALIYUN_COM_GPU_VISIBLE_DEVICES",
                                        "ALIYUN_COM_GPU_SCHD_WEIGHT",
                                        "ALIYUN_COM_GPU_HIGH_PRIO",
                                        "CGPU_DISABLE",
                                        "TENCENT_VCUDA_CORE",
                                        "TENCENT_VCUDA_MEMORY"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        setenv(names[i], "1", 1);
    expect("gpupool-group: 1\ngpupool-gpus: 1\ngpupool-devices: 1\ngpupool-memory: 1\n"
           "gpupool-share: 1\ngpupool-ceiling: 1\ngpupool-weight: 1\ngpupool-priority: 1\n"
           "aliyun-com-gpu-mem-dev: 1\naliyun-com-gpu-mem-container: 1\n"
           "aliyun-com-gpu-visible-devices: 1\naliyun-com-gpu-schd-weight: 1\n"
           "aliyun-com-gpu-high-prio: 1\ncgpu-disable: 1\ntencent-vcuda-core: 1\n"
           "tencent-vcuda-memory: 1\n");
}

static void a_value_is_one_line_of_plain_text(void **state)
{
    (void)state;
    setenv("GPUPOOL_GROUP", " a\ntoken: b ", 1);
    setenv("GPUPOOL_MEMORY", "8 GiB\r\n", 1);
    setenv("GPUPOOL_SHARE", "gr\xc3\xbcn\x7f\x01", 1);
    expect("gpupool-group: a?token: b\ngpupool-memory: 8 GiB\ngpupool-share: gr??n??\n");
}

/* Whatever room there is, it is not left: a request that does not fit is an error. */
static void a_request_without_room_is_refused(void **state)
{
    (void)state;
    setenv("GPUPOOL_MEMORY", "8GiB", 1);
    setenv("GPUPOOL_DEVICES", "0,1", 1);
    size_t needed = strlen("gpupool-devices: 0,1\ngpupool-memory: 8GiB\n") + 1;
    for (size_t room = 0; room <= needed; room++) {
        char why[256] = "", *out = malloc(room ? room : 1);
        assert_non_null(out);
        int length = gpc_request_fields(out, room, why, sizeof why);
        assert_int_equal(length, room == needed ? (int)needed - 1 : -1);
        assert_string_equal(why, room < needed ? "the request in GPUPOOL_* is too long" : "");
        free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nothing_set_is_nothing_asked, set_up),
        cmocka_unit_test_setup(every_variable_is_a_line, set_up),
        cmocka_unit_test_setup(a_value_is_one_line_of_plain_text, set_up),
        cmocka_unit_test_setup(a_request_without_room_is_refused, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
