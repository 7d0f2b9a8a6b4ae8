#include "copy_batch.h"

static bool order_holds(CUmemcpySrcAccessOrder order, unsigned flags)
{
    return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
           !(flags & ~(unsigned)CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
}

bool gp_copy_lines_hold(const struct gp_copy_lines *l)
{
    if (!l->dst || !l->src || !l->bytes || !l->attrs || !l->first)
        return false;
    if (l->attr_count == 0 || l->attr_count > l->count || l->first[0] != 0)
        return false;
    for (size_t i = 0; i < l->attr_count; i++)
        if (!order_holds(l->attrs[i].srcAccessOrder, l->attrs[i].flags) ||
            l->first[i] >= l->count || (i && l->first[i] <= l->first[i - 1]))
            return false;
    return true;
}

CUmemcpySrcAccessOrder gp_copy_lines_order(const struct gp_copy_lines *l, size_t copy, size_t *at)
{
    while (*at + 1 < l->attr_count && l->first[*at + 1] <= copy)
        (*at)++;
    return l->attrs[*at].srcAccessOrder;
}

static bool is_array(const CUmemcpy3DOperand *operand)
{
    return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
}

/* Of an element that both ends agree on, 0: there is none. */
static uint64_t element_of(const CUDA_MEMCPY3D_BATCH_OP *op, uint64_t src, uint64_t dst)
{
    if (is_array(&op->src) && is_array(&op->dst))
        return src == dst ? src : 0;
    return is_array(&op->src) ? src : is_array(&op->dst) ? dst : 1;
}

/* One end of the copy: where its box begins and its steps, in bytes. */
struct end {
    CUmemorytype type;
    CUdeviceptr at;
    CUarray array;
    size_t x, y, z, pitch, rows;
};

static bool end_of_memory(const CUmemcpy3DOperand *operand, const CUextent3D *extent,
                          uint64_t element, struct end *end)
{
    size_t length = operand->op.ptr.rowLength, height = operand->op.ptr.layerHeight;
    end->type = CU_MEMORYTYPE_UNIFIED;
    end->at = operand->op.ptr.ptr;
    end->rows = height ? height : extent->height;
    return (!length || length >= extent->width) && end->rows >= extent->height &&
           !__builtin_mul_overflow(length ? length : extent->width, element, &end->pitch);
}

static bool end_make(const CUmemcpy3DOperand *operand, const CUextent3D *extent, uint64_t element,
                     struct end *end)
{
    *end = (struct end){.type = CU_MEMORYTYPE_ARRAY};
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
        return end_of_memory(operand, extent, element, end);
    end->array = operand->op.array.array;
    end->y = operand->op.array.offset.y;
    end->z = operand->op.array.offset.z;
    return is_array(operand) &&
           !__builtin_mul_overflow(operand->op.array.offset.x, element, &end->x);
}

bool gp_copy_box_make(const CUDA_MEMCPY3D_BATCH_OP *op, uint64_t src_element, uint64_t dst_element,
                      CUDA_MEMCPY3D *box)
{
    struct end src, dst;
    size_t width;
    uint64_t element = element_of(op, src_element, dst_element);
    if (!order_holds(op->srcAccessOrder, op->flags) || !element || !op->extent.width ||
        !op->extent.height || !op->extent.depth ||
        __builtin_mul_overflow(op->extent.width, element, &width) ||
        !end_make(&op->src, &op->extent, element, &src) ||
        !end_make(&op->dst, &op->extent, element, &dst))
        return false;
    *box = (CUDA_MEMCPY3D){.srcXInBytes = src.x,
                           .srcY = src.y,
                           .srcZ = src.z,
                           .srcMemoryType = src.type,
                           .srcDevice = src.at,
                           .srcArray = src.array,
                           .srcPitch = src.pitch,
                           .srcHeight = src.rows,
                           .dstXInBytes = dst.x,
                           .dstY = dst.y,
                           .dstZ = dst.z,
                           .dstMemoryType = dst.type,
                           .dstDevice = dst.at,
                           .dstArray = dst.array,
                           .dstPitch = dst.pitch,
                           .dstHeight = dst.rows,
                           .WidthInBytes = width,
                           .Height = op->extent.height,
                           .Depth = op->extent.depth};
    return true;
}
