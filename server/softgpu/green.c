/*
 * Green contexts: a device's primary context with some of its multiprocessors. Here that is an
 * account, as blocks run on whatever core is free; what is a green context's own are its streams,
 * which lie in the primary one's list. The handle of a green context is that of the context.
 *
 * A resource's bytes come back from the program, so each is read with care.
 */
#include "softgpu.h"

#define PARTITION 2u /* multiprocessors of this GPU come in pairs */
#define MAGIC UINT32_C(0x67726e31)

enum made_by { WHOLE, SPLIT, LEFT };

/* What is behind the bytes that a program sees. */
struct hidden {
    uint32_t magic, device;
    uint32_t first, count; /* multiprocessors */
    uint32_t made_by;
    uint64_t split; /* which one has made it */
};
_Static_assert(sizeof(struct hidden) <= sizeof((CUdevResource *)0)->_internal_padding,
               "there is room for it");

struct CUdevResourceDesc_st {
    struct sg_device *device;
    unsigned first, count;
};

static void resource_make(CUdevResource *to, const struct hidden *h)
{
    memset(to, 0, sizeof *to);
    if (!h->count)
        return; /* INVALID: nothing is left */
    to->type = CU_DEV_RESOURCE_TYPE_SM;
    memcpy(to->_internal_padding, h, sizeof *h);
    to->sm.smCount = h->count;
    to->sm.minSmPartitionSize = to->sm.smCoscheduledAlignment = PARTITION;
}

