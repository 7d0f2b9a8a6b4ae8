/*
 * The namespaces of a lease on this host: its workers share them, those of other leases are in
 * others. A process of ours holds them: it is the first of the lease's pid namespace, so when it
 * ends, the kernel ends all workers of the lease. It has no right, no file and nothing to do; it
 * outlives the server, as workers do, and ends when the server ends it, or when no worker has
 * been there for a while.
 */
#ifndef GPJ_LEASE_H
#define GPJ_LEASE_H

#include "description.h"

/* Folders below d->root as the lease's mount namespace has them: the memory that its workers
 * share as /dev/shm, and where each worker makes its own root. */
#define GPJ_LEASE_SHM "shm"
#define GPJ_LEASE_ROOT "root"

/* Join the namespaces, or make them; says which of the layers are on. Children of this process
 * are in them. */
void gpj_lease_enter(const struct gpj_description *d);
/* Which namespace this process, or (pid_for_children) its next child, is in; 0: not known. */
ino_t gpj_namespace(const char *file);

#endif
