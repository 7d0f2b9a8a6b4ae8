/*
 * A request from the bytes of one step: its operation, its arguments, and now and then a lie
 * about its size. What no chance would get right (images and their hashes, sizes of launches,
 * options that exclude each other) is put right where the step is careful.
 */
#include <string.h>

#include "draw.h"
#include "image_name.h"

static void append_hash(struct gp_header *h, uint32_t *at, unsigned number)
{
    uint32_t size;
    unsigned char hash[32];
    const char *text = draw_image(number, &size);
    gp_image_name_of(text, size, hash);
    draw_append(h, at, hash, sizeof hash);
}

static uint32_t image_put(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_image_put *q = (void *)h;
    uint32_t at = sizeof *q, size, begin = 0;
    unsigned number = draw_below(d, DRAW_IMAGES);
    const char *text = draw_image(number, &size);
    if (draw_byte(d) > 192) /* a piece of it */
        begin = draw_byte(d) % size;
    q->total = size;
    q->offset = begin;
    q->bytes = size - begin;
    q->n_hash = 32;
    append_hash(h, &at, number);
    q->n_data = draw_append(h, &at, text + begin, size - begin);
    return at;
}

/* The image and the room for what is said of it, whatever it is loaded as; the bytes of its hash. */
static uint32_t load(struct draw *d, struct gp_header *h, uint32_t *at, uint32_t *info,
                     uint32_t *error)
{
    append_hash(h, at, draw_byte(d));
    *info = draw_byte(d);
    *error = draw_byte(d);
    return 32;
}

static uint32_t module_load(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_module_load *q = (void *)h;
    uint32_t at = sizeof *q;
    q->module = draw_new(d, GP_HANDLE_MODULE);
    q->n_hash = load(d, h, &at, &q->info_size, &q->error_size);
    q->option_count = draw_byte(d) & 3;
    q->n_options = draw_tail(d, h, &at, (uint64_t)q->option_count * 2, sizeof(uint64_t));
    return at;
}

static uint32_t library_load(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_library_load *q = (void *)h;
    uint32_t at = sizeof *q;
    q->library = draw_new(d, GP_HANDLE_LIBRARY);
    q->n_hash = load(d, h, &at, &q->info_size, &q->error_size);
    return at;
}

static uint32_t link_add(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_link_add *q = (void *)h;
    uint32_t at = sizeof *q;
    q->link = draw_handle(d, GP_HANDLE_LINK);
    q->type = CU_JIT_INPUT_PTX;
    q->n_hash = load(d, h, &at, &q->info_size, &q->error_size);
    q->n_name = draw_append(h, &at, "drawn", sizeof "drawn");
    return at;
}

static uint32_t launch(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_launch *q = (void *)h;
    uint32_t at = sizeof *q;
    q->function = draw_handle(d, GP_HANDLE_FUNCTION);
    q->stream = draw_handle(d, GP_HANDLE_STREAM);
    uint64_t parameters[2] = {draw_address(d), draw_number(d, 8)};
    if (parameters[1] == DRAW_NODE)
        parameters[1] = d->node;
    q->grid_x = 1 + draw_below(d, 4);
    q->grid_y = 1 + draw_below(d, 2);
    q->grid_z = 1;
    q->block_x = 1 + draw_below(d, 70);
    q->block_y = 1 + draw_below(d, 2);
    q->block_z = 1;
    q->shared_bytes = (uint32_t)draw_number(d, 4);
    q->flags = draw_byte(d) & 3;
    q->attribute_count = draw_byte(d) & 3;
    q->parameter_bytes = sizeof parameters;
    q->n_parameters = draw_append(h, &at, parameters, sizeof parameters);
    q->n_attributes = draw_tail(d, h, &at, q->attribute_count, sizeof(CUlaunchAttribute));
    return at;
}

/* A pitched copy between two boxes, which mostly fit. */
static uint32_t copy_3d(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_copy_3d *q = (void *)h;
    q->copy.srcMemoryType = q->copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    q->copy.srcDevice = draw_address(d);
    q->copy.dstDevice = draw_address(d);
    q->copy.srcPitch = draw_bytes_count(d);
    q->copy.dstPitch = draw_bytes_count(d);
    q->copy.srcHeight = draw_number(d, 8);
    q->copy.dstHeight = draw_number(d, 8);
    q->copy.WidthInBytes = draw_bytes_count(d);
    q->copy.Height = 1 + draw_number(d, 8);
    q->copy.Depth = 1 + draw_number(d, 8);
    q->copy.srcXInBytes = draw_number(d, 8);
    q->copy.dstY = draw_number(d, 8);
    q->copy.srcZ = draw_number(d, 8);
    q->stream = draw_handle(d, GP_HANDLE_STREAM);
    return sizeof *q;
}

