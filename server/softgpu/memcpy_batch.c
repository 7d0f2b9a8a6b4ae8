/* Batches of copies: each as if it were asked for alone. */
#include "array.h"
#include "copy_batch.h"

/* No legacy default stream, and none that captures: the driver takes batches on neither. */
static CUresult stream_takes(CUstream handle)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(handle, &stream));
    if (stream->is_legacy)
        return CUDA_ERROR_INVALID_VALUE;
    return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* A source of this process's own is taken over when the copy is asked for: what the stream has still
 * to do may write it, so that is waited for. */
static CUresult source_before(uint64_t source, CUmemcpySrcAccessOrder order, CUstream stream)
{
    struct sg_extent extent;
    bool known = sg_address_find(source, &extent);
    return known || order != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ? CUDA_SUCCESS
                                                               : cuStreamSynchronize(stream);
}

/* `failed`, where there is one: the copy that the error is of, or none. */
static CUresult say(CUresult result, size_t *failed, size_t at)
{
    if (result != CUDA_SUCCESS && failed)
        *failed = at;
    return result;
}

static CUresult line(const struct gp_copy_lines *l, size_t i, CUmemcpySrcAccessOrder order,
                     CUstream stream)
{
    if (!l->bytes[i])
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(source_before(l->src[i], order, stream));
    return cuMemcpyAsync(l->dst[i], l->src[i], l->bytes[i], stream);
}

static CUresult lines(const struct gp_copy_lines *l, size_t *failed, CUstream stream)
{
    CUresult result = gp_copy_lines_hold(l) ? stream_takes(stream) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return say(result, failed, SIZE_MAX);
    bool during = false;
    for (size_t i = 0, at = 0; i < l->count; i++) {
        CUmemcpySrcAccessOrder order = gp_copy_lines_order(l, i, &at);
        during |= order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        if ((result = line(l, i, order, stream)) != CUDA_SUCCESS)
            return say(result, failed, i);
    }
    return during ? cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                            size_t *failIdx, CUstream hStream)
{
    const struct gp_copy_lines l = {dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs};
    return lines(&l, failIdx, hStream);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                               CUstream hStream)
{
    return cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, NULL, hStream);
}

static uint64_t element_of(const CUmemcpy3DOperand *operand)
{
    SG_LOCKED;
    CUarray array;
    return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY &&
                   sg_array_get(operand->op.array.array, &array) == CUDA_SUCCESS
               ? array->extent.element
               : 0;
}

static CUresult box(const CUDA_MEMCPY3D_BATCH_OP *op, CUstream stream)
{
    CUDA_MEMCPY3D params;
    if (!gp_copy_box_make(op, element_of(&op->src), element_of(&op->dst), &params))
        return CUDA_ERROR_INVALID_VALUE;
    if (params.srcMemoryType != CU_MEMORYTYPE_ARRAY)
        SG_TRY(source_before(params.srcDevice, op->srcAccessOrder, stream));
    return cuMemcpy3DAsync_v2(&params, stream);
}

CUresult cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx,
                              unsigned long long flags, CUstream hStream)
{
    bool during = false;
    bool holds = numOps && opList && !flags;
    CUresult result = holds ? stream_takes(hStream) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return say(result, failIdx, SIZE_MAX);
    for (size_t i = 0; i < numOps; i++) {
        during |= opList[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        if ((result = box(&opList[i], hStream)) != CUDA_SUCCESS)
            return say(result, failIdx, i);
    }
    return during ? cuStreamSynchronize(hStream) : CUDA_SUCCESS;
}

CUresult cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
                                 unsigned long long flags, CUstream hStream)
{
    return cuMemcpy3DBatchAsync(numOps, opList, NULL, flags, hStream);
}
