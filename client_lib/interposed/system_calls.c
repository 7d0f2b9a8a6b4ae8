/*
 * What libc does with memory and with SIGSEGV, for programs that have managed memory. The kernel
 * does not fault in what a system call is given: memory that is closed would be EFAULT. So it is
 * opened first, and libc's function is called with an address that stays open.
 *
 * A program calls these in libc's place if this library comes before libc for it: if it is linked
 * with libcuda.so.1, or preloads it. One that opens it later (as cudart does) has libc's.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "export.h"
#include "fault_chain.h"
#include "managed.h"

/* glibc's declarations take an address of any family; musl's are those of POSIX. */
#ifdef __GLIBC__
#define ADDRESS __CONST_SOCKADDR_ARG
#define ADDRESS_ROOM __SOCKADDR_ARG
#else
#define ADDRESS const struct sockaddr *
#define ADDRESS_ROOM struct sockaddr *restrict
#endif

/* --- what they are given ------------------------------------------------------------------------- */

/* The kernel writes and reads by this library's own address, which is never closed; and what it has
 * written is told, because the block may have been closed meanwhile. */
static void *fills(void *to, size_t bytes)
{
    return gpc_managed_view(to, bytes, true);
}

static void filled(void *to, size_t bytes)
{
    int error = errno;
    gpc_managed_filled(to, bytes);
    errno = error;
}

static const void *reads(const void *from, size_t bytes)
{
    return gpc_managed_view(from, bytes, false);
}

static size_t bytes_of(size_t size, size_t n)
{
    size_t bytes;
    return __builtin_mul_overflow(size, n, &bytes) ? 0 : bytes;
}

/* A list of buffers with such addresses. Of a longer one each is opened, and that is all. Lists
 * longer than the kernel takes are its to refuse. */
struct lent {
    const struct iovec *list, *own;
    size_t count;
    struct iovec copy[32];
};

static const struct iovec *lend(struct lent *l, const struct iovec *list, size_t count, bool write)
{
    bool fits = count <= sizeof l->copy / sizeof l->copy[0];
    *l = (struct lent){.list = list, .own = list, .count = list && count <= UIO_MAXIOV ? count : 0};
    for (size_t i = 0; i < l->count; i++) {
        void *view = gpc_managed_view(list[i].iov_base, list[i].iov_len, write);
        if (fits)
            l->copy[i] = (struct iovec){view, list[i].iov_len};
    }
    if (l->count && fits)
        l->list = l->copy;
    return l->list;
}

static void lent_filled(const struct lent *l)
{
    for (size_t i = 0; i < l->count; i++)
        filled(l->own[i].iov_base, l->own[i].iov_len);
}

/* --- in libc's place ----------------------------------------------------------------------------- */

