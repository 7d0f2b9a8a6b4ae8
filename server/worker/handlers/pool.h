/* The driver's memory pools, as far as this session's limit goes. */
#ifndef GPW_POOL_H
#define GPW_POOL_H

#include "session.h"

/* Give back what the pools of a device keep without need, here and on the board. */
void gpw_pools_trim(struct gpw_session *s, uint32_t ordinal);
/* Bring the board up to date with what the pools hold. */
void gpw_pools_count(struct gpw_session *s);
/* Memory that was freed is given back: what was put off until then is done. */
void gpw_pools_freed(struct gpw_session *s);
/* Memory in the stream's order, of a pool or of the device's own (NULL). */
CUresult gpw_pool_alloc(struct gpw_session *s, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
                        CUstream stream);
/* A pool that was made for it, as other processes have it; and theirs, from which nothing is
 * allocated here: its memory is mapped by names of its own (handlers/ipc.c). */
struct gpw_shareable;
CUresult gpw_pool_share(struct gpw_session *s, CUmemoryPool pool, struct gpw_shareable **out);
CUresult gpw_pool_import(struct gpw_session *s, uint32_t ordinal, CUmemoryPool *pool);

#endif