/* Arrays of a few elements, and boxes that mostly lie in them; some are mapped later. */
static CUDA_ARRAY3D_DESCRIPTOR shape(struct draw *d)
{
    static const unsigned later[4] = {0, 0, CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING};
    unsigned how = draw_below(d, 16);
    return (CUDA_ARRAY3D_DESCRIPTOR){.Width = 64,
                                     .Height = draw_below(d, 8),
                                     .Depth = draw_below(d, 3),
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 1u << draw_below(d, 3),
                                     .Flags = how % 4 | later[how / 4]};
}

/* Whole tiles of the one that such an array has, or of its tail. */
static uint32_t array_map(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_array_map *q = (void *)h;
    struct gp_array_map entries[2] = {{0}};
    uint32_t at = sizeof *q;
    q->stream = draw_handle(d, GP_HANDLE_STREAM);
    q->device = (int)draw_below(d, 2);
    q->count = 1 + draw_below(d, 2);
    for (uint32_t i = 0; i < q->count; i++) {
        struct gp_array_map *e = &entries[i];
        unsigned how = draw_below(d, 64);
        e->mipmapped = how & 1;
        e->subresource = how >> 1 & 1;
        e->resource = draw_handle(d, e->mipmapped ? GP_HANDLE_MIPMAP : GP_HANDLE_ARRAY);
        e->memory = how & 4 ? 0 : draw_handle(d, GP_HANDLE_ALLOCATION);
        e->offset = (uint64_t)draw_below(d, 40) << 16;
        e->extent[0] = e->subresource ? 65536 : 128u >> (how >> 3 & 1);
        e->extent[1] = 128u >> (how >> 4 & 1);
        e->extent[2] = 1;
        e->layer = how >> 5;
        e->level = draw_below(d, 2);
    }
    q->n_entries = draw_append(h, &at, entries, q->count * sizeof entries[0]);
    return at;
}

static uint32_t array(struct draw *d, struct gp_header *h)
{
    struct gp_req_cuArray3DCreate_v2 *q = (void *)h;
    q->pHandle = draw_new(d, GP_HANDLE_ARRAY);
    q->pAllocateArray = shape(d);
    return sizeof *q;
}

static uint32_t mipmap(struct draw *d, struct gp_header *h)
{
    struct gp_req_cuMipmappedArrayCreate *q = (void *)h;
    q->pHandle = draw_new(d, GP_HANDLE_MIPMAP);
    q->pMipmappedArrayDesc = shape(d);
    q->numMipmapLevels = draw_below(d, 8);
    return sizeof *q;
}

static struct gp_array_box box(struct draw *d, uint32_t *bytes)
{
    struct gp_array_box at = {.x = 16 * draw_below(d, 4),
                              .y = draw_below(d, 3),
                              .z = draw_below(d, 2),
                              .width = 16 * (1 + draw_below(d, 16)),
                              .height = 1 + draw_below(d, 3)};
    *bytes = (uint32_t)(at.width * at.height);
    return at;
}

static uint32_t array_upload(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_array_upload *q = (void *)h;
    uint32_t at = sizeof *q;
    q->array = draw_handle(d, GP_HANDLE_ARRAY);
    q->at = box(d, &q->bytes);
    q->stream = draw_handle(d, GP_HANDLE_STREAM);
    q->n_data = draw_tail(d, h, &at, q->bytes, 1);
    return at;
}

static uint32_t array_download(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_array_download *q = (void *)h;
    q->array = draw_handle(d, GP_HANDLE_ARRAY);
    q->at = box(d, &q->bytes);
    q->stream = draw_handle(d, GP_HANDLE_STREAM);
    return sizeof *q;
}

static uint32_t array_copy(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_array_copy *q = (void *)h;
    q->dst = draw_below(d, 3) ? draw_handle(d, GP_HANDLE_ARRAY) : 0;
    q->src = draw_below(d, 3) ? draw_handle(d, GP_HANDLE_ARRAY) : 0;
    q->copy.srcDevice = draw_address(d);
    q->copy.dstDevice = draw_address(d);
    q->copy.srcXInBytes = 16 * draw_below(d, 4);
    q->copy.dstY = draw_below(d, 3);
    q->copy.WidthInBytes = 16 * (1 + draw_below(d, 16));
    q->copy.Height = 1 + draw_below(d, 3);
    q->copy.Depth = 1 + draw_below(d, 2);
    q->stream = draw_handle(d, GP_HANDLE_STREAM);
    return sizeof *q;
}

