/*
 * Copies. Every form becomes a box of bytes; device addresses are addresses
 * of this process, checked when the copy is asked for.
 */
#include "array.h"
#include "span.h"

void sg_copy_run(const struct sg_copy *copy)
{
    const char *src = copy->staged ? copy->staged : copy->src;
    char *dst = copy->dst;
    if (copy->src_tiles.array || copy->dst_tiles.array) {
        sg_copy_run_tiles(copy);
        return;
    }
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            memmove(dst + z * copy->dst_slice + y * copy->dst_pitch,
                    src + z * copy->src_slice + y * copy->src_pitch, copy->width);
}

/* One end of a copy as the caller gave it. */
struct end {
    CUmemorytype type;
    uint64_t address; /* first byte of the box */
    uint64_t bytes;   /* from there to behind its last one */
    size_t pitch, slice;
    CUcontext context; /* whose device reaches it; NULL: the stream's */
    struct sg_copy_tiles tiles;
};

/* Nothing of it is at an address. */
static CUresult end_in_tiles(const struct end *end, const struct sg_device *device, bool *pinned)
{
    const struct sg_device *its = end->tiles.array->context->device;
    *pinned = true;
    if (end->context)
        device = end->context->device;
    return device && device != its ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* `*pinned`: the device (NULL: any that is asked later) can reach this end by itself. `*waits`:
 * a synchronous copy is over when it returns. */
static CUresult end_check(const struct end *end, const struct sg_device *device, bool *pinned,
                          bool *waits)
{
    struct sg_extent extent;
    *waits = false;
    if (end->tiles.array)
        return end_in_tiles(end, device, pinned);
    if (!end->address)
        return CUDA_ERROR_INVALID_VALUE;
    bool known = sg_address_find(end->address, &extent);
    if (end->context)
        device = end->context->device;
    bool covered = known && (device ? sg_address_open(end->address, end->bytes, device)
                                    : sg_address_covers(end->address, end->bytes));
    if (known && !covered) /* an allocation's end lies in the box: the host's as well */
        return CUDA_ERROR_INVALID_VALUE;
    switch (end->type) {
    case CU_MEMORYTYPE_HOST:
        *waits = true;
        break;
    case CU_MEMORYTYPE_DEVICE:
        if (!covered)
            return CUDA_ERROR_INVALID_VALUE;
        *waits = sg_space_is_host(extent.space) || extent.sync_memops;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        *waits = !known || sg_space_is_host(extent.space) || extent.sync_memops;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pinned = covered;
    return CUDA_SUCCESS;
}

/* A pageable source is taken over before an asynchronous copy returns. */
static CUresult stage(struct sg_copy *copy)
{
    if (copy->height != 1 || copy->depth != 1)
        return CUDA_ERROR_NOT_SUPPORTED; /* the caller waits instead */
    copy->staged = malloc(copy->width);
    if (!copy->staged)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy->staged, copy->src, copy->width);
    return CUDA_SUCCESS;
}

/* Queued; on the default stream, and between two devices, in the order of both. */
static CUresult submit_copy(CUstream stream, struct sg_op *op)
{
    struct sg_extent from, to;
    if (!stream->is_legacy || !sg_address_find((uint64_t)(uintptr_t)op->copy.src, &from) ||
        !sg_address_find((uint64_t)(uintptr_t)op->copy.dst, &to) || sg_space_is_host(from.space) ||
        sg_space_is_host(to.space))
        return sg_stream_submit(stream, op);
    CUresult result = sg_device_before(stream, from.device);
    if (result == CUDA_SUCCESS)
        result = sg_device_before(stream, to.device);
    if (result != CUDA_SUCCESS) {
        sg_op_unref(op);
        return result;
    }
    SG_TRY(sg_stream_submit(stream, op));
    SG_TRY(sg_device_behind(stream, from.device));
    return sg_device_behind(stream, to.device);
}

static CUresult submit(struct sg_copy *copy, const struct end *from, const struct end *to,
                       CUstream handle, bool async)
{
    CUstream stream;
    bool from_pinned = true, to_pinned = true, from_waits = false, to_waits = false;
    SG_TRY(sg_stream_get(handle, &stream));
    if (!copy->width || !copy->height || !copy->depth)
        return CUDA_SUCCESS;
    SG_TRY(end_check(from, stream->context->device, &from_pinned, &from_waits));
    SG_TRY(end_check(to, stream->context->device, &to_pinned, &to_waits));
    copy->src = (const char *)(uintptr_t)from->address;
    copy->dst = (char *)(uintptr_t)to->address;
    copy->src_pitch = from->pitch;
    copy->src_slice = from->slice;
    copy->dst_pitch = to->pitch;
    copy->dst_slice = to->slice;
    copy->src_bytes = from_pinned ? from->bytes : 0;
    copy->dst_bytes = to_pinned ? to->bytes : 0;
    copy->src_tiles = from->tiles;
    copy->dst_tiles = to->tiles;
    bool wait = async ? !to_pinned : from_waits || to_waits;
    if (stream->capture && async)
        wait = false;
    else if (!from_pinned && !wait && stage(copy) != CUDA_SUCCESS)
        wait = true;
    struct sg_op *op = sg_op_new(SG_OP_COPY, stream->context);
    if (!op) {
        free(copy->staged);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->copy = *copy;
    return wait ? sg_stream_submit_wait(stream, op) : submit_copy(stream, op);
}

static CUresult copy_between(const struct end *source, const struct end *target, size_t bytes,
                             CUstream stream, bool async)
{
    SG_LOCKED;
    CUmemorytype from_type = source->type, to_type = target->type;
    uint64_t from = source->address, to = target->address;
    struct sg_copy copy = {.width = bytes, .height = 1, .depth = 1};
    copy.params = (CUDA_MEMCPY3D){.srcMemoryType = from_type,
                                  .srcHost = (const void *)(uintptr_t)from,
                                  .srcDevice = from,
                                  .srcPitch = bytes,
                                  .srcHeight = 1,
                                  .dstMemoryType = to_type,
                                  .dstHost = (void *)(uintptr_t)to,
                                  .dstDevice = to,
                                  .dstPitch = bytes,
                                  .dstHeight = 1,
                                  .WidthInBytes = bytes,
                                  .Height = 1,
                                  .Depth = 1};
    return submit(&copy, source, target, stream, async);
}

static CUresult copy_line(CUmemorytype from_type, uint64_t from, CUmemorytype to_type, uint64_t to,
                          size_t bytes, CUstream stream, bool async)
{
    const struct end source = {from_type, from, bytes, bytes, bytes, NULL, {0}};
    const struct end target = {to_type, to, bytes, bytes, bytes, NULL, {0}};
    return copy_between(&source, &target, bytes, stream, async);
}

#define HOST CU_MEMORYTYPE_HOST
#define DEVICE CU_MEMORYTYPE_DEVICE
#define UNIFIED CU_MEMORYTYPE_UNIFIED

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return copy_line(HOST, (uintptr_t)srcHost, DEVICE, dstDevice, ByteCount, NULL, false);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                              CUstream hStream)
{
    return copy_line(HOST, (uintptr_t)srcHost, DEVICE, dstDevice, ByteCount, hStream, true);
}

CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_line(DEVICE, srcDevice, HOST, (uintptr_t)dstHost, ByteCount, NULL, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream)
{
    return copy_line(DEVICE, srcDevice, HOST, (uintptr_t)dstHost, ByteCount, hStream, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_line(DEVICE, srcDevice, DEVICE, dstDevice, ByteCount, NULL, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream)
{
    return copy_line(DEVICE, srcDevice, DEVICE, dstDevice, ByteCount, hStream, true);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return copy_line(UNIFIED, src, UNIFIED, dst, ByteCount, NULL, false);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    return copy_line(UNIFIED, src, UNIFIED, dst, ByteCount, hStream, true);
}

static CUresult contexts_check(CUcontext to, CUcontext from)
{
    SG_LOCKED;
    SG_READY();
    if (!sg_handle_is(to, SG_CONTEXT) || !sg_handle_is(from, SG_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

/* Each end is reached by the device of its own context. */
static CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                          CUcontext from_context, size_t bytes, CUstream stream, bool async)
{
    SG_TRY(contexts_check(to_context, from_context));
    const struct end source = {DEVICE, from, bytes, bytes, bytes, from_context, {0}};
    const struct end target = {DEVICE, to, bytes, bytes, bytes, to_context, {0}};
    return copy_between(&source, &target, bytes, stream, async);
}

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                      CUcontext srcContext, size_t ByteCount)
{
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, NULL, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream, true);
}

/* ---- boxes ---- */
/* One end as the caller named it. */
struct named {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    struct gp_span_end steps;
};

/* `tiles`: where it begins, if its memory is mapped later. */
static CUresult end_in_array(struct named *named, const struct gp_span_box *box,
                             struct sg_copy_tiles *tiles)
{
    CUarray a;
    SG_TRY(sg_array_get(named->array, &a));
    if (!gp_array_holds(&a->extent, &named->steps, box))
        return CUDA_ERROR_INVALID_VALUE;
    if (a->backing)
        *tiles = (struct sg_copy_tiles){a, named->steps.x, named->steps.y, named->steps.z};
    named->type = CU_MEMORYTYPE_DEVICE;
    named->device = a->data;
    named->steps.pitch = a->extent.width;
    named->steps.rows = a->extent.height;
    return CUDA_SUCCESS;
}

/* The first byte of one end from its base and offsets; checks its pitch. */
static CUresult end_make(struct end *end, struct named named, const CUDA_MEMCPY3D *params)
{
    struct gp_span span;
    const struct gp_span_box box = {params->WidthInBytes, params->Height, params->Depth};
    *end = (struct end){.type = CU_MEMORYTYPE_DEVICE};
    if (named.type == CU_MEMORYTYPE_ARRAY)
        SG_TRY(end_in_array(&named, &box, &end->tiles));
    if (end->tiles.array)
        return CUDA_SUCCESS;
    uint64_t base = named.type == CU_MEMORYTYPE_HOST ? (uintptr_t)named.host : named.device;
    if (!base || !gp_span_make(&named.steps, &box, &span) ||
        __builtin_add_overflow(base, span.offset, &end->address))
        return CUDA_ERROR_INVALID_VALUE;
    end->type = named.type;
    end->bytes = span.bytes;
    end->pitch = span.pitch;
    end->slice = span.slice;
    return CUDA_SUCCESS;
}

static CUresult ends_make(const CUDA_MEMCPY3D *p, struct end *from, struct end *to)
{
    const struct named source = {p->srcMemoryType,
                                 p->srcHost,
                                 p->srcDevice,
                                 p->srcArray,
                                 {p->srcXInBytes, p->srcY, p->srcZ, p->srcPitch, p->srcHeight}};
    const struct named target = {p->dstMemoryType,
                                 p->dstHost,
                                 p->dstDevice,
                                 p->dstArray,
                                 {p->dstXInBytes, p->dstY, p->dstZ, p->dstPitch, p->dstHeight}};
    SG_TRY(end_make(from, source, p));
    return end_make(to, target, p);
}

CUresult sg_copy_make(const CUDA_MEMCPY3D *params, struct sg_copy *copy)
{
    struct end from, to;
    bool pinned, waits;
    *copy = (struct sg_copy){.width = params->WidthInBytes,
                             .height = params->Height,
                             .depth = params->Depth,
                             .params = *params};
    if (!copy->width || !copy->height || !copy->depth)
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(ends_make(params, &from, &to));
    SG_TRY(end_check(&from, NULL, &pinned, &waits));
    copy->src_bytes = pinned ? from.bytes : 0;
    copy->src_tiles = from.tiles;
    copy->dst_tiles = to.tiles;
    SG_TRY(end_check(&to, NULL, &pinned, &waits));
    copy->dst_bytes = pinned ? to.bytes : 0;
    copy->src = (const char *)(uintptr_t)from.address;
    copy->dst = (char *)(uintptr_t)to.address;
    copy->src_pitch = from.pitch;
    copy->src_slice = from.slice;
    copy->dst_pitch = to.pitch;
    copy->dst_slice = to.slice;
    return CUDA_SUCCESS;
}

/* `contexts`: of the source and of the target, where they were named. */
static CUresult copy_box_of(const CUDA_MEMCPY3D *params, const CUcontext contexts[2],
                            CUstream stream, bool async)
{
    SG_LOCKED;
    CUstream checked;
    SG_TRY(sg_stream_get(stream, &checked));
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_copy copy = {.width = params->WidthInBytes,
                           .height = params->Height,
                           .depth = params->Depth,
                           .params = *params};
    if (!copy.width || !copy.height || !copy.depth)
        return CUDA_SUCCESS;
    struct end from, to;
    SG_TRY(ends_make(params, &from, &to));
    from.context = contexts[0];
    to.context = contexts[1];
    return submit(&copy, &from, &to, stream, async);
}

static CUresult copy_box(const CUDA_MEMCPY3D *params, CUstream stream, bool async)
{
    return copy_box_of(params, (CUcontext[2]){NULL, NULL}, stream, async);
}

static CUresult copy_flat(const CUDA_MEMCPY2D *flat, CUstream stream, bool async)
{
    if (!flat)
        return copy_box(NULL, stream, async);
    CUDA_MEMCPY3D box = {.srcXInBytes = flat->srcXInBytes,
                         .srcY = flat->srcY,
                         .srcMemoryType = flat->srcMemoryType,
                         .srcHost = flat->srcHost,
                         .srcDevice = flat->srcDevice,
                         .srcArray = flat->srcArray,
                         .srcPitch = flat->srcPitch,
                         .dstXInBytes = flat->dstXInBytes,
                         .dstY = flat->dstY,
                         .dstMemoryType = flat->dstMemoryType,
                         .dstHost = flat->dstHost,
                         .dstDevice = flat->dstDevice,
                         .dstArray = flat->dstArray,
                         .dstPitch = flat->dstPitch,
                         .WidthInBytes = flat->WidthInBytes,
                         .Height = flat->Height,
                         .Depth = 1};
    return copy_box(&box, stream, async);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_flat(pCopy, NULL, false);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_flat(pCopy, NULL, false);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy_flat(pCopy, hStream, true);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return copy_box(pCopy, NULL, false);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy_box(pCopy, hStream, true);
}

static CUresult copy_peer_box(const CUDA_MEMCPY3D_PEER *peer, CUstream stream, bool async)
{
    if (!peer)
        return copy_box(NULL, stream, async);
    SG_TRY(contexts_check(peer->dstContext, peer->srcContext));
    CUDA_MEMCPY3D box = {.srcXInBytes = peer->srcXInBytes,
                         .srcY = peer->srcY,
                         .srcZ = peer->srcZ,
                         .srcMemoryType = peer->srcMemoryType,
                         .srcHost = peer->srcHost,
                         .srcDevice = peer->srcDevice,
                         .srcArray = peer->srcArray,
                         .srcPitch = peer->srcPitch,
                         .srcHeight = peer->srcHeight,
                         .dstXInBytes = peer->dstXInBytes,
                         .dstY = peer->dstY,
                         .dstZ = peer->dstZ,
                         .dstMemoryType = peer->dstMemoryType,
                         .dstHost = peer->dstHost,
                         .dstDevice = peer->dstDevice,
                         .dstArray = peer->dstArray,
                         .dstPitch = peer->dstPitch,
                         .dstHeight = peer->dstHeight,
                         .WidthInBytes = peer->WidthInBytes,
                         .Height = peer->Height,
                         .Depth = peer->Depth};
    return copy_box_of(&box, (CUcontext[2]){peer->srcContext, peer->dstContext}, stream, async);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
    return copy_peer_box(pCopy, NULL, false);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
    return copy_peer_box(pCopy, hStream, true);
}
