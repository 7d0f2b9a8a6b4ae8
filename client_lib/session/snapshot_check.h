/* Whether what a worker says of its devices can be: docs/security.md, "A hostile server". */
#ifndef GPC_SNAPSHOT_CHECK_H
#define GPC_SNAPSHOT_CHECK_H

#include "snapshot.h"

/* NULL if all of the `bytes` that came can be believed, else what is wrong, as one clause. */
const char *gpc_snapshot_wrong(const struct gp_snapshot *s, uint32_t bytes);

#endif
