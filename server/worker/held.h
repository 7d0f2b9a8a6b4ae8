/* What this process holds of a device's memory, as NVML counts it. */
#ifndef GPW_HELD_H
#define GPW_HELD_H

#include "session.h"

/* False where NVML does not say: the soft GPU, or a container that hides processes. */
bool gpw_held_bytes(struct gpw_session *s, uint32_t ordinal, uint64_t *bytes);

#endif
