/*
 * The compile cache: what NVRTC does with it, what its files are trusted for, and how it does
 * without them. Each case runs in processes of its own, because the variables are read once.
 */
#include "private_host.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "private_compile.h"

#define COMPILE "da9151d3-3ae6-cc41-a5c0-4f26d533e328"
#define BUILD "Aug 20 202514:13:52"

typedef CUresult (*open_slot)(void **, int, const void *, size_t, const char *, const char *,
                              const char *, int, int);
typedef CUresult (*get_slot)(void *, int, void **, uint32_t *);
typedef CUresult (*put_slot)(void *, int, const void *, size_t);
typedef CUresult (*close_slot)(void *, int);
typedef CUresult (*free_slot)(void *);

static char home[64], kept[96]; /* the case's home, and where its files are */

static int make_home(void **state)
{
    (void)state;
    snprintf(home, sizeof home, "/tmp/gpcache-XXXXXX");
    assert_non_null(mkdtemp(home));
    snprintf(kept, sizeof kept, "%s/.nv/ComputeCache/gpupool", home);
    setenv("HOME", home, 1);
    unsetenv("CUDA_CACHE_PATH");
    unsetenv("CUDA_CACHE_DISABLE");
    unsetenv("CUDA_CACHE_MAXSIZE");
    return 0;
}

static int remove_home(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", home);
    return system(command);
}

