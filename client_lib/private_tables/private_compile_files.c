/*
 * What was compiled, in a folder of the user's: one file for each key, written under a
 * temporary name and renamed, so that a reader sees a whole file or none. Any number of
 * processes share the folder without a lock; what they find damaged, foreign or writable by
 * others is a miss. The folder is opened anew for each use: a descriptor that is kept could
 * be closed, and its number used again, by the program that we live in.
 */
#if GPUPOOL_PRIVATE_TABLES
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "private_compile.h"
#include "sha256.h"

#define MAGIC "gpucache"
#define VERSION 1u
#define NAME_DIGITS (2 * GPC_COMPILE_KEY)
#define FILES_MOST 65536u
/* A temporary file that is older was left by a process that died. */
#define STALE_SECONDS 3600

/* --- one file --- */

bool gpc_compile_file_sound(const void *bytes, size_t size,
                            const unsigned char key[GPC_COMPILE_KEY])
{
    struct gpc_compile_header h;
    unsigned char hash[32];
    if (size <= sizeof h)
        return false;
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0 || h.version != VERSION ||
        h.header_size != sizeof h || h.size != size - sizeof h ||
        memcmp(h.key, key, sizeof h.key) != 0)
        return false;
    gp_sha256((const char *)bytes + sizeof h, (size_t)h.size, hash);
    return memcmp(hash, h.hash, sizeof hash) == 0;
}

