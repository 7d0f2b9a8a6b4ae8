/*
 * A tensor map as the soft GPU makes it: what cuTensorMapEncode… was told, in the 128 bytes that a
 * program carries to its kernels. A program may carry anything there, so a kernel looks at it anew.
 */
#ifndef SG_PTX_TENSOR_H
#define SG_PTX_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#define SG_TENSOR_RANK 5u
#define SG_TENSOR_BOX 256u
#define SG_TENSOR_PIXELS 1024u
#define SG_TENSOR_STEP 8u
#define SG_TENSOR_MARK 0x70616d7467707567ull

struct sg_tensor_map {
    uint64_t mark, address;
    uint64_t stride[SG_TENSOR_RANK - 1]; /* bytes */
    uint32_t last[SG_TENSOR_RANK];       /* coordinate */
    uint16_t box[SG_TENSOR_RANK];        /* elements; of columns: channels, pixels */
    int16_t lower[SG_TENSOR_RANK - 2], upper[SG_TENSOR_RANK - 2]; /* of columns: W, H, D */
    uint8_t step[SG_TENSOR_RANK];
    uint8_t rank, type, span; /* type: CUtensorMapDataType; span: 16-byte units that are swizzled */
    uint8_t columns;          /* 1: of pixels (im2col), 0: tiles */
    uint8_t unused[29];
};
_Static_assert(sizeof(struct sg_tensor_map) == 128, "a tensor map has 128 bytes");

/* Bytes of an element; 0: a type that the soft GPU does not have. */
static inline unsigned sg_tensor_element(unsigned type)
{
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    return type < sizeof(bytes) ? bytes[type] : 0;
}

static inline bool sg_tensor_sound(const struct sg_tensor_map *m)
{
    unsigned element = sg_tensor_element(m->type), most = m->columns ? 2 : m->rank;
    bool span = m->span == 1 || m->span == 2 || m->span == 4 || m->span == 8;
    if (m->mark != SG_TENSOR_MARK || !element || !span || m->columns > 1)
        return false;
    if (!m->rank || m->rank > SG_TENSOR_RANK || (m->columns && m->rank < 3))
        return false;
    for (unsigned i = 0; i < most; i++)
        if (!m->box[i] || m->box[i] > (m->columns && i ? SG_TENSOR_PIXELS : SG_TENSOR_BOX))
            return false;
    for (unsigned i = 0; i < m->rank; i++)
        if (!m->step[i] || m->step[i] > SG_TENSOR_STEP)
            return false;
    unsigned row = m->box[0] * element;
    return row % 16 == 0 && (m->span == 1 || row <= m->span * 16u);
}

#endif
