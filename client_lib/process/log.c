/* One line on stderr, if GPUPOOL_LOG (error, warn, info, debug) asks for it. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "call.h"
#include "cancel.h"

/* The level that GPUPOOL_LOG names; -1: none. Unset or empty is the usual one. */
static int named(const char *text)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; text && i < 4; i++)
        if (strcasecmp(text, names[i]) == 0)
            return i;
    return text && *text ? -1 : GPC_LOG_WARN;
}

static enum gpc_log_level wanted(void)
{
    static int level = -1;
    int known = __atomic_load_n(&level, __ATOMIC_RELAXED), unread = -1;
    if (known >= 0)
        return (enum gpc_log_level)known;
    const char *text = getenv("GPUPOOL_LOG");
    int asked = named(text);
    known = asked < 0 ? GPC_LOG_WARN : asked;
    /* of several threads that are first, one says it */
    bool first = __atomic_compare_exchange_n(&level, &unread, known, false, __ATOMIC_RELAXED,
                                             __ATOMIC_RELAXED);
    if (first && asked < 0)
        gpc_log(GPC_LOG_WARN,
                "GPUPOOL_LOG='%.40s' is not one of error, warn, info, debug; it is"
                " warn",
                text);
    return (enum gpc_log_level)known;
}

/* U+0080 to U+009F in UTF-8, among which is another way to begin what a terminal obeys. */
static bool is_c1(const char *text)
{
    return (unsigned char)text[0] == 0xc2 && ((unsigned char)text[1] & 0xe0) == 0x80;
}

static bool is_control(const char *text)
{
    return (unsigned char)*text < ' ' || *text == 0x7f || is_c1(text);
}

void (*gpc_log_also)(enum gpc_log_level level, const char *line);

void gpc_log(enum gpc_log_level level, const char *format, ...)
{
    bool noted = level <= GPC_LOG_WARN && gpc_log_also;
    if (!noted && level > wanted())
        return;
    char line[1024];
    int at = snprintf(line, sizeof line, "gpupool: ");
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line + at, sizeof line - (size_t)at - 1, format, args);
    va_end(args);
    if (n < 0)
        return;
    at = at + n < (int)sizeof line - 1 ? at + n : (int)sizeof line - 2;
    for (int i = 0; i < at; i++) /* what a server said may be in it: one line, and no more */
        if (is_control(line + i))
            line[i] = line[i + is_c1(line + i)] = '?';
    line[at] = '\0';
    if (noted)
        gpc_log_also(level, line);
    if (level > wanted())
        return;
    line[at++] = '\n';
    /* one write, so that lines of several threads do not mix */
    int cancel = gpc_cancel_off();
    ssize_t written = write(STDERR_FILENO, line, (size_t)at);
    (void)written;
    gpc_cancel_back(cancel);
}
