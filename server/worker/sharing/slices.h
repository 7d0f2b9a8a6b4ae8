/*
 * The time slices that the hardware gives this process's channel groups. The driver
 * library allocates the groups by ioctl; this worker exports an `ioctl` of its own,
 * which passes everything on and remembers them, and asks the same kernel driver to
 * change their slices. It takes effect at once, inside kernels, and needs no privilege.
 * The soft GPU has a function of its own for it instead (../softgpu/timeslice.h).
 */
#ifndef GPW_SLICES_H
#define GPW_SLICES_H

#include <stdbool.h>
#include <stdint.h>

#include "session.h"

/* The session has its driver and devices. */
void gpw_slices_open(const struct gpw_session *s);
/* Groups allocated from now on belong to the device `ordinal` of the session. */
void gpw_slices_device(uint32_t ordinal);
/* Set the slices of a device's groups; 0: the driver's own again. */
void gpw_slices_set(uint32_t ordinal, uint64_t us);
/* Whether the driver has used the kernel's part of it, which the soft GPU has not. */
bool gpw_slices_kernel(void);
/* How many groups are known: 0 where there is no context, and where the driver has none (soft GPU). */
unsigned gpw_slices_groups(void);

#endif
