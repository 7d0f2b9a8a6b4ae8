/* What the filter of a worker refuses, and what it lets through. Each call is made by a child
 * under the filter; how the child ends is the answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/prctl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "filter.h"

#define FORBIDDEN_SOCKET 40 /* AF_VSOCK */

static enum gp_filter_driver driver;

/* How a child that does `work` under the filter ends: a wait status. */
static int outcome(void (*work)(const void *), const void *argument)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGSYS, SIG_DFL); /* cmocka has a handler of its own */
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            gp_filter_install(driver, GP_FILTER_ENFORCE) != 0)
            _exit(99);
        work(argument);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

struct call {
    const char *name;
    long number;
    long argument[6];
    int error; /* which it gets; 0: it is ended */
};

static void make(const void *argument)
{
    const struct call *c = argument;
    long r = syscall(c->number, c->argument[0], c->argument[1], c->argument[2], c->argument[3],
                     c->argument[4], c->argument[5]);
    _exit(r == -1 && errno == c->error ? 1 : 2);
}

#define CALL(NAME, ...) {#NAME, SYS_##NAME, {__VA_ARGS__}, 0}
#define CALL_ERROR(NAME, ERROR, ...) {#NAME, SYS_##NAME, {__VA_ARGS__}, ERROR}

static const struct call refused[] = {
    /* what makes more of a process than it is */
    CALL(setuid, 0),
    CALL(setresuid, 0, 0, 0),
    CALL(setgroups, 0, 0),
    CALL(capset, 0, 0),
    CALL(personality, 0x0400000),
    CALL(unshare, CLONE_NEWUSER),
    CALL(setns, 0, 0),
    CALL(clone, CLONE_NEWUSER),
    CALL(clone, CLONE_NEWNS),
    CALL_ERROR(clone, EPERM, CLONE_NEWPID | SIGCHLD),
    CALL(clone, CLONE_NEWNET),
    CALL_ERROR(clone3, ENOSYS, 0, 0),
    CALL_ERROR(clone, EPERM, SIGCHLD),
    CALL(prctl, PR_CAP_AMBIENT, 2, 0),
    CALL(prctl, PR_SET_MM, 1, 0),
    CALL(prctl, PR_SET_PTRACER, 1),
    CALL(prctl, PR_SET_DUMPABLE, 1),
    CALL(prctl, PR_SET_SECCOMP, 1),
    CALL(seccomp, 1, 0, 0),
    /* other processes */
    CALL(ptrace, PTRACE_TRACEME),
    CALL(process_vm_readv, 1, 0, 0),
    CALL(process_vm_writev, 1, 0, 0),
    CALL(pidfd_getfd, 0, 0, 0),
    CALL(kcmp, 1, 1, 0),
    CALL(prlimit64, 1, 0, 0, 0),
    CALL(process_madvise, 0, 0, 0),
    CALL(pidfd_send_signal, 0, 0, 0),
    /* the kernel's rarer doors */
    CALL(io_uring_setup, 1, 0),
    CALL(io_uring_enter, 0),
    CALL(io_uring_register, 0),
    CALL(bpf, 0, 0, 0),
    CALL(userfaultfd, 0),
    CALL(perf_event_open, 0, 0, -1, -1),
    CALL(keyctl, 0),
    CALL(add_key, 0, 0),
    CALL(request_key, 0, 0),
    CALL(fanotify_init, 0),
    CALL(memfd_secret, 0),
    CALL(syslog, 3, 0, 0),
    CALL(io_setup, 1, 0),
    CALL(shmget, 0, 4096, 0),
    CALL(msgget, 0, 0),
    CALL(semget, 0, 1, 0),
    CALL(mq_open, 0, 0),
    CALL(landlock_restrict_self, 0),
    CALL(vmsplice, 0, 0, 0),
    CALL(splice, 0, 0, 0),
    CALL(remap_file_pages, 0),
    CALL(quotactl, 0),
    /* the machine */
    CALL(mount, 0, 0, 0),
    CALL(umount2, 0, 0),
    CALL(pivot_root, 0, 0),
    CALL(chroot, 0),
    CALL(move_mount, 0),
    CALL(open_tree, 0),
    CALL(fsopen, 0, 0),
    CALL(mount_setattr, 0),
    CALL(kexec_load, 0),
    CALL(init_module, 0),
    CALL(finit_module, 0, 0, 0),
    CALL(delete_module, 0),
    CALL(reboot, 0),
    CALL(swapon, 0),
    CALL(settimeofday, 0, 0),
    CALL(clock_settime, 0, 0),
    CALL(sethostname, 0, 0),
    CALL(acct, 0),
    CALL(open_by_handle_at, -1, 0, 0),
    CALL(name_to_handle_at, -1, 0, 0, 0, 0),
    CALL(execveat, -1, 0, 0),
    CALL(setxattr, 0),
    CALL(link, 0, 0),
    CALL(chown, 0, 0, 0),
    /* sockets of other families, and raw ones */
    CALL(socket, AF_PACKET, SOCK_DGRAM, 0),
    CALL(socket, AF_INET, SOCK_RAW, 1),
    CALL(socket, AF_ALG, SOCK_STREAM, 0),
    CALL(socket, AF_NETLINK, SOCK_RAW, 12),
    CALL(socket, FORBIDDEN_SOCKET, SOCK_STREAM, 0),
    CALL(socketpair, AF_INET, SOCK_STREAM, 0, 0),
    /* memory that can be written and executed */
    CALL(mmap, 0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1),
    CALL(mprotect, 0, 4096, PROT_WRITE | PROT_EXEC),
    CALL(pkey_mprotect, 0, 4096, PROT_READ, -1),
#ifdef SYS_modify_ldt
    CALL(modify_ldt, 0, 0, 0),
    CALL(iopl, 0),
    CALL(ioperm, 0, 0, 0),
#endif
};

