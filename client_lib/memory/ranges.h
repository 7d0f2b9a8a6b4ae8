/*
 * Every address range that the application got from us, by address: what tells a
 * device pointer from a host pointer, and what a pointer's attributes are.
 */
#ifndef GPC_RANGES_H
#define GPC_RANGES_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "snapshot.h"

enum gpc_range_kind {
    GPC_RANGE_DEVICE,  /* cuMemAlloc */
    GPC_RANGE_MANAGED, /* cuMemAllocManaged: a device's, and the host's at the same address */
    GPC_RANGE_POOL,    /* cuMemAllocAsync */
    GPC_RANGE_GRAPH, /* cuMemAllocAsync in a capture: it comes and goes with the graph's launches */
    GPC_RANGE_MAPPED,   /* cuMemMap */
    GPC_RANGE_GLOBAL,   /* a module's variable */
    GPC_RANGE_IPC,      /* cuIpcOpenMemHandle: another process's cuMemAlloc */
    GPC_RANGE_IMPORTED, /* cuMemPoolImportPointer: of another process's pool */
    GPC_RANGE_SHARED,   /* cuMemHostAlloc, memory that both sides have mapped, or (without an owner)
                       * have at the same address and keep alike (managed/mapped.c) */
    GPC_RANGE_HOST,     /* cuMemHostAlloc or cuMemHostRegister, this process's own */
};

/* Drivers choose the addresses of modules' variables, and two hosts' may choose the
 * same. Such a range has a *place*, its session's index, and is looked for first in
 * the place where the caller is; what has an address of its own is in place 0. */
struct gpc_range {
    uint64_t begin;
    uint64_t size;
    unsigned place;
    enum gpc_range_kind kind;
    CUcontext context; /* NULL for mappings */
    CUdevice device;
    unsigned flags;          /* of host memory, as asked for */
    uint64_t device_address; /* of shared host memory */
    uint64_t id;             /* of cuPointerGetAttribute's BUFFER_ID */
    bool registered;         /* cuMemHostRegister */
    bool sync;               /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
    uint64_t from; /* the handle of its pool, its module or library, or of what is mapped */
    void *owner;   /* what to free it with */
};

/* 0, or -1 when there is no memory. Memory of graphs that lay there before has gone, and so have
 * variables, unless it is memory of this host. */
int gpc_range_add(const struct gpc_range *range);
/* Remove the range that begins here; false if there is none. */
bool gpc_range_remove(uint64_t begin, struct gpc_range *removed);
/* And of a place, before those of others. */
bool gpc_range_remove_at(unsigned place, uint64_t begin, struct gpc_range *removed);
/* Remove this one, as it was found; false: somebody else has. A worker that lies may have two
 * begin at one address, so who looked at a range and acts on it removes no other. */
bool gpc_range_forget(const struct gpc_range *range);
/* What is said of this one's SYNC_MEMOPS from now on; false: it is not there any more. */
bool gpc_range_set_sync(const struct gpc_range *range, bool sync);
/* The range that the address lies in; looked for where the thread is. */
bool gpc_range_find(uint64_t address, struct gpc_range *found);
/* And where a route goes. */
bool gpc_range_find_at(unsigned place, uint64_t address, struct gpc_range *found);
/* And of two addresses at once: whether each was found. */
void gpc_range_find_two(unsigned place, const uint64_t address[2], struct gpc_range *const to[2],
                        bool found[2]);
/* It is shared from now on, at the same address on both sides; false: it is gone. */
bool gpc_range_share(const struct gpc_range *range);
/* Whether [begin, begin + size) has anything in common with a range. */
bool gpc_range_meets(uint64_t begin, uint64_t size);
/* Given by the sessions: the place of the thread's current context. */
unsigned gpc_range_place(void);
/* Remove the variables of a module or library. */
void gpc_range_image_ended(uint64_t image);
/* Remove every range of a context, calling `ended` for each. */
void gpc_range_context_ended(CUcontext context, void (*ended)(const struct gpc_range *));

static inline bool gpc_range_is_host(const struct gpc_range *r)
{
    return r->kind == GPC_RANGE_SHARED || r->kind == GPC_RANGE_HOST;
}

#endif
