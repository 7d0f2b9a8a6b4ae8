/* Which graphics cluster each pair of multiprocessors belongs to. */
#ifndef GPW_TOPOLOGY_H
#define GPW_TOPOLOGY_H

#include "session.h"

/* Ask the driver's own private table (docs/private-tables.md, 1734dc26); leaves
 * topology_count 0 where the driver has no such table. */
void gpw_topology_fill(struct gpw_session *s, CUdevice device, struct gp_device_info *info);

#endif
