/*
 * What several exported functions share: the calls that the spec names with `does`, in the
 * place of a message, and with `then`, behind one (proto/gpgen/client_words.py). Their stubs are
 * generated; they have checked that the process and the thread may call, and what the
 * spec says of the arguments.
 */
#ifndef GPC_SHARED_H
#define GPC_SHARED_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "copy.h" /* what copies share */
#include "gp_ops.h"
#include "graph_node.h" /* what the spec says of nodes */
#include "ranges.h"
#include "snapshot.h"

struct gpc_route;

/* --- memory ------------------------------------------------------------------------- */

/* Memory that can be mapped, or a pool, was made on a device; -1: on none that is known. */
CUresult gpc_memory_made(uint64_t handle, CUdevice device);
/* The device of a location, or of the memory at an address; -1: none that is known. */
CUdevice gpc_location_device(const CUmemLocation *location);
/* Of a device, or of the host (CU_DEVICE_CPU). */
CUmemLocation gpc_location_of(CUdevice device);
/* Hints about `count` ranges of managed memory; where they are used next, if that is said. */
CUresult gpc_managed_batch(const struct gpc_route *on, const CUdeviceptr *at, const size_t *bytes,
                           size_t count, const CUmemLocation *locations, const size_t *first,
                           size_t location_count, unsigned long long flags);
CUdevice gpc_memory_device(uint64_t address);
/* Allocate in the current context; with `pitch`, rows of so many bytes that begin aligned. */
CUresult gpc_memory_alloc(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height);
/* Note what was allocated or mapped: on the device of `from`, the memory's handle, or of the
 * current context if that is 0. UNKNOWN if that cannot be. */
CUresult gpc_memory_keep(uint64_t from, CUdeviceptr at, size_t bytes, enum gpc_range_kind kind);
/* The same of what was allocated in stream order, from a pool or (NULL) the device's own. */
CUresult gpc_memory_keep_ordered(const struct gpc_route *on, CUmemoryPool pool, CUdeviceptr at,
                                 size_t bytes, CUstream stream);
/* Free what was allocated; `on` is NULL for the thread's route. */
CUresult gpc_memory_free(const struct gpc_route *on, CUdeviceptr dptr);
/* A variable of a module or library is device memory as well, until that is unloaded. */
CUresult gpc_memory_note_global(uint64_t image, CUdeviceptr address, size_t bytes);
/* `rows` of `width` values of `size` bytes, `pitch` bytes from one to the next. */
CUresult gpc_memset(const struct gpc_route *on, CUdeviceptr dst, size_t pitch, uint32_t value,
                    size_t size, size_t width, size_t rows, CUstream stream);
/* The same on the default stream, waited for where the memory wants that (SYNC_MEMOPS). */
CUresult gpc_memset_now(const struct gpc_route *on, CUdeviceptr dst, size_t pitch, uint32_t value,
                        size_t size, size_t width, size_t rows);

/* A device's own pool, as far as the program was told of it: nobody ends it. */
bool gpc_pool_is_default(CUmemoryPool pool);

/* An array or a mipmapped array was made. If there is no memory for its record it is
 * destroyed. */
CUresult gpc_array_note(uint64_t made, size_t width, size_t height, size_t depth,
                        CUarray_format format, unsigned channels);

/* --- what processes of one lease have in common ------------------------------------------- */

/* Another process may be told of what was done to such an event by faster ways: it has happened
 * when this returns. `flags` of its creation; 0: it is one already, or no other process has it. */
CUresult gpc_event_submitted(CUevent event, unsigned flags);
/* Likewise of one that was made with these flags, or (0) is recorded in a way in which nothing
 * tells of its end: whether the program may poll it (event_page.h). */
CUresult gpc_event_noted(CUevent event, unsigned flags);
/* Whether the work before its record is over, `waits`: once it is; from what is known, else by the
 * worker. */
CUresult gpc_event_ask(CUevent event, bool waits);
CUresult gpc_event_record(const struct gpc_route *on, CUevent event, CUstream stream,
                          unsigned flags);
/* A name for an address or a handle, as CUDA's IPC handle or a file descriptor. */
CUresult gpc_ipc_give(enum gp_ipc_kind kind, uint64_t what, void *to);
/* What such a name stands for, as an address or a handle. */
CUresult gpc_ipc_take(enum gp_ipc_kind kind, const void *from, void *to);

/* --- contexts ---------------------------------------------------------------------------- */

/* Wait for all work of a context, NULL: the current one (session/completion.h). */
CUresult gpc_complete_context(CUcontext context);

/* --- streams and graphs ---------------------------------------------------------------- */

/* A stream was made. If there is no memory for its record it is destroyed. */
CUresult gpc_stream_note(CUstream made, unsigned flags, int priority);
/* The same in a context that need not be current. */
CUresult gpc_stream_note_in(CUcontext context, CUstream made, unsigned flags, int priority);
/* A memory set as a node of a graph: where the GPU has its bytes. */
CUresult gpc_memset_node(uint16_t op, const struct gpc_route *on, CUdeviceptr *at,
                         const CUDA_MEMSET_NODE_PARAMS *p);
/* CUDA's rule for lists of nodes: without room, the count; with room, as many as fit, the
 * rest set to null, and the count of those filled. */
CUresult gpc_graph_list(CUgraph graph, bool roots, CUgraphNode *nodes, size_t *count);

/* Work of a green context is recorded in an event, or waits for one. */
CUresult gpc_green_event(CUgreenCtx green, CUevent event, bool record);
/* The multiprocessors of a context, which may be green. */
CUresult gpc_resource_of(CUcontext ctx, CUdevResource *resource, CUdevResourceType type);

/* --- kernels ----------------------------------------------------------------------------- */

struct gpc_shape {
    unsigned grid[3], block[3], shared;
};
/* What CUDA refuses before it looks at the kernel. */
CUresult gpc_shape_check(const struct gpc_shape *s, CUdevice device);
CUresult gpc_launch(const struct gpc_route *on, CUfunction f, const struct gpc_shape *shape,
                    CUstream stream, void **parameters, void **extra, uint32_t flags);
/* What is checked and packed for one, in `to` (GP_PARAMETER_BYTES_MAX). */
struct gpc_kernel;
CUresult gpc_launch_pack(const struct gpc_route *on, struct gpc_kernel *k,
                         const struct gpc_shape *s, void **parameters, void **extra,
                         unsigned char *to);
/* How many clusters of a launch run at a time, or (`most`) how large one can be. */
CUresult gpc_occupancy_clusters(int *result, CUfunction func, const CUlaunchConfig *c, bool most);
/* A setting of core dumps; without `value`, the room that it needs. */
CUresult gpc_coredump_get(CUcoredumpSettings attribute, void *value, size_t *size);
/* The kernels of a module or library, at most `room`. */
CUresult gpc_image_enumerate(enum gp_handle_kind kind, uint64_t id, CUfunction *to, unsigned room);

#endif
