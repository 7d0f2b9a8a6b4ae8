/* A walk over the client's handles beside threads that make the first ones, or end some: it takes no
 * lock. What orders the two is seen under ThreadSanitizer (make test's stage threads). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "array.h"
#include "context.h"
#include "handle.h"
#include "module.h"
#include "session.h"
#include "shared.h"
#include "stream.h"

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

/* --- room ------------------------------------------------------------------------------------ */

/* Bytes that count against `ulimit -d`. */
static size_t data_bytes(void)
{
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %*u %*u %*u %*u %zu", &pages), 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void the_first_handles_take_little_memory(void **state)
{
    (void)state;
    size_t before = data_bytes();
    for (unsigned kind = GP_HANDLE_NONE + 1; kind < GP_HANDLE_KINDS; kind++) {
        uint64_t id = gpc_handle_new((enum gp_handle_kind)kind, 0);
        assert_true(gpc_handle_live((enum gp_handle_kind)kind, id));
        gpc_handle_drop(id);
    }
    assert_true(data_bytes() < before + (size_t)GP_HANDLE_KINDS * (1u << 20));
}

/* --- ends ------------------------------------------------------------------------------------ */

static struct gpc_context device_context;
static CUcontext context;

/* As of a thread of a program. */
static void enter(void)
{
    gpc_thread()->current = context;
}

static int make_context(void **state)
{
    (void)state;
    context = (CUcontext)gpc_handle_new(GP_HANDLE_CONTEXT, 0);
    gpc_handle_attach((uint64_t)context, &device_context);
    enter();
    return 0;
}

static int end_context(void **state)
{
    (void)state;
    gpc_handle_drop((uint64_t)context);
    return 0;
}

/* The walk has come to this one when another thread ends it. */
struct ending {
    uint64_t id;
    void *record;
    void (*end)(const struct ending *e);
    unsigned seen;
};

static void *end(void *arg)
{
    const struct ending *e = arg;
    enter();
    e->end(e);
    return NULL;
}

static void visit_ending(uint64_t id, void *shadow, void *arg)
{
    struct ending *e = arg;
    unsigned char before[16];
    pthread_t other;
    if (id != e->id)
        return;
    memcpy(before, shadow, sizeof before);
    assert_int_equal(pthread_create(&other, NULL, end, e), 0);
    pthread_join(other, NULL);
    assert_memory_equal(shadow, before, sizeof before);
    e->seen++;
}

static void end_stream(const struct ending *e)
{
    (void)e;
    gpc_stream_context_ended(context);
}

static void end_array(const struct ending *e)
{
    (void)e;
    gpc_array_context_ended(context);
}

static void end_module(const struct ending *e)
{
    (void)e;
    gpc_module_context_ended(context);
}

static void end_library(const struct ending *e)
{
    gpc_handle_drop(e->id);
    gpc_image_shadow_free(e->record);
}

static void note(enum gp_handle_kind kind, uint64_t id)
{
    if (kind == GP_HANDLE_STREAM)
        assert_int_equal(gpc_stream_note_in(context, (CUstream)id, 0, 0), CUDA_SUCCESS);
    else if (kind == GP_HANDLE_ARRAY)
        assert_int_equal(gpc_array_note(id, 4, 0, 0, CU_AD_FORMAT_FLOAT, 1), CUDA_SUCCESS);
    else
        assert_non_null(gpc_image_shadow_new(id, kind == GP_HANDLE_LIBRARY));
}

/* Of threads that end their contexts at the same time, each walks by what the others free. */
static void what_ends_stays_while_a_walk_looks_at_it(void **state)
{
    (void)state;
    static const struct {
        enum gp_handle_kind kind;
        void (*end)(const struct ending *e);
    } kinds[] = {{GP_HANDLE_STREAM, end_stream},
                 {GP_HANDLE_ARRAY, end_array},
                 {GP_HANDLE_MODULE, end_module},
                 {GP_HANDLE_LIBRARY, end_library}};
    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct ending e = {.id = gpc_handle_new(kinds[i].kind, 0), .end = kinds[i].end};
        note(kinds[i].kind, e.id);
        e.record = gpc_handle_shadow(kinds[i].kind, e.id);
        gpc_handle_each(kinds[i].kind, visit_ending, &e);
        assert_int_equal(e.seen, 1);
        gpc_handle_each(kinds[i].kind, visit_ending, &e); /* it is no more */
        assert_int_equal(e.seen, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_ends_stays_while_a_walk_looks_at_it, make_context,
                                        end_context),
        cmocka_unit_test(the_first_handles_take_little_memory),
        cmocka_unit_test(a_walk_sees_whole_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