static void refused_calls(void **state)
{
    (void)state;
    for (driver = GP_FILTER_SOFT; driver <= GP_FILTER_CUDA; driver++)
        for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
            const struct call *c = &refused[i];
            int status = outcome(make, c);
            bool good = c->error ? WIFEXITED(status) && WEXITSTATUS(status) == 1
                                 : WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
            if (!good)
                fail_msg("%s (%ld, %ld, …): the child ended with status %x", c->name,
                         c->argument[0], c->argument[1], (unsigned)status);
        }
}

/* libibverbs goes on without it; the soft GPU has nothing that would ask. */
static void rdma_is_refused_and_not_fatal(void **state)
{
    (void)state;
    const struct call c = CALL_ERROR(socket, EPROTONOSUPPORT, AF_NETLINK, SOCK_RAW, NETLINK_RDMA);
    driver = GP_FILTER_CUDA;
    int status = outcome(make, &c);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    driver = GP_FILTER_SOFT;
    status = outcome(make, &c);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

static void *nothing(void *argument)
{
    return argument;
}

/* What every worker does; the programs of tests/e2e do the rest. */
static void work(const void *argument)
{
    (void)argument;
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL) != 0 || pthread_join(thread, NULL) != 0)
        _exit(1);
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || mprotect(page, 4096, PROT_READ | PROT_EXEC) != 0)
        _exit(2);
    int pair[2], door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || door < 0 || write(pair[0], "x", 1) != 1)
        _exit(3);
    int memory = memfd_create("memory", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, 4096) != 0)
        _exit(4);
    if (gp_filter_narrow(true) != 0)
        _exit(5);
    char *none[] = {NULL};
    if (execve("/bin/true", none, none) != -1 || errno != EPERM)
        _exit(6);
    const struct linger waits = {1, 1000000};
    if (setsockopt(door, SOL_SOCKET, SO_LINGER, &waits, sizeof waits) != -1 || errno != EPERM)
        _exit(7);
    const int other[] = {1, 1};
    if (setsockopt(door, SOL_SOCKET, SO_REUSEADDR, other, sizeof other[0]) != 0 ||
        (setsockopt(door, IPPROTO_TCP, SO_LINGER, other, sizeof other[0]) != 0 && errno == EPERM))
        _exit(8);
}

static void allowed_calls(void **state)
{
    (void)state;
    for (driver = GP_FILTER_SOFT; driver <= GP_FILTER_CUDA; driver++)
        assert_int_equal(outcome(work, NULL), 0);
}

