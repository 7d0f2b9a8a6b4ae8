/* driver_random.c: sets of rows, and copies of rows and slices, each end with its own pitch. */
#ifndef RANDOM_BOX_H
#define RANDOM_BOX_H

#include "random_memory.h"

#define PITCH_MOST 1500
#define ROWS_MOST 10
#define SLICES_MOST 5

static size_t at_most(struct worker *w, size_t room, size_t most)
{
    return 1 + pick(w, (unsigned)(room < most ? room : most));
}

/* --- sets of rows ------------------------------------------------------------------------ */

static void set_rows_of(CUdeviceptr to, size_t pitch, unsigned unit, uint32_t value, size_t width,
                        size_t height, CUstream stream)
{
    if (unit == 1)
        CU(cuMemsetD2D8Async(to, pitch, (uint8_t)value, width, height, stream));
    else if (unit == 2)
        CU(cuMemsetD2D16Async(to, pitch, (uint16_t)value, width, height, stream));
    else
        CU(cuMemsetD2D32Async(to, pitch, value, width, height, stream));
}

/* `part` of elements: where the first row begins, how long each is and how far apart. */
static void set_rows(struct worker *w)
{
    const struct buffer *b = &w->device[pick(w, DEVICE_BUFFERS)];
    unsigned unit = 1u << pick(w, 3);
    size_t all = b->bytes / unit;
    if (all == 0)
        return;
    uint32_t value = check_random(&w->random);
    size_t pitch = at_most(w, all, PITCH_MOST / unit), at = pick(w, (unsigned)pitch),
           width = at_most(w, pitch - at, pitch), height = at_most(w, all / pitch, ROWS_MOST);
    set_rows_of(b->device + at * unit, pitch * unit, unit, value, width, height, stream_of(w));
    happens(w, (struct action){.what = SET,
                               .to = b->model + at * unit,
                               .width = width * unit,
                               .height = height,
                               .to_pitch = pitch * unit,
                               .value = value,
                               .unit = unit});
}

/* --- copies of boxes ------------------------------------------------------------------------ */

/* A buffer, or its beginning, as slices of rows; and a corner in it. */
struct grid {
    struct buffer *of;
    size_t pitch, rows, slices, x, y, z;
};

static struct grid grid(struct worker *w, struct buffer *of, size_t slices)
{
    struct grid g = {.of = of};
    g.pitch = at_most(w, of->bytes, PITCH_MOST);
    g.rows = at_most(w, of->bytes / g.pitch, ROWS_MOST);
    g.slices = at_most(w, of->bytes / g.pitch / g.rows, slices);
    return g;
}

/* One length for both, and a place for it in each. */
static size_t fit(struct worker *w, size_t one, size_t other, size_t *at_one, size_t *at_other)
{
    size_t most = one < other ? one : other, length = at_most(w, most, most);
    *at_one = pick(w, (unsigned)(one - length + 1));
    *at_other = pick(w, (unsigned)(other - length + 1));
    return length;
}

static size_t corner(const struct grid *g)
{
    return (g->z * g->rows + g->y) * g->pitch + g->x;
}

static CUDA_MEMCPY3D box_of(const struct grid *from, const struct grid *to, const size_t size[3])
{
    CUDA_MEMCPY3D c = {.WidthInBytes = size[0], .Height = size[1], .Depth = size[2]};
    c.srcMemoryType = from->of->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    c.srcHost = from->of->host;
    c.srcDevice = from->of->device;
    c.srcPitch = from->pitch;
    c.srcHeight = from->rows;
    c.srcXInBytes = from->x;
    c.srcY = from->y;
    c.srcZ = from->z;
    c.dstMemoryType = to->of->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    c.dstHost = to->of->host;
    c.dstDevice = to->of->device;
    c.dstPitch = to->pitch;
    c.dstHeight = to->rows;
    c.dstXInBytes = to->x;
    c.dstY = to->y;
    c.dstZ = to->z;
    return c;
}

static CUDA_MEMCPY2D rows_of(const CUDA_MEMCPY3D *c)
{
    return (CUDA_MEMCPY2D){.srcXInBytes = c->srcXInBytes,
                           .srcY = c->srcY,
                           .srcMemoryType = c->srcMemoryType,
                           .srcHost = c->srcHost,
                           .srcDevice = c->srcDevice,
                           .srcPitch = c->srcPitch,
                           .dstXInBytes = c->dstXInBytes,
                           .dstY = c->dstY,
                           .dstMemoryType = c->dstMemoryType,
                           .dstHost = c->dstHost,
                           .dstDevice = c->dstDevice,
                           .dstPitch = c->dstPitch,
                           .WidthInBytes = c->WidthInBytes,
                           .Height = c->Height};
}

static void copy_between(struct worker *w, struct buffer *from, struct buffer *to)
{
    size_t slices = pick(w, 2) ? SLICES_MOST : 1, size[3];
    struct grid a = grid(w, from, slices), b = grid(w, to, slices);
    size[0] = fit(w, a.pitch, b.pitch, &a.x, &b.x);
    size[1] = fit(w, a.rows, b.rows, &a.y, &b.y);
    size[2] = fit(w, a.slices, b.slices, &a.z, &b.z);
    const CUDA_MEMCPY3D box = box_of(&a, &b, size);
    const CUDA_MEMCPY2D rows = rows_of(&box);
    if (slices == 1)
        CU(cuMemcpy2DAsync(&rows, stream_of(w)));
    else
        CU(cuMemcpy3DAsync(&box, stream_of(w)));
    happens(w, (struct action){.what = COPY,
                               .to = to->model + corner(&b),
                               .from = from->model + corner(&a),
                               .width = size[0],
                               .height = size[1],
                               .depth = size[2],
                               .to_pitch = b.pitch,
                               .from_pitch = a.pitch,
                               .to_slice = b.pitch * b.rows,
                               .from_slice = a.pitch * a.rows});
}

/* Between two buffers of the device, or one and the host's, either way. */
static void copy_box(struct worker *w)
{
    unsigned one = pick(w, DEVICE_BUFFERS), step = 1 + pick(w, DEVICE_BUFFERS - 1);
    struct buffer *d = &w->device[one], *other = &w->device[(one + step) % DEVICE_BUFFERS];
    if (w->capturing || pick(w, 2)) {
        copy_between(w, d, other);
        return;
    }
    struct buffer *h = &w->host[pick(w, HOST_BUFFERS)];
    bool to_device = pick(w, 2);
    copy_between(w, to_device ? h : d, to_device ? d : h);
    h->busy |= h->kind != PAGEABLE || !to_device;
}

#endif
