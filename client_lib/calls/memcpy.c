/* cuMemcpy in its many names. */
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "export.h"
#include "gpc_wire.h"
#include "memory.h"
#include "ranges.h"
#include "remote_host.h"
#include "session.h"
#include "span.h"

#define ENTER(name, stream)                                                                        \
    struct gpc_route on;                                                                           \
    CUresult r = gpc_enter_stream(&on, GP_OP_##name, stream);                                   \
    if (r != CUDA_SUCCESS)                                                                         \
        return r;

GPC_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    ENTER(cuMemcpyHtoD_v2, NULL)
    r = gpc_copy_to_device(GP_OP_cuMemcpyHtoD_v2, &on, dstDevice, srcHost, ByteCount, NULL);
    /* From shared pinned memory the GPU reads later; the caller may write it now. And whether
     * an address that nobody here got is one at all, only the driver knows. */
    struct gpc_range range;
    bool shared = gpc_range_find((uint64_t)(uintptr_t)srcHost, &range) &&
                  range.kind == GPC_RANGE_SHARED;
    bool unknown = ByteCount && !gpc_range_find(dstDevice, &range);
    if (r == CUDA_SUCCESS && (shared || unknown))
        r = gpc_wire_cuStreamSynchronize_on(&on, NULL); /* elsewhere it has been waited for already */
    return gpc_leave(r);
}

GPC_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost,
                                         size_t ByteCount, CUstream hStream)
{
    ENTER(cuMemcpyHtoDAsync_v2, hStream)
    return gpc_leave(
        gpc_copy_to_device(GP_OP_cuMemcpyHtoDAsync_v2, &on, dstDevice, srcHost, ByteCount, hStream));
}

GPC_EXPORT CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    ENTER(cuMemcpyDtoH_v2, NULL)
    return gpc_leave(
        gpc_copy_to_host(GP_OP_cuMemcpyDtoH_v2, &on, dstHost, srcDevice, ByteCount, NULL, 1));
}

GPC_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                         CUstream hStream)
{
    ENTER(cuMemcpyDtoHAsync_v2, hStream)
    return gpc_leave(
        gpc_copy_to_host(GP_OP_cuMemcpyDtoHAsync_v2, &on, dstHost, srcDevice, ByteCount, hStream, 0));
}

/* Without a stream, CUDA does not wait for a copy inside the device either. */
GPC_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    ENTER(cuMemcpyDtoD_v2, NULL)
    return gpc_leave(gpc_copy_any(GP_OP_cuMemcpyDtoD_v2, &on, dstDevice, srcDevice, ByteCount, NULL, 1));
}

GPC_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                         size_t ByteCount, CUstream hStream)
{
    ENTER(cuMemcpyDtoDAsync_v2, hStream)
    return gpc_leave(
        gpc_copy_any(GP_OP_cuMemcpyDtoDAsync_v2, &on, dstDevice, srcDevice, ByteCount, hStream, 0));
}

GPC_EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    ENTER(cuMemcpy, NULL)
    return gpc_leave(gpc_copy_any(GP_OP_cuMemcpy, &on, dst, src, ByteCount, NULL, 1));
}

GPC_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                                  CUstream hStream)
{
    ENTER(cuMemcpyAsync, hStream)
    return gpc_leave(gpc_copy_any(GP_OP_cuMemcpyAsync, &on, dst, src, ByteCount, hStream, 0));
}

static CUresult peer(uint16_t op, CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                     CUcontext src_context, size_t bytes, CUstream stream, int blocking)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, op, stream);
    if (r != CUDA_SUCCESS)
        return r;
    if (gpc_context_device(dst_context) < 0 || gpc_context_device(src_context) < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    /* addresses are unique over all devices of the session */
    return gpc_leave(gpc_copy_any(op, &on, dst, src, bytes, stream, blocking));
}

GPC_EXPORT CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                 CUcontext srcContext, size_t ByteCount)
{
    return peer(GP_OP_cuMemcpyPeer, dstDevice, dstContext, srcDevice, srcContext, ByteCount, NULL, 1);
}

GPC_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
                                      CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
                                      CUstream hStream)
{
    return peer(GP_OP_cuMemcpyPeerAsync, dstDevice, dstContext, srcDevice, srcContext, ByteCount,
                hStream, 0);
}

/* --- pitched ----------------------------------------------------------------------- */

/* One end of a pitched copy: the address of its first row, and the steps. */
struct end {
    uint64_t at;
    struct gp_span span;
    bool device; /* or pinned memory that the worker has as well */
    struct gpc_session *session; /* whose device it is; NULL: not known here */
};

/* More than what was allocated there has. Mappings may lie side by side, and of pinned
 * memory CUDA takes any part of what the host has. */
static bool too_long(const struct gpc_range *range, const struct end *end)
{
    return !gpc_range_is_host(range) && range->kind != GPC_RANGE_MAPPED &&
           end->span.bytes > range->size - (end->at - range->begin);
}

