/* Strangers on the socket: plain clients and servers that speak no gpupool. */
#ifndef GP_TRANSPORT_RAW_H
#define GP_TRANSPORT_RAW_H

#include <pthread.h>
#include <stddef.h>

#include "transport_suite.h"

/* A plain connection to the first socket behind a listener's url; -1: none. */
int raw_dial(enum raw_kind kind, const char *url);

/* A plain server at `url` (wildcard port: it finds one) that answers each
 * connection with a few bytes of its own and hangs up. */
struct raw_server {
    int sockets[2]; /* a url may stand for two */
    char url[256];
    char paths[2][160];
    pthread_t thread;
};
int raw_server_start(struct raw_server *s, enum raw_kind kind, const char *url);
void raw_server_stop(struct raw_server *s);

/* A tcp port where nobody listens and nobody will while the socket is open. */
int raw_port_reserve(int *port);

#endif
