#include "area.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "call.h"
#include "memory.h"
#include "memory_file.h"
#include "transport/standard_fds.h"

struct gpc_area {
    uint64_t begin, end; /* the window */
    bool kept;           /* reserved, so that nothing else can be there */
    int fd;
    dev_t dev; /* which file it is: a program may close what is not its own */
    ino_t ino;
    char *alias;
};

/* Windows are never given up, nor are their areas. Under managed.c's lock. */
static struct gpc_area areas[GP_DEVICES_MAX];
static unsigned count;

/* 0, or -errno. */
static int open_file(struct gpc_area *a)
{
    struct stat st;
    size_t size = a->end - a->begin;
    struct gp_standard_fds standard;
    gp_standard_fds_hold(&standard);
    a->fd = memfd_create("gpupool-managed", MFD_CLOEXEC);
    gp_standard_fds_release(&standard);
    if (a->fd < 0)
        return -errno;
    void *alias = MAP_FAILED;
    int r = gp_memory_file_size(a->fd, size);
    if (r == 0 && fstat(a->fd, &st) == 0)
        alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, a->fd, 0);
    if (alias == MAP_FAILED || madvise(alias, size, MADV_DONTFORK) != 0) {
        r = r ? r : -errno;
        if (alias != MAP_FAILED)
            munmap(alias, size);
        close(a->fd);
        return r;
    }
    a->dev = st.st_dev;
    a->ino = st.st_ino;
    a->alias = alias;
    return 0;
}

struct gpc_area *gpc_area_of(const struct gp_device_info *device)
{
    for (unsigned i = 0; i < count; i++)
        if (areas[i].begin == device->window_begin && areas[i].end == device->window_end)
            return &areas[i];
    if (count == GP_DEVICES_MAX || device->window_begin == device->window_end)
        return NULL;
    struct gpc_area *a = &areas[count];
    *a = (struct gpc_area){.begin = device->window_begin,
                           .end = device->window_end,
                           .kept = gpc_window_is_kept(device)};
    int r = open_file(a);
    if (r != 0) {
        gpc_log(GPC_LOG_ERROR,
                "no managed memory: %s (it needs a memory file, and address space of the size of "
                "the device's window: is either limited, or does seccomp forbid memfd_create?)",
                strerror(-r));
        return NULL;
    }
    count++;
    return a;
}

static void close_file(struct gpc_area *a)
{
    munmap(a->alias, a->end - a->begin);
    if (a->fd >= 0)
        close(a->fd);
}

/* Whole pages, into such that are zeros: what nobody has used costs nothing. */
static void copy_pages(char *to, const char *from, size_t bytes)
{
    static const char zeros[4096];
    for (size_t i = 0; i < bytes; i += sizeof zeros)
        if (memcmp(from + i, zeros, sizeof zeros) != 0)
            memcpy(to + i, from + i, sizeof zeros);
}

/* The file's pages in the place of those that are there. 0, or -errno. */
static int take_pages(struct gpc_area *a)
{
    char *at = (char *)(uintptr_t)a->begin;
    size_t bytes = a->end - a->begin;
    if (mprotect(at, bytes, PROT_READ) != 0)
        return -errno;
    copy_pages(a->alias, at, bytes);
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, a->fd, 0) ==
        MAP_FAILED) {
        int r = -errno;
        mprotect(at, bytes, PROT_READ | PROT_WRITE);
        return r;
    }
    madvise(at, bytes, MADV_DONTFORK);
    return 0;
}

/* The mappings keep the file; a process has few descriptors. */
static void close_descriptor(struct gpc_area *a)
{
    close(a->fd);
    a->fd = -1;
}

struct gpc_area *gpc_area_over(uint64_t at, uint64_t bytes)
{
    struct gpc_area *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    *a = (struct gpc_area){.begin = at, .end = at + bytes};
    int r = open_file(a);
    if (r == 0) {
        r = take_pages(a);
        if (r == 0) {
            close_descriptor(a);
            return a;
        }
        close_file(a);
    }
    free(a);
    gpc_log(GPC_LOG_ERROR,
            "no mapped memory: %s (it needs a memory file as large: are files or the address space "
            "limited, or does seccomp forbid memfd_create?)",
            strerror(-r));
    return NULL;
}

void gpc_area_end(struct gpc_area *a)
{
    munmap((void *)(uintptr_t)a->begin, a->end - a->begin);
    close_file(a);
    free(a);
}

