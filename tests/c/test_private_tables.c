/* Every table: its size, its null slots, what is known of its functions. */
#include "private_host.h"

#include <stdio.h>
#include <string.h>

#define RUNTIME "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9"
#define HOOKS "a094798c-2e74-2e74-93f2-0800200c0a66"
#define CURRENT "42d85a81-23f6-cb47-8298-f6e78a3aecdc"
#define STORAGE "c693336e-1121-df11-a8c3-68f355d89593"
#define DIGEST "d4082055-bde6-704b-8d34-ba123c66e1f2"
#define CHECKS "263e8860-7cd2-6143-92f6-bbd5006dfa7e"
#define IDENTITIES "21318c60-9714-3248-8ca6-41ff7324c8f2"
#define TOPOLOGY "1734dc26-800d-4745-8726-c0f1e7dd8bca"
#define MODULES "6e163fbe-b958-444d-835c-e182aff1991e"
#define COMPILE "da9151d3-3ae6-cc41-a5c0-4f26d533e328"

static int reset(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    return 0;
}

static void sizes_and_null_slots(void **state)
{
    (void)state;
    static const struct {
        const char *uuid;
        unsigned slots, null_slot;
    } rows[] = {
        {RUNTIME, 13, 10}, {HOOKS, 7, 0},     {CURRENT, 3, 0},
        {DIGEST, 3, 0},    {CHECKS, 15, 0},   {IDENTITIES, 93, 91},
        {TOPOLOGY, 17, 0}, {MODULES, 99, 93}, {COMPILE, 7, 0},
    };
    for (unsigned r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const void *const *table = table_of(rows[r].uuid);
        assert_int_equal((uintptr_t)table[0], rows[r].slots * sizeof(void *));
        for (unsigned i = 1; i < rows[r].slots; i++)
            assert_int_equal(table[i] == NULL, i == rows[r].null_slot);
        assert_ptr_equal(table_of(rows[r].uuid), table);
    }
    const void *const *storage = table_of(STORAGE);
    for (unsigned i = 0; i < 3; i++)
        assert_non_null(storage[i]);
}

static void unknown_tables_and_null_arguments(void **state)
{
    (void)state;
    static const char *const unknown[] = {
        "f8cff951-2146-8b4e-b9e2-fb469e7c0dd9",
        "69a28e9f-2449-8b47-b030-c5da330ea4e9",
        "0ca50b8c-1004-929a-89a7-d0df10e77286",
        "00000000-0000-0000-0000-000000000000",
    };
    for (unsigned i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        unsigned char uuid[16];
        const void *table = &uuid;
        uuid_parse(unknown[i], uuid);
        assert_int_equal(gpc_private_table(&table, uuid, &fake_host), CUDA_ERROR_INVALID_VALUE);
        assert_null(table);
        assert_int_equal(gpc_private_table(NULL, uuid, &fake_host), CUDA_ERROR_INVALID_VALUE);
    }
    const void *table = &table;
    assert_int_equal(gpc_private_table(&table, NULL, &fake_host), CUDA_ERROR_INVALID_VALUE);
    assert_null(table);
}

