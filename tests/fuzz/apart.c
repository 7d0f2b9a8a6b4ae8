#include "apart.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The compiler's counters, one for each edge of the control flow. */
extern char __start___sancov_cntrs[], __stop___sancov_cntrs[];
void __sanitizer_set_report_fd(void *fd);

/* An input takes milliseconds; one that is stuck is a finding. */
#define STUCK_S 15
#define INPUTS 48u /* of a child */

static struct {
    pid_t child; /* 0: none */
    int to, from;
    unsigned taken;
    uint8_t *input;                   /* shared; what is in it now */
    uint8_t all[INPUTS * APART_MOST]; /* that the child has taken */
    size_t all_bytes;
} apart;

static int report = STDERR_FILENO;

/* Only whole pages: what else is on the first and the last one stays each process's own. */
static void share_counters(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)__start___sancov_cntrs + page - 1) / page * page;
    uintptr_t end = (uintptr_t)__stop___sancov_cntrs / page * page;
    if (begin >= end)
        return;
    void *kept = malloc(end - begin);
    memcpy(kept, (void *)begin, end - begin);
    if (mmap((void *)begin, end - begin, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
    memcpy((void *)begin, kept, end - begin);
    free(kept);
}

void apart_open(void)
{
    report = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);
    apart.input = mmap(NULL, APART_MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (apart.input == MAP_FAILED)
        abort();
    signal(SIGPIPE, SIG_IGN); /* a child that is gone is found by its status */
    share_counters();
}

/* --- the child -------------------------------------------------------------------------- */

/* What the target logs of hostile input is no news; what a sanitizer reports is. */
static void quiet(void)
{
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0 && !getenv("FUZZ_LOG"))
        dup2(nowhere, STDERR_FILENO);
    __sanitizer_set_report_fd((void *)(intptr_t)report);
}

bool apart_next(const uint8_t **data, size_t *size)
{
    char done = 1;
    if (!apart.input || apart.to == 0 || ++apart.taken >= INPUTS)
        return false;
    alarm(0);
    if (write(apart.to, &done, 1) != 1 || read(apart.from, size, sizeof *size) != sizeof *size)
        _exit(0);
    signal(SIGALRM, SIG_DFL);
    alarm(STUCK_S);
    *data = apart.input;
    return true;
}

static void child_start(void (*begin)(const uint8_t *, size_t), size_t size, int ends[4])
{
    close(ends[1]);
    close(ends[2]);
    apart.from = ends[0];
    apart.to = ends[3];
    apart.taken = 0;
    signal(SIGALRM, SIG_DFL);
    alarm(STUCK_S);
    quiet();
    begin(apart.input, size);
    _exit(0);
}

/* --- the fuzzer ------------------------------------------------------------------------- */

/* What it took, joined, beside the input that the fuzzer itself writes. */
static void keep_all(void)
{
    char name[64];
    snprintf(name, sizeof name, "joined-%d", (int)getpid());
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file >= 0 && write(file, apart.all, apart.all_bytes) == (ssize_t)apart.all_bytes)
        dprintf(report, "all %zu bytes that it took are in %s\n", apart.all_bytes, name);
}

static void child_ended(void)
{
    int status = 0;
    while (waitpid(apart.child, &status, 0) < 0 && errno == EINTR)
        ;
    close(apart.to);
    close(apart.from);
    apart.child = 0;
    if (status == 0)
        return;
    if (WIFSIGNALED(status))
        dprintf(report, "an input ended its process with signal %d\n", WTERMSIG(status));
    else
        dprintf(report, "an input ended its process with code %d\n", WEXITSTATUS(status));
    keep_all();
    abort();
}

static void child_make(void (*begin)(const uint8_t *, size_t), size_t size)
{
    int ends[4];
    if (pipe2(ends, O_CLOEXEC) != 0 || pipe2(ends + 2, O_CLOEXEC) != 0)
        abort();
    apart.all_bytes = 0;
    pid_t child = fork();
    if (child == 0)
        child_start(begin, size, ends);
    if (child < 0)
        abort();
    close(ends[0]);
    close(ends[3]);
    apart.child = child;
    apart.to = ends[1];
    apart.from = ends[2];
}

void apart_run(void (*begin)(const uint8_t *, size_t), const uint8_t *data, size_t size)
{
    char done;
    if (getenv("FUZZ_TOGETHER")) {
        begin(data, size);
        return;
    }
    if (size > APART_MOST)
        return;
    memcpy(apart.input, data, size);
    if (apart.child && write(apart.to, &size, sizeof size) != sizeof size)
        child_ended();
    if (!apart.child)
        child_make(begin, size);
    memcpy(apart.all + apart.all_bytes, data, size);
    apart.all_bytes += size;
    ssize_t got;
    while ((got = read(apart.from, &done, 1)) < 0 && errno == EINTR)
        ; /* the fuzzer's own timer */
    if (got != 1)
        child_ended();
}
