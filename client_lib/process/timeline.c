#include "timeline.h"

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call.h"
#include "cancel.h"
#include "cupti.h"
#include "monotonic.h"
#include "observe.h"
#include "session.h"

#define EVENT_BYTES 1024         /* the longest event */
#define PIECE ((size_t)64 << 10) /* a multiple of every page size */
#define BRACKET "[\n"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t most = GPC_TIMELINE_BYTES;
static char *piece; /* mapped; NULL: none yet */
static size_t used;
static int process; /* the id of this one */

static void hold(void)
{
    pthread_mutex_lock(&lock);
}

static void let_go(void)
{
    pthread_mutex_unlock(&lock);
}

/* The piece is the parent's. */
static void in_child(void)
{
    if (piece)
        munmap(piece, PIECE);
    piece = NULL;
    process = getpid();
    let_go();
}

__attribute__((constructor)) static void look(void)
{
    const char *path = getenv("GPUPOOL_TIMELINE"), *bytes = getenv("GPUPOOL_TIMELINE_BYTES");
    if (!path || !*path)
        return;
    if (bytes && *bytes)
        most = strtoull(bytes, NULL, 10);
    process = getpid();
    /* a child must not inherit the lock of a thread that it does not have */
    if (pthread_atfork(hold, let_go, in_child) == 0)
        gpc_observe(GPC_OBSERVER_TIMELINE);
}

/* As far as JSON takes it as it is. */
static void plain(char *out, size_t size, const char *name)
{
    snprintf(out, size, "%s", name);
    for (char *c = out; *c; c++)
        if (*c < ' ' || *c == '"' || *c == '\\' || *c == 127)
            *c = '?';
}

/* A blank piece, but for the process's name: an event that each begins with, so that the bracket
 * of the file's first is followed by no comma. */
static size_t fill(char blank[PIECE], bool first)
{
    char name[64], event[EVENT_BYTES];
    plain(name, sizeof name, program_invocation_short_name);
    int n = snprintf(event, sizeof event,
                     "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                     "\"args\":{\"name\":\"%s\"}}",
                     first ? BRACKET : ",\n", process, process, name);
    memset(blank, ' ', PIECE);
    memcpy(blank, event, (size_t)n);
    return (size_t)n;
}

/* Append a blank piece and map it. NULL, or why there is none. */
static const char *append(int file)
{
    char *blank = malloc(PIECE);
    struct stat st;
    if (!blank || fstat(file, &st) != 0) {
        free(blank);
        return strerror(errno);
    }
    off_t at = (st.st_size + (off_t)PIECE - 1) / (off_t)PIECE * (off_t)PIECE;
    size_t before = (size_t)(at - st.st_size);
    if ((uint64_t)at + PIECE > most) {
        free(blank);
        return "it has GPUPOOL_TIMELINE_BYTES";
    }
    memset(blank, ' ', PIECE); /* behind what is no piece of ours */
    errno = ENOSPC;
    bool written = pwrite(file, blank, before, st.st_size) == (ssize_t)before;
    used = fill(blank, at == 0);
    written = written && pwrite(file, blank, PIECE, at) == (ssize_t)PIECE;
    free(blank);
    if (!written)
        return strerror(errno);
    void *map = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED, file, at);
    if (map == MAP_FAILED)
        return strerror(errno);
    piece = map;
    return NULL;
}

/* The next piece, for this process alone. The file is open only meanwhile: a program may close
 * what it finds open. Called with the lock. */
static bool take_piece(void)
{
    const char *path = getenv("GPUPOOL_TIMELINE"), *why = "the program has unset it";
    if (piece)
        munmap(piece, PIECE);
    piece = NULL;
    int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        flock(file, LOCK_EX); /* of processes that want one at once each gets another */
        why = append(file);
        flock(file, LOCK_UN); /* the mapping keeps what close would not end */
        close(file);
    } else if (path) {
        why = strerror(errno);
    }
    if (!piece) {
        gpc_observe_no_more(GPC_OBSERVER_TIMELINE);
        gpc_log(GPC_LOG_ERROR, "GPUPOOL_TIMELINE=%s: %s; this process writes no more of it",
                path ? path : "", why);
    }
    return piece != NULL;
}

static void add(const char *event, int length)
{
    if (length <= 0 || length >= EVENT_BYTES)
        return;
    int saved = errno, cancel = gpc_cancel_off();
    hold();
    bool room = piece && used + (size_t)length <= PIECE;
    if (room || (GPC_OBSERVED(GPC_OBSERVER_TIMELINE) && take_piece())) {
        memcpy(piece + used, event, (size_t)length);
        used += (size_t)length;
    }
    let_go();
    gpc_cancel_back(cancel);
    errno = saved;
}

