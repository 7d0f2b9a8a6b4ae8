/*
 * Which graphics cluster each pair of multiprocessors belongs to, by the driver's own private table
 * (docs/private-tables.md, 1734dc26). That answers for the current context alone, and to make one for
 * the greeting takes longer than all else of it: so clients ask when a program does (gp_topology).
 */
#ifndef GPW_TOPOLOGY_H
#define GPW_TOPOLOGY_H

#include "session.h"

/* For a client that has no such question, while the worker is greeted; else, and where the driver has
 * no such table, topology_count stays 0. */
void gpw_topology_fill(struct gpw_session *s, CUdevice device, struct gp_device_info *info);

#endif
