/* The answer to "nvml": what is taken from it, and what is no answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ask.h"
#include "nvml_answer.h"

#define OK "GPUPOOL/1 ok\n"
#define HEAD OK "driver-version: 580.1\nnvml-version: 13.580.1\ncuda-version: 13000\n"
#define GPU0                                                                                       \
    "gpu0: uuid=GPU-a pci=00000000:18:00.0 memory-total=1000 memory-used=10\n"                     \
    "gpu0-name: A GPU\n"

static struct gpc_nvml_state *state;
static struct gpc_nvml_page page;

static int set_up(void **unused)
{
    (void)unused;
    state = calloc(1, sizeof *state);
    return state ? 0 : -1;
}

static int tear_down(void **unused)
{
    (void)unused;
    free(state);
    return 0;
}

/* From a piece of the heap that ends where the answer does. */
static int take(const char *text)
{
    size_t size = strlen(text);
    char *exact = malloc(size ? size : 1);
    assert_non_null(exact);
    memcpy(exact, text, size);
    int rc = gpc_nvml_answer_read(exact, size, state, &page);
    free(exact);
    return rc;
}

static void test_whole(void **unused)
{
    (void)unused;
    assert_int_equal(take(HEAD
                          "devices: 2\n" GPU0 "gpu0-processes: 12=4096 13=-\n"
                          "gpu1: uuid=GPU-b pci=00000000:19:00.0 memory-total=7 of-tomorrow=x\n"
                          "gpu1-name: Another\ntomorrow: yes\n"),
                     0);
    assert_int_equal(page.next, 0);
    assert_true(gpc_nvml_answer_complete(state));
    assert_string_equal(state->driver_version, "580.1");
    assert_string_equal(state->nvml_version, "13.580.1");
    assert_int_equal(state->cuda_version, 13000);
    assert_int_equal(state->count, 2);
    const struct gpc_nvml_device *d = &state->device[0];
    assert_string_equal(d->name, "A GPU");
    assert_string_equal(d->pci, "00000000:18:00.0");
    assert_true(d->has[GP_NVML_MEMORY_USED]);
    assert_int_equal(d->fact[GP_NVML_MEMORY_USED], 10);
    assert_false(d->has[GP_NVML_TEMPERATURE]);
    assert_int_equal(d->process_count, 2);
    assert_int_equal(d->process[0].pid, 12);
    assert_int_equal(d->process[0].memory, 4096);
    assert_true(d->process[1].memory == GPC_NVML_UNKNOWN);
    assert_string_equal(state->device[1].uuid, "GPU-b");
}

static void test_pages(void **unused)
{
    (void)unused;
    assert_int_equal(take(HEAD "devices: 2\n" GPU0 "next: 1\n"), 0);
    assert_int_equal(page.next, 1);
    assert_false(gpc_nvml_answer_complete(state));
    assert_int_equal(take(HEAD "devices: 2\ngpu1: uuid=GPU-b pci=0:1:0.0 memory-total=7\n"
                               "gpu1-name: B\n"),
                     0);
    assert_int_equal(page.next, 0);
    assert_true(gpc_nvml_answer_complete(state));
    assert_string_equal(state->device[0].name, "A GPU");
}

static void test_refused(void **unused)
{
    (void)unused;
    assert_int_equal(take("GPUPOOL/1 refused\ncode: bad-token\nmessage: no: not you\n"), 1);
    assert_string_equal(page.code, "bad-token");
    assert_string_equal(page.message, "no: not you");
}

static void test_incomplete(void **unused)
{
    (void)unused;
    static const char *const answers[] = {
        HEAD "devices: 1\n",
        HEAD "devices: 1\ngpu0: uuid=GPU-a pci=0:1:0.0\ngpu0-name: A\n",
        HEAD "devices: 1\ngpu0: uuid=GPU-a memory-total=1\ngpu0-name: A\n",
        HEAD "devices: 1\ngpu0: uuid=GPU-a pci=0:1:0.0 memory-total=1\n",
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        memset(state, 0, sizeof *state);
        assert_int_equal(take(answers[i]), 0);
        assert_false(gpc_nvml_answer_complete(state));
    }
}

/* A server whose NVML could not say its version has its devices all the same. */
static void test_without_versions(void **unused)
{
    (void)unused;
    assert_int_equal(take(OK "devices: 1\n" GPU0), 0);
    assert_true(gpc_nvml_answer_complete(state));
    assert_string_equal(state->driver_version, "");
    assert_int_equal(state->cuda_version, 0);
}

