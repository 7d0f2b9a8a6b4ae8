/*
 * CUDA's rule for a copy on the default stream between the memories of two devices: it
 * begins when all that was submitted to either device before is done, and what is submitted
 * to either one behind it waits for it. Streams that do not heed the default stream of their
 * own device do not heed that of another one either.
 */
#include "softgpu.h"

static bool is_beside(CUcontext context, CUstream stream, const struct sg_device *device)
{
    return context->alive && context->device == device && stream->context->device != device;
}

CUresult sg_device_before(CUstream stream, const struct sg_device *device)
{
    for (CUcontext c = sg.contexts; c; c = c->next)
        for (CUstream s = is_beside(c, stream, device) ? c->streams : NULL; s; s = s->next)
            if (!(s->flags & CU_STREAM_NON_BLOCKING))
                SG_TRY(sg_stream_follow(stream, s));
    return CUDA_SUCCESS;
}

/* Its default stream does, and all others that heed that one. */
CUresult sg_device_behind(CUstream stream, const struct sg_device *device)
{
    for (CUcontext c = sg.contexts; c; c = c->next)
        if (is_beside(c, stream, device))
            SG_TRY(sg_stream_follow(c->legacy, stream));
    return CUDA_SUCCESS;
}
