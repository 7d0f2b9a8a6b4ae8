#include "copy.h"

#include "activity_table.h"
#include "array.h"
#include "call.h"
#include "captured_copy.h"
#include "cupti.h"
#include "gpc_wire.h"
#include "observe.h"
#include "session.h"
#include "stream.h"

struct gpc_rows gpc_copy_rows_of(const struct gpc_copy *c)
{
    const struct gp_span_box *box = &c->box;
    bool dense = c->dst.span.pitch == box->width && c->src.span.pitch == box->width;
    size_t of_slice = dense ? 1 : box->height;
    return (struct gpc_rows){.count = of_slice * box->depth,
                             .of_slice = of_slice,
                             .bytes = dense ? box->width * box->height : box->width};
}

size_t gpc_copy_row_at(const struct gp_span *span, const struct gpc_rows *rows, size_t row)
{
    return row / rows->of_slice * span->slice + row % rows->of_slice * span->pitch;
}

CUresult gpc_copy_rows(struct gpc_copy *c, CUresult (*row)(struct gpc_copy *c, uint64_t dst,
                                                           uint64_t src, size_t bytes))
{
    const struct gpc_rows rows = gpc_copy_rows_of(c);
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < rows.count && r == CUDA_SUCCESS; i++)
        r = row(c, c->dst.at + gpc_copy_row_at(&c->dst.span, &rows, i),
                c->src.at + gpc_copy_row_at(&c->src.span, &rows, i), rows.bytes);
    return r;
}

/* Whether an address that nobody here got is one at all, only the driver knows. */
static bool must_ask(const struct gpc_copy *c)
{
    return c->dst.kind == GPC_END_DEVICE &&
           (!c->dst.known || (c->src.kind == GPC_END_DEVICE && !c->src.known));
}

/* The program has said that such copies are always over when they return. */
static bool must_wait(const struct gpc_copy *c)
{
    return (c->dst.known && c->dst.range.sync) || (c->src.known && c->src.range.sync);
}

/* Such copies are over when they return, also for work of streams that do not wait for the copy's. Of
 * those out of pageable memory CUDA promises less, and NVIDIA's driver keeps less; but what is on its
 * way there for microseconds may be so for milliseconds over a network. */
static CUresult end_blocking(const struct gpc_copy *c)
{
    if (must_ask(c) || must_wait(c))
        return gpc_wire_cuStreamSynchronize_on(c->on, c->stream);
    bool from_here = c->src.kind == GPC_END_PINNED || c->src.kind == GPC_END_PAGEABLE;
    bool taken_over = from_here && c->messages > 0;
    return taken_over && !gpc_stream_is_alone(c->on) ? gpc_stream_wait(c->on, c->stream)
                                                     : CUDA_SUCCESS;
}

/* For who profiles: what the host's end is to the application. */
static void tell_host_memory(const struct gpc_copy *c)
{
    static const uint8_t memory[GPC_END_KINDS] = {[GPC_END_PAGEABLE] = GP_CUPTI_PAGEABLE,
                                                  [GPC_END_PINNED] = GP_CUPTI_PINNED,
                                                  [GPC_END_SHARED] = GP_CUPTI_PINNED};
    uint8_t src = memory[c->src.kind];
    gpc_activity_host_memory(src ? src : memory[c->dst.kind]);
}

CUresult gpc_copy_run(struct gpc_copy *c)
{
    uint64_t wire;
    bool captures = false;
    enum gpc_copy_transport by = gpc_session_shares(c->on->session) ? GPC_COPY_SHM
                                                                    : GPC_COPY_NETWORK;
    const struct gpc_strategy *s = gpc_copy_strategy(by, c->src.kind, c->dst.kind);
    CUresult r = gpc_route_stream(c->on, c->stream, &wire);
    if (r == CUDA_SUCCESS && s->in_graph)
        r = gpc_stream_captures(c->on, c->stream, &captures);
    if (r != CUDA_SUCCESS)
        return r;
    if (captures)
        s = s->in_graph;
    if (s->refusal)
        return gpc_refuse_because(c->op, s->refusal);
    if (GPC_OBSERVED(GPC_OBSERVER_ACTIVITY))
        tell_host_memory(c);
    r = s->run(c);
    return r == CUDA_SUCCESS && c->blocking ? end_blocking(c) : r;
}