static uint32_t texture(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_texture_create *q = (void *)h;
    q->resource.type = draw_below(d, 4);
    q->array = q->resource.type == 0 ? draw_handle(d, GP_HANDLE_ARRAY) : 0;
    q->mipmap = q->resource.type == 1 ? draw_handle(d, GP_HANDLE_MIPMAP) : 0;
    q->resource.address = draw_address(d);
    q->resource.format = CU_AD_FORMAT_FLOAT;
    q->resource.channels = 1;
    q->resource.bytes = draw_bytes_count(d);
    q->resource.width = 1 + draw_below(d, 64);
    q->resource.height = 1 + draw_below(d, 8);
    q->resource.pitch = 512;
    return sizeof *q;
}

static uint32_t physical(struct draw *d, struct gp_header *h)
{
    struct gp_req_cuMemCreate *q = (void *)h;
    q->handle = draw_new(d, GP_HANDLE_ALLOCATION);
    q->size = (uint64_t)(1 + draw_below(d, 4)) << 21;
    q->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    q->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    q->prop.location.id = (int)draw_below(d, 2);
    q->prop.allocFlags.usage = draw_below(d, 2) ? CU_MEM_CREATE_USAGE_TILE_POOL : 0;
    return sizeof *q;
}

static uint32_t access_set(struct draw *d, struct gp_header *h)
{
    struct gp_req_cuMemSetAccess *q = (void *)h;
    uint32_t at = sizeof *q;
    CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    desc.location.id = (int)draw_below(d, 2);
    q->ptr = draw_address(d);
    q->size = (uint64_t)(1 + draw_below(d, 4)) << 21;
    q->count = 1;
    q->n_desc = draw_append(h, &at, &desc, sizeof desc);
    return at;
}

static uint32_t map(struct draw *d, struct gp_header *h)
{
    struct gp_req_cuMemMap *q = (void *)h;
    q->ptr = draw_address(d);
    q->size = (uint64_t)(1 + draw_below(d, 4)) << 21;
    q->offset = (uint64_t)draw_below(d, 3) << 21;
    q->handle = draw_handle(d, GP_HANDLE_ALLOCATION);
    return sizeof *q;
}

static uint32_t pool_create(struct draw *d, struct gp_header *h)
{
    struct gp_req_cuMemPoolCreate *q = (void *)h;
    q->pool = draw_new(d, GP_HANDLE_MEMPOOL);
    q->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    q->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    q->poolProps.location.id = (int)draw_below(d, 2);
    q->poolProps.maxSize = draw_bytes_count(d);
    return sizeof *q;
}

/* Where a client over a network may have pinned memory, and no sanitizer its own. */
static uint64_t mapped_place(struct draw *d)
{
    return UINT64_C(0x110000000000) + ((uint64_t)draw_below(d, 4) << 12);
}

static uint32_t mapped_open(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_mapped_open *q = (void *)h;
    q->address = mapped_place(d);
    q->bytes = (uint64_t)(1 + draw_below(d, 3)) << 12;
    return sizeof *q;
}

static uint32_t mapped_close(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_pinned_close *q = (void *)h;
    q->address = mapped_place(d);
    return sizeof *q;
}

static uint32_t mapped_write(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_mapped_write *q = (void *)h;
    uint64_t addresses[2];
    uint32_t sizes[2], at = sizeof *q;
    for (unsigned i = 0; i < 2; i++) {
        addresses[i] = mapped_place(d) + draw_below(d, 1100) * 4;
        sizes[i] = draw_below(d, 64) * 4;
    }
    q->count = 2;
    q->bytes = sizes[0] + sizes[1];
    q->n_addresses = draw_append(h, &at, addresses, sizeof addresses);
    q->n_sizes = draw_append(h, &at, sizes, sizeof sizes);
    q->n_data = draw_tail(d, h, &at, q->bytes, 1);
    return at;
}

static uint32_t mapped_read(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_mapped_read *q = (void *)h;
    q->address = mapped_place(d) + draw_below(d, 64);
    q->bytes = draw_below(d, 12000);
    return sizeof *q;
}

static uint32_t mapped_look(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_mapped_look *q = (void *)h;
    const uint64_t at_of[2] = {mapped_place(d), UINT64_C(0x110000000000)}, digests[2] = {0};
    uint32_t sizes[2] = {draw_below(d, 160) * 32, 32}, at = sizeof *q;
    q->count = 2, q->bytes = sizes[0] + sizes[1];
    q->n_addresses = draw_append(h, &at, at_of, sizeof at_of);
    q->n_sizes = draw_append(h, &at, sizes, sizeof sizes);
    q->n_digests = draw_append(h, &at, digests, sizeof digests);
    return at;
}

/* One of the first that were given, by its name. */
static CUdevResource resource(struct draw *d)
{
    CUdevResource r = {.type = CU_DEV_RESOURCE_TYPE_SM};
    uint64_t name = 1 + draw_below(d, 6);
    memcpy(r._internal_padding, &name, sizeof name);
    return r;
}

