/*
 * Batches of copies. All are planned before the first is made, so that an impossible one
 * leaves everything as it was; then each is made as if it were asked for alone.
 */
#include "array.h"
#include "call.h"
#include "captured_copy.h"
#include "copy.h"
#include "gpc_wire.h"
#include "host_function.h"
#include "session.h"

struct batch {
    uint16_t op;
    struct gpc_route *on;
    CUstream stream;
    size_t count;
    const struct gp_copy_lines *lines; /* NULL: boxes */
    const CUDA_MEMCPY3D_BATCH_OP *boxes;
    size_t attributes;       /* of `lines`, where the last copy's were */
    bool reads_after_return; /* the GPU, what it may read during the call alone */
};

/* Bytes of an array's element; of memory, and where there is no such array, 0. */
static uint64_t element_of(const CUmemcpy3DOperand *operand)
{
    const struct gpc_array *a = operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY
                                    ? gpc_array_of(operand->op.array.array)
                                    : NULL;
    return a ? a->extent.element : 0;
}

static CUresult plan_box(const CUDA_MEMCPY3D_BATCH_OP *op, struct gpc_copy *c)
{
    CUDA_MEMCPY3D box;
    return gp_copy_box_make(op, element_of(&op->src), element_of(&op->dst), &box)
               ? gpc_copy_plan_pitched(c, &box)
               : CUDA_ERROR_INVALID_VALUE;
}

static CUresult plan(const struct batch *b, size_t i, struct gpc_copy *c)
{
    *c = (struct gpc_copy){.op = b->op, .on = b->on, .stream = b->stream};
    if (!b->lines)
        return plan_box(&b->boxes[i], c);
    const struct gp_copy_lines *l = b->lines;
    return l->bytes[i] ? gpc_copy_plan_linear(c, gpc_said_any(l->dst[i]), gpc_said_any(l->src[i]),
                                              l->bytes[i])
                       : CUDA_ERROR_INVALID_VALUE;
}

static CUmemcpySrcAccessOrder order_of(struct batch *b, size_t i)
{
    return b->lines ? gp_copy_lines_order(b->lines, i, &b->attributes) : b->boxes[i].srcAccessOrder;
}

static CUresult make(struct batch *b, size_t i)
{
    struct gpc_copy c;
    CUmemcpySrcAccessOrder order = order_of(b, i);
    CUresult r = plan(b, i, &c);
    /* bytes of the host's own are taken over now: a host function before may write them */
    if (r == CUDA_SUCCESS && order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
        c.src.kind == GPC_END_PAGEABLE && gpc_host_functions_outstanding())
        r = gpc_wire_cuStreamSynchronize_on(b->on, b->stream);
    if (r != CUDA_SUCCESS)
        return r;
    if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL && c.src.kind >= GPC_END_SHARED)
        b->reads_after_return = true;
    return gpc_copy_run(&c);
}

static CUresult make_all(struct batch *b, size_t *failed)
{
    struct gpc_copy c;
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < b->count; i++)
        if ((r = plan(b, i, &c)) != CUDA_SUCCESS) {
            *failed = i;
            return r;
        }
    for (size_t i = 0; i < b->count; i++)
        if ((r = make(b, i)) != CUDA_SUCCESS) {
            *failed = i;
            return r;
        }
    return b->reads_after_return ? gpc_wire_cuStreamSynchronize_on(b->on, b->stream) : r;
}

/* CUDA takes batches on no legacy default stream, and none into a graph. */
static CUresult stream_takes(const struct batch *b)
{
    uint64_t wire;
    bool captures;
    CUresult r = gpc_route_stream(b->on, b->stream, &wire);
    if (r == CUDA_SUCCESS && wire == GP_STREAM_LEGACY)
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        r = gpc_stream_captures(b->on, b->stream, &captures);
    return r == CUDA_SUCCESS && captures ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : r;
}

static CUresult run(struct batch *b, bool holds, size_t *fail_index)
{
    size_t failed = SIZE_MAX; /* none of them */
    CUresult r = holds ? stream_takes(b) : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        r = make_all(b, &failed);
    if (r != CUDA_SUCCESS && fail_index)
        *fail_index = failed;
    return r;
}

CUresult gpc_copy_lines(uint16_t op, struct gpc_route *on, const struct gp_copy_lines *lines,
                        size_t *fail_index, CUstream stream)
{
    struct batch b = {.op = op, .on = on, .stream = stream, .count = lines->count, .lines = lines};
    return run(&b, gp_copy_lines_hold(lines), fail_index);
}

CUresult gpc_copy_boxes(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY3D_BATCH_OP *boxes,
                        size_t count, unsigned long long flags, size_t *fail_index, CUstream stream)
{
    struct batch b = {.op = op, .on = on, .stream = stream, .count = count, .boxes = boxes};
    return run(&b, boxes && count && !flags, fail_index);
}
