/* GPUPOOL_TRACE: the lines themselves, and the file they go to. */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "call.h"
#include "cancel.h"
#include "gp_errors.h"
#include "monotonic.h"
#include "observe.h"
#include "transport/support.h"

static uint64_t start_ns;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static struct gp_fd_mark file_mark; /* the program may close it and use its number */
/* Whose first half is the last thing in the file; only compared, never followed. */
static const struct gpc_trace *open_call;

static void hold(void)
{
    pthread_mutex_lock(&lock);
}

static void let_go(void)
{
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void look(void)
{
    const char *path = getenv("GPUPOOL_TRACE");
    if (!path || !*path)
        return;
    start_ns = gp_now_ns();
    /* a child must not inherit the lock of a thread that it does not have */
    if (pthread_atfork(hold, let_go, let_go) == 0)
        gpc_observe(GPC_OBSERVER_TRACE);
}

/* The file, opened by the first call: a process that makes none must not empty it.
 * Called with the lock. */
static int trace_file(void)
{
    if (file < 0 && GPC_OBSERVED(GPC_OBSERVER_TRACE)) {
        const char *path = getenv("GPUPOOL_TRACE");
        file = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666) : -1;
        if (file < 0) {
            gpc_observe_no_more(GPC_OBSERVER_TRACE);
            gpc_log(GPC_LOG_ERROR, "cannot write GPUPOOL_TRACE=%s: %s", path ? path : "",
                    strerror(errno));
        }
        gp_fd_note(&file_mark, file);
    }
    return gp_fd_is(&file_mark) ? file : -1;
}

__attribute__((format(printf, 2, 3))) static void add(struct gpc_trace *t, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    size_t room = sizeof t->text - t->used;
    int n = vsnprintf(t->text + t->used, room, format, list);
    va_end(list);
    if (n > 0)
        t->used += (size_t)n < room ? (size_t)n : room - 1;
}

void gpc_trace_begin(struct gpc_trace *t, const char *name)
{
    t->name = name;
    t->used = 0;
    t->separator = "";
    t->began_ns = gp_now_ns();
    add(t, "%" PRIu64 " %d %s(", (t->began_ns - start_ns) / 1000, (int)gpc_observed_thread(), name);
}

/* `before`, the half that t holds, and `after`, in one write. Called with the lock. */
static void put(const struct gpc_trace *t, const char *before, const char *after)
{
    struct iovec parts[] = {
        {(void *)(uintptr_t)before, strlen(before)},
        {(void *)(uintptr_t)t->text, t->used},
        {(void *)(uintptr_t)after, strlen(after)},
    };
    int to = trace_file();
    if (to >= 0 && writev(to, parts, 3) < 0) {
        gpc_observe_no_more(GPC_OBSERVER_TRACE);
        gpc_log(GPC_LOG_ERROR, "cannot write GPUPOOL_TRACE: %s; it ends here", strerror(errno));
    }
}

void gpc_trace_called(struct gpc_trace *t)
{
    int saved = errno, cancel = gpc_cancel_off();
    hold();
    put(t, open_call ? " <unfinished ...>\n" : "", ")");
    open_call = t;
    let_go();
    gpc_cancel_back(cancel);
    errno = saved;
}

const char *gpc_result_name(CUresult r)
{
    switch ((int)r) {
#define X(name, value, text)                                                                       \
    case value:                                                                                    \
        return #name;
        GP_ERRORS(X)
#undef X
    default:
        return NULL;
    }
}

bool gpc_trace_returned(struct gpc_trace *t, CUresult result)
{
    t->used = 0;
    t->separator = ", ";
    const char *name = gpc_result_name(result);
    if (name)
        add(t, " = %s", name);
    else
        add(t, " = %d", (int)result);
    return result == CUDA_SUCCESS;
}

void gpc_trace_end(struct gpc_trace *t)
{
    char before[160] = "";
    char after[40];
    int saved = errno, cancel = gpc_cancel_off();
    uint64_t now = gp_now_ns();
    snprintf(after, sizeof after, " (%" PRIu64 " us)\n", (now - t->began_ns) / 1000);
    hold();
    if (open_call != t)
        snprintf(before, sizeof before, "%s%" PRIu64 " %d <... %s resumed>",
                 open_call ? " <unfinished ...>\n" : "", (now - start_ns) / 1000,
                 (int)gpc_observed_thread(), t->name);
    put(t, before, after);
    open_call = NULL;
    let_go();
    gpc_cancel_back(cancel);
    errno = saved;
}

void gpc_trace_label(struct gpc_trace *t, const char *label)
{
    add(t, "%s%s=", t->separator, label);
    t->separator = ", ";
}

void gpc_trace_signed(struct gpc_trace *t, long long value)
{
    add(t, "%lld", value);
}

void gpc_trace_unsigned(struct gpc_trace *t, unsigned long value)
{
    add(t, "%lu", value);
}

void gpc_trace_hex(struct gpc_trace *t, unsigned long long value)
{
    add(t, "0x%llx", value);
}

void gpc_trace_float(struct gpc_trace *t, double value)
{
    add(t, "%g", value);
}

void gpc_trace_pointer(struct gpc_trace *t, const void *value)
{
    if (value)
        add(t, "0x%" PRIxPTR, (uintptr_t)value);
    else
        add(t, "NULL");
}

void gpc_trace_text(struct gpc_trace *t, const char *value)
{
    if (!value) {
        add(t, "NULL");
        return;
    }
    size_t length = strnlen(value, GPC_TRACE_TEXT + 1);
    add(t, "\"");
    for (size_t i = 0; i < length && i < GPC_TRACE_TEXT; i++) {
        unsigned char c = (unsigned char)value[i];
        if (c == '"' || c == '\\')
            add(t, "\\%c", c);
        else if (c == '\n')
            add(t, "\\n");
        else if (c < ' ' || c >= 127)
            add(t, "\\x%02x", c);
        else
            add(t, "%c", c);
    }
    add(t, length > GPC_TRACE_TEXT ? "\"..." : "\"");
}

void gpc_trace_uuid(struct gpc_trace *t, const CUuuid *value)
{
    for (size_t i = 0; i < sizeof value->bytes; i++)
        add(t, "%02x", (unsigned char)value->bytes[i]);
}

void gpc_trace_bytes(struct gpc_trace *t, const void *from, unsigned long long count)
{
    gpc_trace_pointer(t, from);
    if (from)
        add(t, " (%llu bytes)", count);
}

void gpc_trace_raw(struct gpc_trace *t, const char *text)
{
    add(t, "%s", text);
}

void gpc_trace_next(struct gpc_trace *t, unsigned long long index)
{
    add(t, index ? ", " : "[");
}

void gpc_trace_list_end(struct gpc_trace *t, unsigned long long count)
{
    if (count == 0)
        add(t, "[");
    if (count > GPC_TRACE_LIST)
        add(t, ", ... %llu in all", count);
    add(t, "]");
}
