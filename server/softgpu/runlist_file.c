/* The runlist's file, and the world that it is in. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runlist.h"

#define MAGIC UINT64_C(0x7473696c6e757267) /* "grunlist" */

/* --- the world as it is --------------------------------------------------------- */

static uint64_t real_now(void *context)
{
    struct timespec t;
    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t sg_process_start(int32_t pid)
{
    char path[32], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char state = 0, *at = strrchr(text, ')'); /* the name before it may hold anything */
    unsigned long long start = 0;
    if (!at || sscanf(at + 1,
                      " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                      "%*d %*d %*d %llu",
                      &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start;
}

const struct sg_runlist_world sg_runlist_real = {real_now, NULL, NULL};

/* --- the file ------------------------------------------------------------------- */

static void file_init(struct sg_runlist_file *f)
{
    pthread_mutexattr_t shared;
    memset(f, 0, sizeof(*f));
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&f->lock, &shared);
    pthread_mutexattr_destroy(&shared);
    f->holder = -1;
    f->version = SG_RUNLIST_VERSION;
    f->size = sizeof(*f);
    /* last: a process that dies before this leaves a file that the next one begins anew */
    __atomic_store_n(&f->magic, MAGIC, __ATOMIC_RELEASE);
}

/* With the file locked against others that open it. */
static int file_map(int fd, struct sg_runlist_file **out)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return -errno;
    /* taken now: a page that the file system has no room for would end us when we touch it */
    int full = info.st_size == 0 ? posix_fallocate(fd, 0, sizeof(**out)) : 0;
    if (full != 0)
        return ftruncate(fd, 0) != 0 ? -errno : -full;
    if (info.st_size != 0 && info.st_size != sizeof(**out))
        return -EPROTO;
    struct sg_runlist_file *f = mmap(NULL, sizeof(*f), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (f == MAP_FAILED)
        return -errno;
    if (f->magic == 0)
        file_init(f);
    if (f->magic != MAGIC || f->version != SG_RUNLIST_VERSION || f->size != sizeof(*f)) {
        munmap(f, sizeof(*f));
        return -EPROTO;
    }
    *out = f;
    return 0;
}

/* Workers of one device may be of several users: its folder says who may write there. */
int sg_shared_file(const char *path)
{
    char folder[4096];
    struct stat info;
    int fd = open(path, O_RDWR | O_CLOEXEC); /* without O_CREAT: it may be another user's */
    if (fd >= 0 || errno != ENOENT)
        return fd;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const char *slash = strrchr(path, '/');
    if (fd < 0 || !slash || (size_t)(slash - path) >= sizeof(folder))
        return fd;
    snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
    if (stat(folder, &info) == 0 && fchmod(fd, 0600 | (info.st_mode & 0066)) == 0)
        return fd;
    close(fd);
    return -1;
}

int sg_runlist_open(const char *path, const struct sg_runlist_world *world, struct sg_runlist **out)
{
    struct sg_runlist *list = calloc(1, sizeof(*list));
    if (!list)
        return -ENOMEM;
    int r = 0;
    list->world = world;
    list->fd = sg_shared_file(path);
    if (list->fd < 0 || flock(list->fd, LOCK_EX) != 0)
        r = -errno;
    if (r == 0)
        r = file_map(list->fd, &list->file);
    if (list->fd >= 0)
        flock(list->fd, LOCK_UN);
    if (r != 0) {
        if (list->fd >= 0)
            close(list->fd);
        free(list);
        return r;
    }
    *out = list;
    return 0;
}

/* Whether the turn is the same in both. */
static bool same_turn(const struct sg_runlist_file *a, const struct sg_runlist_file *b)
{
    return a->holder == b->holder && a->granted_at == b->granted_at;
}

static int read_whole(int fd, struct sg_runlist_file *copy)
{
    ssize_t n = pread(fd, copy, sizeof(*copy), 0);
    if (n < 0)
        return -errno;
    bool ok = n == (ssize_t)sizeof(*copy) && copy->magic == MAGIC &&
              copy->version == SG_RUNLIST_VERSION && copy->size == sizeof(*copy);
    return ok && sg_runlist_indices_ok(copy) ? 0 : -EPROTO;
}

/* So often again, where the turn has changed meanwhile: an account is off by a slice then. */
#define COPIES 4

int sg_runlist_copy(const char *path, struct sg_runlist_file *copy)
{
    struct sg_runlist_file head;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    int r = fstat(fd, &info) != 0 ? -errno : S_ISREG(info.st_mode) ? 0 : -EPROTO;
    for (int i = 0; r == 0 && i < COPIES; i++) {
        r = read_whole(fd, copy);
        if (r == 0 && (r = read_whole(fd, &head)) == 0 && same_turn(copy, &head))
            break;
    }
    close(fd);
    return r;
}

void sg_runlist_close(struct sg_runlist *list)
{
    if (!list)
        return;
    munmap(list->file, sizeof(*list->file));
    close(list->fd);
    free(list);
}
