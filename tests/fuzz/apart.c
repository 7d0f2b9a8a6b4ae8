#include "apart.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The compiler's counters, one for each edge of the control flow. */
extern char __start___sancov_cntrs[], __stop___sancov_cntrs[];
void __sanitizer_set_report_fd(void *fd);

/* An input takes milliseconds; one that is stuck is a finding. */
#define STUCK_S 15
#define INPUTS 48u /* of a child */
#define SAID_MOST 2000u

#define PAGE_MOST 65536u

/* What the fuzzer and its children map. */
struct board {
    uint8_t edges[2 * PAGE_MOST]; /* a child's counters at the ends of its page-aligned ones */
    bool busy; /* a child has begun the input that it was given last, and not ended it */
    size_t size;
    uint8_t input[APART_MOST];
    size_t all_bytes;
    uint8_t all[INPUTS * APART_MOST]; /* that the child has taken */
};

/* An input is over: the child has said so, or ended. */
struct word {
    bool ended;
    int status;
};

static struct {
    void (*begin)(const uint8_t *, size_t);
    struct board *board; /* NULL: inputs run here */
    int ask[2];          /* a byte for each input: to the child, or to who makes the next one */
    int told[2];         /* back: a word for each */
    int said;            /* what the child has logged */
    unsigned taken;      /* by this child */
} apart;

static int report = STDERR_FILENO;

/* Where this process is. From BUSY it goes either way, and no further: the first decides. */
static _Atomic int state;
enum { BUSY, BETWEEN, ENDS };

/* Counters that are not on whole pages, at both ends of the others: what else is on these pages stays
 * each process's own, so children say what they have there. */
static struct {
    uint8_t *at;
    size_t size;
} ends[2];

