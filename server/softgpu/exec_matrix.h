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

/* The numbers of one product: up to 16 x 256, 256 x 8 and 32 x 8. */
struct sg_numbers {
    double a[SG_MATRIX_MOST], b[SG_MATRIX_MOST / 2], c[SG_MATRIX_MOST / 16];
};

double sg_element_value(unsigned element, uint64_t bits);
/* Between the registers of a fragment, whose operands begin at `first`, and its rows. */
void sg_fragment_gather(const struct sg_warp *w, const struct sg_insn *in, unsigned role,
                        unsigned first, uint32_t lanes, double *to);
void sg_fragment_scatter(struct sg_warp *w, const struct sg_insn *in, unsigned first,
                         uint32_t lanes, const double *from);
/* d = a * b + c, by rows. */
void sg_numbers_multiply(const struct sg_matrix *x, const struct sg_numbers *n, double *d);
/* Puts the columns of a sparse A where its metadata says. */
void sg_sparse_spread(const struct sg_warp *w, const struct sg_insn *in, double *a);

/* What all lanes of `set`, which execute `in` together, do; false: the launch has failed. */
bool sg_matrix_product(struct sg_warp *w, const struct sg_insn *in, uint32_t set);
bool sg_warpgroup_product(struct sg_warp *w, const struct sg_insn *in, uint32_t set);
bool sg_matrix_move(struct sg_warp *w, const struct sg_insn *in, uint32_t set);

#endif
