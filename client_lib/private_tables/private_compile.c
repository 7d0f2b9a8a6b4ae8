/*
 * da9151d3: where NVRTC keeps what it has compiled. Answered here without any message, from
 * memory (private_compile_memory.c) and from files of the user's (private_compile_files.c).
 * NVIDIA's variables mean what they mean to NVIDIA's driver.
 */
#if GPUPOOL_PRIVATE_TABLES
#include "private_compile.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cancel.h"
#include "private_internal.h"
#include "sha256.h"

#define LIMIT_DEFAULT ((uint64_t)1 << 30)
#define LIMIT_MOST ((uint64_t)4 << 30)
/* What a hit's size can be told in. */
#define SIZE_MOST ((uint64_t)UINT32_MAX)

struct gpc_compile_entry {
    unsigned char key[GPC_COMPILE_KEY];
};

static struct gpc_private_compile_counts counts;

#define COUNT(field) __atomic_fetch_add(&counts.field, 1, __ATOMIC_RELAXED)

void gpc_private_compile_counted(struct gpc_private_compile_counts *out)
{
    out->memory_hits = __atomic_load_n(&counts.memory_hits, __ATOMIC_RELAXED);
    out->file_hits = __atomic_load_n(&counts.file_hits, __ATOMIC_RELAXED);
    out->misses = __atomic_load_n(&counts.misses, __ATOMIC_RELAXED);
    out->stored = __atomic_load_n(&counts.stored, __ATOMIC_RELAXED);
}

/* --- what the variables say --- */

static bool disabled;
static uint64_t limit;        /* bytes of all files */
static char folder[PATH_MAX]; /* empty: memory alone */

static uint64_t limit_read(const char *text)
{
    char *end;
    if (!text || *text < '0' || *text > '9')
        return LIMIT_DEFAULT;
    errno = 0;
    unsigned long long bytes = strtoull(text, &end, 10);
    if (*end)
        return LIMIT_DEFAULT;
    return errno == ERANGE || bytes > LIMIT_MOST ? LIMIT_MOST : bytes;
}

/* Only in a home of our own: another user's (sudo keeps HOME) is not to be littered. */
static bool default_place(char *out, size_t size)
{
    struct stat s;
    const char *home = secure_getenv("HOME");
    if (!home || *home != '/' || stat(home, &s) != 0 || s.st_uid != geteuid())
        return false;
    return snprintf(out, size, "%s/.nv/ComputeCache/gpupool", home) < (int)size;
}

/* A folder of our own inside the one that is the driver's: their files are not of one kind. */
static bool named_place(const char *path, char *out, size_t size)
{
    char here[PATH_MAX] = "";
    if (*path != '/' && !getcwd(here, sizeof here))
        return false;
    const char *slash = *path == '/' ? "" : "/";
    return snprintf(out, size, "%s%s%s/gpupool", here, slash, path) < (int)size;
}

#define UNSAFE "it is not a folder of this user's alone (chmod 700, or remove it)"

static void say(int why)
{
    const struct gpc_private_host *host = gpc_private_kept_host();
    char line[PATH_MAX + 256], text[128];
    if (!host || !host->note)
        return;
    errno = why; /* strerror_r is one function in glibc and another in musl */
    snprintf(text, sizeof text, "%m");
    snprintf(line, sizeof line, "compile cache %s: %s; compiled kernels are kept in memory only",
             folder, why == EPERM ? UNSAFE : text);
    host->note(why == EPERM, line);
}

static void configure(void)
{
    const char *off = getenv("CUDA_CACHE_DISABLE"), *path = secure_getenv("CUDA_CACHE_PATH");
    disabled = off && strcmp(off, "1") == 0;
    limit = limit_read(getenv("CUDA_CACHE_MAXSIZE"));
    bool named = path && *path;
    if (disabled || !(named ? named_place(path, folder, sizeof folder)
                            : default_place(folder, sizeof folder))) {
        folder[0] = '\0';
        return;
    }
    int wrong = gpc_compile_folder_make(folder);
    if (wrong == 0)
        return;
    say(wrong);
    folder[0] = '\0';
}

