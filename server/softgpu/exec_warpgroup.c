/*
 * Products of a warpgroup: wgmma. Each of its four warps has 16 rows of A and D, and makes them as
 * soon as it comes. A wait lets a warp go when all four have come: then nobody reads what lies in
 * shared memory any more.
 */
#include "exec_matrix.h"

#include <string.h>

#define UNIT 16u /* bytes, which swizzling leaves together */
#define COLUMNS 8u
#define ROWS 16u

/* A matrix in shared memory, as a descriptor tells of it. */
struct tile {
    uint32_t start, leading, stride;
    uint32_t phase; /* of the first row, where its pattern does not begin */
    unsigned width; /* units in a row of the pattern: 8, 4, 2; 1 if nothing is swizzled */
    uint8_t element;
    bool turned; /* neighbours are of one column */
};

static struct tile tile_of(uint64_t descriptor, uint8_t element, bool turned)
{
    static const uint8_t widths[] = {1, 8, 4, 2};
    return (struct tile){.start = (uint32_t)(descriptor & 0x3fff) * UNIT,
                         .leading = (uint32_t)(descriptor >> 16 & 0x3fff) * UNIT,
                         .stride = (uint32_t)(descriptor >> 32 & 0x3fff) * UNIT,
                         .phase = (uint32_t)(descriptor >> 49 & 7),
                         .width = widths[descriptor >> 62],
                         .element = element,
                         .turned = turned};
}

/* The unit that has elements of a row, or, of a turned tile, of a depth: `unit` counts along what
 * lies together. Sums stay far below what names another block's memory. */
static uint32_t unit_at(const struct tile *t, unsigned unit, unsigned line)
{
    uint32_t lines = line % 8 * UNIT * t->width, eights = line / 8, at = t->start + lines;
    if (t->width == 1)
        return at + (t->turned ? unit * t->stride + eights * t->leading
                               : unit * t->leading + eights * t->stride);
    at += t->turned ? unit % t->width * UNIT + unit / t->width * t->leading : unit * UNIT;
    at += eights * t->stride;
    return at ^ (((at >> 7) - t->phase) & (t->width - 1)) * UNIT;
}

/* Where the numbers of a tile go: a row's and a column's distance. */
struct target {
    double *to;
    unsigned row, column;
};

/* Elements of `rows` rows from the first on, in all their depth. */
static bool tile_read(struct sg_warp *w, const struct sg_insn *in, unsigned lane,
                      const struct tile *t, unsigned first, unsigned rows, unsigned depth,
                      bool negated, struct target target)
{
    unsigned bits = sg_element_bits(t->element), per = UNIT * 8 / bits;
    unsigned lines = t->turned ? depth : rows, units = (t->turned ? rows : depth) / per;
    unsigned step = t->turned ? target.row : target.column;
    for (unsigned line = 0; line < lines; line++)
        for (unsigned unit = 0; unit < units; unit++) {
            uint32_t at = t->turned ? unit_at(t, first / per + unit, line)
                                    : unit_at(t, unit, first + line);
            const void *p = sg_reach(w, in, lane, SG_S_SHARED, at, UNIT, UNIT);
            if (!p)
                return false;
            uint64_t words[2];
            memcpy(words, p, sizeof(words));
            double *to = target.to + line * (t->turned ? target.column : target.row);
            for (unsigned e = 0; e < per; e++) {
                double v = sg_element_value(t->element, words[e * bits / 64] >> (e * bits % 64));
                to[(unit * per + e) * step] = negated ? -v : v;
            }
        }
    return true;
}

static uint64_t operand_of(const struct sg_warp *w, const struct sg_insn *in, unsigned i,
                           unsigned lane)
{
    uint64_t v = sg_fragment_read(w, &in->x[i], lane);
    return in->x[i].negated ? !(v & 1) : v;
}

static bool left_read(struct sg_warp *w, const struct sg_insn *in, unsigned lane, double *a)
{
    const struct sg_matrix *x = in->matrix;
    const struct sg_fragment *f = &x->part[SG_A];
    const struct sg_warpgroup *g = &x->group;
    if (g->shared_a) {
        struct tile t = tile_of(operand_of(w, in, f->first, lane), f->element, g->turned_a);
        if (!tile_read(w, in, lane, &t, w->index % SG_WARPGROUP * ROWS, ROWS, f->columns,
                       g->negated_a, (struct target){a, f->columns, 1}))
            return false;
    } else {
        sg_fragment_gather(w, in, SG_A, f->first, SG_ALL_LANES, a);
        for (unsigned i = 0; g->negated_a && i < ROWS * f->columns; i++)
            a[i] = -a[i];
    }
    if (x->sparse)
        sg_sparse_spread(w, in, a);
    return true;
}

bool sg_warpgroup_product(struct sg_warp *w, const struct sg_insn *in, uint32_t set)
{
    const struct sg_matrix *x = in->matrix;
    const struct sg_fragment *b = &x->part[SG_B], *d = &x->part[SG_D];
    const struct sg_warpgroup *g = &x->group;
    unsigned lane = (unsigned)__builtin_ctz(set);
    struct sg_numbers n;
    double sums[ROWS * COLUMNS];
    if (!sg_warpgroup_whole(w, in, lane) || !left_read(w, in, lane, n.a))
        return false;
    struct tile t = tile_of(operand_of(w, in, b->first, lane), b->element, g->turned_b);
    bool keeps = operand_of(w, in, g->keeps, lane) & 1;
    memset(n.c, 0, sizeof(n.c));
    for (unsigned i = 0; i < g->blocks; i++) {
        unsigned first = d->first + i * d->registers;
        if (!tile_read(w, in, lane, &t, i * COLUMNS, COLUMNS, b->rows, g->negated_b,
                       (struct target){n.b, 1, COLUMNS}))
            return false;
        if (keeps)
            sg_fragment_gather(w, in, SG_C, first, SG_ALL_LANES, n.c);
        sg_numbers_multiply(x, &n, sums);
        sg_fragment_scatter(w, in, first, set, sums);
    }
    return true;
}
