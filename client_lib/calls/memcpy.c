/* cuMemcpy in its many names. */
#include "call.h"
#include "copy.h"
#include "export.h"
#include "session.h"

static CUresult copy(uint16_t op, struct gpc_end_named dst, struct gpc_end_named src, size_t bytes,
                     CUstream stream, bool blocking)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, op, stream);
    return gpc_leave(r ? r : gpc_copy_linear(op, &on, dst, src, bytes, stream, blocking));
}

static struct gpc_end_named host(const void *p)
{
    return (struct gpc_end_named){GPC_SAID_HOST, (uint64_t)(uintptr_t)p};
}

static struct gpc_end_named device(CUdeviceptr p)
{
    return (struct gpc_end_named){GPC_SAID_DEVICE, p};
}

static struct gpc_end_named any(CUdeviceptr p)
{
    return (struct gpc_end_named){GPC_SAID_ANY, p};
}

GPC_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return copy(GP_OP_cuMemcpyHtoD_v2, device(dstDevice), host(srcHost), ByteCount, NULL, true);
}

GPC_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost,
                                         size_t ByteCount, CUstream hStream)
{
    return copy(GP_OP_cuMemcpyHtoDAsync_v2, device(dstDevice), host(srcHost), ByteCount, hStream,
                false);
}

GPC_EXPORT CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy(GP_OP_cuMemcpyDtoH_v2, host(dstHost), device(srcDevice), ByteCount, NULL, true);
}

GPC_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                         CUstream hStream)
{
    return copy(GP_OP_cuMemcpyDtoHAsync_v2, host(dstHost), device(srcDevice), ByteCount, hStream,
                false);
}

GPC_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy(GP_OP_cuMemcpyDtoD_v2, device(dstDevice), device(srcDevice), ByteCount, NULL, true);
}

GPC_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                         size_t ByteCount, CUstream hStream)
{
    return copy(GP_OP_cuMemcpyDtoDAsync_v2, device(dstDevice), device(srcDevice), ByteCount,
                hStream, false);
}

GPC_EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return copy(GP_OP_cuMemcpy, any(dst), any(src), ByteCount, NULL, true);
}

GPC_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                                  CUstream hStream)
{
    return copy(GP_OP_cuMemcpyAsync, any(dst), any(src), ByteCount, hStream, false);
}

static CUresult peer(uint16_t op, CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                     CUcontext src_context, size_t bytes, CUstream stream, bool blocking)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, op, stream);
    if (r != CUDA_SUCCESS)
        return r;
    if (gpc_context_device(dst_context) < 0 || gpc_context_device(src_context) < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    /* addresses are unique over all devices of the session */
    return gpc_leave(gpc_copy_linear(op, &on, any(dst), any(src), bytes, stream, blocking));
}

GPC_EXPORT CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                 CUcontext srcContext, size_t ByteCount)
{
    return peer(GP_OP_cuMemcpyPeer, dstDevice, dstContext, srcDevice, srcContext, ByteCount, NULL,
                true);
}

GPC_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
                                      CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
                                      CUstream hStream)
{
    return peer(GP_OP_cuMemcpyPeerAsync, dstDevice, dstContext, srcDevice, srcContext, ByteCount,
                hStream, false);
}

/* --- pitched ----------------------------------------------------------------------- */

static CUresult copy_3d(uint16_t op, const CUDA_MEMCPY3D *c, CUstream stream, bool blocking)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, op, stream);
    if (r != CUDA_SUCCESS)
        return r;
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    return gpc_leave(gpc_copy_pitched(op, &on, c, stream, blocking));
}

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

static CUresult copy_2d(uint16_t op, const CUDA_MEMCPY2D *c, CUstream stream, bool blocking)
{
    if (!c)
        return copy_3d(op, NULL, stream, blocking);
    CUDA_MEMCPY3D copy = from_2d(c);
    return copy_3d(op, &copy, stream, blocking);
}

GPC_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(GP_OP_cuMemcpy2D_v2, pCopy, NULL, true);
}

GPC_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(GP_OP_cuMemcpy2DUnaligned_v2, pCopy, NULL, true);
}

GPC_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy_2d(GP_OP_cuMemcpy2DAsync_v2, pCopy, hStream, false);
}

GPC_EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return copy_3d(GP_OP_cuMemcpy3D_v2, pCopy, NULL, true);
}

GPC_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy_3d(GP_OP_cuMemcpy3DAsync_v2, pCopy, hStream, false);
}
