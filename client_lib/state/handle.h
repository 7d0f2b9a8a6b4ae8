/*
 * What the application holds as CUstream, CUevent, … : numbers that the client
 * chose (layout in proto/wire/snapshot.h), each with an optional shadow, the
 * client's own record of the object. Look-ups take no lock.
 */
#ifndef GPC_HANDLE_H
#define GPC_HANDLE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "call.h"
#include "gp_ops.h"
#include "snapshot.h"

/* A new id of this kind in a session, 0 when there are too many. It is live from here on. */
uint64_t gpc_handle_new(enum gp_handle_kind kind, uint32_t session);
/* Forget the id (and free nothing: the shadow's owner does). 0 is allowed. */
void gpc_handle_drop(uint64_t id);
/* Ids that the client named are looked up; a worker-named one is taken as it is. */
bool gpc_handle_live(enum gp_handle_kind kind, uint64_t id);
/* The shadow set with gpc_handle_attach, NULL if none or the id is not live. */
void *gpc_handle_shadow(enum gp_handle_kind kind, uint64_t id);
void gpc_handle_attach(uint64_t id, void *shadow);
/* Free the shadow of an id that has been dropped: when no walk looks at it any more. */
void gpc_handle_free(void *shadow);
/* Live ids of a kind, oldest index first, for walks at the end of a context: calls
 * visit(id, shadow, arg). The visitor may drop the id it is given. */
void gpc_handle_each(enum gp_handle_kind kind, void (*visit)(uint64_t, void *, void *), void *arg);

#endif
