#include "learn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "close_range.h"
#include "counts.h"

/* Linux 5.19: once a call was received only a fatal signal interrupts it, so that a handler of
 * the program does not make it twice. */
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

#define NOT_YET (-1)

/* How the two find each other: a number of a descriptor, as they share the table, or -errno - 1. */
typedef _Atomic int meeting;

static int filter_install(void)
{
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)};
    struct sock_fprog program = {.len = 1, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    long fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                      flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program);
    if (fd < 0 && errno == EINVAL)
        fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    return (int)fd;
}

static void write_down(int out, struct gp_counts *counts)
{
    size_t length, done = 0;
    char *text = gp_counts_tell(counts, &length);
    while (text && done < length) {
        ssize_t n = write(out, text + done, length - done);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    free(text);
}

/* One call; whether there can be more. */
static bool hear(int listener, int out, struct seccomp_notif *call, size_t call_size,
                 struct seccomp_notif_resp *answer, size_t answer_size, struct gp_counts *counts)
{
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    if (poll(&ready, 1, -1) < 0)
        return errno == EINTR;
    if (!(ready.revents & POLLIN))
        return !(ready.revents & (POLLHUP | POLLERR | POLLNVAL)); /* all have ended */
    memset(call, 0, call_size);                                   /* the kernel asks for that */
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, call) != 0)
        return errno == EINTR || errno == ENOENT; /* it was killed meanwhile */
    /* before it goes on: with the last worker of a lease its pid namespace ends, and this process,
     * and a worker may be killed before it exits */
    if (gp_counts_add(counts, &call->data) || call->data.nr == SYS_exit_group)
        write_down(out, counts);
    memset(answer, 0, answer_size);
    answer->id = call->id;
    answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, answer) == 0 || errno == ENOENT;
}

static int supervise(int listener, int out)
{
    /* structures of the kernel may have grown since ours */
    struct seccomp_notif_sizes sizes = {0};
    if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) != 0)
        return 1;
    size_t call_size = sizes.seccomp_notif, answer_size = sizes.seccomp_notif_resp;
    if (call_size < sizeof(struct seccomp_notif))
        call_size = sizeof(struct seccomp_notif);
    if (answer_size < sizeof(struct seccomp_notif_resp))
        answer_size = sizeof(struct seccomp_notif_resp);
    struct seccomp_notif *call = malloc(call_size);
    struct seccomp_notif_resp *answer = malloc(answer_size);
    struct gp_counts *counts = calloc(1, sizeof *counts);
    if (call && answer && counts) {
        while (hear(listener, out, call, call_size, answer, answer_size, counts))
            ;
        write_down(out, counts);
    }
    bool good = call && answer && counts;
    free(call);
    free(answer);
    free(counts);
    return good ? 0 : 1;
}

/* The process beside: it takes the listener, and keeps nothing else of the program's. */
static int beside(meeting *met, int out)
{
    int listener;
    while ((listener = atomic_load(met)) == NOT_YET)
        sched_yield();
    if (listener < 0 || unshare(CLONE_FILES) != 0)
        return 1;
    setsid();
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_IGN); /* it ends with the last that it hears */
    /* higher than both, so that the ranges below name neither */
    int keep[2] = {fcntl(listener, F_DUPFD_CLOEXEC, 3), fcntl(out, F_DUPFD_CLOEXEC, 3)};
    unsigned low = (unsigned)(keep[0] < keep[1] ? keep[0] : keep[1]);
    unsigned high = (unsigned)(keep[0] < keep[1] ? keep[1] : keep[0]);
    if (keep[0] < 0 || keep[1] < 0 || flock(keep[1], LOCK_SH) != 0)
        return 1;
    gp_close_range(0, low - 1);
    if (high > low + 1)
        gp_close_range(low + 1, high - 1);
    gp_close_range(high + 1, ~0u);
    return supervise(keep[0], keep[1]);
}

int gp_learn_begin(int out)
{
    meeting *met = mmap(NULL, sizeof *met, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                        0);
    if (met == MAP_FAILED)
        return -1;
    atomic_store(met, NOT_YET);
    /* with the same table of descriptors, so that it has the listener without a message */
    long pid = syscall(SYS_clone, CLONE_FILES, NULL, NULL, NULL, NULL);
    if (pid == 0)
        _exit(beside(met, out));
    if (pid < 0) {
        munmap(met, sizeof *met);
        return -1;
    }
    int listener = filter_install();
    int error = errno;
    atomic_store(met, listener >= 0 ? listener : -error - 1);
    if (listener < 0) {
        munmap(met, sizeof *met);
        errno = error;
        return -1;
    }
    return 0; /* the listener is closed when a program is executed */
}
