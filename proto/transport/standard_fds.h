/*
 * A program that has closed its descriptors 0 to 2, as daemons do, may still print: what is written
 * there must not go to a server, or into memory that is shared. So nothing of ours has these numbers.
 */
#ifndef GP_TRANSPORT_STANDARD_FDS_H
#define GP_TRANSPORT_STANDARD_FDS_H

#include "transport/support.h"

/* Those that were free and are nothing's meanwhile. */
struct gp_standard_fds {
    struct gp_fd_mark held[3];
    unsigned count;
};

/* What is opened from here on, until they are let go of, has other numbers. Errors pass: then
 * there is no descriptor for anything else, either. */
void gp_standard_fds_hold(struct gp_standard_fds *f);
void gp_standard_fds_release(struct gp_standard_fds *f);

#endif