/* The client's connection goes on, and leads nowhere else. */
static void stay_connected(const void *argument)
{
    (void)argument;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof to;
    struct iovec byte = {"x", 1};
    struct msghdr message = {
        .msg_name = &to, .msg_namelen = size, .msg_iov = &byte, .msg_iovlen = 1};
    int door = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (listen(door, 1) != 0 || getsockname(door, (struct sockaddr *)&to, &size) != 0 ||
        connect(client, (struct sockaddr *)&to, size) != 0)
        _exit(1);
    int own = accept4(door, NULL, NULL, SOCK_CLOEXEC);
    if (own < 0 || gp_filter_narrow(false) != 0)
        _exit(2);
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    if (connect(own, &none, sizeof none) != -1 || errno != EPERM)
        _exit(3);
    if (sendto(own, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&to, size) != -1 || errno != EPERM)
        _exit(4);
    if (sendmsg(own, &message, MSG_FASTOPEN) != -1 || errno != EPERM)
        _exit(5);
    struct mmsghdr messages = {.msg_hdr = message};
    if (sendmmsg(own, &messages, 1, MSG_FASTOPEN) != -1 || errno != EPERM)
        _exit(7);
    message.msg_name = NULL;
    message.msg_namelen = 0;
    if (sendto(own, "x", 1, MSG_NOSIGNAL, NULL, 0) != 1 ||
        sendmsg(own, &message, MSG_DONTWAIT) != 1)
        _exit(6);
    messages.msg_hdr = message;
    if (sendmmsg(own, &messages, 1, MSG_DONTWAIT) != 1)
        _exit(8);
}

static void a_worker_without_peers_stays_with_its_client(void **state)
{
    (void)state;
    for (driver = GP_FILTER_SOFT; driver <= GP_FILTER_CUDA; driver++)
        assert_int_equal(outcome(stay_connected, NULL), 0);
}

static void execute(const void *path)
{
    char *arguments[] = {(char *)(uintptr_t)path, NULL}, *none[] = {NULL};
    execve(path, arguments, none);
}

static void a_program_is_executed_before_the_worker_runs(void **state)
{
    (void)state;
    driver = GP_FILTER_CUDA;
    assert_int_equal(outcome(execute, "/bin/true"), 0);
}

static void refuse_by_name(const void *to)
{
    if (dup2(*(const int *)to, STDERR_FILENO) < 0 || gp_filter_narrow(true) != 0)
        _exit(1);
    syscall(SYS_io_uring_setup, 1, NULL);
}

static void a_worker_names_the_call_that_ended_it(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    int status = outcome(refuse_by_name, &ends[1]);
    close(ends[1]);
    char said[256] = "";
    assert_true(read(ends[0], said, sizeof said - 1) > 0);
    close(ends[0]);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    assert_non_null(strstr(said, "error: a system call"));
    assert_non_null(strstr(said, "io_uring_setup (425,"));
}

static void take_the_signal(const void *argument)
{
    (void)argument;
    if (gp_filter_narrow(true) != 0)
        _exit(1);
    signal(SIGSYS, SIG_IGN);
}

static void the_handler_stays(void **state)
{
    (void)state;
    int status = outcome(take_the_signal, NULL);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

#ifdef __x86_64__
static void call_as_32_bits(const void *argument)
{
    (void)argument;
    long r = 20; /* getpid there */
    __asm__ volatile("int $0x80" : "+a"(r) : : "memory");
}

static void call_as_x32(const void *argument)
{
    (void)argument;
    syscall(0x40000000 | SYS_getpid);
}

static void other_architectures(void **state)
{
    (void)state;
    void (*const calls[])(const void *) = {call_as_32_bits, call_as_x32};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        int status = outcome(calls[i], NULL);
        /* a kernel without 32 bits ends it before the filter does */
        bool none = i == 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
        assert_true(none || (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS));
    }
}
#endif

static void log_mode_lets_all_through(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            gp_filter_install(GP_FILTER_SOFT, GP_FILTER_LOG) != 0)
            _exit(99);
        syscall(SYS_kcmp, getpid(), getpid(), 0, 0, 0); /* in the kernel's log, and made */
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    if (!gp_filters[GP_FILTER_CUDA][GP_FILTER_ENFORCE].count)
        return 77; /* built without libseccomp: skipped */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_calls),
        cmocka_unit_test(rdma_is_refused_and_not_fatal),
        cmocka_unit_test(allowed_calls),
        cmocka_unit_test(a_worker_without_peers_stays_with_its_client),
        cmocka_unit_test(a_program_is_executed_before_the_worker_runs),
        cmocka_unit_test(a_worker_names_the_call_that_ended_it),
        cmocka_unit_test(the_handler_stays),
#ifdef __x86_64__
        cmocka_unit_test(other_architectures),
#endif
        cmocka_unit_test(log_mode_lets_all_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
