/* Memory as the client keeps it: ranges, the arena, pinned buffers. */
#ifndef GPC_MEMORY_H
#define GPC_MEMORY_H

#include <cuda.h>
#include <stdint.h>

#include "call.h"
#include "session.h"

/* After the handshake: keep device addresses out of this process's own. Why that cannot be,
 * as one clause: something of this process is there. */
const char *gpc_windows_keep(const struct gpc_session *s);
/* Whether the device's window is reserved here; where address space is limited it may not be. */
bool gpc_window_is_kept(const struct gp_device_info *d);
/* And open the arena where memory can be shared. */
void gpc_memory_open(struct gpc_session *s);
void gpc_memory_context_ended(CUcontext context);

/* What freeing needs: nothing is freed without a context, too. */
enum gpc_needs gpc_free_needs(uint64_t address);

/* A device's default pool; and the one that was chosen in its place, NULL if none was. */
CUresult gpc_pool_default(CUdevice dev, CUmemoryPool *pool);
CUmemoryPool gpc_pool_current(CUdevice dev);

/* Below this a message is cheaper than a slot of the arena. */
#define GPC_ARENA_LEAST 16384u
/* A session's arena: slots of GP_CHUNK_MAX bytes; -1 when there is none. One for an upload:
 * blocks until one is free, which the worker says. */
int gpc_arena_take(struct gpc_session *s);
/* One for a download, or -1 at once: never of the last ones, because no worker says when this process
 * gives such a slot back. */
int gpc_arena_try(const struct gpc_session *s);
void gpc_arena_give(const struct gpc_session *s, unsigned slot);
void *gpc_arena_slot(const struct gpc_session *s, unsigned slot);

/* Bytes on their way into pinned memory that is not shared: wait until none of them
 * is for this range (NULL: none at all). */
CUresult gpc_pinned_settle(const void *address, size_t bytes);
/* Whether an address is where pinned memory is placed. */
bool gpc_pinned_may(uint64_t address);
/* Note such a copy of a session; returns its cookie, 0 when there is no memory. */
uint64_t gpc_pinned_expect(struct gpc_session *s, void *to, size_t bytes);
/* Whether, and where to, the bytes that such a notice brings belong: they are written there before it
 * is acted on. */
bool gpc_pinned_lands(struct gpc_session *s, const struct gp_req_gp_pinned_data *q, size_t size,
                      struct gp_landing *to);
/* Whether the session has still to bring the bytes of such copies. */
bool gpc_pinned_expects(const struct gpc_session *s);
/* Around the moment at which a session is said to be lost: from there on nothing is written
 * into memory that the application may take away because of it. */
void gpc_pinned_lose_begin(void);
void gpc_pinned_lose_end(const struct gpc_session *s);

#endif