static void ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, configure);
}

/* --- the key --- */

static void add(struct gp_sha256 *h, const void *bytes, uint64_t size)
{
    gp_sha256_add(h, &size, sizeof size);
    gp_sha256_add(h, bytes, (size_t)size);
}

/* No text is not the empty one. */
static void add_text(struct gp_sha256 *h, const char *text)
{
    uint32_t given = text != NULL;
    add(h, &given, sizeof given);
    add(h, text, text ? strlen(text) : 0);
}

/* --- the slots --- */

CUresult gpc_compile_open(struct gpc_compile_entry **entry, int kind, const void *input,
                          size_t input_size, const char *options, const char *tag,
                          const char *build, int arch, int zero)
{
    if (!entry || (!input && input_size))
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_compile_entry *e = malloc(sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const int32_t numbers[3] = {kind, arch, zero};
    struct gp_sha256 h;
    gp_sha256_start(&h);
    add(&h, numbers, sizeof numbers);
    add(&h, input, input_size);
    add_text(&h, options);
    add_text(&h, tag);
    add_text(&h, build);
    gp_sha256_finish(&h, e->key);
    *entry = e;
    return CUDA_SUCCESS;
}

CUresult gpc_compile_close(struct gpc_compile_entry *entry, int zero)
{
    (void)zero;
    if (!entry)
        return CUDA_ERROR_INVALID_VALUE;
    free(entry);
    return CUDA_SUCCESS;
}

/* A copy that free() takes, NULL on a miss. */
static void *find(const unsigned char key[GPC_COMPILE_KEY], size_t *size)
{
    ready();
    void *found = disabled ? NULL : gpc_compile_memory_get(key, size);
    if (found) {
        COUNT(memory_hits);
        return found;
    }
    if (folder[0]) {
        uint64_t most = limit < SIZE_MOST ? limit : SIZE_MOST;
        found = gpc_compile_file_get(folder, key, most, size);
    }
    if (found) {
        COUNT(file_hits);
        gpc_compile_memory_put(key, found, *size, limit);
    } else {
        COUNT(misses);
    }
    return found;
}

CUresult gpc_compile_get(struct gpc_compile_entry *entry, int zero, void **data, uint32_t *size)
{
    (void)zero;
    if (!entry || !data || !size)
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = 0;
    int cancel = gpc_cancel_off();
    void *found = find(entry->key, &bytes);
    gpc_cancel_back(cancel);
    if (!found)
        return CUDA_ERROR_NOT_FOUND;
    *data = found;
    *size = (uint32_t)bytes;
    return CUDA_SUCCESS;
}

static void keep(const unsigned char key[GPC_COMPILE_KEY], const void *data, size_t size)
{
    ready();
    if (disabled || size == 0 || size > limit || size > SIZE_MOST - 4096)
        return;
    COUNT(stored);
    gpc_compile_memory_put(key, data, size, limit);
    if (folder[0])
        gpc_compile_file_put(folder, key, data, size, limit);
}

CUresult gpc_compile_put(struct gpc_compile_entry *entry, int zero, const void *data, size_t size)
{
    (void)zero;
    if (!entry || (!data && size))
        return CUDA_ERROR_INVALID_VALUE;
    int cancel = gpc_cancel_off();
    keep(entry->key, data, size);
    gpc_cancel_back(cancel);
    return CUDA_SUCCESS;
}

CUresult gpc_compile_free(void *data)
{
    free(data);
    return CUDA_SUCCESS;
}
#else
#include "private_tables.h"

void gpc_private_compile_counted(struct gpc_private_compile_counts *out)
{
    *out = (struct gpc_private_compile_counts){0};
}
#endif