/* Asking the kernel costs as much as the event. */
static int thread_id(void)
{
    struct gpc_thread *t = gpc_thread();
    if (t->process != process) {
        t->process = process;
        t->id = gpc_observed_thread();
    }
    return t->id;
}

/* The start of an event on a track of this process: microseconds, with the nanoseconds behind the
 * point. */
static int head(char event[EVENT_BYTES], const char *name, const char *category, unsigned track,
                uint64_t began_ns, uint64_t took)
{
    return snprintf(event, EVENT_BYTES,
                    ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%u,"
                    "\"ts\":%" PRIu64 ".%03u,\"dur\":%" PRIu64 ".%03u",
                    name, category, process, track, began_ns / 1000, (unsigned)(began_ns % 1000),
                    took / 1000, (unsigned)(took % 1000));
}

/* Of this thread, over now. */
static int head_now(char event[EVENT_BYTES], const char *name, const char *category,
                    uint64_t began_ns)
{
    return head(event, name, category, (unsigned)thread_id(), began_ns, gp_now_ns() - began_ns);
}

void gpc_timeline_call(const char *name, uint64_t began_ns, CUresult result)
{
    char event[EVENT_BYTES];
    int at = head_now(event, name, "call", began_ns);
    if (result == CUDA_SUCCESS)
        at += snprintf(event + at, EVENT_BYTES - (size_t)at, "}");
    else
        at += snprintf(event + at, EVENT_BYTES - (size_t)at, ",\"args\":{\"result\":%d}}",
                       (int)result);
    add(event, at);
}

void gpc_timeline_message(uint16_t op, uint64_t seq, uint32_t bytes, uint64_t began_ns)
{
    char event[EVENT_BYTES];
    int at = head_now(event, gp_op_table[op].name, "message", began_ns);
    at += snprintf(event + at, EVENT_BYTES - (size_t)at,
                   ",\"args\":{\"seq\":%" PRIu64 ",\"bytes\":%u}}", seq, bytes);
    add(event, at);
}

void gpc_timeline_wait(const char *what, uint64_t began_ns)
{
    char event[EVENT_BYTES];
    int at = head_now(event, what, "wait", began_ns);
    at += snprintf(event + at, EVENT_BYTES - (size_t)at, "}");
    add(event, at);
}

/* A stream's track is a thread that no process has, and gets its name when it is first seen: the
 * last TRACKS are remembered, and to name one again does no harm. */
#define TRACKS 64
static unsigned track_of(const struct gp_activity_record *r)
{
    static unsigned named[TRACKS];
    char event[EVENT_BYTES];
    unsigned track = 1000000000u + r->device % 1000 * 1000000 + r->stream % 1000000;
    if (__atomic_exchange_n(&named[track % TRACKS], track, __ATOMIC_RELAXED) != track)
        add(event, snprintf(event, sizeof event,
                            ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%u,"
                            "\"args\":{\"name\":\"GPU %u, stream %u\"}}",
                            process, track, r->device, r->stream));
    return track;
}

void gpc_timeline_activity(const struct gp_activity_record *r, const char *name)
{
    static const char *const copies[] = {[GP_CUPTI_HTOD] = "copy from the host",
                                         [GP_CUPTI_DTOH] = "copy to the host",
                                         [GP_CUPTI_DTOD] = "copy on the GPU",
                                         [GP_CUPTI_HTOH] = "copy on the host",
                                         [GP_CUPTI_PTOP] = "copy between GPUs"};
    const size_t known = sizeof copies / sizeof copies[0];
    char event[EVENT_BYTES], shown[512] = "memory set";
    if (r->kind == GP_ACTIVITY_KERNEL)
        plain(shown, sizeof shown, name);
    else if (r->kind == GP_ACTIVITY_COPY)
        plain(shown, sizeof shown, r->copy < known && copies[r->copy] ? copies[r->copy] : "copy");
    int at = head(event, shown, r->kind == GP_ACTIVITY_KERNEL ? "kernel" : "copy", track_of(r),
                  r->start, r->end - r->start);
    size_t room = EVENT_BYTES - (size_t)at;
    if (r->kind == GP_ACTIVITY_KERNEL)
        at += snprintf(event + at, room,
                       ",\"args\":{\"seq\":%" PRIu64 ",\"grid\":[%d,%d,%d],\"block\":[%d,%d,%d]}}",
                       r->seq, r->grid[0], r->grid[1], r->grid[2], r->block[0], r->block[1],
                       r->block[2]);
    else
        at += snprintf(event + at, room, ",\"args\":{\"seq\":%" PRIu64 ",\"bytes\":%" PRIu64 "}}",
                       r->seq, r->bytes);
    add(event, at);
}
