/*
 * Green contexts: a device's primary context with some of its multiprocessors. The handle of one is
 * that of the context which CUDA converts it to. A resource has inside the name that its session's
 * worker gave it, and which session that is.
 */
#include <string.h>

#include "call.h"
#include "context.h"
#include "event_page.h"
#include "export.h"
#include "gpc_wire.h"
#include "handle.h"
#include "its.h"
#include "session.h"
#include "shared.h"

/* --- resources ---------------------------------------------------------------------------- */

#define SESSION_AT sizeof(uint64_t) /* behind the name */

static void resource_keep(CUdevResource *to, const CUdevResource *from, const struct gpc_session *s)
{
    uint32_t session = s->index + 1;
    *to = *from;
    if (to->type != CU_DEV_RESOURCE_TYPE_INVALID)
        memcpy(to->_internal_padding + SESSION_AT, &session, sizeof session);
}

/* Whose it is; NULL: it is none that was given. */
static struct gpc_session *resource_session(const CUdevResource *resource)
{
    uint32_t session;
    memcpy(&session, resource->_internal_padding + SESSION_AT, sizeof session);
    bool right = resource->type == CU_DEV_RESOURCE_TYPE_SM && session &&
                 session <= gpc_session_count();
    return right ? gpc_session_at(session - 1) : NULL;
}

