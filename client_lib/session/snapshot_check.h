/* Whether what a worker says of its devices can be: docs/security.md, "A hostile server". */
#ifndef GPC_SNAPSHOT_CHECK_H
#define GPC_SNAPSHOT_CHECK_H

#include "snapshot.h"

/* Take the `bytes` that a worker of any release sent: into `to`, which has room for
 * GP_DEVICES_MAX devices, in the form of this one; what is refused here, no device has. NULL if it can be believed, else what is
 * wrong, as one clause. */
const char *gpc_snapshot_read(const void *from, uint32_t bytes, struct gp_snapshot *to);
#endif