static CUresult resource_read(const CUdevResource *from, struct hidden *h)
{
    if (from->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    memcpy(h, from->_internal_padding, sizeof *h);
    bool right = h->magic == MAGIC && h->device <= INT32_MAX && sg_device((int)h->device) &&
                 h->first < SG_MULTIPROCESSORS && h->count &&
                 h->count <= SG_MULTIPROCESSORS - h->first;
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

static CUresult resource_of(const struct sg_device *device, unsigned first, unsigned count,
                            CUdevResource *to, CUdevResourceType type)
{
    const struct hidden h = {.magic = MAGIC,
                             .device = (uint32_t)device->ordinal,
                             .first = first,
                             .count = count,
                             .made_by = WHOLE};
    if (!to)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    resource_make(to, &h);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    SG_LOCKED;
    SG_READY();
    const struct sg_device *of = sg_device(device);
    return of ? resource_of(of, 0, SG_MULTIPROCESSORS, resource, type) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type)
{
    SG_LOCKED;
    CUcontext context;
    SG_READY();
    if (!hCtx)
        return CUDA_ERROR_INVALID_CONTEXT;
    SG_TRY(sg_context_exact(hCtx, &context));
    return context->green_of
               ? resource_of(context->device, context->first_sm, context->sm_count, resource, type)
               : resource_of(context->device, 0, SG_MULTIPROCESSORS, resource, type);
}

/* ---- splitting ---- */
/* How many multiprocessors a group of at least so many has. */
static unsigned group_size(unsigned least, unsigned flags)
{
    unsigned step = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING ? 1 : PARTITION;
    if (least > SG_MULTIPROCESSORS)
        return least;
    return least ? (least + step - 1) / step * step : step;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                     const CUdevResource *input, CUdevResource *remaining,
                                     unsigned int useFlags, unsigned int minCount)
{
    SG_LOCKED;
    struct hidden h;
    SG_READY();
    if (!nbGroups || !input ||
        (useFlags & ~(unsigned)(CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
                                CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE)))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(resource_read(input, &h));
    unsigned size = group_size(minCount, useFlags), most = h.count / size;
    unsigned groups = !result || *nbGroups > most ? most : *nbGroups;
    if (h.made_by != WHOLE || !groups)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    struct hidden part = {.magic = MAGIC,
                          .device = h.device,
                          .first = h.first,
                          .count = size,
                          .made_by = SPLIT,
                          .split = ++sg.next_id};
    for (unsigned i = 0; i < groups && result; i++, part.first += size)
        resource_make(&result[i], &part);
    part.first = h.first + groups * size;
    part.count = h.count - groups * size;
    part.made_by = LEFT;
    if (result && remaining)
        resource_make(remaining, &part);
    *nbGroups = groups;
    return CUDA_SUCCESS;
}

/* Several are of one split, and together a piece of the device. */
static CUresult resources_join(const CUdevResource *resources, unsigned n, struct hidden *all)
{
    SG_TRY(resource_read(&resources[0], all));
    for (unsigned i = 1; i < n; i++) {
        struct hidden h;
        SG_TRY(resource_read(&resources[i], &h));
        if (h.device != all->device || !h.split || h.split != all->split)
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        all->count += h.count;
    }
    return all->count <= SG_MULTIPROCESSORS ? CUDA_SUCCESS
                                            : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                   unsigned int nbResources)
{
    SG_LOCKED;
    struct hidden all;
    SG_READY();
    if (!phDesc || !resources || !nbResources || nbResources > SG_MULTIPROCESSORS)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(resources_join(resources, nbResources, &all));
    CUdevResourceDesc desc = malloc(sizeof *desc);
    if (!desc || !sg_handle_add(desc, SG_RESOURCES)) {
        free(desc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *desc = (struct CUdevResourceDesc_st){sg_device((int)all.device), all.first, all.count};
    *phDesc = desc;
    return CUDA_SUCCESS;
}

/* ---- the contexts ---- */
CUcontext sg_green_current(void)
{
    CUcontext context = sg_context_peek();
    return context && context->green_of ? context : NULL;
}

bool sg_stream_in(const struct CUstream_st *stream, CUcontext context)
{
    return !context->green_of || stream->green == context;
}

CUresult sg_green_enter(CUcontext green, CUstream stream)
{
    stream->green = green;
    return green && green->entry ? sg_stream_follow(stream, green->entry) : CUDA_SUCCESS;
}

static CUresult green_get(CUgreenCtx handle, CUcontext *out)
{
    CUcontext green = (CUcontext)handle;
    SG_READY();
    if (!sg_handle_is(green, SG_CONTEXT) || !green->green_of)
        return CUDA_ERROR_INVALID_CONTEXT;
    *out = green;
    return green->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags)
{
    SG_LOCKED;
    CUcontext primary, green;
    SG_READY();
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!phCtx || flags != CU_GREEN_CTX_DEFAULT_STREAM || !sg_handle_is(desc, SG_RESOURCES) ||
        desc->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(sg_context_primary(device, &primary));
    SG_TRY(sg_context_make(device, primary->flags, &green));
    /* its default stream is one of the primary context's, as all of its streams */
    sg_stream_retire(green->legacy);
    green->legacy = sg_stream_new(primary, CU_STREAM_NON_BLOCKING, 0);
    if (!green->legacy) {
        sg_context_end(green);
        sg_handle_remove(green);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    green->legacy->green = green;
    green->green_of = primary;
    green->first_sm = desc->first;
    green->sm_count = desc->count;
    device->primary_refs++;
    *phCtx = (CUgreenCtx)green;
    return CUDA_SUCCESS;
}

/* Its streams go on as the primary context's, which says nothing of them any more. */
static void green_end(CUcontext green)
{
    sg_context_wait(green);
    green->alive = false;
    for (CUstream s = green->green_of->streams; s; s = s->next)
        if (s->green == green && s->is_handle)
            sg_handle_remove(s);
    if (green->entry)
        sg_stream_retire(green->entry);
    sg_stream_retire(green->legacy);
    green->legacy = green->entry = NULL;
}

void sg_greens_end(CUcontext primary)
{
    for (CUcontext c = sg.contexts; c; c = c->next)
        if (c->green_of == primary && c->alive)
            green_end(c);
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    SG_LOCKED;
    CUcontext green;
    SG_TRY(green_get(hCtx, &green));
    struct sg_device *device = green->device;
    green_end(green);
    sg_handle_remove(green);
    if (sg_context_peek() == green)
        sg_context_pop();
    if (device->primary_refs && --device->primary_refs == 0)
        sg_context_end(device->primary);
    return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
    SG_LOCKED;
    CUcontext green;
    SG_TRY(green_get(hCtx, &green));
    if (!pContext)
        return CUDA_ERROR_INVALID_VALUE;
    *pContext = green;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource, CUdevResourceType type)
{
    SG_LOCKED;
    CUcontext green;
    SG_TRY(green_get(hCtx, &green));
    return resource_of(green->device, green->first_sm, green->sm_count, resource, type);
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId)
{
    SG_LOCKED;
    CUcontext green = sg_green_current();
    if (greenCtx || !green)
        SG_TRY(green_get(greenCtx, &green));
    if (!greenCtxId)
        return CUDA_ERROR_INVALID_VALUE;
    *greenCtxId = green->id;
    return CUDA_SUCCESS;
}

static CUresult is_green(CUgreenCtx handle)
{
    SG_LOCKED;
    CUcontext green;
    return green_get(handle, &green);
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    SG_TRY(is_green(hCtx));
    return cuCtxRecordEvent((CUcontext)hCtx, hEvent);
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    SG_TRY(is_green(hCtx));
    return cuCtxWaitEvent((CUcontext)hCtx, hEvent);
}

CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags,
                                int priority)
{
    SG_TRY(is_green(greenCtx));
    if (flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(cuCtxPushCurrent_v2((CUcontext)greenCtx));
    CUresult result = cuStreamCreateWithPriority(phStream, flags, priority);
    cuCtxPopCurrent_v2(NULL);
    return result;
}
