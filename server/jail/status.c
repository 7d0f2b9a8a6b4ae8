#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "jail.h"

/* At most a pipe's atomic write: starter and child write to the same one. */
#define LINE_MAX_BYTES 512

static int status_fd = -1;
static bool needed[GPJ_LAYER_COUNT];

static const char *const names[GPJ_LAYER_COUNT] = {
#define X(id, name) [GPJ_##id] = name,
    GPJ_LAYERS(X)
#undef X
};

int gpj_layer_find(const char *name)
{
    for (int i = 0; i < GPJ_LAYER_COUNT; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

void gpj_status_open(int fd, const bool required[GPJ_LAYER_COUNT])
{
    status_fd = fd;
    memcpy(needed, required, sizeof needed);
}

/* What does not fit is cut; a line end or a control character within is a blank. */
static void say(const char *line)
{
    char text[LINE_MAX_BYTES];
    int n = snprintf(text, sizeof text - 1, "%s", line);
    size_t length = n < 0 ? 0 : (size_t)n < sizeof text - 1 ? (size_t)n : sizeof text - 2;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ')
            text[i] = ' ';
    text[length++] = '\n';
    int fd = status_fd >= 0 ? status_fd : STDERR_FILENO;
    while (write(fd, text, length) < 0 && errno == EINTR)
        ;
}

void gpj_layer_on(enum gpj_layer layer)
{
    char line[LINE_MAX_BYTES];
    snprintf(line, sizeof line, "layer %s on", names[layer]);
    say(line);
}

void gpj_layer_off(enum gpj_layer layer, const char *format, ...)
{
    char reason[LINE_MAX_BYTES / 2], line[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    snprintf(line, sizeof line, "layer %s off %s", names[layer], reason);
    say(line);
    if (needed[layer])
        gpj_fail("the layer '%s' is required and cannot be made: %s", names[layer], reason);
}

void gpj_say(const char *word, int64_t value)
{
    char line[LINE_MAX_BYTES];
    snprintf(line, sizeof line, "%s %lld", word, (long long)value);
    say(line);
}

void gpj_fail(const char *format, ...)
{
    char text[LINE_MAX_BYTES - 16], line[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "%s%s", status_fd >= 0 ? "error " : "gpupool-jail: ", text);
    say(line);
    _exit(2);
}
