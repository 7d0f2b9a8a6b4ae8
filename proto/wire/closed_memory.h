/* A process that other processes of its user are to have no part in. */
#ifndef GP_CLOSED_MEMORY_H
#define GP_CLOSED_MEMORY_H

#include <sys/prctl.h>
#include <sys/resource.h>

/*
 * Nobody without CAP_SYS_PTRACE traces this process, or reads its memory, environment and
 * descriptors in /proc, and no core dump is made of it: not to a pipe (core_pattern) either, which
 * the limit does not stop. execve and a change of user undo it, so call it after both. 0, or -1
 * with errno.
 */
static inline int gp_memory_close(void)
{
    const struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_CORE, &none) != 0)
        return -1;
    return prctl(PR_SET_DUMPABLE, 0ul, 0ul, 0ul, 0ul);
}

#endif
