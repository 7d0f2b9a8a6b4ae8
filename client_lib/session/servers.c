#include "servers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *without_blanks_around(char *text)
{
    text += strspn(text, " \t\r\n");
    size_t length = strlen(text);
    while (length && strchr(" \t\r\n", text[length - 1]))
        text[--length] = '\0';
    return text;
}

/* The next piece of a list with commas. */
static char *next_piece(char **list)
{
    char *piece = strsep(list, ",");
    return piece ? without_blanks_around(piece) : NULL;
}

static int read_servers(char *list, struct gpc_servers *out, char *why, size_t why_size)
{
    char *piece;
    while ((piece = next_piece(&list)) != NULL) {
        if (*piece == '\0') {
            snprintf(why, why_size,
                     "GPUPOOL_SERVER has an empty address: write "
                     "tcp://HOST:7700, several with a comma between them");
            return -1;
        }
        if (strlen(piece) >= GPC_SERVER_MAX) {
            snprintf(why, why_size, "GPUPOOL_SERVER is too long for an address");
            return -1;
        }
        if (out->count == GP_SESSIONS_MAX) {
            snprintf(why, why_size, "GPUPOOL_SERVER names more than %d servers", GP_SESSIONS_MAX);
            return -1;
        }
        strcpy(out->server[out->count++], piece);
    }
    return 0;
}

/* A single token is shared by all. */
static int read_tokens(char *list, struct gpc_servers *out, char *why, size_t why_size)
{
    unsigned count = 0;
    char *piece;
    if (out->count == 1) { /* with its commas */
        out->token[0] = without_blanks_around(list);
        return 0;
    }
    while ((piece = next_piece(&list)) != NULL) {
        if (count < GP_SESSIONS_MAX)
            out->token[count] = piece;
        count++;
    }
    if (count == 1)
        for (unsigned i = 1; i < out->count; i++)
            out->token[i] = out->token[0];
    else if (count != out->count) {
        snprintf(why, why_size,
                 "GPUPOOL_TOKEN has %u tokens for %u servers: give one for all of "
                 "them, or one for each",
                 count, out->count);
        return -1;
    }
    return 0;
}

/* A question to a server is lines of text: no token begins another one. */
static int check_tokens(const struct gpc_servers *list, char *why, size_t why_size)
{
    for (unsigned i = 0; i < list->count; i++)
        for (const char *c = list->token[i]; *c; c++)
            if ((unsigned char)*c <= ' ' || *c == 0x7f) {
                snprintf(why, why_size,
                         "GPUPOOL_TOKEN, or its file, has a blank or a line's end within: a token "
                         "has none, and several have commas between them");
                return -1;
            }
    return 0;
}

int gpc_servers_read(const char *servers, const char *tokens, struct gpc_servers *out, char *why,
                     size_t why_size)
{
    memset(out, 0, sizeof *out);
    char *copy = strdup(servers);
    out->tokens = strdup(tokens);
    int r = copy && out->tokens ? 0 : -1;
    if (r != 0)
        snprintf(why, why_size, "no memory for GPUPOOL_SERVER");
    if (r == 0)
        r = read_servers(copy, out, why, why_size);
    if (r == 0)
        r = read_tokens(out->tokens, out, why, why_size);
    if (r == 0)
        r = check_tokens(out, why, why_size);
    free(copy);
    if (r != 0)
        gpc_servers_free(out);
    return r;
}

/* Until the file ends or `size` is full; -1 and errno on an error. */
static ssize_t read_all(int file, char *to, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(file, to + done, size - done);
        if (got == 0)
            break;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* The text of a file, without the blanks behind it, for free(); NULL and `why`. */
static char *read_tokens_file(const char *path, char *why, size_t why_size)
{
    char *text = malloc(GPC_TOKENS_MAX + 1);
    int file = text ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    ssize_t size = file < 0 ? -1 : read_all(file, text, GPC_TOKENS_MAX + 1);
    int error = text ? errno : ENOMEM;
    if (file >= 0)
        close(file);
    if (size < 0)
        snprintf(why, why_size, "GPUPOOL_TOKEN_FILE: %.128s cannot be read: %s", path,
                 strerror(error));
    else if (size > GPC_TOKENS_MAX || memchr(text, '\0', (size_t)size))
        snprintf(why, why_size, "GPUPOOL_TOKEN_FILE: %.128s holds no token", path);
    else {
        static const char mark[] = "\xef\xbb\xbf"; /* editors may begin with it */
        size_t begin = size >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0, end = (size_t)size;
        while (end > begin && strchr(" \t\r\n", text[end - 1]))
            end--;
        memmove(text, text + begin, end - begin);
        text[end - begin] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

int gpc_servers_of_environment(struct gpc_servers *out, char *why, size_t why_size)
{
    const char *servers = getenv("GPUPOOL_SERVER"), *tokens = getenv("GPUPOOL_TOKEN");
    const char *path = getenv("GPUPOOL_TOKEN_FILE");
    char *kept = NULL;
    if (!servers || !*servers) {
        snprintf(why, why_size,
                 "GPUPOOL_SERVER is not set: start the program with `gpupool run`, or set it to "
                 "the server's address, tcp://HOST:7700");
        return -1;
    }
    if ((!tokens || !*tokens) && path && *path) {
        tokens = kept = read_tokens_file(path, why, why_size);
        if (!kept)
            return -1;
    }
    int r = gpc_servers_read(servers, tokens ? tokens : "", out, why, why_size);
    free(kept);
    return r;
}

void gpc_servers_free(struct gpc_servers *list)
{
    free(list->tokens);
    list->tokens = NULL;
}
