/*
 * As before CUDA 4: launches of what is set on a function, then a grid of it; contexts whose uses are
 * counted.
 */
#include "context_life.h"

#define PARAMETERS_MAX 32768u
#define BLOCK_MAX 1024
#define SHARED_MAX (227u << 10)

struct sg_settings {
    int block[3];
    unsigned shared;
    size_t bytes;
    unsigned char parameters[PARAMETERS_MAX];
};

static CUresult settings_of(CUfunction f, struct sg_settings **out)
{
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!sg_handle_is(f, SG_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!f->settings && (f->settings = calloc(1, sizeof(*f->settings))))
        for (int i = 0; i < 3; i++)
            f->settings->block[i] = 1;
    *out = f->settings;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z)
{
    SG_LOCKED;
    struct sg_settings *s;
    SG_TRY(settings_of(hfunc, &s));
    if (x < 1 || y < 1 || z < 1 || x > BLOCK_MAX || y > BLOCK_MAX || z > BLOCK_MAX ||
        (long)x * y * z > BLOCK_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    s->block[0] = x;
    s->block[1] = y;
    s->block[2] = z;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes)
{
    SG_LOCKED;
    struct sg_settings *s;
    SG_TRY(settings_of(hfunc, &s));
    if (bytes > SHARED_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    s->shared = bytes;
    return CUDA_SUCCESS;
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes)
{
    SG_LOCKED;
    struct sg_settings *s;
    SG_TRY(settings_of(hfunc, &s));
    if (numbytes > PARAMETERS_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    s->bytes = numbytes;
    return CUDA_SUCCESS;
}

CUresult cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes)
{
    SG_LOCKED;
    struct sg_settings *s;
    SG_TRY(settings_of(hfunc, &s));
    if (!ptr || offset < 0 || (unsigned)offset > PARAMETERS_MAX ||
        numbytes > PARAMETERS_MAX - (unsigned)offset)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(s->parameters + offset, ptr, numbytes);
    return CUDA_SUCCESS;
}

CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value)
{
    return cuParamSetv(hfunc, offset, &value, sizeof(value));
}

CUresult cuParamSetf(CUfunction hfunc, int offset, float value)
{
    return cuParamSetv(hfunc, offset, &value, sizeof(value));
}

/* A kernel has those that it names. */
CUresult cuParamSetTexRef(CUfunction hfunc, int texunit, CUtexref hTexRef)
{
    SG_LOCKED;
    struct sg_settings *s;
    SG_TRY(settings_of(hfunc, &s));
    if (texunit != CU_PARAM_TR_DEFAULT)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_handle_is(hTexRef, SG_TEXREF) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
    struct sg_settings settings, *s;
    {
        SG_LOCKED;
        SG_TRY(settings_of(f, &s));
        settings = *s;
    }
    s = &settings;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, s->parameters, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &s->bytes, CU_LAUNCH_PARAM_END};
    return cuLaunchKernel(f, (unsigned)grid_width, (unsigned)grid_height, 1, (unsigned)s->block[0],
                          (unsigned)s->block[1], (unsigned)s->block[2], s->shared, hStream, NULL,
                          extra);
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
    return cuLaunchGridAsync(f, grid_width, grid_height, NULL);
}

CUresult cuLaunch(CUfunction f)
{
    return cuLaunchGridAsync(f, 1, 1, NULL);
}

/* Streams that are no default ones, on devices that are each another. */
static CUresult check_devices(const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
    SG_LOCKED;
    const struct sg_device *seen[SG_MAX_DEVICES];
    for (unsigned i = 0; i < count; i++) {
        CUstream stream;
        SG_TRY(sg_stream_get(list[i].hStream, &stream));
        if (!stream->is_handle)
            return CUDA_ERROR_INVALID_HANDLE;
        seen[i] = stream->context->device;
        for (unsigned k = 0; k < i; k++)
            if (seen[k] == seen[i])
                return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                              unsigned int numDevices, unsigned int flags)
{
    SG_READY();
    if (!launchParamsList || numDevices == 0 || numDevices > SG_MAX_DEVICES || (flags & ~3u))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(check_devices(launchParamsList, numDevices));
    for (unsigned i = 0; i < numDevices; i++) {
        const CUDA_LAUNCH_PARAMS *p = &launchParamsList[i];
        SG_TRY(cuLaunchCooperativeKernel(p->function, p->gridDimX, p->gridDimY, p->gridDimZ,
                                         p->blockDimX, p->blockDimY, p->blockDimZ,
                                         p->sharedMemBytes, p->hStream, p->kernelParams));
    }
    return CUDA_SUCCESS;
}

/* --- uses of a context ---- */
CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (!pctx || flags)
        return CUDA_ERROR_INVALID_VALUE;
    context->attached++;
    *pctx = context;
    return CUDA_SUCCESS;
}

/* Whether it was the last use of a context that goes with it. */
static CUresult use_end(CUcontext ctx, bool *last)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_context_current(&context));
    if (ctx != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *last = !ctx->attached && !ctx->primary;
    ctx->attached -= ctx->attached > 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx)
{
    bool last;
    SG_TRY(use_end(ctx, &last));
    return last ? cuCtxDestroy_v2(ctx) : CUDA_SUCCESS;
}
