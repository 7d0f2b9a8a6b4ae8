/* What this process holds of a device's memory, as NVML counts it. */
#ifndef GPW_HELD_H
#define GPW_HELD_H

#include "session.h"

/* Begin to open NVML, beside what is done next: it is asked when there is a context, and takes a good
 * part of the time that the driver takes for that. The driver runs, and devices are chosen. */
void gpw_held_open(struct gpw_session *s);
/* False where it is not known: a container that hides processes, or a soft GPU (which has
 * the process's memory only, and is asked itself) without a current context. */
bool gpw_held_bytes(struct gpw_session *s, uint32_t ordinal, uint64_t *bytes);
/* What a driver with a context takes between two looks, for streams, events, pools and
 * kernels of its own: charged ahead, so that a full account stays within its limit. */
uint64_t gpw_held_ahead(struct gpw_session *s);

#endif
