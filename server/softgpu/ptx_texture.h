/* tex, tld4, txq, suld, sust, sured as decoded. */
#ifndef SG_PTX_TEXTURE_H
#define SG_PTX_TEXTURE_H

#include "ptx_internal.h"

enum sg_fetch_how { SG_F_BASE, SG_F_LEVEL, SG_F_GRADIENT, SG_F_GATHER };
enum sg_boundary { SG_B_TRAP, SG_B_CLAMP, SG_B_ZERO };
enum sg_query { SG_U_WIDTH, SG_U_HEIGHT, SG_U_DEPTH, SG_U_LAYERS, SG_U_LEVELS };

struct sg_fetch {
    uint8_t dimensions; /* 1 to 3; 2 of the face of a cube, which has 3 coordinates */
    bool layered, cube;
    bool whole;        /* coordinates are integers */
    uint8_t how;       /* enum sg_fetch_how */
    uint8_t component; /* of a gather */
    uint8_t boundary;  /* enum sg_boundary */
    bool surface;      /* what a query asks of */
};

/* Operands, wherever the text has them. */
#define SG_FETCH_COORDINATES 4u /* most that are named */

enum sg_fetch_operand {
    SG_TX_DATA = 0,     /* 4: results, or what a store has */
    SG_TX_RESIDENT = 4, /* a predicate: all is there */
    SG_TX_OBJECT,
    SG_TX_AT = 6, /* 4 coordinates, a layer first */
    SG_TX_LEVEL = 10,
    SG_TX_DX = 11,
    SG_TX_DY = 15,
    SG_TX_OPERANDS = 19,
};

/* Coordinates without the layer. */
static inline unsigned sg_fetch_coordinates(const struct sg_fetch *f)
{
    return f->cube ? 3 : f->dimensions;
}

#endif
