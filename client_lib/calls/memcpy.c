/* Two-dimensional copies are three-dimensional ones of one slice; the rest of cuMemcpy is
 * said by the spec and done by memory/copy. */
#include "copy.h"
#include "session.h"

static CUDA_MEMCPY3D from_2d(const CUDA_MEMCPY2D *c)
{
    return (CUDA_MEMCPY3D){.srcXInBytes = c->srcXInBytes,
                           .srcY = c->srcY,
                           .srcMemoryType = c->srcMemoryType,
                           .srcHost = c->srcHost,
                           .srcDevice = c->srcDevice,
                           .srcArray = c->srcArray,
                           .srcPitch = c->srcPitch,
                           .dstXInBytes = c->dstXInBytes,
                           .dstY = c->dstY,
                           .dstMemoryType = c->dstMemoryType,
                           .dstHost = c->dstHost,
                           .dstDevice = c->dstDevice,
                           .dstArray = c->dstArray,
                           .dstPitch = c->dstPitch,
                           .WidthInBytes = c->WidthInBytes,
                           .Height = c->Height,
                           .Depth = 1};
}

CUresult gpc_copy_2d(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY2D *c, CUstream stream,
                     bool blocking)
{
    CUDA_MEMCPY3D copy = from_2d(c);
    return gpc_copy_pitched(op, on, &copy, stream, blocking);
}

CUresult gpc_copy_3d_peer(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY3D_PEER *c,
                          CUstream stream, bool blocking)
{
    if (gpc_context_device(c->srcContext) < 0 || gpc_context_device(c->dstContext) < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    const CUDA_MEMCPY3D copy = {.srcXInBytes = c->srcXInBytes,
                                .srcY = c->srcY,
                                .srcZ = c->srcZ,
                                .srcMemoryType = c->srcMemoryType,
                                .srcHost = c->srcHost,
                                .srcDevice = c->srcDevice,
                                .srcArray = c->srcArray,
                                .srcPitch = c->srcPitch,
                                .srcHeight = c->srcHeight,
                                .dstXInBytes = c->dstXInBytes,
                                .dstY = c->dstY,
                                .dstZ = c->dstZ,
                                .dstMemoryType = c->dstMemoryType,
                                .dstHost = c->dstHost,
                                .dstDevice = c->dstDevice,
                                .dstArray = c->dstArray,
                                .dstPitch = c->dstPitch,
                                .dstHeight = c->dstHeight,
                                .WidthInBytes = c->WidthInBytes,
                                .Height = c->Height,
                                .Depth = c->Depth};
    return gpc_copy_pitched(op, on, &copy, stream, blocking);
}
