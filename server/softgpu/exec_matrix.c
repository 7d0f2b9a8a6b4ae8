/*
 * Products of matrices: mma.sync and wmma.mma, and what wgmma has in common with them. PTX leaves open how sums of f16,
 * bf16, tf32 and fp8 are rounded on the way; here products and their sum are in
 * double and the result is rounded once. Sums of f64 are a chain of fma from
 * the least k on.
 */
#include "exec_matrix.h"
#include "exec_float.h"

#include <math.h>

/* mma: every shape follows one rule. Lanes come in groups of four. */
static struct sg_spot spot_mma(const struct sg_fragment *f, unsigned role, unsigned lane,
                               unsigned r, unsigned e)
{
    unsigned group = lane / 4, in_group = lane % 4, per = sg_per_register(f->element);
    bool tall = f->rows == 16;
    if (role == SG_B)
        return (struct sg_spot){in_group * per + e + 4 * per * r, group};
    if (role == SG_A) {
        unsigned half = tall ? r & 1 : 0, block = tall ? r >> 1 : r;
        return (struct sg_spot){group + 8 * half, in_group * per + e + 4 * per * block};
    }
    unsigned i = r * per + e;
    return (struct sg_spot){group + 8 * (i >> 1), in_group * 2 + (i & 1)};
}

/* mma.m8n8k4: lanes 0-3 and 16-19 make one product, 4-7 and 20-23 the next … */
static struct sg_spot spot_quads(const struct sg_fragment *f, unsigned role, unsigned lane,
                                 unsigned r, unsigned e)
{
    unsigned own = lane % 4, lower = lane < 16 ? 0 : 4, i = r * sg_per_register(f->element) + e;
    if (role == SG_A)
        return f->by_columns ? (struct sg_spot){i + lower, own} : (struct sg_spot){own + lower, i};
    if (role == SG_B)
        return f->by_columns ? (struct sg_spot){i, own + lower} : (struct sg_spot){own, i + lower};
    if (f->element == SG_M_F16)
        return (struct sg_spot){own + lower, i};
    return (struct sg_spot){(lane & 1) + (i & 2) + lower, (i & 4) + (lane & 2) + (i & 1)};
}

struct sg_spot sg_fragment_spot(const struct sg_matrix *x, unsigned role, unsigned lane, unsigned r,
                                unsigned e)
{
    const struct sg_fragment *f = &x->part[role];
    if (x->spread == SG_D_MMA)
        return spot_mma(f, role, lane, r, e);
    if (x->spread == SG_D_QUADS)
        return spot_quads(f, role, lane, r, e);
    unsigned n = (lane * f->registers + r) * sg_per_register(f->element) + e;
    n %= (unsigned)f->rows * f->columns; /* f16 may be held more than once */
    return (struct sg_spot){n / f->columns, n % f->columns};
}

uint64_t sg_fragment_read(const struct sg_warp *w, const struct sg_operand *x, unsigned lane)
{
    const struct sg_frame *frame = w->lane_frame[lane];
    if (x->kind == SG_O_REGISTER)
        return frame ? frame->registers[(size_t)x->slot * SG_LANES + lane] : 0;
    return x->value;
}

double sg_element_value(unsigned element, uint64_t bits)
{
    switch (element) {
    case SG_M_F16:
        return sg_float_to_double(&sg_f16, bits & 0xffff);
    case SG_M_BF16:
        return sg_float_to_double(&sg_bf16, bits & 0xffff);
    case SG_M_TF32: /* the low bits do not count */
        return (double)sg_as_float(bits & 0xffffe000);
    case SG_M_F32:
        return (double)sg_as_float(bits);
    case SG_M_F64:
        return sg_as_double(bits);
    case SG_M_S32:
        return (double)(int32_t)bits;
    case SG_M_S8:
        return (double)(int8_t)bits;
    case SG_M_U8:
        return (double)(bits & 0xff);
    case SG_M_S4:
        return (double)((int)(bits & 15) - (int)(bits & 8) * 2);
    case SG_M_U4:
        return (double)(bits & 15);
    case SG_M_B1:
        return (double)(bits & 1);
    case SG_M_E4M3:
        return sg_float_to_double(&sg_e4m3, bits & 0xff);
    default:
        return sg_float_to_double(&sg_e5m2, bits & 0xff);
    }
}