GPC_EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource,
                                           CUdevResourceType type)
{
    CUdevResource got;
    CUresult r = gpc_enter(GP_OP_cuDeviceGetDevResource, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    const struct gpc_session *s = gpc_session_of_device(device);
    if (!s || !resource)
        return s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    r = type == CU_DEV_RESOURCE_TYPE_SM ? gpc_wire_cuDeviceGetDevResource(device, &got, type)
                                        : CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (r == CUDA_SUCCESS)
        resource_keep(resource, &got, s);
    return gpc_leave(r);
}

CUresult gpc_resource_of(CUcontext ctx, CUdevResource *resource, CUdevResourceType type)
{
    CUdevResource got;
    CUresult r = gpc_wire_cuCtxGetDevResource(ctx, &got, type);
    if (r == CUDA_SUCCESS)
        resource_keep(resource, &got, gpc_session_of_handle((uint64_t)ctx));
    return r;
}

/* `count` says how many were made; there was room for so many. */
static void groups_keep(CUdevResource *to, const CUdevResource *from, uint32_t count,
                        const struct gpc_session *s)
{
    for (uint32_t i = 0; i < count; i++)
        resource_keep(&to[i], &from[i], s);
}

GPC_EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                                const CUdevResource *input,
                                                CUdevResource *remaining, unsigned int useFlags,
                                                unsigned int minCount)
{
    CUdevResource groups[GP_RESOURCES_MAX], rest;
    uint32_t count = 0, got = 0;
    CUresult r = gpc_enter(GP_OP_cuDevSmResourceSplitByCount, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!nbGroups || !input || (result && *nbGroups == 0))
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t room = !result ? 0 : *nbGroups < GP_RESOURCES_MAX ? *nbGroups : GP_RESOURCES_MAX;
    struct gpc_session *s = resource_session(input);
    if (!s)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    const struct gpc_route on = gpc_route_to(s);
    r = gpc_wire_gp_resource_split_on(&on, input, room, useFlags, minCount, &count, &rest, groups,
                                      &got);
    if (r == CUDA_SUCCESS && room && (count > room || got < count * sizeof *groups))
        r = CUDA_ERROR_UNKNOWN;
    if (r != CUDA_SUCCESS)
        return gpc_leave(r);
    groups_keep(result, groups, room ? count : 0, s);
    if (room && remaining)
        resource_keep(remaining, &rest, s);
    *nbGroups = count;
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                              unsigned int nbResources)
{
    CUresult r = gpc_enter(GP_OP_cuDevResourceGenerateDesc, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!phDesc || !resources || nbResources == 0 || nbResources > GP_RESOURCES_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_session *s = resource_session(&resources[0]);
    for (unsigned i = 0; i < nbResources; i++)
        if (!resource_session(&resources[i]))
            return CUDA_ERROR_INVALID_RESOURCE_TYPE;
        else if (resource_session(&resources[i]) != s)
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION; /* of two hosts */
    const struct gpc_route on = gpc_route_to(s);
    return gpc_leave(gpc_wire_cuDevResourceGenerateDesc_on(&on, phDesc, resources, nbResources));
}

/* --- contexts ----------------------------------------------------------------------------- */

static struct gpc_context *green_of(CUgreenCtx green)
{
    struct gpc_context *c = gpc_context_of((CUcontext)green);
    return c && c->green ? c : NULL;
}

CUgreenCtx gpc_context_green(CUcontext ctx)
{
    return green_of((CUgreenCtx)ctx) ? (CUgreenCtx)ctx : NULL;
}

const struct gpc_context *gpc_green_its(CUgreenCtx green, CUresult *r)
{
    const struct gpc_context *c = green_of(green ? green : (CUgreenCtx)gpc_current());
    if (!c)
        *r = CUDA_ERROR_INVALID_CONTEXT;
    return c;
}

static CUresult enter(uint16_t op, CUgreenCtx green)
{
    CUresult r = gpc_enter(op, GPC_NEEDS_INIT);
    return r || green_of(green) ? r : CUDA_ERROR_INVALID_CONTEXT;
}

GPC_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                                     unsigned int flags)
{
    CUcontext primary, ctx;
    CUresult r = gpc_enter(GP_OP_cuGreenCtxCreate, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!gpc_device_info(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!phCtx || flags != CU_GREEN_CTX_DEFAULT_STREAM ||
        !gpc_handle_live(GP_HANDLE_RESOURCE_DESC, (uint64_t)desc))
        return CUDA_ERROR_INVALID_VALUE;
    if ((r = gpc_context_retain(dev, &primary)) != CUDA_SUCCESS)
        return gpc_leave(r);
    r = gpc_wire_gp_green_create(&ctx, desc, dev, flags);
    if (r == CUDA_SUCCESS && !gpc_context_note(ctx, dev, gpc_context_of(primary)->flags, true)) {
        gpc_wire_cuCtxDestroy_v2(ctx);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r == CUDA_SUCCESS)
        *phCtx = (CUgreenCtx)ctx;
    else
        gpc_context_release(dev, false);
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    CUresult r = enter(GP_OP_cuGreenCtxDestroy, hCtx);
    if (r != CUDA_SUCCESS)
        return r;
    CUdevice device = green_of(hCtx)->device;
    r = gpc_context_destroy((CUcontext)hCtx);
    return gpc_leave(r ? r : gpc_context_release(device, false));
}

struct search {
    CUdevice device;
    CUcontext found;
};

static void find(uint64_t id, void *shadow, void *arg)
{
    struct search *search = arg;
    const struct gpc_context *c = shadow;
    if (c && c->green && !c->ending && c->device == search->device)
        search->found = (CUcontext)id;
}

unsigned gpc_greens_end(CUdevice device)
{
    struct search search = {.device = device};
    for (unsigned count = 0;; count++) {
        search.found = NULL;
        gpc_handle_each(GP_HANDLE_CONTEXT, find, &search);
        if (!search.found || gpc_context_destroy(search.found) != CUDA_SUCCESS)
            return count;
    }
}

CUresult gpc_green_event(CUgreenCtx green, CUevent event, bool record)
{
    if (record)
        gpc_event_not_polled(event);
    return record ? gpc_wire_cuCtxRecordEvent((CUcontext)green, event)
                  : gpc_wire_cuCtxWaitEvent((CUcontext)green, event);
}

/* --- their streams ------------------------------------------------------------------------ */

GPC_EXPORT CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx,
                                           unsigned int flags, int priority)
{
    CUstream made;
    CUresult r = enter(GP_OP_cuGreenCtxStreamCreate, greenCtx);
    if (r != CUDA_SUCCESS)
        return r;
    if (!phStream || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    const struct gpc_route on = gpc_route_in((CUcontext)greenCtx);
    r = gpc_wire_cuStreamCreateWithPriority_on(&on, &made, flags, priority);
    if (r == CUDA_SUCCESS)
        r = gpc_stream_note_in((CUcontext)greenCtx, made, flags, priority);
    if (r == CUDA_SUCCESS)
        *phStream = made;
    return gpc_leave(r);
}