/* Run `what` in a process of its own, which must come to its end. */
static void in_process(void (*what)(void))
{
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        what();
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* In a child process, where cmocka's own would be said to nobody. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* --- as NVRTC does it --- */

static void *opened_with(int kind, const char *input, const char *options, const char *tag,
                         const char *build, int arch)
{
    void *entry = NULL;
    open_slot open_ = SLOT_OF(table_of(COMPILE), 1, open_slot);
    MUST(open_(&entry, kind, input, strlen(input), options, tag, build, arch, 0) == 0 && entry);
    return entry;
}

static void *opened(int kind, const char *input)
{
    return opened_with(kind, input, kind == 1 ? " -arch=sm_90" : " -arch=compute_90", "HOST64",
                       BUILD, 90);
}

static void closed(void *entry)
{
    MUST(SLOT_OF(table_of(COMPILE), 2, close_slot)(entry, 0) == 0);
}

/* 1: what was found is `content`. 0: a miss, with the outputs untouched. */
static int look(void *entry, const char *content)
{
    void *data = &data;
    uint32_t size = 77;
    CUresult r = SLOT_OF(table_of(COMPILE), 3, get_slot)(entry, 0, &data, &size);
    if (r != CUDA_SUCCESS) {
        MUST(r == CUDA_ERROR_NOT_FOUND && data == &data && size == 77);
        return 0;
    }
    MUST(size == strlen(content) && memcmp(data, content, size) == 0);
    MUST(SLOT_OF(table_of(COMPILE), 6, free_slot)(data) == 0);
    return 1;
}

/* One half of a compilation: whether it was found. */
static int compiled(int kind, const char *input, const char *content)
{
    void *entry = opened(kind, input);
    int hit = look(entry, content);
    if (!hit)
        MUST(SLOT_OF(table_of(COMPILE), 4, put_slot)(entry, 0, content, strlen(content)) == 0);
    closed(entry);
    return hit;
}

static struct gpc_private_compile_counts counted(void)
{
    struct gpc_private_compile_counts c;
    gpc_private_compile_counted(&c);
    return c;
}

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

/* --- what files are trusted for --- */

static const unsigned char key[GPC_COMPILE_KEY] = {0xab, 0xcd};
#define CONTENT "what was compiled"

static const char *file_path(void)
{
    static char path[200];
    int at = snprintf(path, sizeof path, "%s/abcd", home);
    snprintf(path + at, sizeof path - (size_t)at, "%060d", 0);
    return path;
}

static bool found(void)
{
    size_t size = 0;
    char *data = gpc_compile_file_get(home, key, 4096, &size);
    bool right = data && size == strlen(CONTENT) && memcmp(data, CONTENT, size) == 0;
    assert_true(right || !data);
    free(data);
    return right;
}

static void put_content(void)
{
    unlink(file_path());
    assert_true(gpc_compile_file_put(home, key, CONTENT, strlen(CONTENT), 1 << 20));
    assert_true(found());
}

static void write_file(const char *path, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    close(fd);
}

static void damaged_and_cut_files(void **state)
{
    (void)state;
    char whole[512];
    put_content();
    int fd = open(file_path(), O_RDONLY);
    ssize_t size = read(fd, whole, sizeof whole);
    close(fd);
    assert_int_equal(size, sizeof(struct gpc_compile_header) + strlen(CONTENT));
    for (ssize_t i = 0; i < size; i++) {
        whole[i] ^= 0x10;
        write_file(file_path(), whole, (size_t)size);
        assert_false(found());
        whole[i] ^= 0x10;
        write_file(file_path(), whole, (size_t)i);
        assert_false(found());
    }
    whole[size] = 0;
    write_file(file_path(), whole, (size_t)size + 1);
    assert_false(found());
    write_file(file_path(), whole, (size_t)size);
    assert_true(found()); /* so it was the damage */
    size_t got;
    assert_null(gpc_compile_file_get(home, key, (uint64_t)size - 1, &got));
}

static void files_of_others(void **state)
{
    (void)state;
    put_content();
    assert_int_equal(chmod(file_path(), 0620), 0);
    assert_false(found());
    put_content();
    if (geteuid() == 0) {
        assert_int_equal(chown(file_path(), 65534, 65534), 0);
        assert_false(found());
    }
    put_content();
    char moved[100];
    snprintf(moved, sizeof moved, "%s/elsewhere", home);
    assert_int_equal(rename(file_path(), moved), 0);
    assert_int_equal(symlink(moved, file_path()), 0);
    assert_false(found());
    unlink(file_path());
    assert_int_equal(mkfifo(file_path(), 0600), 0);
    assert_false(found()); /* and does not wait for a writer */
    unlink(file_path());
    assert_int_equal(mkdir(file_path(), 0700), 0);
    assert_false(found());
    assert_false(gpc_compile_file_put(home, key, CONTENT, strlen(CONTENT), 1 << 20));
    rmdir(file_path());
    put_content();
}

static unsigned files_in(const char *folder, const char *prefix)
{
    unsigned count = 0;
    DIR *dir = opendir(folder);
    for (const struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        count += e->d_name[0] != '.' && strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    if (dir)
        closedir(dir);
    return count;
}

static char note_said[512];
static bool note_warned;
static void note_keep(bool warn, const char *line)
{
    snprintf(note_said, sizeof note_said, "%s", line);
    note_warned = warn;
}

/* The cache works all the same, in memory, and `note` was told. */
static void memory_alone(bool warned)
{
    struct gpc_private_host host = fake_host;
    host.note = note_keep;
    unsigned char uuid[16];
    const void *table;
    uuid_parse(COMPILE, uuid);
    MUST(gpc_private_table(&table, uuid, &host) == 0);
    MUST(compiled(1, "source", "a cubin") == 0);
    MUST(compiled(1, "source", "a cubin") == 1);
    MUST(counted().memory_hits == 1 && counted().file_hits == 0);
    MUST(strstr(note_said, kept) && strstr(note_said, "in memory only"));
    MUST(note_warned == warned);
}

static void make_kept(mode_t mode)
{
    char path[96];
    snprintf(path, sizeof path, "%s/.nv", home);
    MUST(mkdir(path, 0700) == 0);
    snprintf(path, sizeof path, "%s/.nv/ComputeCache", home);
    MUST(mkdir(path, 0700) == 0 && mkdir(kept, mode) == 0 && chmod(kept, mode) == 0);
}

static void open_folder(void)
{
    make_kept(0770);
    memory_alone(true);
    MUST(files_in(kept, "") == 0);
}

static void linked_folder(void)
{
    make_kept(0700);
    MUST(rmdir(kept) == 0 && symlink("/tmp", kept) == 0);
    memory_alone(true);
}

static void no_folder(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/.nv", home);
    int fd = open(path, O_WRONLY | O_CREAT, 0600); /* a file where a folder should be */
    MUST(fd >= 0);
    memory_alone(true);
}

static void a_folder_that_cannot_be_used(void **state)
{
    (void)state;
    static void (*const cases[])(void) = {open_folder, linked_folder, no_folder};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_home(state);
        in_process(cases[i]);
        remove_home(state);
    }
    make_home(state);
}

/* A home of somebody else's, as sudo leaves it, or none: nothing is written there. */
static void strange_home(void)
{
    setenv("HOME", geteuid() == 0 ? home : "/", 1);
    if (geteuid() == 0)
        MUST(chown(home, 65534, 65534) == 0);
    MUST(compiled(1, "source", "a cubin") == 0);
    MUST(compiled(1, "source", "a cubin") == 1);
    MUST(counted().memory_hits == 1 && access(kept, F_OK) != 0);
}

static void homeless(void)
{
    unsetenv("HOME");
    MUST(compiled(1, "source", "a cubin") == 0);
    MUST(compiled(1, "source", "a cubin") == 1);
}

static void in_a_strange_home(void **state)
{
    (void)state;
    in_process(strange_home);
    in_process(homeless);
}

/* As on a full disk: the write fails, and no signal ends the program. */
static void no_room(void)
{
    char *large = malloc(100001);
    memset(large, 'x', 100000);
    large[100000] = '\0';
    struct rlimit little = {4096, 4096};
    MUST(setrlimit(RLIMIT_FSIZE, &little) == 0);
    MUST(compiled(1, "source", large) == 0);
    MUST(compiled(1, "source", large) == 1 && counted().memory_hits == 1);
    MUST(files_in(kept, "") == 0);
    free(large);
}

static void a_full_disk(void **state)
{
    (void)state;
    in_process(no_room);
}

/* --- the limit --- */

static unsigned char *numbered(unsigned char key_[GPC_COMPILE_KEY], unsigned n)
{
    memset(key_, 0, GPC_COMPILE_KEY);
    key_[0] = (unsigned char)n;
    key_[1] = (unsigned char)(n >> 8);
    return key_;
}

static void age_file(unsigned n, int seconds)
{
    char path[200];
    int at = snprintf(path, sizeof path, "%s/%02x%02x", home, n & 255, n >> 8);
    snprintf(path + at, sizeof path - (size_t)at, "%060d", 0);
    struct timespec then[2] = {{time(NULL) - seconds, 0}, {time(NULL) - seconds, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
}

static bool has(unsigned n)
{
    unsigned char k[GPC_COMPILE_KEY];
    size_t size;
    void *data = gpc_compile_file_get(home, numbered(k, n), 1 << 20, &size);
    free(data);
    return data != NULL;
}

static void unused_for_longest_goes_first(void **state)
{
    (void)state;
    enum { FILES = 16, SIZE = 1000 };
    const uint64_t each = SIZE + sizeof(struct gpc_compile_header);
    unsigned char k[GPC_COMPILE_KEY];
    char content[SIZE] = "";
    for (unsigned n = 0; n < FILES; n++) {
        assert_true(gpc_compile_file_put(home, numbered(k, n), content, SIZE, 1 << 20));
        age_file(n, 1000 - (int)n);
    }
    assert_true(has(0)); /* in use: now the newest */
    gpc_compile_folder_trim(home, FILES * each);
    assert_int_equal(files_in(home, ""), FILES); /* no more than is needed */
    gpc_compile_folder_trim(home, 8 * each);
    assert_int_equal(files_in(home, ""), 7); /* an eighth of room */
    assert_true(has(0));
    for (unsigned n = 1; n < FILES; n++)
        assert_int_equal(has(n), n > FILES - 7);
}

static void too_large_is_not_kept(void **state)
{
    (void)state;
    const uint64_t whole = strlen(CONTENT) + sizeof(struct gpc_compile_header);
    assert_false(gpc_compile_file_put(home, key, CONTENT, strlen(CONTENT), whole - 1));
    assert_false(gpc_compile_file_put(home, key, CONTENT, strlen(CONTENT), 0));
    assert_int_equal(files_in(home, ""), 0);
    assert_true(gpc_compile_file_put(home, key, CONTENT, strlen(CONTENT), whole));
    assert_true(found());
}

static void bounded_process(void)
{
    char input[16], content[2001];
    memset(content, 'c', 2000);
    content[2000] = '\0';
    setenv("CUDA_CACHE_MAXSIZE", "20000", 1);
    for (int i = 0; i < 100; i++) {
        snprintf(input, sizeof input, "source %d", i);
        MUST(compiled(1, input, content) == 0);
        /* its last write may come before the next look */
        MUST(files_in(kept, "") <= 11);
    }
    MUST(compiled(1, "source 99", content) == 1);
    MUST(compiled(1, "source 0", content) == 0);
}

static void nothing_process(void)
{
    setenv("CUDA_CACHE_MAXSIZE", "0", 1);
    MUST(compiled(1, "source", "a cubin") == 0);
    MUST(compiled(1, "source", "a cubin") == 0);
}

static void the_limit_holds(void **state)
{
    (void)state;
    in_process(bounded_process);
    in_process(nothing_process);
}

static void what_broken_writes_left(void **state)
{
    (void)state;
    char stale[128], fresh[128], foreign[128];
    snprintf(stale, sizeof stale, "%s/tmp-0123456789abcdef", home);
    snprintf(fresh, sizeof fresh, "%s/tmp-0123456789abcdee", home);
    snprintf(foreign, sizeof foreign, "%s/index", home);
    write_file(stale, "x", 1);
    write_file(fresh, "x", 1);
    write_file(foreign, "x", 1);
    struct timespec then[2] = {{time(NULL) - 7200, 0}, {time(NULL) - 7200, 0}};
    assert_int_equal(utimensat(AT_FDCWD, stale, then, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, foreign, then, 0), 0);
    gpc_compile_folder_trim(home, 0);
    assert_int_not_equal(access(stale, F_OK), 0);
    assert_int_equal(access(fresh, F_OK), 0); /* somebody writes it */
    assert_int_equal(access(foreign, F_OK), 0);
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
#define CASE(name) cmocka_unit_test_setup_teardown(name, make_home, remove_home)
    const struct CMUnitTest tests[] = {
        CASE(compile_twice_in_two_processes),
        CASE(in_a_named_folder),
        CASE(switched_off),
        CASE(every_part_of_the_key_counts),
        CASE(null_arguments),
        CASE(damaged_and_cut_files),
        CASE(files_of_others),
        CASE(a_folder_that_cannot_be_used),
        CASE(in_a_strange_home),
        CASE(a_full_disk),
        CASE(unused_for_longest_goes_first),
        CASE(too_large_is_not_kept),
        CASE(the_limit_holds),
        CASE(what_broken_writes_left),
        CASE(many_processes_at_once),
        CASE(in_a_forked_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
