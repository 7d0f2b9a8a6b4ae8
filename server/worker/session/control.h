/*
 * The control socket: whichever gpupool-server is there connects to it, asks `status`
 * and may say `stop REASON`, or `say TEXT`, which the client is told, or `client`, with the
 * descriptor of a client's connection and a pidfd of its process, or `questions`, with that of a
 * socket where this worker may ask the server, or `share TOKEN`, which is answered by a line and
 * descriptors (ipc/shareable.h), or `image HASH`, likewise (handlers/image_store.h; one line each,
 * at most 511 bytes). The connection staying open means the worker lives.
 */
#ifndef GPW_CONTROL_H
#define GPW_CONTROL_H

#include <pthread.h>

#include "session.h"

/* "stop" or "say", and what the client is told. */
#define GPW_COMMAND_BYTES 512

struct gpw_control {
    struct gpw_session *session; /* that the answers are about */
    char path[108], id[64];
    int listener;
    bool stopped;
    pthread_mutex_t lock;
    char said[GPW_COMMAND_BYTES]; /* under the lock; empty: nothing new */
};

/* Listen at `path` (a Unix socket, replaced if stale), or at the descriptor whose number `fd`
 * is (NULL: none) and which somebody has bound there, on a thread of its own; the answers are
 * about `s`. `c` must last as long as the process. 0, or -1 with a log line. */
int gpw_control_open(struct gpw_control *c, const char *path, const char *fd, const char *id,
                     struct gpw_session *s);
/* Whether a server said `stop`. */
bool gpw_control_stopped(const struct gpw_control *c);
/* Clients that a server brings come to `listener`, of shared memory; NULL: to none. */
void gpw_control_clients_to(struct gpw_control *c, struct gp_listener *listener);
/* What a server wants the client to be told, once; false: nothing new. */
bool gpw_control_said(struct gpw_control *c, char *text, size_t size);
void gpw_control_close(const struct gpw_control *c);

#endif
