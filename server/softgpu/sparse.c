/*
 * Arrays whose memory is mapped later. A sparse one is tiled: tiles are pages of 64 KiB, and the
 * levels that are too small for them share pages of their own, the mip tail. A deferred one is a
 * single page. Mapping waits for the device's work, and so is in the order of every stream.
 */
#include "array.h"

#define LEVEL_ALIGNMENT 512u
/* Nobody can fill more, and a record of each page is kept: 64 GiB. */
#define PAGES_MAX (UINT64_C(1) << 20)

struct sg_backing {
    bool deferred, flat, layered, mipmapped;
    unsigned levels, tail_level;          /* tail_level == levels: there is no tail */
    uint32_t tile[3];                     /* elements */
    uint64_t layers, tail_at, tail_pages; /* a layer's; where the first one's begin */
    uint64_t page_bytes, count;
    struct sg_page pages[];
};

bool sg_backing_fits(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    unsigned later = d->Flags & SG_MAPPED_LATER;
    /* two-dimensional, in layers or not, or three-dimensional; mapped in one way */
    return !later ||
           (d->Height && !(d->Flags & CUDA_ARRAY3D_CUBEMAP) && (later & (later - 1)) == 0);
}

/* --- where bytes are ---------------------------------------------------------------------- */

static uint64_t tiles_of(uint64_t size, uint32_t tile)
{
    return (size + tile - 1) / tile;
}

/* A tile has 64 KiB, whatever its elements are: the shapes that Vulkan and Direct3D have, too. */
static void tile_choose(struct sg_backing *b, uint32_t element)
{
    static const uint32_t flat[5][3] = {
        {256, 256, 1}, {256, 128, 1}, {128, 128, 1}, {128, 64, 1}, {64, 64, 1}};
    static const uint32_t deep[5][3] = {
        {64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};
    unsigned power = 0;
    while (power < 4 && (1u << power) < element)
        power++;
    memcpy(b->tile, b->flat ? flat[power] : deep[power], sizeof b->tile);
}

static struct gp_array_extent extent_of(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    return gp_array_extent(d->Width, d->Height, d->Depth, d->Format, d->NumChannels);
}

static bool spans_tile(const struct sg_backing *b, const struct gp_array_extent *e)
{
    return e->width / e->element >= b->tile[0] && e->height >= b->tile[1] &&
           (b->flat || e->depth >= b->tile[2]);
}

static void level_in_tiles(struct sg_backing *b, const struct gp_array_extent *e,
                           struct sg_tiles *t)
{
    *t = (struct sg_tiles){.row = b->tile[0] * e->element,
                           .height = b->tile[1],
                           .depth = b->tile[2],
                           .across = (uint32_t)tiles_of(e->width / e->element, b->tile[0]),
                           .down = (uint32_t)tiles_of(e->height, b->tile[1]),
                           .start = b->count};
    b->count += (uint64_t)t->across * t->down * tiles_of(e->depth, b->tile[2]);
}

/* In rows, behind what is there already. */
static void level_in_rows(const struct sg_backing *b, const struct gp_array_extent *e,
                          uint64_t *bytes, struct sg_tiles *t)
{
    uint64_t slices = b->layered && !b->deferred ? 1 : e->depth;
    *t = (struct sg_tiles){
        .pitch = e->width, .slice = e->width * e->height, .of = SG_PAGE, .start = *bytes};
    *bytes += (e->width * e->height * slices + LEVEL_ALIGNMENT - 1) / LEVEL_ALIGNMENT *
              LEVEL_ALIGNMENT;
}

/* What all levels need, and where each begins. */
static void lay_out(struct sg_backing *b, const CUDA_ARRAY3D_DESCRIPTOR *d, struct sg_tiles *tiles)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < b->levels; i++) {
        const CUDA_ARRAY3D_DESCRIPTOR level = sg_level_of(d, i);
        const struct gp_array_extent e = extent_of(&level);
        bool tail = b->tail_level < i || (b->mipmapped && !spans_tile(b, &e));
        if (b->deferred || tail)
            level_in_rows(b, &e, &bytes, &tiles[i]);
        else
            level_in_tiles(b, &e, &tiles[i]);
        if (tail && i < b->tail_level)
            b->tail_level = i;
    }
    uint64_t pages = (bytes + SG_PAGE - 1) / SG_PAGE;
    b->page_bytes = b->deferred ? pages * SG_PAGE : SG_PAGE;
    b->tail_at = b->count;
    b->tail_pages = b->deferred ? 0 : pages;
    b->count += b->deferred ? 1 : pages * b->layers;
}