static bool ours_alone(const struct stat *s)
{
    return s->st_uid == geteuid() && (s->st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

static void name_of(const unsigned char key[GPC_COMPILE_KEY], char name[NAME_DIGITS + 1])
{
    for (unsigned i = 0; i < GPC_COMPILE_KEY; i++)
        snprintf(name + 2 * i, 3, "%02x", key[i]);
}

static bool read_all(int fd, char *to, size_t size)
{
    while (size > 0) {
        ssize_t n = read(fd, to, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        to += n;
        size -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const char *from, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, from, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        from += n;
        size -= (size_t)n;
    }
    return true;
}

/* --- the folder --- */

/* Make the folders above `path`, as far as they are missing. */
static void make_parents(const char *path)
{
    char part[PATH_MAX];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t length = (size_t)(slash - path);
        if (length >= sizeof part)
            return;
        memcpy(part, path, length);
        part[length] = '\0';
        mkdir(part, 0700);
    }
}

static int folder_open(const char *path, bool make)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = open(path, flags);
    if (fd < 0 && errno == ENOENT && make) {
        make_parents(path);
        mkdir(path, 0700);
        fd = open(path, flags);
    }
    struct stat s;
    if (fd < 0 || (fstat(fd, &s) == 0 && ours_alone(&s)))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

int gpc_compile_folder_make(const char *folder)
{
    int fd = folder_open(folder, true);
    if (fd < 0)
        return errno == ELOOP || errno == ENOTDIR ? EPERM : errno;
    close(fd);
    return 0;
}

/* --- reading --- */

/* The open file's content, if it may be one of ours. */
static char *content_of(int fd, uint64_t most, size_t *size)
{
    struct stat s;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || !ours_alone(&s) || s.st_size <= 0 ||
        (uint64_t)s.st_size > most)
        return NULL;
    char *bytes = malloc((size_t)s.st_size);
    if (bytes && !read_all(fd, bytes, (size_t)s.st_size)) {
        free(bytes);
        return NULL;
    }
    *size = (size_t)s.st_size;
    return bytes;
}

void *gpc_compile_file_get(const char *folder, const unsigned char key[GPC_COMPILE_KEY],
                           uint64_t most, size_t *size)
{
    char name[NAME_DIGITS + 1];
    name_of(key, name);
    int dir = folder_open(folder, false);
    if (dir < 0)
        return NULL;
    /* without waiting for a writer, should it be a pipe */
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close(dir);
    if (fd < 0)
        return NULL;
    size_t total = 0;
    char *bytes = content_of(fd, most, &total);
    if (bytes && !gpc_compile_file_sound(bytes, total, key)) {
        free(bytes);
        bytes = NULL;
    }
    if (bytes) {
        futimens(fd, NULL); /* in use: others go first */
        *size = total - sizeof(struct gpc_compile_header);
        memmove(bytes, bytes + sizeof(struct gpc_compile_header), *size);
    }
    close(fd);
    return bytes;
}

/* --- keeping within the limit --- */

struct file {
    struct timespec used;
    uint64_t size;
    char name[NAME_DIGITS + 1];
};

struct listing {
    struct file *files;
    size_t count, room;
    uint64_t bytes;
};

static int used_earlier(const void *a, const void *b)
{
    const struct timespec *x = &((const struct file *)a)->used;
    const struct timespec *y = &((const struct file *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

static void list_add(struct listing *l, const char *name, const struct stat *s)
{
    if (l->count == l->room) {
        size_t room = l->room ? 2 * l->room : 256;
        struct file *more = realloc(l->files, room * sizeof *more);
        if (!more)
            return;
        l->files = more;
        l->room = room;
    }
    struct file *f = &l->files[l->count++];
    f->used = s->st_mtim;
    f->size = (uint64_t)s->st_size;
    memcpy(f->name, name, sizeof f->name);
    l->bytes += f->size;
}

static bool is_ours(const char *name)
{
    return strlen(name) == NAME_DIGITS && strspn(name, "0123456789abcdef") == NAME_DIGITS;
}

static void look_at(int dir, const char *name, struct listing *l)
{
    struct stat s;
    bool temporary = strncmp(name, "tmp-", 4) == 0;
    if ((!temporary && !is_ours(name)) || fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    if (temporary && s.st_mtim.tv_sec < time(NULL) - STALE_SECONDS)
        unlinkat(dir, name, 0);
    else if (!temporary)
        list_add(l, name, &s);
}

/* Takes `dir` over. */
static void trim(int dir, uint64_t limit)
{
    DIR *stream = fdopendir(dir);
    if (!stream) {
        close(dir);
        return;
    }
    struct listing l = {0};
    for (const struct dirent *e = readdir(stream); e; e = readdir(stream))
        look_at(dir, e->d_name, &l);
    if (l.bytes > limit || l.count > FILES_MOST) {
        /* somewhat more than needed, so that the next one needs nothing */
        uint64_t bytes = limit - limit / 8;
        size_t count = FILES_MOST - FILES_MOST / 8;
        qsort(l.files, l.count, sizeof *l.files, used_earlier);
        for (size_t i = 0; i < l.count && (l.bytes > bytes || l.count - i > count); i++) {
            unlinkat(dir, l.files[i].name, 0);
            l.bytes -= l.files[i].size;
        }
    }
    free(l.files);
    closedir(stream);
}

void gpc_compile_folder_trim(const char *folder, uint64_t limit)
{
    int dir = folder_open(folder, false);
    if (dir >= 0)
        trim(dir, limit);
}

/* Whether it is time to look at the whole folder: at a process's first file, and whenever it
 * has written a sixteenth of what may be there. */
static bool trim_due(uint64_t written, uint64_t limit)
{
    static bool looked;
    static uint64_t since;
    uint64_t now = __atomic_add_fetch(&since, written, __ATOMIC_RELAXED);
    if (__atomic_exchange_n(&looked, true, __ATOMIC_RELAXED) && now <= limit / 16)
        return false;
    __atomic_store_n(&since, 0, __ATOMIC_RELAXED);
    return true;
}

/* --- writing --- */

/* A file that may not grow so far would end the program with SIGXFSZ. */
static bool may_grow(uint64_t size)
{
    struct rlimit most;
    return getrlimit(RLIMIT_FSIZE, &most) == 0 &&
           (most.rlim_cur == RLIM_INFINITY || size <= most.rlim_cur);
}

static bool file_write(int dir, const char *name, const struct gpc_compile_header *h,
                       const void *data)
{
    uint64_t random;
    char temporary[32];
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        return false;
    snprintf(temporary, sizeof temporary, "tmp-%016" PRIx64, random);
    int fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool done = write_all(fd, (const char *)h, sizeof *h) && write_all(fd, data, (size_t)h->size);
    done = close(fd) == 0 && done;
    done = done && renameat(dir, temporary, dir, name) == 0;
    if (!done)
        unlinkat(dir, temporary, 0);
    return done;
}

bool gpc_compile_file_put(const char *folder, const unsigned char key[GPC_COMPILE_KEY],
                          const void *data, size_t size, uint64_t limit)
{
    char name[NAME_DIGITS + 1];
    struct gpc_compile_header h = {.version = VERSION, .header_size = sizeof h, .size = size};
    if (size > limit || limit - size < sizeof h || !may_grow(sizeof h + (uint64_t)size))
        return false;
    name_of(key, name);
    memcpy(h.magic, MAGIC, sizeof h.magic); /* without its NUL */
    memcpy(h.key, key, sizeof h.key);
    gp_sha256(data, size, h.hash);
    int dir = folder_open(folder, true);
    if (dir < 0)
        return false;
    bool done = file_write(dir, name, &h, data);
    if (done && trim_due(sizeof h + size, limit))
        trim(dir, limit);
    else
        close(dir);
    return done;
}
#endif
