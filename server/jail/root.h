/* The root of a worker: a tmpfs that holds what the description names, and nothing else. */
#ifndef GPJ_ROOT_H
#define GPJ_ROOT_H

#include "description.h"

/* In a process of the lease, with its rights: make the root and go there; says which of the
 * layers root, devices and proc are on. */
void gpj_root_enter(const struct gpj_description *d, bool has_mounts);

#endif
