/* The control group of a worker, which the server has made. */
#ifndef GPJ_CGROUP_H
#define GPJ_CGROUP_H

#include <stddef.h>

/* Move this process there. 0: done; 1: not, and `why` says the reason. */
int gpj_cgroup_enter(const char *path, char *why, size_t size);

#endif
