/* Sparse matrices: of each two, four or eight columns A has half, and metadata says which. */
#include "exec_matrix.h"

#include <string.h>

/* How columns of a type are chosen: of `whole` columns in a chunk half, by groups. */
struct choice {
    unsigned whole, group;
};

static struct choice choice_of(unsigned element)
{
    unsigned bits = sg_element_bits(element);
    return bits == 32  ? (struct choice){2, 1}
           : bits == 4 ? (struct choice){8, 2}
                       : (struct choice){4, 1};
}

/* The four bits of a chunk: two places in it. Of 16 bits and more a lane has half a register for
 * each of two rows, else one row. */
static unsigned chosen(const struct sg_warp *w, const struct sg_insn *in, unsigned row,
                       unsigned chunk, unsigned chunks)
{
    const struct sg_matrix *x = in->matrix;
    bool halves = sg_element_bits(x->part[SG_A].element) >= 16;
    unsigned lane = 4 * (row % 8) + x->selector * (chunks / 4), lower = row / 8;
    lane += halves ? chunk / 4 : lower + 2 * (chunk / 8);
    unsigned shift = halves ? 16 * lower + 4 * (chunk % 4) : 4 * (chunk % 8);
    return (unsigned)(sg_fragment_read(w, &in->x[x->metadata], lane) >> shift) & 15;
}

static void row_spread(const struct sg_warp *w, const struct sg_insn *in, unsigned row,
                       const double *from, double *to)
{
    const struct sg_matrix *x = in->matrix;
    struct choice c = choice_of(x->part[SG_A].element);
    unsigned chunks = x->part[SG_B].rows / c.whole, kept = c.whole / 2;
    for (unsigned chunk = 0; chunk < chunks; chunk++) {
        unsigned two = chosen(w, in, row, chunk, chunks);
        for (unsigned i = 0; i < kept; i++) {
            unsigned place = two >> (2 * (i / c.group)) & 3;
            if (c.whole == 2)
                place >>= 1; /* of halves of 16 bits */
            to[chunk * c.whole + place * c.group + i % c.group] = from[chunk * kept + i];
        }
    }
}

void sg_sparse_spread(const struct sg_warp *w, const struct sg_insn *in, double *a)
{
    const struct sg_matrix *x = in->matrix;
    unsigned rows = x->part[SG_A].rows, stored = x->part[SG_A].columns;
    double packed[SG_MATRIX_MOST / 2];
    memcpy(packed, a, rows * stored * sizeof(*a));
    memset(a, 0, 2 * rows * stored * sizeof(*a));
    for (unsigned row = 0; row < rows; row++)
        row_spread(w, in, row, packed + row * stored, a + row * 2 * stored);
}
