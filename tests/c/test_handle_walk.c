/* A walk over the client's handles beside threads that make the first ones: it takes no lock. What
 * orders the two is seen under ThreadSanitizer (make test's stage threads). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <pthread.h>

#include "handle.h"

#define HANDLES 2000

static void *make(void *arg)
{
    enum gp_handle_kind kind = *(const enum gp_handle_kind *)arg;
    for (unsigned i = 0; i < HANDLES; i++)
        gpc_handle_attach(gpc_handle_new(kind, 0), arg);
    return NULL;
}

struct seen {
    const void *shadow;
    unsigned live, attached;
};

static void visit(uint64_t id, void *shadow, void *arg)
{
    struct seen *seen = arg;
    assert_true(gp_handle_index(id) <= HANDLES && (!shadow || shadow == seen->shadow));
    seen->live++;
    seen->attached += shadow != NULL;
}

static void a_walk_sees_whole_entries(void **state)
{
    (void)state;
    for (enum gp_handle_kind kind = GP_HANDLE_NONE + 1; kind < GP_HANDLE_KINDS; kind++) {
        pthread_t maker;
        unsigned before = 0;
        struct seen seen;
        assert_int_equal(pthread_create(&maker, NULL, make, &kind), 0);
        do {
            seen = (struct seen){.shadow = &kind};
            gpc_handle_each(kind, visit, &seen);
            assert_true(seen.live >= before);
            before = seen.live;
        } while (seen.attached < HANDLES);
        pthread_join(maker, NULL);
        assert_int_equal(seen.live, HANDLES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_walk_sees_whole_entries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
