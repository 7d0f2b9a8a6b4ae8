/* Contexts: the primary ones by the client's number, others made for it. */
#include "function.h"
#include "gate.h"
#include "gpw_handlers.h"
#include "green.h"
#include "handles.h"
#include "host_function.h"
#include "later.h"
#include "left.h"
#include "link.h"
#include "mapped_array.h"
#include "loop.h"
#include "memory_internal.h"
#include "peer.h"
#include "place.h"
#include "quota.h"
#include "slices.h"
#include "staging.h"
#include "texture.h"

CUresult gpw_gp_capture_mode_set(struct gpw_session *s, uint32_t mode)
{
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    s->strict = mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
}

/* What copies in it will need. */
static void prepare(struct gpw_session *s, CUcontext context)
{
    CUcontext before = NULL;
    s->driver->cuCtxGetCurrent(&before);
    s->driver->cuCtxSetCurrent(context);
    gpw_staging_prepare(s);
    s->driver->cuCtxSetCurrent(before);
}

CUresult gpw_gp_primary_retain(struct gpw_session *s, uint64_t context, CUdevice dev,
                               uint32_t flags)
{
    CUdevice device;
    if (gpw_device_take(s, dev, &device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!gpw_handle_free(s, GP_HANDLE_CONTEXT, context) || s->primary[dev]) {
        gpw_session_broken(s, "a primary context that is retained already");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (flags)
        s->driver->cuDevicePrimaryCtxSetFlags_v2(device, flags);
    CUcontext real = NULL;
    gpw_slices_device((uint32_t)dev);
    CUresult r = s->driver->cuDevicePrimaryCtxRetain(&real, device);
    if (r == CUDA_SUCCESS && !gpw_quota_reconcile(s, (uint32_t)dev)) {
        s->driver->cuDevicePrimaryCtxRelease_v2(device);
        gpw_quota_reconcile(s, (uint32_t)dev);
        r = CUDA_ERROR_OUT_OF_MEMORY; /* the context alone is over the limit */
    }
    gpw_gate_tick(s);
    if (r == CUDA_SUCCESS)
        prepare(s, real);
    gpw_handle_put(s, GP_HANDLE_CONTEXT, context, (uint64_t)real, r);
    if (r == CUDA_SUCCESS)
        s->primary[dev] = real;
    return r;
}

/* Before the driver destroys it: nothing here may name it, or what goes with it, again.
 * Its id is taken already, and with it those of its streams, events, modules and graphs. */
static void context_ending(struct gpw_session *s, CUcontext context)
{
    CUcontext before = NULL;
    s->driver->cuCtxGetCurrent(&before);
    s->driver->cuCtxSetCurrent(context);
    s->contexts_ended++;
    gpw_gate_context_ended(s, context);
    gpw_waits_context_ended(s, context);
    gpw_event_waits_context_ended(s);
    gpw_waits_poll(s); /* what they hold is given back while there is somewhere to */
    gpw_captured_context_ended(s, context);
    gpw_gpu_pages_context_ended(s, context);
    gpw_place_forget(s);
    gpw_functions_forget(s);
    gpw_textures_context_ended(s, context);
    gpw_mapped_arrays_forget(s);
    gpw_links_context_ended(s, context);
    gpw_left_context_ended(s, context);
    s->driver->cuCtxSetCurrent(before == context ? NULL : before);
}

CUresult gpw_gp_primary_release(struct gpw_session *s, uint64_t context, CUdevice dev,
                                uint32_t reset)
{
    CUdevice device;
    uint64_t real;
    if (gpw_device_take(s, dev, &device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult r = gpw_handle_get(s, GP_HANDLE_CONTEXT, context, false, &real);
    if (r != CUDA_SUCCESS)
        return r;
    if ((CUcontext)real != s->primary[dev]) {
        gpw_session_broken(s, "the primary context of a device is another one");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (gpw_green_is_of(s, (CUcontext)real)) {
        gpw_session_broken(s, "a primary context that has green ones is released");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    gpw_peers_context_ended(s, (CUcontext)real);
    gpw_host_functions_look(s);
    if (gpw_host_functions_pending(s)) /* the driver waits for those of every context */
        return GPW_AGAIN;
    gpw_handle_take(s, GP_HANDLE_CONTEXT, context, false, &real);
    gpw_memory_context_ended(s, (CUcontext)real);
    context_ending(s, (CUcontext)real);
    s->primary[dev] = NULL;
    r = s->driver->cuDevicePrimaryCtxRelease_v2(device);
    if (reset && r == CUDA_SUCCESS)
        r = s->driver->cuDevicePrimaryCtxReset_v2(device);
    gpw_staging_context_ended(s, (CUcontext)real); /* not before: its work may still write there */
    gpw_quota_reconcile(s, (uint32_t)dev);
    return r;
}

/* A plain one comes up current; the client says when it is. */
static CUresult make(struct gpw_session *s, CUcontext *ctx, CUdevResourceDesc desc,
                     uint32_t ordinal, uint32_t flags)
{
    CUcontext before = NULL, popped;
    if (desc)
        return gpw_green_make(s, ctx, desc, ordinal, flags);
    s->driver->cuCtxGetCurrent(&before);
    CUresult r = s->driver->cuCtxCreate_v2(ctx, flags, s->devices[ordinal]);
    if (r == CUDA_SUCCESS) {
        s->driver->cuCtxPopCurrent_v2(&popped);
        s->driver->cuCtxSetCurrent(before);
    }
    return r;
}

static void unmake(struct gpw_session *s, CUcontext context)
{
    if (!gpw_green_destroy(s, context))
        s->driver->cuCtxDestroy_v2(context);
}

CUresult gpw_context_make(struct gpw_session *s, CUcontext *ctx, CUdevResourceDesc desc,
                          CUdevice device, uint32_t flags)
{
    uint32_t ordinal = 0;
    while (s->devices[ordinal] != device) /* it was taken from there */
        ordinal++;
    gpw_slices_device(ordinal);
    CUresult r = make(s, ctx, desc, ordinal, flags);
    if (r == CUDA_SUCCESS && !gpw_quota_reconcile(s, ordinal)) {
        unmake(s, *ctx);
        gpw_quota_reconcile(s, ordinal);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    gpw_gate_tick(s);
    if (r == CUDA_SUCCESS)
        prepare(s, *ctx);
    return r;
}

static bool is_primary(const struct gpw_session *s, CUcontext context)
{
    for (uint32_t i = 0; i < s->device_count; i++)
        if (s->primary[i] == context)
            return true;
    return false;
}

static int ordinal_of(struct gpw_session *s, CUcontext context)
{
    CUcontext before = NULL;
    s->driver->cuCtxGetCurrent(&before);
    s->driver->cuCtxSetCurrent(context);
    int ordinal = gpw_current_ordinal(s);
    s->driver->cuCtxSetCurrent(before);
    return ordinal;
}

static void destroy(struct gpw_session *s, void *arg)
{
    CUcontext context = arg;
    int ordinal = ordinal_of(s, context);
    gpw_memory_context_ended(s, context); /* what it freed must not be unmapped under its work */
    context_ending(s, context);
    unmake(s, context);
    gpw_staging_context_ended(s, context); /* not before: its work may still write there */
    if (ordinal >= 0) /* what the driver had taken for its arrays and modules is given back */
        gpw_quota_reconcile(s, (uint32_t)ordinal);
}

/* The driver waits in it for streams of other contexts, too: for one that is blocked until the
 * client has run a host function, whose end is a message that this thread has to take. */
CUresult gpw_cuCtxDestroy_v2(struct gpw_session *s, CUcontext ctx)
{
    CUcontext current = NULL;
    if (is_primary(s, ctx)) {
        gpw_session_broken(s, "a primary context is released, not destroyed");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    gpw_peers_context_ended(s, ctx);
    gpw_green_ending(s, ctx);
    s->driver->cuCtxGetCurrent(&current);
    if (current == ctx)
        s->driver->cuCtxSetCurrent(NULL);
    gpw_when_none_blocked(s, destroy, ctx);
    return CUDA_SUCCESS;
}

/* The driver's word is for memory of its own allocators; ours is mapped, and shared here. */
CUresult gpw_noted_cuCtxEnablePeerAccess(struct gpw_session *s, CUcontext peer, unsigned int flags)
{
    CUcontext before = NULL;
    (void)flags;
    int current = gpw_current_ordinal(s);
    s->driver->cuCtxGetCurrent(&before);
    s->driver->cuCtxSetCurrent(peer);
    int other = gpw_current_ordinal(s);
    s->driver->cuCtxSetCurrent(before);
    if (current < 0 || other < 0)
        return CUDA_SUCCESS;
    CUresult r = gpw_memory_share(s, (uint32_t)other, (uint32_t)current);
    if (r != CUDA_SUCCESS)
        s->driver->cuCtxDisablePeerAccess(peer);
    return r;
}