CUresult sg_backing_make(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, struct sg_tiles *tiles,
                         struct sg_backing **out)
{
    bool layered = d->Flags & CUDA_ARRAY3D_LAYERED;
    if (d->Flags & CUDA_ARRAY3D_SPARSE && d->Flags & CUDA_ARRAY3D_SURFACE_LDST)
        return CUDA_ERROR_INVALID_VALUE; /* as an H200 says */
    unsigned count = levels ? levels : 1;
    struct sg_backing like = {.deferred = d->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING,
                              .flat = layered || !d->Depth,
                              .layered = layered,
                              .mipmapped = levels,
                              .levels = count,
                              .tail_level = count,
                              .layers = layered ? d->Depth : 1};
    tile_choose(&like, extent_of(d).element);
    lay_out(&like, d, tiles);
    struct sg_backing *b = NULL;
    if (like.count <= PAGES_MAX)
        b = calloc(1, sizeof *b + like.count * sizeof *b->pages);
    if (!b)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *b = like;
    for (unsigned i = 0; i < count; i++) {
        struct sg_tiles *t = &tiles[i];
        bool tail = !t->row && !b->deferred;
        t->pages = b->pages + (t->row ? t->start : tail ? b->tail_at : 0);
        if (b->deferred)
            t->of = b->page_bytes;
        if (tail && b->layered)
            t->slice = b->tail_pages * SG_PAGE;
    }
    *out = b;
    return CUDA_SUCCESS;
}

static void page_set(struct sg_page *page, struct sg_physical *physical, unsigned char *at)
{
    struct sg_physical *before = page->physical;
    *page = (struct sg_page){at, physical ? sg_physical_ref(physical) : NULL};
    if (before)
        sg_physical_unref(before);
}

void sg_backing_free(struct sg_backing *b)
{
    for (uint64_t i = 0; b && i < b->count; i++)
        page_set(&b->pages[i], NULL, NULL);
    free(b);
}

/* --- mapped ---------------------------------------------------------------------------------- */

/* A box of pages: of the tiles of a level, or (in a row) of a tail or of all. */
struct box {
    struct sg_page *pages;
    uint64_t across, down; /* of the level */
    uint64_t at[3], n[3];
};

/* What an entry names. */
struct resource {
    struct sg_backing *backing;
    CUarray *levels;
    CUarray array; /* its one level, if it is no mipmapped array */
};

