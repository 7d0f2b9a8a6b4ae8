/* suld, sust, sured: bytes of an array, whose first coordinate counts bytes. */
#include "exec_image.h"

#include <string.h>

struct target {
    unsigned char *bytes; /* NULL: outside, of which loads get zeros and stores leave nothing */
    bool failed;
};

static const struct target outside = {NULL, false}, failed = {NULL, true};

static bool inside(int64_t v, int64_t n)
{
    return v >= 0 && v < n;
}

static int64_t nearest(int64_t v, int64_t most)
{
    return v < 0 ? 0 : v > most ? most : v;
}

/* What nobody has mapped is as what is outside. */
static struct target place(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                           const struct sg_image_level *level, const int64_t *at, uint32_t size)
{
    uint64_t x = (uint64_t)at[0], y = (uint64_t)at[1], z = (uint64_t)at[2];
    if (level->tiles)
        return (struct target){sg_image_tile(level, x, y, z, size), false};
    uint64_t address = level->address + z * level->slice + y * level->row + x;
    unsigned char *bytes = sg_reach(w, in, lane, SG_S_GLOBAL, address, size, 1);
    return (struct target){bytes, !bytes};
}

static struct target reach(struct sg_warp *w, const struct sg_insn *in, unsigned lane)
{
    const struct sg_fetch *f = in->fetch;
    const struct sg_image *image = sg_image_find(w, in, lane, true);
    if (!image)
        return failed;
    const struct sg_image_level *level = &image->level[0];
    uint32_t size = sg_type_size(in->type) * in->vector;
    /* x, y and z; a layer is the slice that z would be */
    int64_t at[3] = {0, 0, 0};
    for (unsigned i = 0; i < f->dimensions; i++)
        at[i] = (int32_t)sg_operand_lane(w, &in->x[SG_TX_AT + f->layered + i], lane);
    if (f->layered)
        at[2] = (uint32_t)sg_operand_lane(w, &in->x[SG_TX_AT], lane);
    int64_t row = (int64_t)level->width * image->channels * image->channel_bytes;
    int64_t most[3] = {row - size, (int64_t)level->height - 1, (int64_t)level->depth - 1};
    bool fits = inside(at[0], row - size + 1) && inside(at[1], level->height) &&
                inside(at[2], level->depth);
    if (row < size || (!fits && f->boundary == SG_B_ZERO))
        return outside;
    if (!fits && f->boundary == SG_B_TRAP) {
        sg_fault(w, in, lane, CUDA_ERROR_LAUNCH_FAILED,
                 "byte %lld, row %lld, slice %lld are outside the surface", (long long)at[0],
                 (long long)at[1], (long long)at[2]);
        return failed;
    }
    for (unsigned i = 0; i < 3; i++)
        at[i] = nearest(at[i], most[i]);
    if (at[0] % size) {
        sg_fault(w, in, lane, CUDA_ERROR_MISALIGNED_ADDRESS,
                 "byte %lld of a surface is not a multiple of %u", (long long)at[0], size);
        return failed;
    }
    return place(w, in, lane, level, at, size);
}

static void load(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                 const unsigned char *bytes)
{
    uint32_t size = sg_type_size(in->type);
    for (unsigned i = 0; i < in->vector; i++) {
        uint64_t v = 0;
        if (bytes)
            memcpy(&v, bytes + (size_t)i * size, size);
        sg_write(w->frame, &in->x[SG_TX_DATA + i], lane, v);
    }
}

static void store(struct sg_warp *w, const struct sg_insn *in, unsigned lane, unsigned char *bytes)
{
    uint32_t size = sg_type_size(in->type);
    for (unsigned i = 0; bytes && i < in->vector; i++) {
        uint64_t v = sg_operand_lane(w, &in->x[SG_TX_DATA + i], lane);
        memcpy(bytes + (size_t)i * size, &v, size);
    }
}

SG_HANDLER(sg_do_surface)
{
    SG_FOR_LANES(l, mask)
    {
        struct target t = reach(w, in, l);
        if (t.failed)
            return SG_FAULT;
        if (in->op == SG_P_SULD)
            load(w, in, l, t.bytes);
        else if (in->op == SG_P_SUST)
            store(w, in, l, t.bytes);
        else if (t.bytes)
            sg_atomic_update(in, true, t.bytes, sg_operand_lane(w, &in->x[SG_TX_DATA], l), 0);
    }
    return SG_NEXT;
}
