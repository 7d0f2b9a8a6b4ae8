/*
 * Connections on the loopback of a lease, for a worker that must not connect.
 *
 * A worker in a network of its own holds its client's connection, which is of the host's, and
 * connect() could turn that to somebody else: so it is refused (filter.h). But NCCL connects to
 * itself, even with one rank. The process that holds the lease's namespaces does that for it: it
 * takes a socket, and connects it if it is of its own network.
 */
#ifndef GP_LOOPBACK_H
#define GP_LOOPBACK_H

#include <sys/socket.h>

/* In the lease's network: where it is asked. A descriptor, or -1 with errno. */
int gp_loopback_open(void);
/* Answer one that asks there, whoever it is. Blocks for a second at most. */
void gp_loopback_serve(int door);

/* As connect(), by who serves in this network: 0, or -1 with errno. EPERM: nobody does, or it is
 * no TCP socket of this network, or no address of the loopback. */
int gp_loopback_connect(int fd, const struct sockaddr *address, socklen_t size);

#endif
