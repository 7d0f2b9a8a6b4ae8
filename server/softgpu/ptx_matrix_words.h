/* What decoders of matrix instructions share: suffixes, fragments, metadata. */
#ifndef SG_PTX_MATRIX_WORDS_H
#define SG_PTX_MATRIX_WORDS_H

#include "ptx_decode.h"
#include "ptx_matrix.h"

struct sg_shape {
    unsigned m, n, k;
};

struct sg_matrix_words {
    struct sg_shape shape;
    uint8_t element[4];
    unsigned count;
    bool by_columns[2];
    unsigned orders;
};

_Noreturn void sg_matrix_refuse(struct sg_parser *p, const struct sg_statement *s);
void sg_matrix_words_read(struct sg_parser *p, const struct sg_statement *s,
                          struct sg_matrix_words *out);
struct sg_matrix *sg_matrix_take(struct sg_parser *p, struct sg_insn *in);
/* The registers of a fragment, one after the other. */
void sg_fragment_take(struct sg_parser *p, const struct sg_statement *s,
                      const struct sg_argument *a, const struct sg_fragment *f, bool written,
                      struct sg_operand *x);
/* Metadata and its selector, which are argument `at` and the next one. */
void sg_sparse_take(struct sg_parser *p, const struct sg_statement *s, unsigned at,
                    struct sg_matrix *x, struct sg_operand *o);

void sg_warpgroup_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in);

#endif