/* The box of a copy in an array. */
static CUresult end_array(struct gpc_end *e, CUarray array, const struct gp_span_end *first,
                          const struct gp_span_box *box)
{
    const struct gpc_array *a = gpc_array_of(array);
    const struct gp_span_end packed = {.x = 0};
    e->said = GPC_SAID_ARRAY;
    e->at = 0;
    e->array = array;
    e->first = *first;
    if (!a)
        return CUDA_ERROR_INVALID_HANDLE;
    return gp_array_holds(&a->extent, first, box) && gp_span_make(&packed, box, &e->span)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static CUresult end_linear(struct gpc_end *e, struct gpc_end_named named,
                           const struct gp_span_box *box)
{
    if (named.said == GPC_SAID_ARRAY)
        return end_array(e, named.array, &(struct gp_span_end){.x = named.at}, box);
    e->at = named.at;
    e->said = named.said;
    e->span = (struct gp_span){.pitch = box->width, .rows = 1, .bytes = box->width};
    return named.at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpc_copy_plan_linear(struct gpc_copy *c, struct gpc_end_named dst,
                              struct gpc_end_named src, size_t bytes)
{
    c->box = (struct gp_span_box){bytes, 1, 1};
    CUresult r = end_linear(&c->dst, dst, &c->box);
    if (r == CUDA_SUCCESS)
        r = end_linear(&c->src, src, &c->box);
    return r ? r : gpc_copy_classify(c);
}

CUresult gpc_copy_linear(uint16_t op, struct gpc_route *on, struct gpc_end_named dst,
                         struct gpc_end_named src, size_t bytes, CUstream stream, bool blocking)
{
    if (bytes == 0)
        return CUDA_SUCCESS;
    struct gpc_copy c;
    c.messages = 0;
    c.op = op;
    c.blocking = blocking;
    c.on = on;
    c.stream = stream;
    CUresult r = gpc_copy_plan_linear(&c, dst, src, bytes);
    return r ? r : gpc_copy_run(&c);
}

CUresult gpc_copy_own(struct gpc_route *on, CUdeviceptr device, void *host, size_t bytes,
                      CUstream stream, bool there)
{
    struct gpc_copy c = {.op = there ? GP_OP_cuMemcpyHtoDAsync_v2 : GP_OP_cuMemcpyDtoHAsync_v2,
                         .blocking = !there,
                         .on = on,
                         .stream = stream,
                         .box = {bytes, 1, 1}};
    struct gpc_end *d = there ? &c.dst : &c.src, *h = there ? &c.src : &c.dst;
    end_linear(d, gpc_said_device(device), &c.box);
    end_linear(h, gpc_said_host(host), &c.box);
    d->kind = GPC_END_DEVICE;
    h->kind = GPC_END_PAGEABLE;
    return gpc_copy_run(&c);
}

/* --- pitched ----------------------------------------------------------------------- */

/* Host memory and what is said to be it, but is a device's, are told apart by address. */
static CUresult end_pitched(struct gpc_end *e, CUmemorytype type, const void *host,
                            CUdeviceptr device, const struct gp_span_end *steps,
                            const struct gp_span_box *box)
{
    uint64_t base = type == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)host : device, last;
    e->said = type == CU_MEMORYTYPE_DEVICE ? GPC_SAID_DEVICE : GPC_SAID_ANY;
    e->at = 0;
    e->span = (struct gp_span){.bytes = 0};
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    if (!base || !gp_span_make(steps, box, &e->span) ||
        __builtin_add_overflow(base, e->span.offset, &e->at) ||
        __builtin_add_overflow(e->at, e->span.bytes, &last))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static bool is_empty(const CUDA_MEMCPY3D *p)
{
    return p->WidthInBytes == 0 || p->Height == 0 || p->Depth == 0;
}

CUresult gpc_copy_plan_pitched(struct gpc_copy *c, const CUDA_MEMCPY3D *p)
{
    const struct gp_span_end from = {p->srcXInBytes, p->srcY, p->srcZ, p->srcPitch, p->srcHeight};
    const struct gp_span_end to = {p->dstXInBytes, p->dstY, p->dstZ, p->dstPitch, p->dstHeight};
    c->box = (struct gp_span_box){p->WidthInBytes, p->Height, p->Depth};
    CUresult r = p->srcMemoryType == CU_MEMORYTYPE_ARRAY
                     ? end_array(&c->src, p->srcArray, &from, &c->box)
                     : end_pitched(&c->src, p->srcMemoryType, p->srcHost, p->srcDevice, &from,
                                   &c->box);
    if (r == CUDA_SUCCESS)
        r = p->dstMemoryType == CU_MEMORYTYPE_ARRAY
                ? end_array(&c->dst, p->dstArray, &to, &c->box)
                : end_pitched(&c->dst, p->dstMemoryType, p->dstHost, p->dstDevice, &to, &c->box);
    return r ? r : gpc_copy_classify(c);
}

CUresult gpc_copy_pitched(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY3D *p,
                          CUstream stream, bool blocking)
{
    struct gpc_copy c;
    c.messages = 0;
    c.op = op;
    c.blocking = blocking;
    c.on = on;
    c.stream = stream;
    if (is_empty(p))
        return CUDA_SUCCESS;
    CUresult r = gpc_copy_plan_pitched(&c, p);
    return r ? r : gpc_copy_run(&c);
}

CUresult gpc_copy_node(uint16_t op, struct gpc_route *on, const CUDA_MEMCPY3D *p, int own,
                       struct gpc_node_copy *out)
{
    struct gpc_copy c = {.op = op, .on = on};
    if (is_empty(p))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = gpc_copy_plan_pitched(&c, p);
    if (r != CUDA_SUCCESS)
        return r;
    if (c.src.kind >= GPC_END_REMOTE || c.dst.kind >= GPC_END_REMOTE)
        return gpc_refuse_because(op, "a copy node with an array, or memory of another host");
    *out = (struct gpc_node_copy){.own = gpc_copy_own_ends(&c)};
    if (own >= 0 && out->own != (unsigned)own)
        return gpc_refuse_because(op, "a copy node that turns to or from memory of this process");
    r = gpc_copy_moved(&c, &out->before, &out->behind);
    out->sent = gpc_copy_box(&c);
    return r;
}
