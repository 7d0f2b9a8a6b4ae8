/* The environment as a request: the vectors of tests/python/request_vectors.toml. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "request.h"

#define VARIABLES_MOST 12

struct vector {
    const char *name;
    const char *env[VARIABLES_MOST]; /* NAME=VALUE, then NULL */
    const char *fields;              /* lines */
    const char *error;               /* or NULL */
};

#include "request_vectors.h"

static void set_environment(const struct vector *v)
{
    clearenv();
    for (const char *const *variable = v->env; *variable; variable++) {
        char name[64];
        size_t length = strcspn(*variable, "=");
        assert_true(length < sizeof name);
        memcpy(name, *variable, length);
        name[length] = '\0';
        assert_int_equal(setenv(name, *variable + length + 1, 1), 0);
    }
}

static void every_vector_gives_its_fields_or_its_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const struct vector *v = &vectors[i];
        char out[4096] = "", why[256] = "";
        set_environment(v);
        print_message("%s\n", v->name);
        int length = gpc_request_fields(out, sizeof out, why, sizeof why);
        if (v->error) {
            assert_int_equal(length, -1);
            assert_string_equal(why, v->error);
        } else {
            assert_string_equal(why, "");
            assert_int_equal(length, (int)strlen(v->fields));
            assert_string_equal(out, v->fields);
        }
    }
}

/* Whatever room there is, it is not left: a request that does not fit is an error. */
static void a_request_without_room_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const struct vector *v = &vectors[i];
        size_t needed = strlen(v->fields) + 1;
        if (v->error || needed < 2)
            continue;
        set_environment(v);
        for (size_t room = 1; room <= needed; room++) {
            char why[256], *out = malloc(room);
            assert_non_null(out);
            int length = gpc_request_fields(out, room, why, sizeof why);
            assert_int_equal(length, room == needed ? (int)needed - 1 : -1);
            if (room < needed)
                assert_string_equal(why, "the request in GPUPOOL_* is too long");
            free(out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vector_gives_its_fields_or_its_error),
        cmocka_unit_test(a_request_without_room_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
