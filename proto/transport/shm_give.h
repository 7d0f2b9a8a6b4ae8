/*
 * How connections come to a listener of shared memory: it has no socket file. Who accepts them,
 * gpupool-server, checks the word that they begin with and hands them over, so that a worker
 * needs no name in any file system and no stranger can connect to it.
 */
#ifndef GP_SHM_GIVE_H
#define GP_SHM_GIVE_H

#include "transport/transport.h"

/* The one address that shared memory is listened at. */
#define SHM_HANDED "shm://handed"

/* Give the listener a connected Unix socket (SOCK_SEQPACKET), and a pidfd of who connected,
 * or -1 where that is not known: both are the listener's from now on, also on an error. From
 * any thread, until the listener is closed. 0, or -EINVAL: no such socket. */
int gp_shm_give(struct gp_listener *l, int sock, int pidfd);

#endif
