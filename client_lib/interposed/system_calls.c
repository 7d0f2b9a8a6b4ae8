/*
 * What libc does with memory and with SIGSEGV, for programs that have managed memory. The kernel
 * does not fault in what a system call is given: memory that is closed would be EFAULT. So it is
 * opened first, and then libc's function is called.
 *
 * A program calls these in libc's place if this library comes before libc for it: if it is linked
 * with libcuda.so.1, or preloads it. One that opens it later (as cudart does) has libc's.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "export.h"
#include "fault_chain.h"
#include "managed.h"

/* --- what they do first -------------------------------------------------------------------------- */

/* Opened: nothing more than if the program had touched it. */
static void fills(void *to, size_t bytes)
{
    gpc_managed_view(to, bytes, true);
}

static void reads(const void *from, size_t bytes)
{
    gpc_managed_view(from, bytes, false);
}

/* Lists longer than the kernel takes are its to refuse. */
static void fills_all(const struct iovec *list, size_t count)
{
    for (size_t i = 0; list && count <= UIO_MAXIOV && i < count; i++)
        fills(list[i].iov_base, list[i].iov_len);
}

static void reads_all(const struct iovec *list, size_t count)
{
    for (size_t i = 0; list && count <= UIO_MAXIOV && i < count; i++)
        reads(list[i].iov_base, list[i].iov_len);
}

static size_t bytes_of(size_t size, size_t n)
{
    size_t bytes;
    return __builtin_mul_overflow(size, n, &bytes) ? 0 : bytes;
}

/* --- in libc's place ----------------------------------------------------------------------------- */

#define FIRST(first, result, name, parameters, arguments)                                          \
    GPC_EXPORT result name parameters                                                              \
    {                                                                                              \
        static result(*real) parameters;                                                           \
        void *found = __atomic_load_n((void **)&real, __ATOMIC_RELAXED);                           \
        if (!found) {                                                                              \
            found = dlsym(RTLD_NEXT, #name);                                                       \
            __atomic_store_n((void **)&real, found, __ATOMIC_RELAXED);                             \
        }                                                                                          \
        first;                                                                                     \
        return ((result(*) parameters)found)arguments;                                             \
    }

FIRST(fills(to, n), ssize_t, read, (int fd, void *to, size_t n), (fd, to, n))
FIRST(fills(to, n), ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
FIRST(fills(to, n), ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at))
FIRST(fills_all(v, (size_t)n), ssize_t, readv, (int fd, const struct iovec *v, int n), (fd, v, n))
FIRST(fills_all(v, (size_t)n), ssize_t, preadv, (int fd, const struct iovec *v, int n, off_t at),
      (fd, v, n, at))
FIRST(fills(to, n), ssize_t, recv, (int fd, void *to, size_t n, int flags), (fd, to, n, flags))
FIRST(fills(to, n), ssize_t, recvfrom,
      (int fd, void *restrict to, size_t n, int flags, __SOCKADDR_ARG from,
       socklen_t *restrict size),
      (fd, to, n, flags, from, size))
FIRST(fills_all(m ? m->msg_iov : NULL, m ? m->msg_iovlen : 0), ssize_t, recvmsg,
      (int fd, struct msghdr *m, int flags), (fd, m, flags))
FIRST(fills(to, bytes_of(size, n)), size_t, fread,
      (void *restrict to, size_t size, size_t n, FILE *restrict file), (to, size, n, file))

FIRST(reads(from, n), ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))
FIRST(reads(from, n), ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at),
      (fd, from, n, at))
FIRST(reads(from, n), ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at),
      (fd, from, n, at))
FIRST(reads_all(v, (size_t)n), ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n))
FIRST(reads(from, n), ssize_t, send, (int fd, const void *from, size_t n, int flags),
      (fd, from, n, flags))
FIRST(reads(from, n), ssize_t, sendto,
      (int fd, const void *from, size_t n, int flags, __CONST_SOCKADDR_ARG to, socklen_t size),
      (fd, from, n, flags, to, size))
FIRST(reads_all(m ? m->msg_iov : NULL, m ? m->msg_iovlen : 0), ssize_t, sendmsg,
      (int fd, const struct msghdr *m, int flags), (fd, m, flags))
FIRST(reads(from, bytes_of(size, n)), size_t, fwrite,
      (const void *restrict from, size_t size, size_t n, FILE *restrict file),
      (from, size, n, file))

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

static __sighandler_t segv_signal(__sighandler_t handler, bool *done)
{
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    *done = gpc_fault_chain_set(&action, &old);
    return *done ? old.sa_handler : SIG_ERR;
}

GPC_EXPORT __sighandler_t signal(int number, __sighandler_t handler)
{
    bool done = false;
    __sighandler_t before = number == SIGSEGV ? segv_signal(handler, &done) : SIG_ERR;
    __sighandler_t (*real)(int, __sighandler_t);
    *(void **)&real = dlsym(RTLD_NEXT, "signal");
    return done ? before : real(number, handler);
}
