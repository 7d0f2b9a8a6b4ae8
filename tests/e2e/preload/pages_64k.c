/*
 * Makes a machine's pages 64 KiB for the program that it is preloaded into, as those of many arm64
 * kernels are: whoever asks is told so, mappings lie on such boundaries, and what such a kernel
 * refuses is refused. What libc maps by itself is not seen.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE ((uintptr_t)64 << 10)
#define FIXED (MAP_FIXED | MAP_FIXED_NOREPLACE)

static uintptr_t whole(uintptr_t bytes)
{
    return (bytes + PAGE - 1) & ~(PAGE - 1);
}

static int is_page(uintptr_t at)
{
    errno = at % PAGE ? EINVAL : errno;
    return at % PAGE == 0;
}

long sysconf(int name)
{
    long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE ? (long)PAGE : real(name);
}

int getpagesize(void)
{
    return (int)PAGE;
}

unsigned long getauxval(unsigned long type)
{
    unsigned long (*real)(unsigned long) = (unsigned long (*)(unsigned long))dlsym(RTLD_NEXT,
                                                                                   "getauxval");
    return type == AT_PAGESZ ? PAGE : real(type);
}

static void *map(void *at, size_t bytes, int rights, int flags, int fd, off_t offset)
{
    return (void *)syscall(SYS_mmap, at, bytes, rights, flags, fd, offset);
}

/* Addresses for that many bytes, with a page more around them given back. */
static void *place_for(size_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *got = map(NULL, bytes + PAGE, PROT_NONE, flags, -1, 0);
    if (got == MAP_FAILED)
        return got;
    uintptr_t begin = (uintptr_t)got, at = whole(begin), end = begin + bytes + PAGE;
    if (at > begin)
        syscall(SYS_munmap, begin, at - begin);
    if (end > at + bytes)
        syscall(SYS_munmap, at + bytes, end - at - bytes);
    return (void *)at;
}

void *mmap(void *at, size_t bytes, int rights, int flags, int fd, off_t offset)
{
    if (!is_page((uintptr_t)offset) || ((flags & FIXED) && !is_page((uintptr_t)at)) || !bytes) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    bytes = whole(bytes);
    if (flags & FIXED)
        return map(at, bytes, rights, flags, fd, offset);
    if (at && (uintptr_t)at % PAGE == 0) {
        void *hinted = map(at, bytes, rights, flags | MAP_FIXED_NOREPLACE, fd, offset);
        if (hinted != MAP_FAILED)
            return hinted;
    }
    void *place = place_for(bytes);
    if (place == MAP_FAILED)
        return place;
    void *got = map(place, bytes, rights, flags | MAP_FIXED, fd, offset);
    if (got == MAP_FAILED) {
        int why = errno;
        syscall(SYS_munmap, place, bytes);
        errno = why;
    }
    return got;
}

void *mmap64(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap")));

int munmap(void *at, size_t bytes)
{
    return is_page((uintptr_t)at) ? (int)syscall(SYS_munmap, at, whole(bytes)) : -1;
}

int mprotect(void *at, size_t bytes, int rights)
{
    return is_page((uintptr_t)at) ? (int)syscall(SYS_mprotect, at, whole(bytes), rights) : -1;
}

int madvise(void *at, size_t bytes, int advice)
{
    return is_page((uintptr_t)at) ? (int)syscall(SYS_madvise, at, whole(bytes), advice) : -1;
}

void *mremap(void *at, size_t before, size_t after, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(more, void *) : NULL;
    va_end(more);
    if (!is_page((uintptr_t)at) || !is_page((uintptr_t)to))
        return MAP_FAILED;
    return (void *)syscall(SYS_mremap, at, whole(before), whole(after), flags, to);
}
