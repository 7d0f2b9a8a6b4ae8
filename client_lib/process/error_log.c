#include "error_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "call.h"
#include "cancel.h"
#include "export.h"
#include "session.h"
#include "trace.h"

#define KEPT_BYTES 25600u
#define LINE_MAX_BYTES 1200u
#define CALLBACKS_MAX 16
#define LOST "[gpupool] earlier messages do not fit\n"

struct line {
    struct line *next;
    CUlogIterator number;
    CUlogLevel level;
    size_t bytes, message; /* of the text; where what was said begins in it */
    char text[];           /* with its end of line, and a NUL */
};

struct CUlogsCallbackEntry_st {
    CUlogsCallback function;
    void *data;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct line *oldest, *newest;
static size_t kept_bytes;
static CUlogIterator next_number;    /* of the line that comes next */
static CUlogIterator next_delivered; /* to callbacks */
static struct CUlogsCallbackEntry_st callbacks[CALLBACKS_MAX];
static unsigned callback_count; /* read without the lock */

static void hold(void)
{
    pthread_mutex_lock(&lock);
}

static void let_go(void)
{
    pthread_mutex_unlock(&lock);
}

static void note_logged(enum gpc_log_level level, const char *line)
{
    gpc_error_note(level == GPC_LOG_ERROR ? CU_LOG_LEVEL_ERROR : CU_LOG_LEVEL_WARNING, line);
}

/* A child must not inherit the lock of a thread that it does not have. */
__attribute__((constructor)) static void begin(void)
{
    if (pthread_atfork(hold, let_go, let_go) == 0)
        gpc_log_also = note_logged;
}

/* --- lines ----------------------------------------------------------------------------------- */

static struct line *line_new(CUlogLevel level, const char *message)
{
    struct timespec now;
    char head[80];
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long second = (unsigned long)now.tv_sec % 86400;
    int n = snprintf(head, sizeof head, "[%02lu:%02lu:%02lu.%03ld][%lu][CUDA][%c] ", second / 3600,
                     second / 60 % 60, second % 60, now.tv_nsec / 1000000,
                     (unsigned long)pthread_self(), level == CU_LOG_LEVEL_ERROR ? 'E' : 'W');
    size_t bytes = (size_t)n + strnlen(message, LINE_MAX_BYTES) + 1;
    struct line *line = malloc(sizeof *line + bytes + 1);
    if (!line)
        return NULL;
    *line = (struct line){.level = level, .bytes = bytes, .message = (size_t)n};
    snprintf(line->text, bytes + 1, "%s%.*s\n", head, (int)(bytes - (size_t)n - 1), message);
    return line;
}

/* CUDA_LOG_FILE: opened for each line, as the program may close what is not its own. */
static void write_out(const struct line *line)
{
    const char *path = getenv("CUDA_LOG_FILE");
    int file = -1;
    if (!path || !*path)
        return;
    if (strcmp(path, "stdout") == 0)
        file = STDOUT_FILENO;
    else if (strcmp(path, "stderr") == 0)
        file = STDERR_FILENO;
    int own = file < 0 ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    ssize_t written = write(own < 0 ? file : own, line->text, line->bytes);
    (void)written;
    if (own >= 0)
        close(own);
}

static void forget_oldest(void)
{
    struct line *line = oldest;
    oldest = line->next;
    kept_bytes -= line->bytes;
    free(line);
}

static void keep(struct line *line)
{
    line->number = next_number++;
    if (oldest)
        newest->next = line;
    else
        oldest = line;
    newest = line;
    kept_bytes += line->bytes;
    while (kept_bytes > KEPT_BYTES)
        forget_oldest();
}

void gpc_error_note(CUlogLevel level, const char *message)
{
    int saved = errno, cancel = gpc_cancel_off();
    struct line *line = line_new(level, message);
    if (line) {
        hold();
        write_out(line);
        keep(line);
        let_go();
    }
    gpc_cancel_back(cancel);
    errno = saved;
}

/* --- callbacks --------------------------------------------------------------------------------- */

/* The first line that callbacks have not had, as the caller's; and who gets it. */
static struct line *undelivered(struct CUlogsCallbackEntry_st to[CALLBACKS_MAX])
{
    struct line *copy = NULL;
    hold();
    const struct line *line = oldest;
    while (line && line->number < next_delivered)
        line = line->next;
    if (line && (copy = malloc(sizeof *copy + line->bytes + 1)))
        memcpy(copy, line, sizeof *copy + line->bytes + 1);
    next_delivered = line ? line->number + 1 : next_number;
    memcpy(to, callbacks, sizeof callbacks);
    let_go();
    return copy;
}

/* Without a lock: a callback may call CUDA, though what fails there is told to none. */
static void deliver(void)
{
    struct CUlogsCallbackEntry_st to[CALLBACKS_MAX];
    struct line *line;
    if (!__atomic_load_n(&callback_count, __ATOMIC_RELAXED))
        return;
    struct gpc_thread *t = gpc_thread();
    if (!t || t->in_log_callback)
        return;
    t->in_log_callback = true;
    while ((line = undelivered(to))) {
        line->text[line->bytes - 1] = '\0';
        for (unsigned i = 0; i < CALLBACKS_MAX; i++)
            if (to[i].function)
                to[i].function(to[i].data, line->level, line->text + line->message,
                               line->bytes - line->message - 1);
        free(line);
    }
    t->in_log_callback = false;
}

CUresult gpc_error_tell(const char *function, CUresult r)
{
    const char *name = gpc_result_name(r);
    char message[160];
    if (r == CUDA_ERROR_NOT_READY) /* an answer */
        return r;
    snprintf(message, sizeof message, "Returning %d (%s) from %s", (int)r,
             name ? name : "an unknown error", function);
    gpc_error_note(CU_LOG_LEVEL_ERROR, message);
    deliver();
    return r;
}

GPC_EXPORT CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void *userData,
                                           CUlogsCallbackHandle *callback_out)
{
    unsigned at = 0;
    gpc_count(GP_OP_cuLogsRegisterCallback);
    if (!callbackFunc)
        return CUDA_ERROR_INVALID_VALUE;
    hold();
    while (at < CALLBACKS_MAX && callbacks[at].function)
        at++;
    if (at < CALLBACKS_MAX) {
        callbacks[at] = (struct CUlogsCallbackEntry_st){callbackFunc, userData};
        __atomic_add_fetch(&callback_count, 1, __ATOMIC_RELAXED);
        next_delivered = next_number;
    }
    let_go();
    if (at == CALLBACKS_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (callback_out)
        *callback_out = &callbacks[at];
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback)
{
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    gpc_count(GP_OP_cuLogsUnregisterCallback);
    hold();
    for (unsigned i = 0; i < CALLBACKS_MAX; i++)
        if (callback == &callbacks[i] && callback->function) {
            callback->function = NULL;
            __atomic_sub_fetch(&callback_count, 1, __ATOMIC_RELAXED);
            r = CUDA_SUCCESS;
        }
    let_go();
    return r;
}

/* --- dumps ------------------------------------------------------------------------------------- */

GPC_EXPORT CUresult cuLogsCurrent(CUlogIterator *iterator_out, unsigned int flags)
{
    gpc_count(GP_OP_cuLogsCurrent);
    if (!iterator_out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    hold();
    *iterator_out = next_number;
    let_go();
    return CUDA_SUCCESS;
}

/* From the iterator's line on; *lost: there were more. Under the lock. */
static const struct line *from(const CUlogIterator *iterator, bool *lost)
{
    CUlogIterator first = iterator ? *iterator : 0;
    const struct line *line = oldest;
    *lost = line && line->number > first;
    while (line && line->number < first)
        line = line->next;
    return line;
}

static bool dump(FILE *file, const CUlogIterator *iterator)
{
    bool lost;
    const struct line *line = from(iterator, &lost);
    if (lost)
        fputs(LOST, file);
    for (; line; line = line->next)
        fwrite(line->text, 1, line->bytes, file);
    return !ferror(file);
}

GPC_EXPORT CUresult cuLogsDumpToFile(CUlogIterator *iterator, const char *pathToFile,
                                     unsigned int flags)
{
    gpc_count(GP_OP_cuLogsDumpToFile);
    if (!pathToFile || flags)
        return CUDA_ERROR_INVALID_VALUE;
    int cancel = gpc_cancel_off();
    FILE *file = fopen(pathToFile, "we");
    bool whole = false;
    if (file) {
        hold();
        whole = dump(file, iterator);
        if (iterator)
            *iterator = next_number;
        let_go();
        whole = fclose(file) == 0 && whole;
    }
    gpc_cancel_back(cancel);
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static size_t bytes_from(const struct line *line)
{
    size_t bytes = 0;
    for (; line; line = line->next)
        bytes += line->bytes;
    return bytes;
}

/* The latest lines that fit into `room` with a NUL; the bytes that they are, 0: none. */
static size_t fill(char *to, size_t room, const struct line *line, bool lost)
{
    size_t head = sizeof LOST - 1, at = 0;
    lost = lost || bytes_from(line) >= room;
    while (line && bytes_from(line) + (lost ? head : 0) >= room)
        line = line->next;
    if (line && lost) {
        memcpy(to, LOST, head);
        at = head;
    }
    for (; line; line = line->next) {
        memcpy(to + at, line->text, line->bytes);
        at += line->bytes;
    }
    to[at] = '\0';
    return at;
}

GPC_EXPORT CUresult cuLogsDumpToMemory(CUlogIterator *iterator, char *buffer, size_t *size,
                                       unsigned int flags)
{
    bool lost;
    gpc_count(GP_OP_cuLogsDumpToMemory);
    if (!buffer || !size || *size == 0 || flags)
        return CUDA_ERROR_INVALID_VALUE;
    hold();
    const struct line *line = from(iterator, &lost);
    *size = fill(buffer, *size, line, lost);
    if (iterator && (*size || !line))
        *iterator = next_number;
    let_go();
    return *size || !line ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