static CUresult end_make(uint16_t op, CUmemorytype type, const void *host, CUdeviceptr device,
                         const struct gp_span_end *steps, const struct gp_span_box *box,
                         struct end *end)
{
    if (type == CU_MEMORYTYPE_ARRAY)
        return gpc_refuse_because(op, "CUDA arrays");
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t base = type == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)host : device;
    uint64_t last;
    if (!base || !gp_span_make(steps, box, &end->span) ||
        __builtin_add_overflow(base, end->span.offset, &end->at) ||
        __builtin_add_overflow(end->at, end->span.bytes, &last))
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_range range;
    bool ours = gpc_range_find(end->at, &range);
    if (ours && too_long(&range, end))
        return CUDA_ERROR_INVALID_VALUE;
    end->session = ours ? gpc_range_session(&range) : NULL;
    end->device = ours && (!gpc_range_is_host(&range) || range.kind == GPC_RANGE_SHARED);
    if (type == CU_MEMORYTYPE_DEVICE && (!ours || gpc_range_is_host(&range)))
        end->device = true; /* a module's global, say: the worker knows */
    return CUDA_SUCCESS;
}

static CUresult copy_on_device(const struct gpc_route *on, const struct end *dst, const struct end *src,
                               const struct gp_span_box *box, CUstream stream)
{
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = src->at,
                       .srcPitch = src->span.pitch,
                       .srcHeight = src->span.rows,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = dst->at,
                       .dstPitch = dst->span.pitch,
                       .dstHeight = dst->span.rows,
                       .WidthInBytes = box->width,
                       .Height = box->height,
                       .Depth = box->depth};
    return gpc_wire_gp_copy_3d_on(on, &c, stream);
}

/* Whether the host of the stream has both ends. */
static bool at_one_host(const struct gpc_route *on, const struct end *dst, const struct end *src)
{
    return (!dst->session || dst->session == on->session) &&
           (!src->session || src->session == on->session);
}

/* Rows one after the other; whole slices at once where they lie without gaps. */
static CUresult copy_rows(uint16_t op, struct gpc_route *on, const struct end *dst, const struct end *src,
                          const struct gp_span_box *box, CUstream stream, int blocking)
{
    CUresult r = CUDA_SUCCESS;
    bool dense = dst->span.pitch == box->width && src->span.pitch == box->width;
    size_t rows = dense ? 1 : box->height, bytes = dense ? box->width * box->height : box->width;
    for (size_t z = 0; z < box->depth && r == CUDA_SUCCESS; z++)
        for (size_t y = 0; y < rows && r == CUDA_SUCCESS; y++)
            r = gpc_copy_any(op, on, dst->at + z * dst->span.slice + y * dst->span.pitch,
                             src->at + z * src->span.slice + y * src->span.pitch, bytes, stream,
                             blocking);
    return r;
}

static CUresult copy_3d(uint16_t op, const CUDA_MEMCPY3D *c, CUstream stream, int blocking)
{
    struct gpc_route on;
    CUresult r = gpc_enter_stream(&on, op, stream);
    if (r != CUDA_SUCCESS)
        return r;
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    const struct gp_span_box box = {c->WidthInBytes, c->Height, c->Depth};
    const struct gp_span_end from = {c->srcXInBytes, c->srcY, c->srcZ, c->srcPitch, c->srcHeight};
    const struct gp_span_end to = {c->dstXInBytes, c->dstY, c->dstZ, c->dstPitch, c->dstHeight};
    struct end src, dst;
    if (box.width == 0 || box.height == 0 || box.depth == 0)
        return CUDA_SUCCESS;
    if ((r = end_make(op, c->srcMemoryType, c->srcHost, c->srcDevice, &from, &box, &src)) ||
        (r = end_make(op, c->dstMemoryType, c->dstHost, c->dstDevice, &to, &box, &dst)))
        return r;
    if (src.device && dst.device && at_one_host(&on, &dst, &src)) {
        r = copy_on_device(&on, &dst, &src, &box, stream);
        if (r == CUDA_SUCCESS && blocking &&
            (c->srcMemoryType == CU_MEMORYTYPE_HOST || c->dstMemoryType == CU_MEMORYTYPE_HOST))
            r = gpc_wire_cuStreamSynchronize_on(&on, stream);
    } else {
        r = copy_rows(op, &on, &dst, &src, &box, stream, blocking);
    }
    return gpc_leave(r);
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

static CUresult copy_2d(uint16_t op, const CUDA_MEMCPY2D *c, CUstream stream, int blocking)
{
    if (!c)
        return copy_3d(op, NULL, stream, blocking);
    CUDA_MEMCPY3D copy = from_2d(c);
    return copy_3d(op, &copy, stream, blocking);
}

GPC_EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(GP_OP_cuMemcpy2D_v2, pCopy, NULL, 1);
}

GPC_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(GP_OP_cuMemcpy2DUnaligned_v2, pCopy, NULL, 1);
}

GPC_EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy_2d(GP_OP_cuMemcpy2DAsync_v2, pCopy, hStream, 0);
}

GPC_EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return copy_3d(GP_OP_cuMemcpy3D_v2, pCopy, NULL, 1);
}

GPC_EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy_3d(GP_OP_cuMemcpy3DAsync_v2, pCopy, hStream, 0);
}
