/*
 * The filters of a worker's system calls, as workers.list has them.
 *
 * A refused call is not made: the process gets SIGSYS, which ends it. A worker names the call
 * first (gp_filter_narrow).
 */
#ifndef GP_FILTER_H
#define GP_FILTER_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>

enum gp_filter_driver { GP_FILTER_SOFT, GP_FILTER_CUDA };
enum gp_filter_mode {
    GP_FILTER_LOG,
    GP_FILTER_ENFORCE
}; /* LOG: refused calls are made, and told
                                                             to the kernel's log */

struct gp_filter {
    const struct sock_filter *code;
    size_t count; /* instructions */
};

/* By driver and mode; empty if gpupool was built without libseccomp. */
extern const struct gp_filter gp_filters[2][2];

/* For good, for this thread and what it executes; it needs no_new_privs. 0, or -1 with errno:
 * ENOSYS if this build has none. */
int gp_filter_install(enum gp_filter_driver driver, enum gp_filter_mode mode);

/* In a worker that runs under such a filter, before it has threads: it may execute nothing any
 * more and set SO_LINGER of no socket (EPERM), and its handler of SIGSYS, which says which call was
 * refused, stays. Unless it `connects`, it may not do that either (EPERM). Does nothing where there is no filter. 0, or -1
 * with errno. */
int gp_filter_narrow(bool connects);

#endif
