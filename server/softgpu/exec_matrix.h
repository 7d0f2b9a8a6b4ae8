/* Elements of matrices that a warp holds in its registers. */
#ifndef SG_EXEC_MATRIX_H
#define SG_EXEC_MATRIX_H

#include "exec_internal.h"
#include "ptx_matrix.h"

struct sg_spot {
    unsigned row, column;
};

/* Where element e of register r of a lane is. */
struct sg_spot sg_fragment_spot(const struct sg_matrix *x, unsigned role, unsigned lane, unsigned r,
                                unsigned e);
/* What a lane has in an operand, wherever the lane is; 0 if it has exited. */
uint64_t sg_fragment_read(const struct sg_warp *w, const struct sg_operand *x, unsigned lane);

/* What all lanes of `set`, which execute `in` together, do; false: the launch has failed. */
bool sg_matrix_product(struct sg_warp *w, const struct sg_insn *in, uint32_t set);
bool sg_matrix_move(struct sg_warp *w, const struct sg_insn *in, uint32_t set);

#endif
