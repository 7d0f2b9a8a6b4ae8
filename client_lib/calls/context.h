/*
 * Contexts as the client knows them: which device, primary or not, what has
 * been retained. The worker hears of a primary context when it is first retained.
 */
#ifndef GPC_CONTEXT_H
#define GPC_CONTEXT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct gpc_private_host;

/* The client's record of a context. */
struct gpc_context {
    CUdevice device;
    bool primary;
    unsigned flags;
    unsigned retained; /* of a primary context */
    unsigned attached; /* uses beyond the first, as before CUDA 4 */
    bool green;        /* a part of its device's primary context */
    bool ending;       /* being destroyed: no call is to go there that does not name it */
    uint64_t unique_id;
    uint32_t life; /* of a primary context's one handle: how often it has ended */
    struct gpc_context *next_unused;
};

/* The version cuDriverGetVersion answers. */
int gpc_driver_version(void);
/* The primary context's handle without retaining it: one per device, for ever. */
CUresult gpc_context_primary(CUdevice device, CUcontext *context);
/* The id of cuCtxGetId, never reused; 0 if the context is not ours. */
uint64_t gpc_context_unique_id(CUcontext context);
bool gpc_context_live(CUcontext context);
/* The calling thread's current context, NULL if none. */
CUcontext gpc_current_context(void);
/* NULL: there is none such. */
struct gpc_context *gpc_context_of(CUcontext context);
/* Whose memory, modules and events are made while this one is current: a green context has none
 * of its own. */
CUcontext gpc_context_owner(CUcontext context);
/* What it is as a green context, NULL if it is none. */
CUgreenCtx gpc_context_green(CUcontext context);
/* One use more of the device's primary context; and less, which may end it, or (`reset`) all. */
CUresult gpc_context_retain(CUdevice device, CUcontext *context);
CUresult gpc_context_release(CUdevice device, bool reset);
/* A new context's record, NULL without memory; and the end of one that is no primary context. */
struct gpc_context *gpc_context_note(CUcontext context, CUdevice device, unsigned flags,
                                     bool green);
CUresult gpc_context_destroy(CUcontext context);
/* green.c: the device's green contexts end; how many there were. */
unsigned gpc_greens_end(CUdevice device);
/* What the private tables need from the rest of the library. */
const struct gpc_private_host *gpc_private_host(void);

#endif
