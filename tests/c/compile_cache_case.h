/*
 * What every case of the compile cache begins and ends with: a home of its own, processes of its
 * own, because the variables are read once, and the slots as NVRTC calls them.
 */
#ifndef COMPILE_CACHE_CASE_H
#define COMPILE_CACHE_CASE_H

#include "private_host.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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

static inline int make_home(void **state)
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

static inline int remove_home(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", home);
    return system(command);
}

/* Run `what` in a process of its own, which must come to its end. */
static inline void in_process(void (*what)(void))
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

static inline void *opened_with(int kind, const char *input, const char *options, const char *tag,
                                const char *build, int arch)
{
    void *entry = NULL;
    open_slot open_ = SLOT_OF(table_of(COMPILE), 1, open_slot);
    MUST(open_(&entry, kind, input, strlen(input), options, tag, build, arch, 0) == 0 && entry);
    return entry;
}

static inline void *opened(int kind, const char *input)
{
    return opened_with(kind, input, kind == 1 ? " -arch=sm_90" : " -arch=compute_90", "HOST64",
                       BUILD, 90);
}

static inline void closed(void *entry)
{
    MUST(SLOT_OF(table_of(COMPILE), 2, close_slot)(entry, 0) == 0);
}

/* 1: what was found is `content`. 0: a miss, with the outputs untouched. */
static inline int look(void *entry, const char *content)
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
static inline int compiled(int kind, const char *input, const char *content)
{
    void *entry = opened(kind, input);
    int hit = look(entry, content);
    if (!hit)
        MUST(SLOT_OF(table_of(COMPILE), 4, put_slot)(entry, 0, content, strlen(content)) == 0);
    closed(entry);
    return hit;
}

static inline struct gpc_private_compile_counts counted(void)
{
    struct gpc_private_compile_counts c;
    gpc_private_compile_counted(&c);
    return c;
}

static inline unsigned files_in(const char *folder, const char *prefix)
{
    unsigned count = 0;
    DIR *dir = opendir(folder);
    for (const struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        count += e->d_name[0] != '.' && strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    if (dir)
        closedir(dir);
    return count;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_home, remove_home)

#endif
