/* Who a worker is, and what it may do. */
#ifndef GPJ_IDS_H
#define GPJ_IDS_H

#include "description.h"

/* The last steps before the worker: its user, no capability, nothing to be gained. */
void gpj_ids_apply(const struct gpj_description *d);
/* No capability now, after an exec, or of a file's. 0, or 1 with `why`. */
int gpj_capabilities_drop(char *why, size_t size);

#endif
