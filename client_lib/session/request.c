#include "request.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpc_request_variables.h"

/* As a key, GPUPOOL_MEMORY is gpupool-memory. */
static const char *const variables[] = {GPC_REQUEST_VARIABLES};

/* What is written, and whether all of it had room. */
struct line {
    char *out;
    size_t used, size;
    bool full;
};

static void put(struct line *line, char c)
{
    if (line->used + 1 < line->size)
        line->out[line->used++] = c;
    else
        line->full = true;
}

static void put_text(struct line *line, const char *text)
{
    while (*text)
        put(line, *text++);
}

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void put_key(struct line *line, const char *variable)
{
    for (; *variable; variable++)
        put(line, *variable == '_' ? '-' : (char)(*variable | 0x20)); /* A to Z become a to z */
}

/* A value is one line of plain ASCII. No right one has anything else in it. */
static void put_value(struct line *line, const char *value, size_t length)
{
    for (size_t i = 0; i < length; i++)
        put(line, value[i] < 0x20 || value[i] > 0x7e ? '?' : value[i]);
}

static void put_variable(struct line *line, const char *variable)
{
    const char *value = getenv(variable);
    while (value && blank(*value))
        value++;
    if (!value || !*value)
        return; /* an empty variable is an absent one */
    size_t length = strlen(value);
    while (blank(value[length - 1]))
        length--;
    put_key(line, variable);
    put_text(line, ": ");
    put_value(line, value, length);
    put(line, '\n');
}

int gpc_request_fields(char *out, size_t size, char *why, size_t why_size)
{
    struct line line = {.out = out, .size = size, .full = size == 0};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        put_variable(&line, variables[i]);
    if (line.full) {
        snprintf(why, why_size, "the request in GPUPOOL_* is too long");
        return -1;
    }
    out[line.used] = '\0';
    return (int)line.used;
}