static CUresult resource_of(const CUarrayMapInfo *info, const struct sg_device *device,
                            struct resource *r)
{
    CUmipmappedArray m;
    CUcontext context;
    switch (info->resourceType) {
    case CU_RESOURCE_TYPE_ARRAY:
        SG_TRY(sg_array_get(info->resource.array, &r->array));
        if (r->array->mipmap)
            return CUDA_ERROR_INVALID_VALUE;
        context = r->array->context;
        r->backing = r->array->backing;
        r->levels = &r->array;
        break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        SG_TRY(sg_mipmap_get(info->resource.mipmap, &m));
        context = m->context;
        r->backing = m->backing;
        r->levels = m->levels;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return r->backing && context->device == device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Along one axis: whole tiles that the level has. */
static bool axis_box(struct box *box, unsigned axis, uint32_t offset, uint32_t extent,
                     uint32_t tile, uint64_t tiles)
{
    box->at[axis] = offset / tile;
    box->n[axis] = extent / tile;
    return offset % tile == 0 && extent % tile == 0 && extent && box->at[axis] < tiles &&
           box->n[axis] <= tiles - box->at[axis];
}

static CUresult level_box(const CUarrayMapInfo *info, const struct resource *r, struct box *box)
{
    const struct sg_backing *b = r->backing;
    unsigned level = info->subresource.sparseLevel.level;
    uint64_t layer = info->subresource.sparseLevel.layer;
    if (level >= b->levels || level >= b->tail_level || layer >= b->layers)
        return CUDA_ERROR_INVALID_VALUE;
    const struct CUarray_st *a = r->levels[level];
    const struct sg_tiles *t = &a->tiles;
    *box = (struct box){
        .pages = r->backing->pages + (t->pages - b->pages), .across = t->across, .down = t->down};
    uint64_t deep = b->flat ? 1 : tiles_of(a->extent.depth, t->depth);
    bool fits = axis_box(box, 0, info->subresource.sparseLevel.offsetX,
                         info->subresource.sparseLevel.extentWidth, b->tile[0], t->across) &&
                axis_box(box, 1, info->subresource.sparseLevel.offsetY,
                         info->subresource.sparseLevel.extentHeight, b->tile[1], t->down) &&
                axis_box(box, 2, info->subresource.sparseLevel.offsetZ,
                         info->subresource.sparseLevel.extentDepth, b->tile[2], deep);
    box->at[2] += layer;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult tail_box(const CUarrayMapInfo *info, struct sg_backing *b, struct box *box)
{
    uint64_t layer = info->subresource.miptail.layer, size = info->subresource.miptail.size;
    uint64_t offset = info->subresource.miptail.offset, all = b->tail_pages * SG_PAGE;
    if (layer >= b->layers || offset % SG_PAGE || size % SG_PAGE || !size || offset > all ||
        size > all - offset)
        return CUDA_ERROR_INVALID_VALUE;
    *box = (struct box){.pages = b->pages + b->tail_at + layer * b->tail_pages,
                        .at = {offset / SG_PAGE},
                        .n = {size / SG_PAGE, 1, 1}};
    return CUDA_SUCCESS;
}

static CUresult box_of(const CUarrayMapInfo *info, const struct resource *r, struct box *box)
{
    if (r->backing->deferred) {
        *box = (struct box){.pages = r->backing->pages, .n = {1, 1, 1}};
        return CUDA_SUCCESS;
    }
    switch (info->subresourceType) {
    case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL:
        return level_box(info, r, box);
    case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL:
        return tail_box(info, r->backing, box);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Tiles take their memory one behind the other. */
static void box_set(const struct box *box, uint64_t bytes, struct sg_physical *physical,
                    unsigned char *at)
{
    for (uint64_t z = box->at[2]; z < box->at[2] + box->n[2]; z++)
        for (uint64_t y = box->at[1]; y < box->at[1] + box->n[1]; y++)
            for (uint64_t x = box->at[0]; x < box->at[0] + box->n[0]; x++) {
                page_set(&box->pages[(z * box->down + y) * box->across + x], physical, at);
                at = at ? at + bytes : NULL;
            }
}

static CUresult entry(const CUarrayMapInfo *info, const struct sg_device *device, bool apply)
{
    struct resource r;
    struct box box;
    struct sg_physical *physical = NULL;
    unsigned char *at = NULL;
    bool map = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
    if ((!map && info->memOperationType != CU_MEM_OPERATION_TYPE_UNMAP) || info->flags ||
        info->reserved[0] || info->reserved[1] || info->deviceBitMask != 1u << device->ordinal ||
        (map && info->memHandleType != CU_MEM_HANDLE_TYPE_GENERIC))
        return CUDA_ERROR_INVALID_VALUE;
    SG_TRY(resource_of(info, device, &r));
    SG_TRY(box_of(info, &r, &box));
    uint64_t bytes = box.n[0] * box.n[1] * box.n[2] * r.backing->page_bytes;
    if (map)
        SG_TRY(sg_physical_pages(info->memHandle.memHandle, device, info->offset, bytes, &physical,
                                 &at));
    if (apply)
        box_set(&box, r.backing->page_bytes, physical, at);
    return CUDA_SUCCESS;
}

/* All of them are looked at before one is done. */
CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!mapInfoList || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        stream->capture->invalid = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    SG_TRY(sg_capture_legacy(stream));
    struct sg_device *device = stream->context->device;
    for (unsigned i = 0; i < count; i++)
        SG_TRY(entry(&mapInfoList[i], device, false));
    sg_memory_wait(device); /* meanwhile another thread may have ended something */
    for (unsigned i = 0; i < count; i++)
        SG_TRY(entry(&mapInfoList[i], device, false));
    for (unsigned i = 0; i < count; i++)
        SG_TRY(entry(&mapInfoList[i], device, true));
    return CUDA_SUCCESS;
}

/* --- asked ------------------------------------------------------------------------------------ */

/* INVALID_VALUE if it is mapped in another way, or at once. */
static CUresult array_backing(const void *to, CUarray handle, bool deferred, struct sg_backing **b)
{
    CUcontext context;
    CUarray a;
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_array_get(handle, &a));
    *b = a->backing;
    return to && !a->mipmap && *b && (*b)->deferred == deferred ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
}

static CUresult mipmap_backing(const void *to, CUmipmappedArray handle, bool deferred,
                               struct sg_backing **b)
{
    CUcontext context;
    CUmipmappedArray m;
    SG_TRY(sg_context_current(&context));
    SG_TRY(sg_mipmap_get(handle, &m));
    *b = m->backing;
    return to && *b && (*b)->deferred == deferred ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void say_sparse(const struct sg_backing *b, CUDA_ARRAY_SPARSE_PROPERTIES *to)
{
    *to = (CUDA_ARRAY_SPARSE_PROPERTIES){.tileExtent = {b->tile[0], b->tile[1], b->tile[2]},
                                         .miptailFirstLevel = b->tail_pages ? b->tail_level : 0,
                                         .miptailSize = b->tail_pages * SG_PAGE};
}

static CUresult say_needs(const struct sg_backing *b, CUdevice device,
                          CUDA_ARRAY_MEMORY_REQUIREMENTS *to)
{
    if (!sg_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *to = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = b->page_bytes, .alignment = SG_PAGE};
    return CUDA_SUCCESS;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties, CUarray array)
{
    SG_LOCKED;
    struct sg_backing *b;
    SG_TRY(array_backing(sparseProperties, array, false, &b));
    say_sparse(b, sparseProperties);
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties,
                                             CUmipmappedArray mipmap)
{
    SG_LOCKED;
    struct sg_backing *b;
    SG_TRY(mipmap_backing(sparseProperties, mipmap, false, &b));
    say_sparse(b, sparseProperties);
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                      CUarray array, CUdevice device)
{
    SG_LOCKED;
    struct sg_backing *b;
    SG_TRY(array_backing(memoryRequirements, array, true, &b));
    return say_needs(b, device, memoryRequirements);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                               CUmipmappedArray mipmap, CUdevice device)
{
    SG_LOCKED;
    struct sg_backing *b;
    SG_TRY(mipmap_backing(memoryRequirements, mipmap, true, &b));
    return say_needs(b, device, memoryRequirements);
}
