/* Matrices that a warp or a warpgroup holds together: what mma, wgmma, ldmatrix and their kin name. */
#ifndef SG_PTX_MATRIX_H
#define SG_PTX_MATRIX_H

#include "ptx_internal.h"

enum sg_element {
    SG_M_F16,
    SG_M_BF16,
    SG_M_TF32,
    SG_M_F32,
    SG_M_F64,
    SG_M_S32,
    SG_M_S8,
    SG_M_U8,
    SG_M_S4,
    SG_M_U4,
    SG_M_B1,
    SG_M_E4M3,
    SG_M_E5M2,
    SG_M_COUNT,
};

/* How elements are spread over lanes and their registers. */
enum sg_spread {
    SG_D_MMA,   /* as PTX draws it, one formula for all shapes */
    SG_D_QUADS, /* mma.m8n8k4 of f16: four products, each by eight lanes */
    SG_D_WMMA,  /* PTX leaves it open: one row behind the other, lane by lane */
};

enum sg_role { SG_D, SG_A, SG_B, SG_C, SG_ROLES };

struct sg_fragment {
    uint8_t element;   /* enum sg_element */
    uint8_t registers; /* of each lane */
    uint8_t first;     /* operand */
    bool by_columns;   /* .col */
    uint16_t rows, columns;
};

#define SG_MATRIX_MOST 4096u /* elements: A of m16n8k256 */

#define SG_WARPGROUP 4u /* warps */

/* What wgmma has beside its fragments, which are those of one warp and eight columns. The first
 * operands of B, and of a shared A, are descriptors. */
struct sg_warpgroup {
    bool shared_a;
    bool turned_a, turned_b; /* M or N is what lies together */
    bool negated_a, negated_b;
    uint8_t blocks; /* of eight columns */
    uint8_t keeps;  /* operand: whether D is added to */
};

struct sg_matrix {
    struct sg_fragment part[SG_ROLES]; /* a load or store: the one in part[role] */
    struct sg_warpgroup group;
    uint8_t role;
    uint8_t spread;   /* enum sg_spread */
    bool conjunction; /* of single bits: .and.popc, else .xor.popc */
    bool transposed;  /* ldmatrix, stmatrix: .trans */
    bool sparse;      /* A has every second column only, and metadata says which */
    uint8_t metadata; /* operand */
    uint8_t selector; /* which lanes of four have it */
};

/* Bits of one element. */
static inline unsigned sg_element_bits(unsigned element)
{
    static const uint8_t bits[SG_M_COUNT] = {16, 16, 32, 32, 64, 32, 8, 8, 4, 4, 1, 8, 8};
    return bits[element];
}
/* Elements in one register. */
static inline unsigned sg_per_register(unsigned element)
{
    unsigned bits = sg_element_bits(element);
    return bits >= 32 ? 1 : 32 / bits;
}

#endif
