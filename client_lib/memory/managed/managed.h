/*
 * Managed memory: the same addresses here and on the GPU's host.
 *
 * There it is memory of the device, in its window. Here an area (area.h) lies at the same
 * addresses, in blocks, each of which is
 *
 *   WRITTEN  open for writing: the host may have changed it since the GPU's host last got it
 *   SAME     open for reading: both have the same bytes
 *   STALE    closed: the GPU may have changed it
 *
 * Work that may see it takes what is WRITTEN over before it (before.c), and what it may change is
 * STALE from then on, under one lock with its submission. A host touch of what is closed is a
 * fault (fault.c), which waits for the work that was submitted and brings the block, and more of
 * those behind it when touches follow each other (touch.c). So there is one rule, CUDA's for
 * devices whose `concurrentManagedAccess` is 0: between a launch and the next synchronization
 * the memory is the GPU's, and whoever touches it waits.
 *
 * A thread that faults may be anywhere in the application, so what serves it takes no lock that a
 * faulting thread can hold: this library itself reads and writes managed memory by its alias
 * alone (gpc_managed_view).
 */
#ifndef GPC_MANAGED_H
#define GPC_MANAGED_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ranges.h"

struct gpc_call;
struct gpc_route;

/* --- for calls ----------------------------------------------------------------------------- */

/* Memory of the current context's device. */
CUresult gpc_managed_alloc(CUdeviceptr *at, size_t bytes, unsigned flags);
/* Free what begins here. */
CUresult gpc_managed_free(const struct gpc_route *on, CUdeviceptr at);
/* Its context has ended: close it here, whatever the GPU's host has done. */
void gpc_managed_drop(CUdeviceptr at);
/* Who may touch it from now on: CUmemAttach_flags, and the stream as it travels. */
CUresult gpc_managed_attach(CUdeviceptr at, size_t bytes, unsigned flags, uint64_t stream);
/* A stream is gone, and with it what was attached to it. */
void gpc_managed_stream_ended(uint64_t stream);

/* advice.c: hints, and what they were. INVALID_VALUE: not all of it is one allocation's. */
CUresult gpc_managed_check(CUdeviceptr at, size_t bytes);
CUresult gpc_managed_advise(CUdeviceptr at, size_t bytes, CUmem_advise advice,
                            const CUmemLocation *location);
CUresult gpc_managed_prefetch(CUdeviceptr at, size_t bytes, const CUmemLocation *location);
CUresult gpc_managed_attribute(void *data, size_t size, CUmem_range_attribute which, CUdeviceptr at,
                               size_t bytes);

/* A module has this variable: if it is managed, it is reached here as well. NOT_SUPPORTED, with a
 * line in the log, if its address is taken. */
CUresult gpc_managed_variable(uint64_t address, uint64_t bytes);
/* Whether an address is managed memory's, or mapped memory's. */
bool gpc_managed_has(uint64_t address);
/* The context of this variable has ended; or a module or library, and perhaps variables with it. */
void gpc_managed_variable_drop(uint64_t address, uint64_t bytes);
void gpc_managed_variables_ended(void);

/* --- for the session ------------------------------------------------------------------------- */

/* Around a submission: bring over what the call may see. Where it is true, nothing is fetched
 * until gpc_managed_after. */
bool gpc_managed_before(struct gpc_call *call);
void gpc_managed_after(void);
/* Where this library reads or (`write`) writes bytes of the application's: the alias if they lie
 * in managed memory, which is brought here, else the address itself. */
void *gpc_managed_view(const void *p, uint64_t bytes, bool write);
/* Bytes were written by such a view, which took its time: work that was submitted meanwhile may
 * have closed the memory, and mapped memory's have still to go over. */
void gpc_managed_filled(const void *p, uint64_t bytes);
/* A thread has faulted. False: not in managed memory. `free`: it runs a host function, for
 * whose time its stream counts as idle, and waits for no work. */
struct gpc_touch {
    uint64_t address;
    bool write, free;
    uintptr_t pc; /* of the instruction; 0: nobody knows */
};
bool gpc_managed_touch(const struct gpc_touch *t);

/* --- mapped memory (mapped.c) ---------------------------------------------------------------- */

/* Let kernels reach pinned memory that is this process's own: the session of its context has it at
 * the same address from then on. SUCCESS if it was so already; NOT_SUPPORTED with a line in the log
 * where it cannot be. */
CUresult gpc_mapped_open(uint64_t address);
/* registered.c: why kernels cannot reach this memory; NULL: they can, or nobody has registered it. */
const char *gpc_registered_why_not(const struct gpc_range *range);
/* The same for all that the packed parameters of a kernel name. */
CUresult gpc_mapped_open_named(const unsigned char *parameters, size_t bytes);
/* Close it, there and here: its pages are gone. */
CUresult gpc_mapped_close(const struct gpc_range *range);
/* Something was waited for: what the host read before that may be old. */
void gpc_mapped_waited(void);

#endif
