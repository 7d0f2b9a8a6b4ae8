/* Strangers on the socket: plain clients and servers that speak no gpupool. */
#ifndef GP_TRANSPORT_RAW_H
#define GP_TRANSPORT_RAW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
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

/* Somebody between two ends of one tcp connection, who sees what goes forward. */
struct raw_tap {
    int port; /* where to connect to instead */
    int listener, behind;
    pthread_t thread;
    unsigned char *seen; /* bytes that went forward, up to 8 MiB; after raw_tap_stop */
    size_t seen_bytes;
    _Atomic size_t spoil_in; /* bytes until one is changed, plus 1; 0: none is */
    _Atomic bool spoiled;
};
int raw_tap_start(struct raw_tap *tap, int port);
/* Change a bit of the byte that comes after `offset` more. */
void raw_tap_spoil(struct raw_tap *tap, size_t offset);
void raw_tap_stop(struct raw_tap *tap);
void raw_tap_free(struct raw_tap *tap);

/* A tcp port where nobody listens and nobody will while the socket is open. */
int raw_port_reserve(int *port);

#endif
