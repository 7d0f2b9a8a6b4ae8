/* What this session shares with other processes (shareable.h), and what it has asked the server. */
#ifndef GPW_IPC_H
#define GPW_IPC_H

#include <pthread.h>

#include "shareable.h"

struct gpw_bring; /* bring.c: a call that waits for an answer of the server */

struct gpw_ipc {
    pthread_mutex_t lock; /* for the control thread: `all`, and `server` */
    struct gpw_shareable *all;
    unsigned count;
    uint8_t session[GPW_IPC_SESSION_BYTES]; /* this one, as the server names it */
    int server;                             /* where it is asked; -1: none has said where */
    uint64_t servers;                       /* so many have said so */
    uint64_t questions;                     /* asked so far: the number of the last */
    struct gpw_bring *asking;               /* whose turn it is to ask */
};

/* For the session of this id. 0, or -1. */
int gpw_ipc_open(struct gpw_session *s, const char *id);
/* A server has said where it is asked, on the control thread: a Unix socket, which is taken over. */
void gpw_ipc_server(struct gpw_session *s, int connection);
/* How many have; each is to be told anew what it should know. */
uint64_t gpw_ipc_servers(struct gpw_session *s);
/* Tell it a line that has no answer. False: not now. */
bool gpw_ipc_say(struct gpw_session *s, const char *line);
/* Until a server has said where it is asked. False: none has. */
bool gpw_ipc_await_server(struct gpw_session *s, uint64_t until_ns);
/* The session is over: until the server has taken in what it was told, or has gone. */
void gpw_ipc_settle(struct gpw_session *s, uint64_t until_ns);
/* Take what it says unasked, if nobody waits for an answer, who takes it as well. */
void gpw_ipc_listen(struct gpw_session *s);

/* handlers/ipc.c: a name for the driver's handle, or an address, of what the client has; and what a
 * name stands for that was brought, as a handle or an address, and whose memory it is. */
CUresult gpw_ipc_name(struct gpw_session *s, struct gp_ipc_name *name, enum gp_ipc_kind kind,
                      uint64_t what);
CUresult gpw_ipc_take(struct gpw_session *s, const struct gp_ipc_name *name, enum gp_ipc_kind kind,
                      uint64_t *out, int32_t *device);

#endif
