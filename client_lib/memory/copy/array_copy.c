/* Copies with an end that is a CUDA array of the GPU's host. */
#include "gpc_wire.h"
#include "plan.h"

uint32_t gpc_copy_piece(const struct gpc_copy *c, size_t at, size_t bytes)
{
    uint32_t most = gpc_copy_chunk(bytes);
    size_t width = c->box.width;
    if (!gpc_copy_has_array(c))
        return most;
    return width <= most ? (uint32_t)(most / width * width) : gpc_copy_chunk(width - at % width);
}

struct gp_array_box gpc_array_box(const struct gpc_copy *c, const struct gpc_end *e, uint64_t at,
                                  size_t bytes)
{
    const struct gp_span_box *box = &c->box;
    uint64_t row = at / box->width, within = at % box->width;
    bool whole = bytes >= box->width;
    return (struct gp_array_box){.x = e->first.x + within,
                                 .y = e->first.y + row % box->height,
                                 .z = e->first.z + row / box->height,
                                 .width = whole ? box->width : bytes,
                                 .height = whole ? bytes / box->width : 1};
}

static void from_array(CUDA_MEMCPY3D *p, const struct gp_array_box *at)
{
    p->srcMemoryType = CU_MEMORYTYPE_ARRAY;
    p->srcDevice = 0;
    p->srcXInBytes = at->x;
    p->srcY = at->y;
    p->srcZ = at->z;
}

static void to_array(CUDA_MEMCPY3D *p, const struct gp_array_box *at)
{
    p->dstMemoryType = CU_MEMORYTYPE_ARRAY;
    p->dstDevice = 0;
    p->dstXInBytes = at->x;
    p->dstY = at->y;
    p->dstZ = at->z;
}

CUresult gpc_copy_array(struct gpc_copy *c)
{
    CUDA_MEMCPY3D p = gpc_copy_box(c);
    CUarray dst = NULL, src = NULL;
    if (c->src.kind == GPC_END_ARRAY) {
        const struct gp_array_box at = gpc_array_box(c, &c->src, 0, c->box.width);
        src = c->src.array;
        from_array(&p, &at);
    }
    if (c->dst.kind == GPC_END_ARRAY) {
        const struct gp_array_box at = gpc_array_box(c, &c->dst, 0, c->box.width);
        dst = c->dst.array;
        to_array(&p, &at);
    }
    return gpc_wire_gp_array_copy_on(c->on, &p, dst, src, c->stream);
}

CUresult gpc_array_move(struct gpc_copy *c, uint64_t at, uint64_t address, size_t bytes)
{
    bool up = c->dst.kind == GPC_END_ARRAY;
    const struct gpc_end *e = up ? &c->dst : &c->src;
    const struct gp_array_box box = gpc_array_box(c, e, at, bytes);
    CUDA_MEMCPY3D p = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = address,
                       .srcPitch = box.width,
                       .srcHeight = box.height,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = address,
                       .dstPitch = box.width,
                       .dstHeight = box.height,
                       .WidthInBytes = box.width,
                       .Height = box.height,
                       .Depth = 1};
    if (up)
        to_array(&p, &box);
    else
        from_array(&p, &box);
    return gpc_wire_gp_array_copy_on(c->on, &p, up ? e->array : NULL, up ? NULL : e->array,
                                     c->stream);
}
