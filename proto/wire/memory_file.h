/* Files that are memory: their size, and whether that stays. */
#ifndef GP_MEMORY_FILE_H
#define GP_MEMORY_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

/* A limit of the size of files (RLIMIT_FSIZE, `ulimit -f`) holds for these, too, and the kernel ends
 * a process that meets it by SIGXFSZ: here it is an error. 0 or -errno; -EFBIG: the limit is lower. */
static inline int gp_memory_file_size(int fd, uint64_t bytes)
{
    const struct timespec at_once = {0};
    sigset_t limit, before;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, &before);
    int r = ftruncate(fd, (off_t)bytes) == 0 ? 0 : -errno;
    if (r == -EFBIG) /* the signal, unless the program ignores it, is this thread's */
        sigtimedwait(&limit, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

/* Whether it has all of these seals; whatever else a descriptor may be of has none. A kernel may
 * add one of its own, against programs in such files (vm.memfd_noexec). */
static inline bool gp_memory_file_sealed(int fd, int seals)
{
    int has = fcntl(fd, F_GET_SEALS);
    return has >= 0 && (has & seals) == seals;
}

#endif