#define FIRST(first, result, name, parameters, arguments, then)                                    \
    GPC_EXPORT result name parameters                                                              \
    {                                                                                              \
        static result(*real) parameters;                                                           \
        void *found = __atomic_load_n((void **)&real, __ATOMIC_RELAXED);                           \
        if (!found) {                                                                              \
            found = dlsym(RTLD_NEXT, #name);                                                       \
            __atomic_store_n((void **)&real, found, __ATOMIC_RELAXED);                             \
        }                                                                                          \
        first;                                                                                     \
        result done = ((result(*) parameters)found)arguments;                                      \
        then;                                                                                      \
        return done;                                                                               \
    }

/* `to` and `from` are what the program gave. */
#define FILLS(result, name, bytes, parameters, arguments)                                          \
    FIRST(void *view = fills(to, bytes), result, name, parameters, arguments,                      \
          if (view != to) filled(to, bytes))
#define READS(result, name, bytes, parameters, arguments)                                          \
    FIRST(const void *view = reads(from, bytes), result, name, parameters, arguments, )
#define FILLS_ALL(name, parameters, arguments)                                                     \
    FIRST(struct lent l;                                                                           \
          lend(&l, v, (size_t)n, true), ssize_t, name, parameters, arguments, lent_filled(&l))

FILLS(ssize_t, read, n, (int fd, void *to, size_t n), (fd, view, n))
FILLS(ssize_t, pread, n, (int fd, void *to, size_t n, off_t at), (fd, view, n, at))
FILLS_ALL(readv, (int fd, const struct iovec *v, int n), (fd, l.list, n))
FILLS_ALL(preadv, (int fd, const struct iovec *v, int n, off_t at), (fd, l.list, n, at))
FILLS(ssize_t, recv, n, (int fd, void *to, size_t n, int flags), (fd, view, n, flags))
FILLS(ssize_t, recvfrom, n,
      (int fd, void *restrict to, size_t n, int flags, ADDRESS_ROOM from, socklen_t *restrict size),
      (fd, view, n, flags, from, size))
FILLS(size_t, fread, bytes_of(size, n),
      (void *restrict to, size_t size, size_t n, FILE *restrict file), (view, size, n, file))

READS(ssize_t, write, n, (int fd, const void *from, size_t n), (fd, view, n))
READS(ssize_t, pwrite, n, (int fd, const void *from, size_t n, off_t at), (fd, view, n, at))
FIRST(struct lent l; lend(&l, v, (size_t)n, false), ssize_t, writev,
                     (int fd, const struct iovec *v, int n), (fd, l.list, n), )
READS(ssize_t, send, n, (int fd, const void *from, size_t n, int flags), (fd, view, n, flags))
READS(ssize_t, sendto, n,
      (int fd, const void *from, size_t n, int flags, ADDRESS to, socklen_t size),
      (fd, view, n, flags, to, size))
READS(size_t, fwrite, bytes_of(size, n),
      (const void *restrict from, size_t size, size_t n, FILE *restrict file),
      (view, size, n, file))

#ifdef __GLIBC__ /* elsewhere off_t has 64 bits, and these are no functions of their own */
FILLS(ssize_t, pread64, n, (int fd, void *to, size_t n, off64_t at), (fd, view, n, at))
READS(ssize_t, pwrite64, n, (int fd, const void *from, size_t n, off64_t at), (fd, view, n, at))
#endif

/* A message whose buffers are lent; NULL is the kernel's to refuse. */
static struct msghdr *lend_message(struct lent *l, struct msghdr *copy, const struct msghdr *m,
                                   bool write)
{
    if (!m)
        return NULL;
    *copy = *m;
    copy->msg_iov = (struct iovec *)(uintptr_t)lend(l, m->msg_iov, m->msg_iovlen, write);
    return copy;
}

static void message_filled(const struct lent *l, const struct msghdr *copy, struct msghdr *m)
{
    if (!m)
        return;
    m->msg_namelen = copy->msg_namelen;
    m->msg_controllen = copy->msg_controllen;
    m->msg_flags = copy->msg_flags;
    lent_filled(l);
}

FIRST(struct lent l; struct msghdr copy; struct msghdr *given = lend_message(&l, &copy, m, true),
                                         ssize_t, recvmsg, (int fd, struct msghdr *m, int flags),
                                         (fd, given, flags), message_filled(&l, &copy, m))
FIRST(struct lent l; struct msghdr copy;
      struct msghdr *given = lend_message(&l, &copy, m, false), ssize_t, sendmsg,
      (int fd, const struct msghdr *m, int flags), (fd, given, flags), )

/* --- SIGSEGV ------------------------------------------------------------------------------------- */

typedef int sigaction_function(int, const struct sigaction *, struct sigaction *);

static int system_sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    static sigaction_function *real;
    sigaction_function *found = __atomic_load_n(&real, __ATOMIC_RELAXED);
    if (!found) {
        *(void **)&found = dlsym(RTLD_NEXT, "sigaction");
        __atomic_store_n(&real, found, __ATOMIC_RELAXED);
    }
    return found(number, action, old);
}

__attribute__((constructor)) static void use_it(void)
{
    gpc_fault_chain_system = system_sigaction;
}

/* Who installs a handler while ours is in front gets behind it. */
GPC_EXPORT int sigaction(int number, const struct sigaction *restrict action,
                         struct sigaction *restrict old)
{
    return number == SIGSEGV && gpc_fault_chain_set(action, old)
               ? 0
               : system_sigaction(number, action, old);
}

static sighandler_t segv_signal(sighandler_t handler, bool *done)
{
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    *done = gpc_fault_chain_set(&action, &old);
    return *done ? old.sa_handler : SIG_ERR;
}

GPC_EXPORT sighandler_t signal(int number, sighandler_t handler)
{
    bool done = false;
    sighandler_t before = number == SIGSEGV ? segv_signal(handler, &done) : SIG_ERR;
    sighandler_t (*real)(int, sighandler_t);
    *(void **)&real = dlsym(RTLD_NEXT, "signal");
    return done ? before : real(number, handler);
}
