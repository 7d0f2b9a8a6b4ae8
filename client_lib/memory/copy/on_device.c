/* Both ends are the GPU's: its host's devices, and host memory that this host has as well. */
#include "gpc_wire.h"
#include "plan.h"

CUDA_MEMCPY3D gpc_copy_box(const struct gpc_copy *c)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = c->src.at,
                           .srcPitch = c->src.span.pitch,
                           .srcHeight = c->src.span.rows,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = c->dst.at,
                           .dstPitch = c->dst.span.pitch,
                           .dstHeight = c->dst.span.rows,
                           .WidthInBytes = c->box.width,
                           .Height = c->box.height,
                           .Depth = c->box.depth};
}

static CUresult pitched(struct gpc_copy *c)
{
    const CUDA_MEMCPY3D p = gpc_copy_box(c);
    return gpc_wire_gp_copy_3d_on(c->on, &p, c->stream);
}

/* The kinds that gp_copy knows: 1 to the device, 2 to the host. */
static CUresult line(struct gpc_copy *c)
{
    if (c->src.kind == GPC_END_DEVICE && c->dst.kind == GPC_END_DEVICE)
        return gpc_wire_cuMemcpyDtoDAsync_v2_on(c->on, c->dst.at, c->src.at, c->box.width,
                                                c->stream);
    uint32_t kind = c->src.kind == GPC_END_SHARED ? 1 : 2;
    return gpc_wire_gp_copy_on(c->on, c->dst.at, c->src.at, c->box.width, c->stream, kind);
}

CUresult gpc_copy_on_device(struct gpc_copy *c)
{
    CUresult r = gpc_copy_has_array(c)   ? gpc_copy_array(c)
                 : gpc_copy_is_linear(c) ? line(c)
                                         : pitched(c);
    /* within the device CUDA does not wait either; host memory the caller may use now */
    bool host = c->src.kind == GPC_END_SHARED || c->dst.kind == GPC_END_SHARED;
    return r == CUDA_SUCCESS && c->blocking && host
               ? gpc_wire_cuStreamSynchronize_on(c->on, c->stream)
               : r;
}
