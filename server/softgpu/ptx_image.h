/* Textures and surfaces as kernels see them: what the driver tells the engine of an object. */
#ifndef SG_PTX_IMAGE_H
#define SG_PTX_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "tiles.h"

#define SG_IMAGE_LEVELS 18u

enum sg_channel { SG_CH_UNSIGNED, SG_CH_SIGNED, SG_CH_FLOAT };
enum sg_image_edge {
    SG_EDGE_WRAP,
    SG_EDGE_CLAMP,
    SG_EDGE_MIRROR,
    SG_EDGE_BORDER
}; /* CUaddress_mode */

/* Rows lie behind each other, slices (of depth, or layers) too. */
struct sg_image_level {
    uint64_t address, row, slice; /* row, slice: bytes */
    uint32_t width, height, depth;
    const struct sg_tiles *tiles; /* NULL: at the address */
};
/* A texel's or a few bytes of a level in tiles, which lie in it; NULL: nothing is mapped. */
static inline unsigned char *sg_image_tile(const struct sg_image_level *level, uint64_t x,
                                           uint64_t y, uint64_t z, size_t bytes)
{
    return sg_tiles_at(level->tiles, x, y, z, &bytes);
}

struct sg_image {
    uint8_t channels, channel_bytes;
    uint8_t channel; /* enum sg_channel */
    uint8_t edge[3]; /* enum sg_image_edge */
    bool unit;       /* 8 and 16 bit integers are read as numbers from 0 or -1 to 1 */
    bool normalized; /* coordinates are from 0 to 1 */
    bool linear, mip_linear;
    bool srgb;
    bool line;          /* of plain memory: nothing but fetches, zero outside */
    bool layered, cube; /* a cube has six slices, a layered one as many for each layer */
    float bias, least, most;
    uint32_t border[4]; /* bits of floats, or integers */
    uint32_t levels;
    struct sg_image_level level[SG_IMAGE_LEVELS];
};

#endif
