/* Context storage: the rules of its three functions, and readers beside writers. */
#include "private_host.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef CUresult (*put_function)(CUcontext, void *, void *, gpc_storage_destructor);
typedef CUresult (*delete_function)(CUcontext, void *);
typedef CUresult (*get_function)(void **, CUcontext, void *);

static put_function put;
static delete_function forget;
static get_function get;

static char keys[4096];
static char order[64];

static int setup(void **state)
{
    (void)state;
    const void *const *table = table_of("c693336e-1121-df11-a8c3-68f355d89593");
    put = SLOT_OF(table, 0, put_function);
    forget = SLOT_OF(table, 1, delete_function);
    get = SLOT_OF(table, 2, get_function);
    memset(&fake, 0, sizeof fake);
    order[0] = 0;
    return 0;
}

static void destroy_note(CUcontext ctx, void *key, void *value)
{
    size_t held = strlen(order);
    snprintf(order + held, sizeof order - held, "%x:%d:%d ", (unsigned)((uintptr_t)ctx & 0xFF),
             (int)((char *)key - keys), (int)(uintptr_t)value);
}

static void *number(uintptr_t n)
{
    return (void *)n;
}

static void put_get_delete(void **state)
{
    (void)state;
    CUcontext a = TEST_CONTEXT(2), b = TEST_CONTEXT(3);
    void *value = &value;
    assert_int_equal(get(&value, a, &keys[0]), CUDA_ERROR_INVALID_HANDLE);
    assert_ptr_equal(value, &value);
    assert_int_equal(put(a, &keys[0], number(1), destroy_note), CUDA_SUCCESS);
    assert_int_equal(put(b, &keys[0], number(2), destroy_note), CUDA_SUCCESS);
    assert_int_equal(put(a, &keys[1], NULL, NULL), CUDA_SUCCESS);
    /* an existing key keeps its value */
    assert_int_equal(put(a, &keys[0], number(9), destroy_note), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(get(&value, a, &keys[0]), CUDA_SUCCESS);
    assert_ptr_equal(value, number(1));
    assert_int_equal(get(&value, b, &keys[0]), CUDA_SUCCESS);
    assert_ptr_equal(value, number(2));
    assert_int_equal(get(&value, a, &keys[1]), CUDA_SUCCESS);
    assert_null(value);
    assert_int_equal(forget(a, &keys[0]), CUDA_SUCCESS);
    assert_int_equal(forget(a, &keys[0]), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(get(&value, a, &keys[0]), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(get(NULL, b, &keys[0]), CUDA_ERROR_INVALID_VALUE);
    gpc_storage_context_ended(a);
    assert_string_equal(order, ""); /* a delete runs no destructor, a null one is none */
    gpc_storage_context_ended(b);
    assert_string_equal(order, "3:0:2 ");
}

static void null_context_is_the_current_one(void **state)
{
    (void)state;
    void *value = NULL;
    assert_int_equal(put(NULL, &keys[0], number(1), NULL), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(get(&value, NULL, &keys[0]), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(forget(NULL, &keys[0]), CUDA_ERROR_INVALID_CONTEXT);
    fake.current = TEST_CONTEXT(2);
    assert_int_equal(put(NULL, &keys[0], number(1), NULL), CUDA_SUCCESS);
    assert_int_equal(get(&value, TEST_CONTEXT(2), &keys[0]), CUDA_SUCCESS);
    assert_ptr_equal(value, number(1));
    assert_int_equal(forget(NULL, &keys[0]), CUDA_SUCCESS);
    assert_int_equal(put(TEST_DEAD, &keys[0], number(1), NULL), CUDA_ERROR_INVALID_CONTEXT);
}

static void destructors_run_once_in_order(void **state)
{
    (void)state;
    CUcontext a = TEST_CONTEXT(4), b = TEST_CONTEXT(5);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put(a, &keys[7 * i], number(i + 1), destroy_note), CUDA_SUCCESS);
    assert_int_equal(put(b, &keys[0], number(8), destroy_note), CUDA_SUCCESS);
    gpc_storage_context_ended(a);
    assert_string_equal(order, "4:0:1 4:7:2 4:14:3 ");
    gpc_storage_context_ended(a);
    assert_string_equal(order, "4:0:1 4:7:2 4:14:3 ");
    void *value;
    assert_int_equal(get(&value, a, &keys[0]), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(get(&value, b, &keys[0]), CUDA_SUCCESS);
    /* the handle comes back with the next retain of a primary context */
    assert_int_equal(put(a, &keys[0], number(5), NULL), CUDA_SUCCESS);
    assert_int_equal(forget(a, &keys[0]), CUDA_SUCCESS);
    assert_int_equal(forget(b, &keys[0]), CUDA_SUCCESS);
}

/* Calls back into the storage: no lock may be held. */
static void destroy_calls_back(CUcontext ctx, void *key, void *value)
{
    void *other = NULL;
    destroy_note(ctx, key, value);
    assert_int_equal(get(&other, ctx, &keys[1]), CUDA_SUCCESS);
    assert_int_equal(forget(ctx, &keys[1]), CUDA_SUCCESS);
    assert_int_equal(put(ctx, &keys[2], number(6), destroy_note), CUDA_SUCCESS);
}

static void destructors_may_call_back(void **state)
{
    (void)state;
    CUcontext a = TEST_CONTEXT(6);
    assert_int_equal(put(a, &keys[0], number(1), destroy_calls_back), CUDA_SUCCESS);
    assert_int_equal(put(a, &keys[1], number(2), destroy_note), CUDA_SUCCESS);
    gpc_storage_context_ended(a);
    assert_string_equal(order, "6:0:1 "); /* the second was deleted, the third is new */
    gpc_storage_context_ended(a);
    assert_string_equal(order, "6:0:1 6:2:6 ");
}

static void grows_and_shrinks(void **state)
{
    (void)state;
    CUcontext a = TEST_CONTEXT(7);
    void *value;
    for (unsigned i = 0; i < 700; i++)
        assert_int_equal(put(a, &keys[i], number(i), NULL), CUDA_SUCCESS);
    for (unsigned i = 0; i < 700; i += 2)
        assert_int_equal(forget(a, &keys[i]), CUDA_SUCCESS);
    for (unsigned i = 0; i < 700; i++) {
        CUresult expected = i % 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
        assert_int_equal(get(&value, a, &keys[i]), expected);
        if (i % 2)
            assert_ptr_equal(value, number(i));
    }
    gpc_storage_context_ended(a);
    for (unsigned i = 0; i < 700; i++)
        assert_int_equal(get(&value, a, &keys[i]), CUDA_ERROR_INVALID_HANDLE);
}

/* --- threads --- */

#define READERS 3
#define ROUNDS 3000
#define FIXED 8

static struct {
    int stop;
    uint64_t wrong;
    uint64_t seen;
    int destroyed[ROUNDS];
} stress;

/* A value says which context and key it belongs to. */
static void *value_of(CUcontext ctx, unsigned key)
{
    return number((uintptr_t)ctx << 16 | key);
}

static void *reader(void *unused)
{
    uint64_t wrong = 0, seen = 0;
    (void)unused;
    while (!__atomic_load_n(&stress.stop, __ATOMIC_ACQUIRE)) {
        for (unsigned c = 0; c < 3; c++)
            for (unsigned key = 0; key < 32; key++) {
                CUcontext ctx = TEST_CONTEXT(0x40 + c);
                void *value = NULL;
                CUresult r = get(&value, ctx, &keys[key]);
                if (r == CUDA_SUCCESS ? value != value_of(ctx, key)
                                      : r != CUDA_ERROR_INVALID_HANDLE || value)
                    wrong++;
                /* those that nobody deletes are always there */
                if (c == 0 && key < FIXED && r != CUDA_SUCCESS)
                    wrong++;
                seen += r == CUDA_SUCCESS;
            }
    }
    __atomic_fetch_add(&stress.wrong, wrong, __ATOMIC_RELAXED);
    __atomic_fetch_add(&stress.seen, seen, __ATOMIC_RELAXED);
    return NULL;
}

static void *writer(void *which)
{
    unsigned c = (unsigned)(uintptr_t)which;
    CUcontext ctx = TEST_CONTEXT(0x40 + c);
    uint64_t wrong = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned key = FIXED + (i * 7 + c) % (32 - FIXED);
        wrong += put(ctx, &keys[key], value_of(ctx, key), NULL) != CUDA_SUCCESS;
        wrong += forget(ctx, &keys[key]) != CUDA_SUCCESS;
    }
    __atomic_fetch_add(&stress.wrong, wrong, __ATOMIC_RELAXED);
    return NULL;
}

static void destroy_count(CUcontext ctx, void *key, void *value)
{
    (void)ctx, (void)key;
    __atomic_fetch_add(&stress.destroyed[(uintptr_t)value], 1, __ATOMIC_RELAXED);
}

/* A context of its own that begins and ends all the time. */
static void *ender(void *unused)
{
    CUcontext ctx = TEST_CONTEXT(0x50);
    uint64_t wrong = 0;
    (void)unused;
    for (unsigned i = 0; i < ROUNDS; i++) {
        wrong += put(ctx, &keys[i], number(i), destroy_count) != CUDA_SUCCESS;
        if (i % 10 == 9)
            gpc_storage_context_ended(ctx);
    }
    gpc_storage_context_ended(ctx);
    __atomic_fetch_add(&stress.wrong, wrong, __ATOMIC_RELAXED);
    return NULL;
}

static void readers_beside_writers(void **state)
{
    (void)state;
    pthread_t readers[READERS], writers[3];
    CUcontext ctx = TEST_CONTEXT(0x40);
    for (unsigned key = 0; key < FIXED; key++)
        assert_int_equal(put(ctx, &keys[key], value_of(ctx, key), NULL), CUDA_SUCCESS);
    for (unsigned i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, reader, NULL), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&writers[i], NULL, writer, number(i)), 0);
    assert_int_equal(pthread_create(&writers[2], NULL, ender, NULL), 0);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(writers[i], NULL);
    __atomic_store_n(&stress.stop, 1, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    assert_int_equal(stress.wrong, 0);
    assert_true(stress.seen > 0);
    for (unsigned i = 0; i < ROUNDS; i++)
        assert_int_equal(stress.destroyed[i], 1);
    gpc_storage_context_ended(ctx);
}

static void works_in_a_forked_child(void **state)
{
    (void)state;
    CUcontext a = TEST_CONTEXT(8);
    assert_int_equal(put(a, &keys[0], number(4), NULL), CUDA_SUCCESS);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        void *value = NULL;
        bool good = get(&value, a, &keys[0]) == CUDA_SUCCESS && value == number(4) &&
                    put(a, &keys[1], number(5), NULL) == CUDA_SUCCESS;
        _exit(good ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(forget(a, &keys[1]), CUDA_ERROR_INVALID_HANDLE);
    gpc_storage_context_ended(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(put_get_delete, setup),
        cmocka_unit_test_setup(null_context_is_the_current_one, setup),
        cmocka_unit_test_setup(destructors_run_once_in_order, setup),
        cmocka_unit_test_setup(destructors_may_call_back, setup),
        cmocka_unit_test_setup(grows_and_shrinks, setup),
        cmocka_unit_test_setup(readers_beside_writers, setup),
        cmocka_unit_test_setup(works_in_a_forked_child, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
