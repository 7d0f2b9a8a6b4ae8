/* What kernels know of textures and surfaces, and how a texel's bytes become numbers. */
#include "exec_image.h"
#include "exec_float.h"

#include <math.h>
#include <string.h>

const struct sg_image *sg_image_find(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                                     bool surface)
{
    struct sg_run *run = w->block->run;
    const struct sg_launch *l = run->launch;
    uint64_t object = sg_operand_lane(w, &in->x[SG_TX_OBJECT], lane);
    for (unsigned i = 0; i < SG_IMAGES; i++) {
        struct sg_known_image *k = &run->images[i];
        if (k->known && k->object == object && k->surface == surface)
            return &k->image;
    }
    struct sg_known_image *k = &run->images[run->next_image];
    k->known = l->image && l->image(l->image_context, object, surface, &k->image);
    if (!k->known) {
        sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "0x%llx is no %s object that is known",
                 (unsigned long long)object, surface ? "surface" : "texture");
        return NULL;
    }
    k->object = object;
    k->surface = surface;
    run->next_image = (run->next_image + 1) % SG_IMAGES;
    return &k->image;
}

bool sg_image_integer(const struct sg_image *image)
{
    return image->channel != SG_CH_FLOAT && !(image->unit && image->channel_bytes < 4);
}

static double linear_of_srgb(double v)
{
    return v <= 0.04045 ? v / 12.92 : pow((v + 0.055) / 1.055, 2.4);
}

static double number_of(const struct sg_image *image, unsigned channel, uint32_t bits)
{
    unsigned width = 8u * image->channel_bytes;
    if (image->channel == SG_CH_FLOAT)
        return width == 16 ? sg_float_to_double(&sg_f16, bits) : (double)sg_as_float(bits);
    if (image->channel == SG_CH_UNSIGNED) {
        double v = (double)bits / (double)((1u << width) - 1);
        return image->srgb && width == 8 && channel < 3 ? linear_of_srgb(v) : v;
    }
    double most = (double)((1u << (width - 1)) - 1), v = (double)(int32_t)bits / most;
    return v < -1 ? -1 : v;
}

static uint32_t channel_bits(const struct sg_image *image, const unsigned char *p)
{
    uint8_t b;
    uint16_t h;
    uint32_t v;
    bool is_signed = image->channel == SG_CH_SIGNED;
    switch (image->channel_bytes) {
    case 1:
        memcpy(&b, p, 1);
        return is_signed ? (uint32_t)(int8_t)b : b;
    case 2:
        memcpy(&h, p, 2);
        return is_signed ? (uint32_t)(int16_t)h : h;
    default:
        memcpy(&v, p, 4);
        return v;
    }
}

/* What a last channel has that is missing. */
static uint32_t one_of(const struct sg_image *image)
{
    return sg_image_integer(image) ? 1 : (uint32_t)sg_of_float(1);
}

#define TEXEL_MAX 16u

/* NULL: the launch has failed. */
static const unsigned char *texel_bytes(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                                        const struct sg_image_level *level,
                                        const struct sg_texel_place *at, uint32_t bytes)
{
    static const unsigned char nothing[TEXEL_MAX];
    uint64_t x = (uint64_t)at->x * bytes, y = (uint64_t)at->y, z = (uint64_t)at->z;
    if (level->tiles) {
        const unsigned char *p = sg_image_tile(level, x, y, z, bytes);
        return p ? p : nothing;
    }
    uint64_t address = level->address + z * level->slice + y * level->row + x;
    return sg_reach(w, in, lane, SG_S_GLOBAL, address, bytes, 1);
}

bool sg_texel_read(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                   const struct sg_image *image, const struct sg_image_level *level,
                   const struct sg_texel_place *at, struct sg_texel *out)
{
    uint32_t bytes = (uint32_t)image->channels * image->channel_bytes;
    const unsigned char *p = texel_bytes(w, in, lane, level, at, bytes);
    if (!p)
        return false;
    out->integer = sg_image_integer(image);
    for (unsigned i = 0; i < 4; i++) {
        bool there = i < image->channels;
        out->bits[i] = there    ? channel_bits(image, p + i * image->channel_bytes)
                       : i == 3 ? one_of(image)
                                : 0;
        out->number[i] = !there ? i == 3 : out->integer ? 0 : number_of(image, i, out->bits[i]);
    }
    return true;
}

void sg_texel_border(const struct sg_image *image, struct sg_texel *out)
{
    out->integer = sg_image_integer(image);
    for (unsigned i = 0; i < 4; i++) {
        bool there = i < image->channels;
        out->bits[i] = there ? image->border[i] : i == 3 ? one_of(image) : 0;
        out->number[i] = there ? (double)sg_as_float(image->border[i]) : i == 3;
    }
}

uint32_t sg_texel_word(const struct sg_texel *t, unsigned i)
{
    return t->integer ? t->bits[i] : (uint32_t)sg_of_float((float)t->number[i]);
}