static uint32_t resource_split(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_resource_split *q = (void *)h;
    q->input = resource(d);
    q->capacity = 2 - draw_below(d, 3);
    q->flags = draw_below(d, 4);
    q->least = draw_below(d, 5);
    return sizeof *q;
}

static uint32_t resources_describe(struct draw *d, struct gp_header *h)
{
    struct gp_req_cuDevResourceGenerateDesc *q = (void *)h;
    uint32_t at = sizeof *q;
    const CUdevResource two[2] = {resource(d), resource(d)};
    q->phDesc = draw_new(d, GP_HANDLE_RESOURCE_DESC);
    q->nbResources = 1 + draw_below(d, 2);
    q->n_resources = draw_append(h, &at, two, q->nbResources * sizeof two[0]);
    return at;
}

static uint32_t green_create(struct draw *d, struct gp_header *h)
{
    struct gp_req_gp_green_create *q = (void *)h;
    q->ctx = draw_new(d, GP_HANDLE_CONTEXT);
    q->desc = draw_handle(d, GP_HANDLE_RESOURCE_DESC);
    q->dev = (int)draw_below(d, 2);
    q->flags = CU_GREEN_CTX_DEFAULT_STREAM;
    return sizeof *q;
}

static const struct draw_request careful[] = {
    {GP_OP_gp_image_put, "", image_put},
    {GP_OP_gp_module_load, "", module_load},
    {GP_OP_gp_library_load, "", library_load},
    {GP_OP_gp_link_add, "", link_add},
    {GP_OP_gp_launch, "", launch},
    {GP_OP_gp_copy_3d, "", copy_3d},
    {GP_OP_cuMemCreate, "", physical},
    {GP_OP_cuMemSetAccess, "", access_set},
    {GP_OP_cuMemMap, "", map},
    {GP_OP_cuMemPoolCreate, "", pool_create},
    {GP_OP_cuArray3DCreate_v2, "", array},
    {GP_OP_cuMipmappedArrayCreate, "", mipmap},
    {GP_OP_gp_array_map, "", array_map},
    {GP_OP_gp_array_upload, "", array_upload},
    {GP_OP_gp_array_download, "", array_download},
    {GP_OP_gp_array_copy, "", array_copy},
    {GP_OP_gp_texture_create, "", texture},
    {GP_OP_gp_mapped_open, "", mapped_open},
    {GP_OP_gp_pinned_close, "", mapped_close},
    {GP_OP_gp_mapped_write, "", mapped_write},
    {GP_OP_gp_mapped_read, "", mapped_read},
    {GP_OP_gp_mapped_look, "", mapped_look},
    {GP_OP_gp_resource_split, "", resource_split},
    {GP_OP_cuDevResourceGenerateDesc, "", resources_describe},
    {GP_OP_gp_green_create, "", green_create},
};

static const struct draw_request *find(const struct draw_request *list, unsigned count, uint16_t op)
{
    for (unsigned i = 0; i < count; i++)
        if (list[i].op == op)
            return &list[i];
    return NULL;
}

/* A lie: a byte that is another, a message that is cut, a size that is not its own. */
static void spoil(struct draw *d, struct gp_header *h, unsigned how)
{
    uint32_t body = h->size - (uint32_t)sizeof *h;
    if (how == 13 && body)
        ((uint8_t *)(h + 1))[draw_number(d, 4) % body] ^= (uint8_t)(1 + draw_byte(d));
    else if (how == 14 && body)
        h->size -= (uint32_t)gp_align8(draw_number(d, 4) % body);
    else if (how == 15)
        h->flags = draw_byte(d);
}

uint32_t draw_message(struct draw *d, struct gp_header *h, uint64_t seq)
{
    uint8_t how = draw_byte(d);
    uint16_t op = draw_byte(d);
    op |= (uint16_t)(draw_byte(d) << 8);
    const struct draw_request *r = find(draw_requests, draw_request_count, op);
    if (!r)
        r = &draw_requests[op % draw_request_count];
    const struct draw_request *c = find(careful, sizeof careful / sizeof careful[0], r->op);
    if (!c)
        c = find(draw_nccl, draw_nccl_count, r->op);
    if (!c)
        c = find(draw_told, draw_told_count, r->op);
    memset(h, 0, 4 * DRAW_TAIL_MAX + 4096);
    d->careful = !(how & 1);
    d->fresh = 0;
    uint32_t size = (c && d->careful ? c : r)->fill(d, h);
    if (d->fresh)
        draw_learn_handle(d, d->fresh);
    h->size = (uint32_t)gp_align8(size);
    h->op = r->op;
    h->seq = seq;
    h->flags = r->waits || how & 2 ? GP_FLAG_WAITED : 0;
    if (how >> 4 > 12)
        spoil(d, h, how >> 4);
    return h->size;
}
