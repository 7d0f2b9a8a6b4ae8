/* CUDA arrays and mipmapped arrays as the client knows them. */
#ifndef GPC_ARRAY_H
#define GPC_ARRAY_H

#include <cuda.h>
#include <stdbool.h>

#include "array_extent.h"

/* Levels of a mipmapped array, or planes of an array. */
#define GPC_ARRAY_PARTS 32u

struct gpc_array {
    CUcontext context;
    struct gp_array_extent extent;
    bool is_part;                    /* a level or a plane: it goes with what it is of */
    uint64_t parts[GPC_ARRAY_PARTS]; /* 0: not asked for yet */
};

/* NULL: no live array. */
const struct gpc_array *gpc_array_of(CUarray array);
void gpc_array_context_ended(CUcontext context);

#endif