/* Each stub counts its own slot and no other. */
static void unknown_slots_count_themselves(void **state)
{
    (void)state;
    struct gpc_private_count counts[PRIVATE_TABLES * PRIVATE_SLOTS_MAX];
    assert_int_equal(gpc_private_counts(counts, 4), 0);
    static const unsigned slots[] = {1, 9, 10, 38, 40, 92};
    const void *const *table = table_of(IDENTITIES);
    for (unsigned i = 0; i < 6; i++)
        for (unsigned n = 0; n <= i; n++) {
            CUresult (*slot)(int, void *) = SLOT_OF(table, slots[i], CUresult (*)(int, void *));
            assert_int_equal(slot(7, &counts), CUDA_ERROR_NOT_SUPPORTED);
            assert_string_equal(fake.unknown_table, "21318c60");
            assert_int_equal(fake.unknown_slot, slots[i]);
        }
    assert_int_equal(fake.unknown_calls, 6); /* told once each */
    assert_int_equal(gpc_private_counts(counts, 600), 6);
    for (unsigned i = 0; i < 6; i++) {
        assert_string_equal(counts[i].table, "21318c60");
        assert_int_equal(counts[i].slot, slots[i]);
        assert_int_equal(counts[i].calls, i + 1);
    }
    assert_int_equal(gpc_private_counts(counts, 1), 6);
    /* and every stub of every table, under its own name */
    static const char *const all[] = {RUNTIME, HOOKS,    CURRENT, DIGEST,
                                      CHECKS,  TOPOLOGY, MODULES, COMPILE};
    size_t before = 6;
    for (unsigned t = 0; t < sizeof all / sizeof all[0]; t++) {
        table = table_of(all[t]);
        size_t size = (uintptr_t)table[0] / sizeof *table;
        for (unsigned slot = 1; slot < size; slot++) {
            if (!table[slot] ||
                table[slot] != gpc_private_stub((enum private_id)(t + (t > 4)), slot))
                continue;
            assert_int_equal(SLOT_OF(table, slot, CUresult (*)(void))(), CUDA_ERROR_NOT_SUPPORTED);
            assert_memory_equal(fake.unknown_table, all[t], 8);
            assert_int_equal(fake.unknown_slot, slot);
            assert_int_equal(gpc_private_counts(NULL, 0), ++before);
        }
    }
    /* unknown ones: 12 - 1 - 6, 0, 1, 0, 12, 14, 97 - 1 + 0, 1 */
    assert_int_equal(before, 6 + 5 + 0 + 1 + 0 + 12 + 14 + 96 + 1);
}

