/* Matrices between memory and registers: wmma.load, wmma.store, ldmatrix, stmatrix, movmatrix. */
#include "exec_matrix.h"

#include <string.h>

/* --- wmma: element by element -------------------------------------------------------------- */

static uint64_t address_of(const struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                           struct sg_spot s)
{
    const struct sg_fragment *f = &in->matrix->part[in->matrix->role];
    uint64_t stride = f->by_columns ? f->rows : f->columns;
    if (in->operands > f->registers + 1u)
        stride = w->deposit[lane].b;
    uint64_t bits = sg_element_bits(f->element);
    uint64_t index = f->by_columns ? s.column * stride + s.row : s.row * stride + s.column;
    return w->deposit[lane].value + index * bits / 8;
}

static bool element_load(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                         struct sg_spot s, uint64_t *value)
{
    const struct sg_fragment *f = &in->matrix->part[in->matrix->role];
    unsigned bits = sg_element_bits(f->element), bytes = bits < 8 ? 1 : bits / 8;
    const void *p = sg_reach(w, in, lane, in->space, address_of(w, in, lane, s), bytes, bytes);
    if (!p)
        return false;
    *value = 0;
    memcpy(value, p, bytes);
    if (bits < 8) { /* rows begin on whole bytes, so the place along the row says which bits */
        unsigned along = f->by_columns ? s.row : s.column;
        *value = *value >> (along * bits % 8) & ((1u << bits) - 1);
    }
    return true;
}

static bool fragment_load(struct sg_warp *w, const struct sg_insn *in, uint32_t set)
{
    const struct sg_matrix *x = in->matrix;
    const struct sg_fragment *f = &x->part[x->role];
    unsigned per = sg_per_register(f->element), bits = sg_element_bits(f->element);
    SG_FOR_LANES(l, set)
    for (unsigned r = 0; r < f->registers; r++) {
        uint64_t v = 0, one;
        for (unsigned e = 0; e < per; e++) {
            if (!element_load(w, in, l, sg_fragment_spot(x, x->role, l, r, e), &one))
                return false;
            v |= one << (e * bits);
        }
        sg_write(w->lane_frame[l], &in->x[r], l, v);
    }
    return true;
}

static bool fragment_store(struct sg_warp *w, const struct sg_insn *in, uint32_t set)
{
    const struct sg_matrix *x = in->matrix;
    const struct sg_fragment *f = &x->part[x->role];
    unsigned per = sg_per_register(f->element), bits = sg_element_bits(f->element);
    SG_FOR_LANES(l, set)
    for (unsigned r = 0; r < f->registers; r++)
        for (unsigned e = 0; e < per; e++) {
            uint64_t v = sg_fragment_read(w, &in->x[r], l) >> (e * bits);
            uint64_t at = address_of(w, in, l, sg_fragment_spot(x, x->role, l, r, e));
            void *p = sg_reach(w, in, l, in->space, at, bits / 8, bits / 8);
            if (!p)
                return false;
            memcpy(p, &v, bits / 8);
        }
    return true;
}

/* --- ldmatrix and its kin: matrices of 8 x 8 elements of 16 bits ------------------------------ */

struct square {
    uint16_t at[8][8];
};

#define ROW_BYTES 16u

/* A lane has two neighbours in a row, or in a column if `turned`. */
static uint32_t square_pair(const struct square *m, unsigned lane, bool turned)
{
    unsigned i = lane / 4, j = 2 * (lane % 4);
    return turned ? m->at[j][i] | (uint32_t)m->at[j + 1][i] << 16
                  : m->at[i][j] | (uint32_t)m->at[i][j + 1] << 16;
}

static void square_put(struct square *m, unsigned lane, bool turned, uint32_t pair)
{
    unsigned i = lane / 4, j = 2 * (lane % 4);
    *(turned ? &m->at[j][i] : &m->at[i][j]) = (uint16_t)pair;
    *(turned ? &m->at[j + 1][i] : &m->at[i][j + 1]) = (uint16_t)(pair >> 16);
}

/* Lanes 8n to 8n + 7 have the addresses of the n-th matrix's rows. */
static void *row_reach(struct sg_warp *w, const struct sg_insn *in, unsigned n, unsigned row)
{
    unsigned lane = 8 * n + row;
    return sg_reach(w, in, lane, in->space, w->deposit[lane].value, ROW_BYTES, ROW_BYTES);
}

static bool rows_load(struct sg_warp *w, const struct sg_insn *in, uint32_t set)
{
    const struct sg_matrix *x = in->matrix;
    struct square m[4];
    for (unsigned n = 0; n < x->part[SG_D].registers; n++)
        for (unsigned row = 0; row < 8; row++) {
            const void *p = row_reach(w, in, n, row);
            if (!p)
                return false;
            memcpy(m[n].at[row], p, ROW_BYTES);
        }
    SG_FOR_LANES(l, set)
    for (unsigned n = 0; n < x->part[SG_D].registers; n++)
        sg_write(w->lane_frame[l], &in->x[n], l, square_pair(&m[n], l, x->transposed));
    return true;
}

static void square_gather(const struct sg_warp *w, const struct sg_operand *x, bool turned,
                          struct square *m)
{
    for (unsigned l = 0; l < SG_LANES; l++)
        square_put(m, l, turned, (uint32_t)sg_fragment_read(w, x, l));
}

static bool rows_store(struct sg_warp *w, const struct sg_insn *in)
{
    const struct sg_matrix *x = in->matrix;
    for (unsigned n = 0; n < x->part[SG_D].registers; n++) {
        struct square m;
        square_gather(w, &in->x[n], x->transposed, &m);
        for (unsigned row = 0; row < 8; row++) {
            void *p = row_reach(w, in, n, row);
            if (!p)
                return false;
            memcpy(p, m.at[row], ROW_BYTES);
        }
    }
    return true;
}

static bool transpose(struct sg_warp *w, const struct sg_insn *in, uint32_t set)
{
    struct square m;
    square_gather(w, &in->x[1], false, &m);
    SG_FOR_LANES(l, set)
    sg_write(w->lane_frame[l], &in->x[0], l, square_pair(&m, l, true));
    return true;
}

bool sg_matrix_move(struct sg_warp *w, const struct sg_insn *in, uint32_t set)
{
    switch (in->op) {
    case SG_P_WMMA_LOAD:
        return fragment_load(w, in, set);
    case SG_P_WMMA_STORE:
        return fragment_store(w, in, set);
    case SG_P_LDMATRIX:
        return rows_load(w, in, set);
    case SG_P_STMATRIX:
        return rows_store(w, in);
    default:
        return transpose(w, in, set);
    }
}
