/* The functions of contexts: made and ended, the current one, primary ones, limits. */
#include "pool.h"

static bool flags_valid(unsigned flags)
{
    unsigned schedule = flags & CU_CTX_SCHED_MASK;
    return !(flags & ~(unsigned)CU_CTX_FLAGS_MASK) &&
           (schedule == 0 || (schedule & (schedule - 1)) == 0);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    SG_LOCKED;
    SG_READY();
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context;
    SG_TRY(sg_context_primary(device, &context));
    device->primary_refs++;
    *pctx = context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    SG_LOCKED;
    SG_READY();
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!device->primary_refs)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->primary_refs == 0)
        sg_context_end(device->primary);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    SG_LOCKED;
    SG_READY();
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device->primary && device->primary->alive)
        sg_context_end(device->primary);
    device->primary_refs = 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return cuDevicePrimaryCtxReset_v2(dev);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    SG_LOCKED;
    SG_READY();
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!flags_valid(flags))
        return CUDA_ERROR_INVALID_VALUE;
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    SG_LOCKED;
    SG_READY();
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = device->primary_flags;
    *active = device->primary && device->primary->alive;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    SG_LOCKED;
    SG_READY();
    if (!pctx || !flags_valid(flags))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_device *device = sg_device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    CUcontext context;
    SG_TRY(sg_context_make(device, flags, &context));
    CUresult result = sg_context_push(context);
    if (result != CUDA_SUCCESS) {
        sg_context_end(context);
        return result;
    }
    *pctx = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                        unsigned int flags, CUdevice dev)
{
    if (numParams != 0 || paramsArray)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                        CUdevice dev)
{
    const CUctxCreateParams *p = ctxCreateParams;
    if (p && p->numExecAffinityParams < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (p && (p->numExecAffinityParams || p->execAffinityParams))
        return p->cigParams ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return p && p->cigParams ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *pExecAffinity, CUexecAffinityType type)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pExecAffinity || (unsigned)type >= CU_EXEC_AFFINITY_TYPE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY; /* no context has fewer than all */
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    SG_LOCKED;
    SG_READY();
    if (!ctx)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_handle_is(ctx, SG_CONTEXT) || ctx->primary || ctx->green_of)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!ctx->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    sg_context_end(ctx);
    sg_handle_remove(ctx);
    if (sg_context_peek() == ctx)
        sg_context_pop();
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    SG_LOCKED;
    SG_READY();
    if (!sg_handle_is(ctx, SG_CONTEXT))
        return ctx ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    return sg_context_push(ctx);
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
    return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    SG_READY();
    CUcontext top = sg_context_pop();
    if (!top)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx)
        *pctx = top;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    return cuCtxPopCurrent_v2(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    SG_LOCKED;
    SG_READY();
    if (ctx && !sg_handle_is(ctx, SG_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    sg_context_pop();
    return ctx ? sg_context_push(ctx) : CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    SG_READY();
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = sg_context_peek();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    SG_LOCKED;
    SG_READY();
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = ctx ? ctx : sg_context_peek();
    if (!context || (ctx && !sg_handle_is(ctx, SG_CONTEXT)))
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!flags_valid(flags))
        return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_exact(ctx, &context));
    if (!ctxId)
        return CUDA_ERROR_INVALID_VALUE;
    *ctxId = context->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_of(ctx, &context));
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = context->api_version;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_exact(ctx, &context));
    SG_TRY(sg_capture_unsafe());
    CUresult result = sg_context_wait(context);
    sg_waited++;
    return result;
}

/* What is said of a context's work as a whole says nothing of captures: it ends them. */
static CUresult end_captures(CUcontext context)
{
    CUresult result = CUDA_SUCCESS;
    for (CUstream s = sg_context_root(context)->streams; s; s = s->next)
        if (s->capture && sg_stream_in(s, context)) {
            s->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

static CUresult context_and_event(CUcontext context, CUevent event)
{
    CUcontext named;
    SG_READY();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    SG_TRY(sg_context_exact(context, &named));
    return sg_handle_is(event, SG_EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent)
{
    SG_LOCKED;
    SG_TRY(context_and_event(hCtx, hEvent));
    CUcontext root = sg_context_root(hCtx);
    if (hEvent->context != root)
        return CUDA_ERROR_INVALID_HANDLE;
    SG_TRY(end_captures(hCtx));
    CUstream all = sg_stream_new(root, CU_STREAM_NON_BLOCKING, 0);
    CUresult result = all ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (CUstream s = all ? all->next : NULL; s && result == CUDA_SUCCESS; s = s->next)
        if (sg_stream_in(s, hCtx))
            result = sg_stream_follow(all, s);
    if (result == CUDA_SUCCESS)
        result = sg_event_record(hEvent, all);
    if (all)
        sg_stream_retire(all);
    return result;
}

CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent)
{
    SG_LOCKED;
    SG_TRY(context_and_event(hCtx, hEvent));
    if (hEvent->capture) {
        hEvent->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    SG_TRY(end_captures(hCtx));
    CUcontext root = sg_context_root(hCtx);
    if (!hCtx->entry && !(hCtx->entry = sg_stream_new(root, CU_STREAM_NON_BLOCKING, 0)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    SG_TRY(sg_stream_wait_mark(hCtx->entry, &hEvent->mark));
    for (CUstream s = root->streams; s; s = s->next)
        if (s != hCtx->entry && sg_stream_in(s, hCtx))
            SG_TRY(sg_stream_follow(s, hCtx->entry));
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    return cuCtxSynchronize_v2(NULL);
}

/* Whether a limit exists on this device, and its bounds. */
static CUresult limit_check(CUlimit limit)
{
    if (limit < 0 || limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || limit >= CU_LIMIT_SHMEM_SIZE)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    SG_TRY(limit_check(limit));
    if (limit == CU_LIMIT_STACK_SIZE && value > (512u << 10))
        return CUDA_ERROR_INVALID_VALUE;
    if (limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY && value > 128)
        return CUDA_ERROR_INVALID_VALUE;
    if (limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
        value = 0; /* the device has none to set aside */
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE && value > context->device->memory_size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pvalue)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(limit_check(limit));
    *pvalue = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pconfig)
        return CUDA_ERROR_INVALID_VALUE;
    *pconfig = context->cache_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (config > CU_FUNC_CACHE_PREFER_EQUAL)
        return CUDA_ERROR_INVALID_VALUE;
    context->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pConfig)
        return CUDA_ERROR_INVALID_VALUE;
    *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    return config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                              : CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    SG_LOCKED;
    CUcontext context;
    return sg_context_current(&context);
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (leastPriority)
        *leastPriority = 0;
    if (greatestPriority)
        *greatestPriority = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int flags)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_handle_is(peerContext, SG_CONTEXT) || !peerContext->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peerContext->device == context->device)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (context->peers >> peerContext->device->ordinal & 1)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= 1u << peerContext->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!sg_handle_is(peerContext, SG_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!(context->peers >> peerContext->device->ordinal & 1))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~(1u << peerContext->device->ordinal);
    return CUDA_SUCCESS;
}
