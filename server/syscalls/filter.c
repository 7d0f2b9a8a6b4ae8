#include "filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "counts.h"

static int install(const struct sock_filter *code, size_t count)
{
    struct sock_fprog program = {.len = (unsigned short)count,
                                 .filter = (struct sock_filter *)(uintptr_t)code};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

int gp_filter_install(enum gp_filter_driver driver, enum gp_filter_mode mode)
{
    const struct gp_filter *filter = &gp_filters[driver][mode];
    if (!filter->count) {
        errno = ENOSYS;
        return -1;
    }
    return install(filter->code, filter->count);
}

/* In the thread that made the call, which may hold any lock: nothing but write. */
static void refused(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    const char *name = gp_syscall_name((uint32_t)info->si_syscall);
    char line[160];
    int n = snprintf(line, sizeof line,
                     "error: a system call that no worker makes was refused: %s (%d, architecture "
                     "%x); see workers.list\n",
                     name ? name : "without a name", info->si_syscall, info->si_arch);
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0)
        n = 0;               /* nothing more can be done */
    signal(SIGSYS, SIG_DFL); /* not allowed any more: this is the end, as SIGSYS */
    raise(SIGSYS);
    _exit(128 + SIGSYS);
}

/*
 * The number of a call is checked only for this architecture: others are ended by the first
 * filter before anything else is asked.
 *
 * Whoever closes a socket with SO_LINGER last waits for as long as it says. That could be the
 * server, or the kernel on its behalf, as descriptors can be sent there.
 */
static int narrow_filter(void)
{
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 9, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigaction, 0, 6),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SIGSYS, 6, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOL_SOCKET, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_LINGER, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    return install(code, sizeof code / sizeof code[0]);
}

/*
 * A worker may be in a network of its own and hold a connection of the host's, its client's. No
 * network namespace binds that, so nothing may turn it to somebody else: connect() would, and so
 * would what is sent with MSG_FASTOPEN. On its own loopback it connects by loopback.h.
 */
static int no_connect_filter(void)
{
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 8, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmmsg, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JA, 2, 0, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmsg, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MSG_FASTOPEN, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    return install(code, sizeof code / sizeof code[0]);
}

int gp_filter_narrow(bool connects)
{
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != SECCOMP_MODE_FILTER)
        return 0;
    struct sigaction action = {.sa_sigaction = refused, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGSYS, &action, NULL) != 0)
        return -1;
    if (!connects && no_connect_filter() != 0)
        return -1;
    return narrow_filter();
}