static void runtime_interface(void **state)
{
    (void)state;
    const void *const *table = table_of(RUNTIME);
    int image = 0;
    CUmodule module = NULL;
    assert_int_equal(SLOT_OF(table, 1, CUresult (*)(CUmodule *, void *))(&module, &image), 0);
    assert_ptr_equal(fake.loaded, &image);
    assert_ptr_equal(module, TEST_MODULE);
    fake.loaded = NULL;
    CUresult (*six)(CUmodule *, void *, void *, void *, unsigned) = SLOT_OF(
        table, 6, CUresult (*)(CUmodule *, void *, void *, void *, unsigned));
    assert_int_equal(six(&module, &image, NULL, NULL, 0), CUDA_SUCCESS);
    assert_ptr_equal(fake.loaded, &image);
    fake.loaded = NULL;
    CUresult (*eight)(void *, CUmodule *, void *, void *, unsigned) = SLOT_OF(
        table, 8, CUresult (*)(void *, CUmodule *, void *, void *, unsigned));
    assert_int_equal(eight(&image, &module, NULL, NULL, 0), CUDA_SUCCESS);
    assert_ptr_equal(fake.loaded, &image);
    CUcontext context = NULL;
    CUresult (*two)(CUcontext *, CUdevice) = SLOT_OF(table, 2, CUresult (*)(CUcontext *, CUdevice));
    assert_int_equal(two(&context, 0), CUDA_SUCCESS);
    assert_ptr_equal(context, TEST_PRIMARY);
    assert_int_equal(two(&context, 5), CUDA_ERROR_INVALID_DEVICE);
    assert_int_equal(two(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    SLOT_OF(table, 7, void (*)(size_t))(4096);
    assert_int_equal(SLOT_OF(table, 12, CUresult (*)(void))(), CUDA_SUCCESS);
}

static void callback_hooks(void **state)
{
    (void)state;
    const void *const *table = table_of(HOOKS);
    static const struct {
        unsigned slot;
        size_t size;
    } buffers[] = {{2, 1024}, {6, 14}};
    for (unsigned i = 0; i < 2; i++) {
        void *buffer = NULL;
        size_t size = 0;
        SLOT_OF(table, buffers[i].slot, void (*)(void **, size_t *))(&buffer, &size);
        assert_int_equal(size, buffers[i].size);
        for (size_t n = 0; n < size; n++)
            assert_int_equal(((uint64_t *)buffer)[n], 0);
    }
    uint64_t out = 7;
    CUresult (*four)(const void *, uint64_t *) = SLOT_OF(table, 4,
                                                         CUresult (*)(const void *, uint64_t *));
    assert_int_equal(four(NULL, &out), CUDA_SUCCESS);
    assert_int_equal(out, 0);
    assert_int_equal(four(&out, NULL), CUDA_ERROR_UNKNOWN);
}

static void current_context(void **state)
{
    (void)state;
    CUresult (*get)(CUcontext *) = SLOT_OF(table_of(CURRENT), 2, CUresult (*)(CUcontext *));
    CUcontext context = TEST_DEAD;
    assert_int_equal(get(&context), CUDA_SUCCESS);
    assert_null(context);
    fake.current = TEST_PRIMARY;
    assert_int_equal(get(&context), CUDA_SUCCESS);
    assert_ptr_equal(context, TEST_PRIMARY);
    assert_int_equal(get(NULL), CUDA_ERROR_INVALID_VALUE);
}

static void context_checks(void **state)
{
    (void)state;
    const void *const *table = table_of(CHECKS);
    uint32_t flag = 9;
    const void *inner = &flag;
    CUresult (*two)(CUcontext, uint32_t *, const void **) = SLOT_OF(
        table, 2, CUresult (*)(CUcontext, uint32_t *, const void **));
    assert_int_equal(two(TEST_PRIMARY, &flag, &inner), CUDA_SUCCESS);
    assert_int_equal(flag, 0);
    assert_ptr_equal(inner, &flag);
    assert_int_equal(SLOT_OF(table, 3, uint32_t (*)(void))(), 0);
}

static void identities_of_contexts(void **state)
{
    (void)state;
    CUresult (*id_of)(CUcontext, uint64_t *) = SLOT_OF(table_of(IDENTITIES), 4,
                                                       CUresult (*)(CUcontext, uint64_t *));
    uint64_t id = 5;
    assert_int_equal(id_of(NULL, &id), CUDA_SUCCESS);
    assert_int_equal(id, 0);
    assert_int_equal(id_of(TEST_PRIMARY, &id), CUDA_SUCCESS);
    assert_int_equal(id, (uintptr_t)TEST_PRIMARY * 3);
    assert_int_equal(id_of(TEST_PRIMARY, NULL), CUDA_ERROR_UNKNOWN);
}

static void identities_of_streams(void **state)
{
    (void)state;
    const void *const *table = table_of(IDENTITIES);
    CUresult (*private_of)(CUcontext, CUstream, void **, int) = SLOT_OF(
        table, 51, CUresult (*)(CUcontext, CUstream, void **, int));
    CUresult (*identity_of)(CUcontext, const void *, uint64_t *) = SLOT_OF(
        table, 39, CUresult (*)(CUcontext, const void *, uint64_t *));
    void *legacy = NULL, *per_thread = NULL, *again = NULL;
    assert_int_equal(private_of(NULL, NULL, &legacy, 0), CUDA_SUCCESS);
    assert_int_equal(private_of(NULL, NULL, &per_thread, 1), CUDA_SUCCESS);
    assert_non_null(legacy);
    assert_ptr_not_equal(legacy, per_thread);
    assert_int_equal(private_of(NULL, CU_STREAM_LEGACY, &again, 1), CUDA_SUCCESS);
    assert_ptr_equal(again, legacy);
    assert_int_equal(private_of(NULL, CU_STREAM_PER_THREAD, &again, 0), CUDA_SUCCESS);
    assert_ptr_equal(again, per_thread);
    assert_int_equal(private_of(NULL, TEST_STREAM, &again, 0), CUDA_SUCCESS);
    assert_ptr_not_equal(again, legacy);
    uint64_t a = 0, b = 0;
    assert_int_equal(identity_of(NULL, again, &a), CUDA_SUCCESS);
    assert_int_equal(identity_of(NULL, legacy, &b), CUDA_SUCCESS);
    assert_int_not_equal(a, b);
    void *untouched = &a;
    CUstream unknown = (CUstream)(uintptr_t)0x999990;
    assert_int_equal(private_of(NULL, unknown, &untouched, 0), CUDA_ERROR_INVALID_HANDLE);
    assert_ptr_equal(untouched, &a);
    assert_int_equal(private_of(NULL, NULL, NULL, 0), CUDA_ERROR_INVALID_VALUE);
}

static void processor_topology(void **state)
{
    (void)state;
    const void *const *table = table_of(TOPOLOGY);
    CUresult (*get)(uint8_t **, uint8_t **) = SLOT_OF(table, 4,
                                                      CUresult (*)(uint8_t **, uint8_t **));
    CUresult (*give_back)(uint8_t *, uint8_t *) = SLOT_OF(table, 13,
                                                          CUresult (*)(uint8_t *, uint8_t *));
    static const uint8_t gpcs[5] = {0, 1, 2, 0, 1}, indexes[5] = {0, 0, 0, 1, 1};
    uint8_t *gpc = NULL, *index = NULL;
    fake.topology.pairs = 5;
    memcpy(fake.topology.gpc, gpcs, sizeof gpcs);
    memcpy(fake.topology.index, indexes, sizeof indexes);
    assert_int_equal(get(&gpc, &index), CUDA_SUCCESS);
    assert_memory_equal(gpc, gpcs, 5);
    assert_memory_equal(index, indexes, 5);
    assert_ptr_not_equal(gpc, gpcs); /* the caller's own, to free */
    assert_int_equal(give_back(gpc, index), CUDA_SUCCESS);
    fake.topology.pairs = 0;
    assert_int_equal(get(&gpc, &index), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(gpc[255] | index[255], 0); /* readable all the same */
    assert_int_equal(give_back(gpc, index), CUDA_SUCCESS);
    assert_int_equal(get(NULL, &index), CUDA_ERROR_INVALID_VALUE);
}

static void visit_append(void *user, CUfunction function, const char *name)
{
    char *text = user;
    size_t held = strlen(text);
    snprintf(text + held, 64 - held, "%s=%u ", name, (unsigned)(uintptr_t)function);
}

static void module_functions(void **state)
{
    (void)state;
    int (*walk)(CUcontext, CUmodule, gpc_private_visit, void *) = SLOT_OF(
        table_of(MODULES), 7, int (*)(CUcontext, CUmodule, gpc_private_visit, void *));
    char text[64] = "";
    assert_int_equal(walk(TEST_PRIMARY, TEST_MODULE, visit_append, text), 1);
    assert_string_equal(text, "_Z3addPf=16 _Z3mulPf=32 ");
    CUmodule unknown = (CUmodule)(uintptr_t)0x99;
    assert_int_equal(walk(TEST_PRIMARY, unknown, visit_append, text), 0);
    assert_int_equal(walk(TEST_PRIMARY, TEST_MODULE, NULL, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(sizes_and_null_slots, reset),
        cmocka_unit_test_setup(unknown_tables_and_null_arguments, reset),
        cmocka_unit_test_setup(unknown_slots_count_themselves, reset),
        cmocka_unit_test_setup(runtime_interface, reset),
        cmocka_unit_test_setup(callback_hooks, reset),
        cmocka_unit_test_setup(current_context, reset),
        cmocka_unit_test_setup(context_checks, reset),
        cmocka_unit_test_setup(identities_of_contexts, reset),
        cmocka_unit_test_setup(identities_of_streams, reset),
        cmocka_unit_test_setup(processor_topology, reset),
        cmocka_unit_test_setup(module_functions, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
