/*
 * How large a CUDA array is, and whether a box lies in it. Client, worker and soft GPU all
 * ask here. Every number may be hostile: what overflows is refused.
 */
#ifndef GP_ARRAY_EXTENT_H
#define GP_ARRAY_EXTENT_H

#include <cuda.h>

#include "span.h"

struct gp_array_extent {
    uint64_t element;       /* bytes; 0: of a format whose layout only the driver knows */
    uint64_t width;         /* bytes */
    uint64_t height, depth; /* never 0; layers count as depth */
};

/* Bytes of one element, 0 for formats in blocks or planes. */
uint32_t gp_array_element(CUarray_format format, unsigned channels);
/* Of an array with these dimensions, in elements. */
struct gp_array_extent gp_array_extent(uint64_t width, uint64_t height, uint64_t depth,
                                       CUarray_format format, unsigned channels);
/* All its bytes, GP_SPAN_NONE if these are more than there are anywhere. Of an unknown layout, a
 * byte for each element. */
uint64_t gp_array_bytes(const struct gp_array_extent *e);
/* What an array with these flags takes at least. */
uint64_t gp_array_least(uint64_t width, uint64_t height, uint64_t depth, CUarray_format format,
                        unsigned channels, unsigned flags);
/* Whether `box`, which is not empty, lies in it from byte `at->x` of row `at->y` of slice `at->z`
 * on, and begins and ends with an element. Of an unknown layout only the driver knows how long
 * a row is. */
bool gp_array_holds(const struct gp_array_extent *e, const struct gp_span_end *at,
                    const struct gp_span_box *box);

#endif