static uint64_t bits_of(const struct sg_insn *in, unsigned element, double v)
{
    switch (element) {
    case SG_M_F16:
        return sg_float_from_double(&sg_f16, v, SG_R_NEAREST);
    case SG_M_F32:
        return sg_of_float((float)v);
    case SG_M_F64:
        return sg_of_double(v);
    default: /* s32, of sums far below 2^53 */
        if (in->sat)
            v = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v;
        return (uint32_t)(int64_t)v;
    }
}

/* Lanes that hold one of the products of mma.m8n8k4; all lanes for the others. */
static uint32_t lanes_of(const struct sg_matrix *x, unsigned product)
{
    return x->spread == SG_D_QUADS ? UINT32_C(0x000f000f) << (4 * product) : SG_ALL_LANES;
}

void sg_fragment_gather(const struct sg_warp *w, const struct sg_insn *in, unsigned role,
                        unsigned first, uint32_t lanes, double *to)
{
    const struct sg_fragment *f = &in->matrix->part[role];
    unsigned per = sg_per_register(f->element), bits = sg_element_bits(f->element);
    SG_FOR_LANES(l, lanes)
    for (unsigned r = 0; r < f->registers; r++) {
        uint64_t v = sg_fragment_read(w, &in->x[first + r], l);
        for (unsigned e = 0; e < per; e++) {
            struct sg_spot s = sg_fragment_spot(in->matrix, role, l, r, e);
            to[s.row * f->columns + s.column] = sg_element_value(f->element, v >> (e * bits));
        }
    }
}

void sg_fragment_scatter(struct sg_warp *w, const struct sg_insn *in, unsigned first,
                         uint32_t lanes, const double *from)
{
    const struct sg_fragment *f = &in->matrix->part[SG_D];
    unsigned per = sg_per_register(f->element), bits = sg_element_bits(f->element);
    SG_FOR_LANES(l, lanes)
    for (unsigned r = 0; r < f->registers; r++) {
        uint64_t v = 0;
        for (unsigned e = 0; e < per; e++) {
            struct sg_spot s = sg_fragment_spot(in->matrix, SG_D, l, r, e);
            v |= bits_of(in, f->element, from[s.row * f->columns + s.column]) << (e * bits);
        }
        sg_write(w->lane_frame[l], &in->x[first + r], l, v);
    }
}

static double one_sum(const struct sg_matrix *x, const struct sg_numbers *n, unsigned row,
                      unsigned column)
{
    unsigned depth = x->part[SG_B].rows, width = x->part[SG_B].columns;
    unsigned element = x->part[SG_A].element;
    double c = n->c[row * width + column], sum = element == SG_M_F64 ? c : 0;
    for (unsigned k = 0; k < depth; k++) {
        double a = n->a[row * depth + k], b = n->b[k * width + column];
        if (element == SG_M_F64)
            sum = fma(a, b, sum);
        else if (element == SG_M_B1)
            sum += x->conjunction ? a * b : a != b;
        else
            sum += a * b;
    }
    return element == SG_M_F64 ? sum : sum + c;
}

void sg_numbers_multiply(const struct sg_matrix *x, const struct sg_numbers *n, double *d)
{
    unsigned columns = x->part[SG_D].columns;
    for (unsigned row = 0; row < x->part[SG_D].rows; row++)
        for (unsigned column = 0; column < columns; column++)
            d[row * columns + column] = one_sum(x, n, row, column);
}

bool sg_matrix_product(struct sg_warp *w, const struct sg_insn *in, uint32_t set)
{
    const struct sg_matrix *x = in->matrix;
    struct sg_numbers n;
    double d[SG_MATRIX_MOST / 16];
    for (unsigned product = 0; product < (x->spread == SG_D_QUADS ? 4u : 1u); product++) {
        uint32_t lanes = lanes_of(x, product);
        sg_fragment_gather(w, in, SG_A, x->part[SG_A].first, lanes, n.a);
        sg_fragment_gather(w, in, SG_B, x->part[SG_B].first, lanes, n.b);
        sg_fragment_gather(w, in, SG_C, x->part[SG_C].first, lanes, n.c);
        if (x->sparse)
            sg_sparse_spread(w, in, n.a);
        sg_numbers_multiply(x, &n, d);
        sg_fragment_scatter(w, in, x->part[SG_D].first, lanes & set, d);
    }
    return true;
}