/* Only whole pages are mapped. */
static void share_counters(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)__start___sancov_cntrs + page - 1) / page * page;
    uintptr_t end = (uintptr_t)__stop___sancov_cntrs / page * page;
    if (begin >= end || page > PAGE_MOST)
        abort();
    ends[0].at = (uint8_t *)__start___sancov_cntrs;
    ends[0].size = begin - (uintptr_t)__start___sancov_cntrs;
    ends[1].at = (uint8_t *)end;
    ends[1].size = (uintptr_t)__stop___sancov_cntrs - end;
    void *kept = malloc(end - begin);
    memcpy(kept, (void *)begin, end - begin);
    if (mmap((void *)begin, end - begin, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
    memcpy((void *)begin, kept, end - begin);
    free(kept);
}

/* False: nobody is at the other end any more. */
static bool pipe_read(int from, void *to, size_t size)
{
    ssize_t got;
    while ((got = read(from, to, size)) < 0 && errno == EINTR)
        ; /* the fuzzer's own timer */
    return got == (ssize_t)size;
}

/* The child's ends, as it begins an input, and as that is over; then the fuzzer's. In loops, as a
 * sanitizer's memset and memcpy may not be used in handlers of signals. */
__attribute__((disable_sanitizer_instrumentation)) static void ends_clear(void)
{
    for (unsigned e = 0; e < 2; e++)
        for (size_t i = 0; i < ends[e].size; i++)
            ends[e].at[i] = 0;
}

__attribute__((disable_sanitizer_instrumentation)) static void ends_say(void)
{
    for (unsigned e = 0; e < 2 && apart.board; e++)
        for (size_t i = 0; i < ends[e].size; i++)
            apart.board->edges[e * PAGE_MOST + i] = ends[e].at[i];
}

__attribute__((disable_sanitizer_instrumentation)) static void ends_hear(void)
{
    for (unsigned e = 0; e < 2; e++)
        for (size_t i = 0; i < ends[e].size; i++) {
            uint8_t count = apart.board->edges[e * PAGE_MOST + i];
            if (count > ends[e].at[i])
                ends[e].at[i] = count;
        }
}

static void tell(struct word w)
{
    if (write(apart.told[1], &w, sizeof w) != sizeof w)
        _exit(0);
}

/* --- the child -------------------------------------------------------------------------- */

/* What the target logs of hostile input is no news, unless it fails; what a sanitizer reports is. */
static void quiet(void)
{
    if (ftruncate(apart.said, 0) == 0 && !getenv("FUZZ_LOG"))
        dup2(apart.said, STDERR_FILENO);
    __sanitizer_set_report_fd((void *)(intptr_t)report);
}

static void take(const uint8_t **data, size_t *size)
{
    struct board *b = apart.board;
    b->busy = true;
    memcpy(b->all + b->all_bytes, b->input, b->size);
    b->all_bytes += b->size;
    *data = b->input;
    *size = b->size;
    ends_clear();
    signal(SIGALRM, SIG_DFL);
    alarm(STUCK_S);
}

__attribute__((disable_sanitizer_instrumentation)) bool apart_may_end(void)
{
    int busy = BUSY;
    if (!atomic_compare_exchange_strong(&state, &busy, ENDS))
        return false;
    ends_say();
    return true;
}

bool apart_next(const uint8_t **data, size_t *size)
{
    char go;
    int busy = BUSY;
    if (!apart.board || ++apart.taken >= INPUTS)
        return false;
    if (!atomic_compare_exchange_strong(&state, &busy, BETWEEN))
        for (;;)
            pause(); /* another thread ends it */
    alarm(0);
    ends_say();
    apart.board->busy = false;
    tell((struct word){.ended = false});
    if (!pipe_read(apart.ask[0], &go, 1))
        _exit(0);
    take(data, size);
    atomic_store(&state, BUSY);
    return true;
}

static void child_run(void)
{
    const uint8_t *data;
    size_t size;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    quiet();
    apart.board->all_bytes = 0;
    take(&data, &size);
    apart.begin(data, size);
    ends_say();
    _exit(0);
}

/* --- the process between, which makes the children -------------------------------------- */

static void make_children(void)
{
    struct board *b = apart.board;
    char go;
    int status = 0;
    close(apart.ask[1]); /* so that it is seen when the fuzzer ends */
    while (pipe_read(apart.ask[0], &go, 1)) {
        pid_t child = fork();
        if (child == 0)
            child_run();
        while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        /* one that ended between two inputs, and well, has told all: the next takes the next */
        if (child < 0 || status != 0 || b->busy)
            tell((struct word){.ended = true, .status = child < 0 ? SIGABRT : status});
        b->busy = false;
    }
    _exit(0);
}

/* --- the fuzzer ------------------------------------------------------------------------- */

void apart_open(void (*begin)(const uint8_t *, size_t))
{
    apart.begin = begin;
    if (getenv("FUZZ_TOGETHER"))
        return;
    apart.said = memfd_create("said", MFD_CLOEXEC);
    fcntl(apart.said, F_SETFL, O_APPEND);
    report = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);
    apart.board = mmap(NULL, sizeof *apart.board, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (apart.board == MAP_FAILED || pipe2(apart.ask, O_CLOEXEC) || pipe2(apart.told, O_CLOEXEC))
        abort();
    signal(SIGPIPE, SIG_IGN); /* who is gone is found by what it does not say */
    share_counters();
    pid_t between = fork();
    if (between == 0)
        make_children();
    if (between < 0)
        abort();
    close(apart.ask[0]);
    close(apart.told[1]);
}

/* What it took, joined, beside the input that the fuzzer itself writes. */
static void keep_all(const struct board *b)
{
    char name[64];
    snprintf(name, sizeof name, "joined-%d", (int)getpid());
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t bytes = b->all_bytes < sizeof b->all ? b->all_bytes : sizeof b->all;
    if (file >= 0 && write(file, b->all, bytes) == (ssize_t)bytes)
        dprintf(report, "all %zu bytes that it took are in %s\n", bytes, name);
}

static void show_said(void)
{
    static char text[SAID_MOST];
    off_t size = lseek(apart.said, 0, SEEK_END);
    off_t from = size > (off_t)sizeof text ? size - (off_t)sizeof text : 0;
    ssize_t bytes = pread(apart.said, text, sizeof text, from);
    if (bytes > 0)
        dprintf(report, "the last that it logged:\n%.*s\n", (int)bytes, text);
}

static void child_failed(int status)
{
    show_said();
    if (WIFSIGNALED(status))
        dprintf(report, "an input ended its process with signal %d\n", WTERMSIG(status));
    else
        dprintf(report, "an input ended its process with code %d\n", WEXITSTATUS(status));
    keep_all(apart.board);
    abort();
}

void apart_run(const uint8_t *data, size_t size)
{
    struct word w = {.ended = true, .status = SIGABRT};
    if (!apart.board) {
        apart.begin(data, size);
        return;
    }
    if (size > APART_MOST)
        return;
    memcpy(apart.board->input, data, size);
    apart.board->size = size;
    if (write(apart.ask[1], "", 1) != 1 || !pipe_read(apart.told[0], &w, sizeof w) || w.status)
        child_failed(w.status);
    ends_hear();
}