static void test_no_answer(void **unused)
{
    (void)unused;
    static const char *const answers[] = {
        "",
        "GPUPOOL/1",
        "GPUPOOL/2 ok\n",
        "GPUPOOL/1 okay\n",
        OK "devices\n",
        OK "devices: \n",
        OK "devices: -1\n",
        OK "devices: 65\n",
        OK "devices: 99999999999999999999999\n",
        OK "cuda-version: 13.0\n",
        OK "next: 64\n",
        OK GPU0, /* of how many? */
        OK "devices: 1\ngpu1: uuid=GPU-a\n",
        OK "devices: 1\ngpu18446744073709551616: uuid=GPU-a\n",
        OK "devices: 1\ngpu0: uuid\n",
        OK "devices: 1\ngpu0: memory-total=\n",
        OK "devices: 1\ngpu0: memory-total=+1\n",
        OK "devices: 1\ngpu0: memory-total=0x10\n",
        OK "devices: 1\ngpu0: memory-total=18446744073709551616\n",
        OK "devices: 1\ngpu0: pci=00000000:00:00.0-and-more-than-fits\n",
        OK "devices: 1\ngpu0-processes: 1\n",
        OK "devices: 1\ngpu0-processes: 1=\n",
        OK "devices: 1\ngpu0-processes: =1\n",
        OK "devices: 1\ngpu0-processes: -1=1\n",
        OK "devices: 1\ngpu0-processes: 4294967296=1\n",
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        memset(state, 0, sizeof *state);
        if (take(answers[i]) != -1)
            fail_msg("taken for an answer: %s", answers[i]);
        assert_string_not_equal(page.message, "");
    }
    assert_int_equal(gpc_nvml_answer_read(OK "devices: 1\0\n", sizeof OK + 12, state, &page), -1);
}

static void test_too_long(void **unused)
{
    (void)unused;
    char *text = malloc(GPC_ANSWER_MAX + 1);
    assert_non_null(text);
    size_t n = (size_t)snprintf(text, GPC_ANSWER_MAX, "%sdevices: 1\ngpu0-processes:", OK);
    for (int pid = 1; pid <= GPC_NVML_PROCESSES; pid++)
        n += (size_t)snprintf(text + n, GPC_ANSWER_MAX - n, " %d=1", pid);
    assert_int_equal(take(text), 0);
    assert_int_equal(state->device[0].process_count, GPC_NVML_PROCESSES);
    snprintf(text + n, GPC_ANSWER_MAX - n, " 999=1");
    assert_int_equal(take(text), -1);
    assert_int_equal(state->device[0].process_count, GPC_NVML_PROCESSES);
    memset(text, 'x', GPC_ANSWER_MAX);
    memcpy(text, OK "k: ", strlen(OK "k: "));
    text[GPC_ANSWER_MAX] = '\0';
    assert_int_equal(take(text), -1);
    text[GPC_ANSWER_MAX - 1] = '\0';
    assert_int_equal(take(text), 0);
    free(text);
}

static void test_renew(void **unused)
{
    (void)unused;
    assert_int_equal(take(HEAD "devices: 1\n" GPU0 "gpu0-processes: 1=1\n"), 0);
    struct gpc_nvml_state *newer = calloc(1, sizeof *newer);
    assert_non_null(newer);
    static const char AFTER[] = HEAD
        "devices: 2\ngpu0: uuid=GPU-z memory-used=1\n"
        "gpu1: uuid=GPU-a memory-used=30 temperature=40 memory-total=5\n"
        "gpu1-processes: 2=2 3=3\n";
    assert_int_equal(gpc_nvml_answer_read(AFTER, strlen(AFTER), newer, &page), 0);
    struct gpc_nvml_device *d = &state->device[0];
    assert_true(gpc_nvml_device_renew(d, newer));
    assert_int_equal(d->fact[GP_NVML_MEMORY_USED], 30);
    assert_int_equal(d->fact[GP_NVML_TEMPERATURE], 40);
    assert_int_equal(d->fact[GP_NVML_MEMORY_TOTAL], 1000); /* lasts */
    assert_int_equal(d->process_count, 2);
    memset(newer, 0, sizeof *newer);
    assert_false(gpc_nvml_device_renew(d, newer)); /* gone, and what was known stays */
    assert_int_equal(d->fact[GP_NVML_MEMORY_USED], 30);
    free(newer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_pages, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_without_versions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_incomplete, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_answer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_too_long, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_renew, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
