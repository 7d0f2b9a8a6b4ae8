/* What this process has of others (ipc.c), for the calls that end it or refuse it. */
#ifndef GPC_IPC_H
#define GPC_IPC_H

#include <cuda.h>
#include <stdbool.h>

#include "call.h"
#include "ranges.h"

/* Undo one opening of what begins there: GPC_RANGE_IPC or GPC_RANGE_IMPORTED. `on` is NULL for the
 * thread's route. */
CUresult gpc_ipc_close(const struct gpc_route *on, CUdeviceptr dptr, enum gpc_range_kind kind);
/* Its context ends, and its range is gone: it is open no more, however often it was opened. */
void gpc_ipc_drop(const struct gpc_route *on, CUdeviceptr dptr);
/* Whether this process has ever named anything of its for others, or taken anything of theirs: what it
 * waits for may be what it tells them. */
bool gpc_ipc_used(void);
/* Whether it is another process's pool. */
bool gpc_pool_is_imported(CUmemoryPool pool);

#endif
