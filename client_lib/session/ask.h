/*
 * One question to gpupool-server's front end, and how its answer is read: lines of
 * text (proto/wire-format.md, "The front end"). Both client libraries link it.
 */
#ifndef GPC_ASK_H
#define GPC_ASK_H

#include <stddef.h>
#include <stdint.h>

#define GPC_ANSWER_MAX 8192

/* Ask `server` and have its answer in `answer` (GPC_ANSWER_MAX bytes), with a NUL
 * behind it. A server that is busy is asked again until `timeout_ms` are over, or 10 s.
 * Its length; -1 and `why` (a line) if there is none, -2 and `why` if
 * `server` is no address that can be asked. */
int gpc_ask(const char *server, const char *plugin_dir, const char *question, size_t size,
            int timeout_ms, char *answer, char *why, size_t why_size);

/* An answer that is being read: its lines, which are cut up as they are read. */
struct gpc_answer {
    char *rest;
};

/* Begin with an answer of `size` bytes that `text` (GPC_ANSWER_MAX bytes) has room for:
 * 0 it is an "ok", 1 a "refused", -1 it is no answer. */
int gpc_answer_open(struct gpc_answer *a, const char *answer, size_t size, char *text);

/* The next line: 1 and its key and value, 0 when there are no more, -1 for a malformed line. */
int gpc_answer_next(struct gpc_answer *a, const char **key, const char **value);

/* Copy a value into `room` bytes; -1 if it is too long. */
int gpc_answer_keep(char *to, size_t room, const char *value);

/* This machine's boot id ("" if unknown). */
void gpc_boot_id(char out[64]);

/* The folder `plugins` beside the library that holds the function `own`. */
void gpc_plugin_folder(void (*own)(void), char *out, size_t size);

#endif
