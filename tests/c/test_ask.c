/* A server that is busy is asked again, in pauses, until it is not or the time is over. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ask.h"
#include "transport/support.h"
#include "transport/transport.h"

#define BUSY "GPUPOOL/1 refused\ncode: busy\nmessage: too much is asked\n"
#define FULL "GPUPOOL/1 refused\ncode: full\nmessage: 2 of 2 sessions\n"
#define OK "GPUPOOL/1 ok\nsession: 1\n"

#define SILENCE ""

/* What the server says to each question in turn, and the last of it from then on. */
static const char *const *script;
static int asked;
/* How long the last question might have waited. */
static int patience_ms;

static int say(const char *url, const void *question, size_t question_size, void *answer,
               size_t *answer_size, int timeout_ms, struct gp_error *err)
{
    (void)url;
    assert_memory_equal(question, "hello", question_size);
    const char *text = script[0];
    script += script[1] != NULL;
    asked++;
    patience_ms = timeout_ms;
    if (!*text) {
        usleep((useconds_t)timeout_ms * 1000);
        gp_error_set(err, "it says nothing");
        return -ETIMEDOUT;
    }
    assert_true(strlen(text) <= *answer_size);
    *answer_size = strlen(text);
    memcpy(answer, text, *answer_size);
    return 0;
}

static const struct gp_transport fake = {.ask = say};

const struct gp_transport *gp_transport_find(const char *url, const char *folder,
                                             struct gp_error *err)
{
    (void)url, (void)folder, (void)err;
    return &fake;
}

#define SERVER_SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int ask(const char *const *says, int timeout_ms, char *answer, char why[64])
{
    script = says;
    asked = 0;
    why[0] = '\0';
    return gpc_ask("tcp://h:1", "", "hello", 5, timeout_ms, answer, why, 64);
}

static void expect(const char *text, const char *const *says, int timeout_ms)
{
    char answer[GPC_ANSWER_MAX], why[64];
    assert_int_equal(ask(says, timeout_ms, answer, why), strlen(text));
    assert_string_equal(answer, text);
}

static void test_busy_and_then_not(void **state)
{
    (void)state;
    expect(OK, SERVER_SAYS(BUSY, BUSY, BUSY, OK), 20000);
    assert_int_equal(asked, 4);
}

static void test_other_refusals_are_final(void **state)
{
    (void)state;
    expect(FULL, SERVER_SAYS(BUSY, FULL, OK), 20000);
    assert_int_equal(asked, 2);
}

static void test_busy_for_good_is_the_answer(void **state)
{
    (void)state;
    expect(BUSY, SERVER_SAYS(BUSY), 300);
    assert_true(asked > 1);
}

/* A server over its limits refuses only so many, and then says nothing. */
static void test_silence_after_busy_is_busy(void **state)
{
    (void)state;
    expect(BUSY, SERVER_SAYS(BUSY, SILENCE), 300);
}

static void test_silence_alone_is_none(void **state)
{
    (void)state;
    char answer[GPC_ANSWER_MAX], why[64];
    assert_int_equal(ask(SERVER_SAYS(SILENCE), 100, answer, why), -1);
    assert_string_equal(why, "it says nothing");
}

/* Who says nothing may be given longer than who says that it is busy. */
static void test_busy_is_not_asked_for_as_long(void **state)
{
    (void)state;
    expect(OK, SERVER_SAYS(OK), 30000);
    assert_int_equal(patience_ms, 30000);
    expect(OK, SERVER_SAYS(BUSY, OK), 30000);
    assert_in_range(patience_ms, 1, 10000);
}

/* What only looks like it is given to who asked, at once. */
static void test_what_is_not_busy(void **state)
{
    (void)state;
    static const char *const others[] = {
        "GPUPOOL/1 ok\ncode: busy\n",
        "GPUPOOL/1 refused\nmessage: busy\n",
        "GPUPOOL/1 refused\nbusy\n",
        "GPUPOOL/1 refused\ncode: busy-bee\n",
        "junk",
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        expect(others[i], SERVER_SAYS(others[i]), 20000);
        assert_int_equal(asked, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_busy_and_then_not),
        cmocka_unit_test(test_other_refusals_are_final),
        cmocka_unit_test(test_busy_for_good_is_the_answer),
        cmocka_unit_test(test_silence_after_busy_is_busy),
        cmocka_unit_test(test_silence_alone_is_none),
        cmocka_unit_test(test_busy_is_not_asked_for_as_long),
        cmocka_unit_test(test_what_is_not_busy),
    };
    return cmocka_run_group_tests_name("busy", tests, NULL, NULL);
}
