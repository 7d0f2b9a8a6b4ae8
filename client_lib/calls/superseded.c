/*
 * Launches as before CUDA 4: the block, the shared memory and the parameters are set on a function,
 * then a grid of it is launched. And one launch on several devices, which is one on each.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_stubs.h"
#include "handle.h"
#include "its.h"
#include "module.h"
#include "shared.h"

struct gpc_settings {
    struct gpc_shape shape;
    size_t bytes; /* of the parameters that are passed */
    unsigned char parameters[GP_PARAMETER_BYTES_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A function's, made when it is asked for first, and locked until settings_close; `r`: whether the
 * call may go on. */
static CUresult settings_open(CUresult r, CUfunction f, struct gpc_settings **to)
{
    struct gpc_kernel *k = r ? NULL : gpc_kernel_its(f, &r);
    if (r != CUDA_SUCCESS)
        return r;
    pthread_mutex_lock(&lock);
    if (!k->settings && (k->settings = calloc(1, sizeof *k->settings)))
        k->settings->shape = (struct gpc_shape){{1, 1, 1}, {1, 1, 1}, 0};
    *to = k->settings;
    if (*to)
        return CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult settings_close(CUresult r)
{
    pthread_mutex_unlock(&lock);
    return r;
}

/* The shape of one block, if the device could launch it. */
static CUresult set_shape(struct gpc_settings *s, const struct gpc_shape *shape)
{
    CUresult r = gpc_shape_check(shape, gpc_context_device(gpc_current()));
    if (r == CUDA_SUCCESS)
        s->shape = *shape;
    return settings_close(r);
}

GPC_EXPORT CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z)
{
    struct gpc_settings *s;
    CUresult r = settings_open(gpc_enter(GP_OP_cuFuncSetBlockShape, GPC_NEEDS_CONTEXT), hfunc, &s);
    if (r != CUDA_SUCCESS)
        return r;
    /* what is negative is too large */
    return set_shape(s, &(struct gpc_shape){
                            {1, 1, 1}, {(unsigned)x, (unsigned)y, (unsigned)z}, s->shape.shared});
}

GPC_EXPORT CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes)
{
    struct gpc_settings *s;
    CUresult r = settings_open(gpc_enter(GP_OP_cuFuncSetSharedSize, GPC_NEEDS_CONTEXT), hfunc, &s);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_shape shape = s->shape;
    shape.shared = bytes;
    return set_shape(s, &shape);
}

GPC_EXPORT CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes)
{
    struct gpc_settings *s;
    CUresult r = settings_open(gpc_enter(GP_OP_cuParamSetSize, GPC_NEEDS_CONTEXT), hfunc, &s);
    if (r != CUDA_SUCCESS)
        return r;
    if (numbytes > sizeof s->parameters)
        return settings_close(CUDA_ERROR_INVALID_VALUE);
    s->bytes = numbytes;
    return settings_close(CUDA_SUCCESS);
}

CUresult gpc_as_cuParamSetv(uint16_t op, CUfunction hfunc, int offset, void *ptr,
                            unsigned int numbytes)
{
    struct gpc_settings *s;
    CUresult r = settings_open(gpc_enter(op, GPC_NEEDS_CONTEXT), hfunc, &s);
    if (r != CUDA_SUCCESS)
        return r;
    if (!ptr || offset < 0 || (size_t)offset > sizeof s->parameters ||
        numbytes > sizeof s->parameters - (size_t)offset)
        return settings_close(CUDA_ERROR_INVALID_VALUE);
    memcpy(s->parameters + offset, ptr, numbytes);
    return settings_close(CUDA_SUCCESS);
}

GPC_EXPORT CUresult cuParamSetTexRef(CUfunction hfunc, int texunit, CUtexref hTexRef)
{
    CUresult r = gpc_enter(GP_OP_cuParamSetTexRef, GPC_NEEDS_CONTEXT);
    if (r == CUDA_SUCCESS)
        gpc_kernel_its(hfunc, &r);
    if (r != CUDA_SUCCESS)
        return r;
    if (texunit != CU_PARAM_TR_DEFAULT)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_handle_live(GP_HANDLE_TEXREF, (uint64_t)hTexRef) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_HANDLE;
}

CUresult gpc_as_cuLaunchGridAsync(uint16_t op, CUfunction f, int grid_width, int grid_height,
                                  CUstream hStream)
{
    struct gpc_settings *s;
    struct gpc_route on;
    unsigned char parameters[GP_PARAMETER_BYTES_MAX];
    CUresult r = settings_open(gpc_enter_stream(&on, op, hStream), f, &s);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_shape shape = s->shape;
    size_t bytes = s->bytes;
    memcpy(parameters, s->parameters, bytes);
    settings_close(r);
    shape.grid[0] = (unsigned)grid_width;
    shape.grid[1] = (unsigned)grid_height;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, CU_LAUNCH_PARAM_END};
    return gpc_leave(gpc_launch(&on, f, &shape, hStream, NULL, extra, 0));
}

/* --- several devices ------------------------------------------------------------------------ */

/* Streams of its own for each, on devices that are each another. */
static CUresult check_devices(const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
    uint64_t seen = 0;
    for (unsigned i = 0; i < count; i++) {
        CUstream stream = list[i].hStream;
        bool own = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
        CUcontext context = own ? gpc_stream_context(stream) : NULL;
        if (!context)
            return CUDA_ERROR_INVALID_HANDLE;
        uint64_t device = UINT64_C(1) << gpc_context_device(context);
        if (seen & device)
            return CUDA_ERROR_INVALID_VALUE;
        seen |= device;
    }
    return CUDA_SUCCESS;
}

static CUresult launch_on(const CUDA_LAUNCH_PARAMS *p)
{
    struct gpc_route on;
    const struct gpc_shape shape = {{p->gridDimX, p->gridDimY, p->gridDimZ},
                                    {p->blockDimX, p->blockDimY, p->blockDimZ},
                                    p->sharedMemBytes};
    CUresult r = gpc_enter_stream(&on, GP_OP_cuLaunchCooperativeKernel, p->hStream);
    return r ? r
             : gpc_launch(&on, p->function, &shape, p->hStream, p->kernelParams, NULL,
                          GP_LAUNCH_COOPERATIVE);
}

GPC_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                                         unsigned int numDevices,
                                                         unsigned int flags)
{
    const unsigned known = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                           CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
    CUresult r = gpc_enter(GP_OP_cuLaunchCooperativeKernelMultiDevice, GPC_NEEDS_INIT);
    if (r != CUDA_SUCCESS)
        return r;
    if (!launchParamsList || numDevices == 0 || numDevices > GP_DEVICES_MAX || (flags & ~known))
        return CUDA_ERROR_INVALID_VALUE;
    r = check_devices(launchParamsList, numDevices);
    for (unsigned i = 0; r == CUDA_SUCCESS && i < numDevices; i++)
        r = launch_on(&launchParamsList[i]);
    return gpc_leave(r);
}
