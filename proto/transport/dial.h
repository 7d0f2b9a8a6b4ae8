/* Reaching "SCHEME://HOST:PORT", and saying why it cannot be reached. */
#ifndef GP_TRANSPORT_DIAL_H
#define GP_TRANSPORT_DIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "transport/transport.h"

#define GP_ENDPOINT_MAX 256

struct addrinfo;

/* Whether it is a port; `listening` allows "*", 0, and a range, "40000-40999". */
bool gp_port_ok(const char *text, size_t length, bool listening);
/* Look the host up ("*": any address; the port "*" or a range: 0): 0, -EINVAL, -EADDRNOTAVAIL.
 * The caller frees. */
int gp_endpoint_find(const char *endpoint, bool listening, struct addrinfo **found);

/* Ports at which one may listen: one, or `count` from `first` on; port 0 is any. */
struct gp_ports {
    uint16_t first;
    uint32_t count;
};
/* What stands behind the last colon of "SCHEME://HOST:PORT": 0 or -EINVAL. */
int gp_ports_of(const char *endpoint, struct gp_ports *out);
/* Have `listen_at` try one after the other, from any on, while it says -EADDRINUSE; what it
 * says in the end. */
int gp_ports_try(const struct gp_ports *ports, int (*listen_at)(void *ctx, uint16_t port),
                 void *ctx);

/* ms until `deadline_ns`, as far as somebody has to take the connection in them. */
int gp_reach_ms(int64_t deadline_ns);
/* Connect within the time; the socket does not block. 0 or a negative errno. */
int gp_connect_within(int fd, const struct sockaddr *address, socklen_t length, int timeout_ms);
/* A plain connection (it does not block), the caller's to close. -ECONNREFUSED,
 * -EHOSTUNREACH, -ETIMEDOUT, -EADDRNOTAVAIL its name is not known, ... */
int gp_dial(const char *endpoint, int timeout_ms, int *fd);

/* Say in one line why no worker was reached at `url`; returns what connect returns.
 * `accepted`: somebody took the connection. */
int gp_dial_explain(const char *url, int rc, int timeout_ms, bool accepted, struct gp_error *err);

#endif
