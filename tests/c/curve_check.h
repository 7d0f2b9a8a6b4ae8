/* What the tests of questions and of keys in addresses have in common. */
#ifndef GP_CURVE_CHECK_H
#define GP_CURVE_CHECK_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/transport.h"

#define PATIENCE_MS 20000
#define KEY_OF_NOBODY "00112233445566778899aabbccddeeff00112233445566778899aabbccddee0f"

static inline void expect_words(const struct gp_error *err, const char *words)
{
    if (!strstr(err->text, words))
        fail_msg("'%s' does not say '%s'", err->text, words);
    assert_null(strchr(err->text, '\n'));
}

/* Nothing is said by whoever takes the connection at `url`. Where it is slow to be taken there is no
 * word of that, and it is asked again with more time. */
static inline void expect_silence(const struct gp_transport *tp, const char *url, int timeout_ms)
{
    char answer[64];
    size_t size = sizeof answer;
    struct gp_error err = {.text = ""};
    for (; timeout_ms <= PATIENCE_MS; timeout_ms *= 2) {
        assert_int_equal(tp->ask(url, "hello", 5, answer, &size, timeout_ms, &err), -ETIMEDOUT);
        if (strstr(err.text, "says nothing"))
            break;
    }
    expect_words(&err, "says nothing");
}

/* The transport of the plug-in; NULL, and a line that says why. */
static inline const struct gp_transport *find_transport(void)
{
    struct gp_error err = {.text = ""};
    const struct gp_transport *found = gp_transport_find("tcp://", getenv("GPUPOOL_PLUGIN_DIR"),
                                                         &err);
    if (!found)
        fprintf(stderr, "%s\n", err.text);
    return found;
}

#endif
