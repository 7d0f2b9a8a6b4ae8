/* The resource limits of a worker (setrlimit(2)). */
#ifndef GPJ_LIMITS_H
#define GPJ_LIMITS_H

#include <stddef.h>
#include <sys/resource.h>

#define GPJ_LIMITS_MAX 8

struct gpj_limit {
    int resource;
    rlim_t value; /* soft and hard, in the resource's own unit */
};

struct gpj_limits {
    struct gpj_limit at[GPJ_LIMITS_MAX];
    unsigned count;
};

/* `NAME VALUE`: nofile, nproc, core, fsize, memlock or as, and a decimal number or `infinity`.
 * 0, or -1 if it is nothing of the kind or comes twice. */
int gpj_limits_take(struct gpj_limits *limits, const char *text);
/* None is raised above what the server has. 0: they are on; 1: they are off, and `why` says the
 * reason. */
int gpj_limits_apply(const struct gpj_limits *limits, char *why, size_t size);

#endif
