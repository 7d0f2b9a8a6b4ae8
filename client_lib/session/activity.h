/*
 * What the GPUs do when, as their hosts' CUPTI records it. Whoever wants records starts them;
 * they come as notices while the process waits for something, and with every flush.
 */
#ifndef GPC_ACTIVITY_H
#define GPC_ACTIVITY_H

#include "activity_record.h"
#include "session.h"

/* On all sessions. A host that cannot record says why by itself; NOT_SUPPORTED if none can. */
CUresult gpc_activity_start(void);
void gpc_activity_stop(void);
/* Returns when what was complete before is here; `forced`: and what was not. `dropped` (may be
 * NULL): how many were lost. */
CUresult gpc_activity_flush(bool forced, uint64_t *dropped);

#endif
