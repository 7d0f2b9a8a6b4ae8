/* What memory.c, copy.c and share.c keep together. */
#ifndef GPW_MEMORY_INTERNAL_H
#define GPW_MEMORY_INTERNAL_H

#include <pthread.h>

#include "allocator.h"
#include "landing.h"
#include "memory.h"
#include "staging.h"

struct gpw_window {
    struct gpw_session *session;
    uint32_t ordinal;
    uint64_t begin, end;
    struct gpw_allocator *allocator;
    uint64_t reserve_next;       /* for cuMemAddressReserve */
    uint64_t graphs_trim_behind; /* a trim waits for the frees up to this one; 0: none does */
};

/* A pinned buffer of the client's that both sides have mapped; or, over a network, this process's
 * own at the client's address, of which the client keeps a copy (mapped.c). */
struct gpw_pinned {
    struct gpw_pinned *next;
    uint64_t address; /* the client's */
    bool own;
    struct gp_share share;
    uint64_t device_address; /* for kernels; the driver's */
    CUcontext context;       /* in which it was registered */
};

/* Memory of the client's into which the GPU writes numbers (gpu_page.c). */
struct gpw_gpu_page {
    struct gp_share share;
    bool open, registered;
    CUcontext context; /* in which it was registered; NULL: in none that lives */
    CUdeviceptr address;
};

/* What the driver frees in stream order and has not been told to be free (freed.c). */
#define GPW_FREED_STREAMS 8
struct gpw_freed {
    CUstream streams[GPW_FREED_STREAMS]; /* with frees behind which nothing was written yet */
    unsigned count, sighted;
    struct gpw_sight *sights;
};

struct gpw_memory {
    struct gpw_window windows[GP_DEVICES_MAX];
    struct pending_free *frees; /* under way; memory.c */
    uint64_t last_free;
    unsigned ordered_frees; /* in streams' order: of our allocator's memory, and of arrays' */
    struct gpw_freed freed;
    struct gpw_pinned *pinned;
    struct gp_share arena;
    bool arena_open, arena_refused; /* the driver has refused to pin a part: it is told once */
    uint64_t arena_pinned;          /* its parts that are, or cannot be (share.c): a bit each */
    struct gpw_gpu_page event_page, completions;
    unsigned events_told; /* records that the client is to be told of */
    struct gpw_graph_memory *graph_memory;
    struct gpw_staging_pool staging;
    struct gpw_landings landings;
    struct gpw_captured *captured;
    pthread_t captured_thread; /* which may free of them, once one is spare */
    uint64_t captured_bytes;
    struct pool *pools;         /* pool.c */
    bool trims_pools;           /* within that: counting may ask for more */
    struct physical *physicals; /* vmm.c */
    struct mapping *mappings;
    struct gpw_mapped_part *mapped_parts; /* mapped_array.c */
};

/* Memory of the client's own (vmm.c) as other processes have it, and theirs as the client's own. */
CUresult gpw_physical_share(struct gpw_session *s, CUmemGenericAllocationHandle handle,
                            struct gpw_shareable **out);
CUresult gpw_physical_open(struct gpw_session *s, struct gpw_shareable *one,
                           CUmemGenericAllocationHandle *handle);
/* The same, as arrays have it mapped; NULL: none of the client's.
 * Each keep wants a drop. */
struct physical *gpw_physical_find(struct gpw_session *s, CUmemGenericAllocationHandle handle);
void gpw_physical_keep(struct physical *p);
void gpw_physical_drop(struct gpw_session *s, struct physical *p);
/* That an address lies in; NULL: in none. */
struct gpw_window *gpw_window_of(struct gpw_session *s, CUdeviceptr address);
/* Give back what pools and the allocator have and nobody uses. */
void gpw_memory_trim(struct gpw_session *s, uint32_t ordinal);
/* If fewer than `bytes` may still be taken of a device, do that: only what is in use may
 * stand in the way of an allocation. GPW_AGAIN: memory is being freed, and must be
 * waited for. */
CUresult gpw_memory_make_room(struct gpw_session *s, uint32_t ordinal, uint64_t bytes);

/* Pin memory that has been mapped, and take it into the session; if not, it is given back and `p`
 * is gone. */
CUresult gpw_pinned_register(struct gpw_session *s, struct gpw_pinned *p);
/* Give back memory of this process's own that is pinned no more. */
void gpw_mapped_give(struct gpw_session *s, struct gpw_pinned *p);
/* Whether the range lies in a pinned buffer, by the address that kernels have for it. */
bool gpw_pinned_on_device(struct gpw_session *s, uint64_t address, uint64_t bytes);
/* Memory of a graph that is being captured: the driver knows its address only while the
 * graph runs, but work behind it in the capture has it already. */
CUresult gpw_graph_memory_note(struct gpw_session *s, uint64_t address, uint64_t bytes);
/* Memory that was freed is given back: a trim that was put off until then is made. */
void gpw_graph_memory_freed(struct gpw_session *s);
/* Whether an allocation of a graph's begins there. */
bool gpw_graph_memory_begins(struct gpw_session *s, uint64_t address);
/* The ends of a copy that are arrays; NULL: it is memory, at an address. */
struct gpw_copy_arrays {
    CUarray dst, src;
};
/* A pitched copy as the driver gets it, of what the client says: false if it may not be. It must
 * not be empty. */
bool gpw_copy_3d_take(struct gpw_session *s, const CUDA_MEMCPY3D *copy,
                      const struct gpw_copy_arrays *arrays, CUDA_MEMCPY3D *own);
/* Whether work of the current context may write into it; it is pinned at first use. */
bool gpw_gpu_page_here(struct gpw_session *s, struct gpw_gpu_page *page);
/* The GPU writes the number at this offset of the page when the stream comes to it. */
bool gpw_gpu_page_write(struct gpw_session *s, struct gpw_gpu_page *page, CUstream stream,
                        uint64_t offset, uint64_t number);
void gpw_gpu_pages_context_ended(struct gpw_session *s, CUcontext context);
void gpw_captured_context_ended(struct gpw_session *s, CUcontext context);
/* Forget them all: their memory goes with the driver. */
void gpw_captured_close(struct gpw_session *s);

#endif