/* They are put there at once, whole: a thread that reads meanwhile sees the one or the other. Who
 * has no memory for that keeps the file's, which a child then shares. */
void gpc_area_give_back(struct gpc_area *a)
{
    void *at = (void *)(uintptr_t)a->begin;
    size_t bytes = a->end - a->begin;
    char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at, bytes, PROT_READ);
    if (own != MAP_FAILED)
        copy_pages(own, a->alias, bytes);
    if (own == MAP_FAILED ||
        mremap(own, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) {
        mprotect(at, bytes, PROT_READ | PROT_WRITE);
        madvise(at, bytes, MADV_DOFORK);
        if (own != MAP_FAILED)
            munmap(own, bytes);
    }
    close_file(a);
    free(a);
}

/* Addresses that nobody has, before the alias may take them. */
static bool reserve(uint64_t at, uint64_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *to = (void *)(uintptr_t)at, *got = mmap(to, bytes, PROT_NONE, flags, -1, 0);
    if (got != MAP_FAILED && got != to) /* a kernel before 4.17 takes it for a hint */
        munmap(got, bytes);
    return got == to;
}

struct gpc_area *gpc_area_at(uint64_t at, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    struct gpc_area *a = calloc(1, sizeof *a);
    if (!a || !reserve(at, whole)) {
        free(a);
        return NULL;
    }
    *a = (struct gpc_area){.begin = at, .end = at + whole, .kept = true};
    int r = open_file(a);
    if (r == 0 && gpc_area_map(a, at, whole) == 0) {
        close_descriptor(a);
        return a;
    }
    munmap((void *)(uintptr_t)at, whole);
    if (r == 0)
        close_file(a);
    free(a);
    return NULL;
}

static bool file_is_there(const struct gpc_area *a)
{
    struct stat st;
    return fstat(a->fd, &st) == 0 && st.st_dev == a->dev && st.st_ino == a->ino;
}

int gpc_area_map(const struct gpc_area *a, uint64_t at, uint64_t bytes)
{
    void *to = (void *)(uintptr_t)at;
    const int flags = MAP_SHARED | MAP_NORESERVE |
                      (a->kept ? MAP_FIXED : MAP_FIXED_NOREPLACE); /* never over what is not ours */
    if (!file_is_there(a))
        return -EBADF;
    void *got = mmap(to, bytes, PROT_READ | PROT_WRITE, flags, a->fd, (off_t)(at - a->begin));
    if (got == MAP_FAILED)
        return -errno;
    if (got != to) { /* a kernel before 4.17 takes it for a hint */
        munmap(got, bytes);
        return -EEXIST;
    }
    return madvise(to, bytes, MADV_DONTFORK) == 0 ? 0 : -errno;
}

void gpc_area_unmap(const struct gpc_area *a, uint64_t at, uint64_t bytes)
{
    void *was = (void *)(uintptr_t)at;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (!a->kept || mmap(was, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        munmap(was, bytes);
    madvise(gpc_area_alias(a, at), bytes, MADV_REMOVE);
}

int gpc_area_protect(uint64_t at, uint64_t bytes, enum gpc_open open)
{
    const int rights = open == GPC_OPEN_NOT    ? PROT_NONE
                       : open == GPC_OPEN_READ ? PROT_READ
                                               : PROT_READ | PROT_WRITE;
    return mprotect((void *)(uintptr_t)at, bytes, rights) == 0 ? 0 : -errno;
}

void *gpc_area_alias(const struct gpc_area *a, uint64_t at)
{
    return a->alias + (at - a->begin);
}

/* Without the file all of it counts as touched. */
bool gpc_area_touched(const struct gpc_area *a, uint64_t at, uint64_t end, uint64_t *from,
                      uint64_t *to)
{
    *from = at;
    *to = end;
    if (!file_is_there(a))
        return at < end;
    off_t data = lseek(a->fd, (off_t)(at - a->begin), SEEK_DATA);
    if (data < 0)
        return errno != ENXIO && at < end;
    *from = a->begin + (uint64_t)data;
    if (*from >= end)
        return false;
    off_t hole = lseek(a->fd, data, SEEK_HOLE);
    if (hole >= 0 && a->begin + (uint64_t)hole < end)
        *to = a->begin + (uint64_t)hole;
    return true;
}
