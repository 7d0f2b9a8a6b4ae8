/* The compile cache's files: what they are trusted for, how many are kept, and how it does
 * without them. */
#include "compile_cache_case.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(damaged_and_cut_files), CASE(files_of_others), CASE(a_folder_that_cannot_be_used),
        CASE(in_a_strange_home),     CASE(a_full_disk),     CASE(unused_for_longest_goes_first),
        CASE(too_large_is_not_kept), CASE(the_limit_holds), CASE(what_broken_writes_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
