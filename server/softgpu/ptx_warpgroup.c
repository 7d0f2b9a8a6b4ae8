/* wgmma: shapes, types, descriptors and what they are followed by. */
#include "ptx_matrix_words.h"

#define ROWS 16u
#define COLUMNS 8u

bool sg_warpgroup_read(struct sg_statement *s, struct sg_insn *in)
{
    if (!sg_suffix(s, ".sync") || !sg_suffix(s, ".aligned"))
        return false;
    if (sg_suffix(s, ".commit_group"))
        in->op = SG_P_FENCE;
    else if (sg_suffix(s, ".fence") || sg_suffix(s, ".wait_group"))
        in->op = SG_P_WARPGROUP;
    return in->op != SG_P_WGMMA || sg_suffix(s, ".mma_async");
}

/* How deep the product of a type is: 32 bytes of each row. */
static bool shape_known(const struct sg_matrix *x, const struct sg_shape *shape)
{
    unsigned n = shape->n, bits = sg_element_bits(x->part[SG_A].element);
    bool whole = x->part[SG_D].element == SG_M_S32;
    if (shape->m != 64 || n < 8 || n > 256 || n % 8)
        return false;
    /* of integers fewer widths: 8, 24, and multiples of 16 */
    if (whole && n % 16 && n != 8 && n != 24)
        return false;
    return shape->k == (x->sparse ? 512u : 256u) / bits;
}

static bool types_known(const struct sg_matrix *x)
{
    uint8_t d = x->part[SG_D].element, a = x->part[SG_A].element, b = x->part[SG_B].element;
    switch (a) {
    case SG_M_F16:
        return b == a && (d == SG_M_F16 || d == SG_M_F32);
    case SG_M_BF16:
    case SG_M_TF32:
        return b == a && d == SG_M_F32;
    case SG_M_E4M3:
    case SG_M_E5M2:
        return (b == SG_M_E4M3 || b == SG_M_E5M2) && (d == SG_M_F16 || d == SG_M_F32);
    case SG_M_S8:
    case SG_M_U8:
        return (b == SG_M_S8 || b == SG_M_U8) && d == SG_M_S32;
    case SG_M_B1:
        return b == a && d == SG_M_S32 && x->conjunction && !x->sparse;
    default:
        return false;
    }
}

/* 1 or -1 of scales, 0 or 1 of orders. */
static bool flag_read(struct sg_parser *p, const struct sg_statement *s, unsigned i, uint64_t no,
                      uint64_t yes)
{
    const struct sg_argument *a = &s->a[i];
    if (a->vector || a->address || a->e[0].kind != SG_E_INTEGER ||
        (a->e[0].value != no && a->e[0].value != yes))
        sg_matrix_refuse(p, s);
    return a->e[0].value == yes;
}

/* What follows scale-d: of floating-point numbers two scales, of halves the orders, too. */
static void flags_read(struct sg_parser *p, const struct sg_statement *s, unsigned next,
                       struct sg_matrix *x)
{
    struct sg_warpgroup *g = &x->group;
    uint8_t a = x->part[SG_A].element;
    bool half = a == SG_M_F16 || a == SG_M_BF16;
    if (x->part[SG_D].element != SG_M_S32) {
        if (next + 2 > s->arguments)
            sg_matrix_refuse(p, s);
        g->negated_a = flag_read(p, s, next++, 1, UINT64_MAX);
        g->negated_b = flag_read(p, s, next++, 1, UINT64_MAX);
    }
    if (half) {
        if (next + 1 + g->shared_a > s->arguments)
            sg_matrix_refuse(p, s);
        g->turned_a = g->shared_a && flag_read(p, s, next++, 0, 1);
        g->turned_b = flag_read(p, s, next++, 0, 1);
    }
    if (next != s->arguments)
        sg_matrix_refuse(p, s);
}

static void parts_set(struct sg_matrix *x, const struct sg_shape *shape)
{
    struct sg_fragment *d = &x->part[SG_D], *a = &x->part[SG_A], *b = &x->part[SG_B];
    *d = (struct sg_fragment){.element = d->element, .rows = ROWS, .columns = COLUMNS};
    d->registers = (uint8_t)(ROWS * COLUMNS / SG_LANES / sg_per_register(d->element));
    x->part[SG_C] = *d;
    x->group.blocks = (uint8_t)(shape->n / COLUMNS);
    a->rows = ROWS;
    a->columns = (uint16_t)(x->sparse ? shape->k / 2 : shape->k);
    b->rows = (uint16_t)shape->k;
    b->columns = COLUMNS;
    b->registers = 1; /* the descriptor */
    a->first = (uint8_t)(d->registers * x->group.blocks);
    a->registers = x->group.shared_a ? 1 : 4;
    b->first = (uint8_t)(a->first + a->registers);
    x->group.keeps = (uint8_t)(b->first + 1);
}

static struct sg_operand plain(struct sg_parser *p, const struct sg_statement *s, unsigned i,
                               enum sg_type type)
{
    if (s->a[i].vector || s->a[i].address || s->a[i].piped)
        sg_matrix_refuse(p, s);
    return sg_atom_operand(p, s, &s->a[i].e[0], type);
}

/* d, a, b-desc, [metadata, selector,] scale-d, flags; a: registers in braces, or a descriptor */
void sg_warpgroup_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    struct sg_matrix_words words;
    struct sg_matrix *x = sg_matrix_take(p, in);
    unsigned next = 3;
    sg_matrix_words_read(p, s, &words);
    x->sparse = sg_suffix(s, ".sp");
    x->conjunction = sg_suffix(s, ".and");
    if (words.count != 3 || words.orders || s->arguments < (x->sparse ? 6u : 4u))
        sg_matrix_refuse(p, s);
    for (unsigned i = 0; i < 3; i++)
        x->part[i].element = words.element[i]; /* D, A, B */
    if (!types_known(x) || !shape_known(x, &words.shape))
        sg_matrix_refuse(p, s);
    x->group.shared_a = !s->a[1].vector;
    parts_set(x, &words.shape);
    struct sg_operand *o = sg_operands_take(p, in, x->group.keeps + 1u + x->sparse);
    struct sg_fragment all = x->part[SG_D];
    all.registers = (uint8_t)(all.registers * x->group.blocks);
    sg_fragment_take(p, s, &s->a[0], &all, true, o);
    if (x->group.shared_a)
        o[x->part[SG_A].first] = plain(p, s, 1, SG_T_B64);
    else
        sg_fragment_take(p, s, &s->a[1], &x->part[SG_A], false, o);
    o[x->part[SG_B].first] = plain(p, s, 2, SG_T_B64);
    if (x->sparse) {
        x->metadata = (uint8_t)(x->group.keeps + 1);
        sg_sparse_take(p, s, next, x, o);
        next += 2;
    }
    o[x->group.keeps] = plain(p, s, next++, SG_T_PRED);
    flags_read(p, s, next, x);
}
