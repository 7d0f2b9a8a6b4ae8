/* Texels: one value of each channel of an image. */
#ifndef SG_EXEC_IMAGE_H
#define SG_EXEC_IMAGE_H

#include "exec_internal.h"
#include "ptx_texture.h"

/* The image of a texture or surface object; NULL: the launch has failed. */
const struct sg_image *sg_image_find(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                                     bool surface);

/* Where texels are, in a level: x, y, and z or the slice of a layer and face. */
struct sg_texel_place {
    int64_t x, y, z;
};

/* Four channels, numbers or bits of integers; those that are missing are 0, 0, 1. */
struct sg_texel {
    bool integer;
    double number[4];
    uint32_t bits[4];
};

/* false: the launch has failed. The place lies in the level. */
bool sg_texel_read(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                   const struct sg_image *image, const struct sg_image_level *level,
                   const struct sg_texel_place *at, struct sg_texel *out);
/* What is outside, in textures with a border. */
void sg_texel_border(const struct sg_image *image, struct sg_texel *out);
/* Whether texels are read as integers. */
bool sg_image_integer(const struct sg_image *image);
/* The register that an instruction gives for channel i. */
uint32_t sg_texel_word(const struct sg_texel *t, unsigned i);

#endif
