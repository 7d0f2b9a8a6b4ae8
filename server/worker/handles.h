/*
 * The client's ids and the driver's handles behind them: looked up by index,
 * kind and generation; a failed creation leaves its error, which every use of
 * the id then gives.
 */
#ifndef GPW_HANDLES_H
#define GPW_HANDLES_H

#include "session.h"

struct gpw_handles *gpw_handles_new(void);
void gpw_handles_free(struct gpw_handles *handles);

/* Whether the client may name a new object so. */
bool gpw_handle_free(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id);
/* Bind the id to the driver's handle, or to the error of its creation. */
void gpw_handle_put(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id, uint64_t real,
                    CUresult result);
/* The driver's handle: INVALID_HANDLE (INVALID_CONTEXT, …) for an id that is not
 * live, or its creation's error. Streams: GP_STREAM_LEGACY gives CU_STREAM_LEGACY. */
CUresult gpw_handle_get(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id,
                        bool nullable, uint64_t *real);
/* As get, and the id is free afterwards. */
CUresult gpw_handle_take(struct gpw_session *s, enum gp_handle_kind kind, uint64_t id,
                         bool nullable, uint64_t *real);
/* An id of the worker's own choosing for an object that the driver made by itself
 * (graph nodes); the same object keeps its id. 0 when there are too many. */
uint64_t gpw_handle_name(struct gpw_session *s, enum gp_handle_kind kind, uint64_t real);
/* Visit every live id of a kind. */
void gpw_handle_each(struct gpw_session *s, enum gp_handle_kind kind,
                     void (*visit)(struct gpw_session *, uint64_t id, uint64_t real, void *),
                     void *arg);

#endif
