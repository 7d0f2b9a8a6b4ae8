/* The compile cache as NVRTC uses it: the key, several processes and threads. */
#include "compile_cache_case.h"

#include <pthread.h>
#include <sys/stat.h>

static void first_process(void)
{
    MUST(compiled(2, "source", "some PTX") == 0);
    MUST(compiled(1, "source", "a cubin") == 0);
    MUST(compiled(2, "source", "some PTX") == 1);
    MUST(compiled(1, "source", "a cubin") == 1);
    struct gpc_private_compile_counts c = counted();
    MUST(c.misses == 2 && c.stored == 2 && c.memory_hits == 2 && c.file_hits == 0);
}

static void later_process(void)
{
    MUST(compiled(2, "source", "some PTX") == 1);
    MUST(compiled(1, "source", "a cubin") == 1);
    MUST(compiled(1, "source", "a cubin") == 1);
    struct gpc_private_compile_counts c = counted();
    MUST(c.misses == 0 && c.stored == 0 && c.memory_hits == 1 && c.file_hits == 2);
}

static void compile_twice_in_two_processes(void **state)
{
    (void)state;
    struct stat s;
    in_process(first_process);
    assert_int_equal(stat(kept, &s), 0);
    assert_int_equal(s.st_mode & 07777, 0700);
    in_process(later_process);
}

static void named_folder(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/named/deep", home);
    setenv("CUDA_CACHE_PATH", path, 1);
    MUST(compiled(1, "source", "a cubin") == 0);
    MUST(access(path, F_OK) == 0 && access(kept, F_OK) != 0);
}

static void in_a_named_folder(void **state)
{
    (void)state;
    in_process(named_folder);
}

static void switched_off_process(void)
{
    setenv("CUDA_CACHE_DISABLE", "1", 1);
    for (int i = 0; i < 3; i++)
        MUST(compiled(1, "source", "a cubin") == 0);
    MUST(counted().misses == 3 && counted().stored == 0);
    MUST(access(kept, F_OK) != 0);
}

static void switched_off(void **state)
{
    (void)state;
    in_process(switched_off_process);
}

/* --- the key --- */

static void key_process(void)
{
    static const struct {
        int kind, arch;
        const char *input, *options, *tag, *build;
    } rows[] = {
        {1, 90, "in", "o", "t", "b"}, {2, 90, "in", "o", "t", "b"},  {1, 80, "in", "o", "t", "b"},
        {1, 90, "im", "o", "t", "b"}, {1, 90, "in", "ot", "", "b"},  {1, 90, "in", "o", "tb", ""},
        {1, 90, "in", "", "t", "b"},  {1, 90, "in", NULL, "t", "b"}, {1, 90, "ino", "", "t", "b"},
        {1, 90, "in", "o", "t", "c"}, {1, 90, "", "ino", "t", "b"},  {1, 90, "in", "o", NULL, "b"},
    };
    const int count = sizeof rows / sizeof rows[0];
    char content[16];
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < count; i++) {
            void *entry = opened_with(rows[i].kind, rows[i].input, rows[i].options, rows[i].tag,
                                      rows[i].build, rows[i].arch);
            snprintf(content, sizeof content, "content %d", i);
            MUST(look(entry, content) == pass);
            MUST(SLOT_OF(table_of(COMPILE), 4, put_slot)(entry, 0, content, strlen(content)) == 0);
            closed(entry);
        }
}

static void every_part_of_the_key_counts(void **state)
{
    (void)state;
    in_process(key_process);
}

static void null_process(void)
{
    const void *const *table = table_of(COMPILE);
    open_slot open_ = SLOT_OF(table, 1, open_slot);
    void *entry = NULL, *data;
    uint32_t size;
    MUST(open_(NULL, 1, "x", 1, "", "", "", 90, 0) == CUDA_ERROR_INVALID_VALUE);
    MUST(open_(&entry, 1, NULL, 1, "", "", "", 90, 0) == CUDA_ERROR_INVALID_VALUE && !entry);
    MUST(SLOT_OF(table, 2, close_slot)(NULL, 0) == CUDA_ERROR_INVALID_VALUE);
    entry = opened(1, "x");
    MUST(SLOT_OF(table, 3, get_slot)(NULL, 0, &data, &size) == CUDA_ERROR_INVALID_VALUE);
    MUST(SLOT_OF(table, 3, get_slot)(entry, 0, NULL, &size) == CUDA_ERROR_INVALID_VALUE);
    MUST(SLOT_OF(table, 3, get_slot)(entry, 0, &data, NULL) == CUDA_ERROR_INVALID_VALUE);
    MUST(SLOT_OF(table, 4, put_slot)(NULL, 0, "x", 1) == CUDA_ERROR_INVALID_VALUE);
    MUST(SLOT_OF(table, 4, put_slot)(entry, 0, NULL, 1) == CUDA_ERROR_INVALID_VALUE);
    MUST(SLOT_OF(table, 4, put_slot)(entry, 0, NULL, 0) == 0); /* nothing is not kept */
    MUST(look(entry, "") == 0);
    MUST(SLOT_OF(table, 6, free_slot)(NULL) == 0);
    closed(entry);
}

static void null_arguments(void **state)
{
    (void)state;
    in_process(null_process);
}

/* --- many at once --- */

static void many_process(void)
{
    char input[32], content[4001];
    setenv("CUDA_CACHE_MAXSIZE", "60000", 1);
    for (int i = 0; i < 120; i++) {
        unsigned n = (unsigned)(i * 7 + getpid()) % 31;
        snprintf(input, sizeof input, "source %u", n);
        memset(content, 'a' + (int)(n % 26), 4000);
        content[4000] = '\0';
        content[100 * n] = '\0';
        if (n)
            compiled(1, input, content); /* a hit must be right: look() says so */
    }
}

static void many_processes_at_once(void **state)
{
    (void)state;
    pid_t children[8];
    for (unsigned i = 0; i < 8; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            alarm(60);
            many_process();
            _exit(0);
        }
    }
    for (unsigned i = 0; i < 8; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(files_in(kept, "tmp-"), 0);
    assert_true(files_in(kept, "") > 0);
}

static bool stopping;
static void *hammer(void *unused)
{
    (void)unused;
    for (int i = 0; !__atomic_load_n(&stopping, __ATOMIC_RELAXED); i++)
        compiled(1, i & 1 ? "odd" : "even", "a cubin");
    return NULL;
}

static void later_sources(void)
{
    MUST(compiled(1, "odd", "a cubin") == 1);
}

/* A child of fork has the lock in a state that it can use. */
static void forking_process(void)
{
    pthread_t threads[2];
    compiled(1, "odd", "a cubin");
    for (unsigned i = 0; i < 2; i++)
        MUST(pthread_create(&threads[i], NULL, hammer, NULL) == 0);
    for (int i = 0; i < 30; i++)
        in_process(later_sources);
    __atomic_store_n(&stopping, true, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static void in_a_forked_child(void **state)
{
    (void)state;
    in_process(forking_process);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(compile_twice_in_two_processes),
        CASE(in_a_named_folder),
        CASE(switched_off),
        CASE(every_part_of_the_key_counts),
        CASE(null_arguments),
        CASE(many_processes_at_once),
        CASE(in_a_forked_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
