/* mma, wmma, ldmatrix, stmatrix, movmatrix: shapes, types and operands. */
#include "ptx_matrix_words.h"

#include <stdio.h>

static const char *const elements[] = {".f16", ".bf16", ".tf32", ".f32", ".f64",  ".s32",  ".s8",
                                       ".u8",  ".s4",   ".u4",   ".b1",  ".e4m3", ".e5m2", NULL};

/* Products that PTX has, by the family of A's type. */
static const struct {
    uint8_t element;
    bool wmma;
    struct sg_shape shape;
} products[] = {
    {SG_M_F16, false, {8, 8, 4}},    {SG_M_F16, false, {16, 8, 8}},
    {SG_M_F16, false, {16, 8, 16}},  {SG_M_BF16, false, {16, 8, 8}},
    {SG_M_BF16, false, {16, 8, 16}}, {SG_M_TF32, false, {16, 8, 4}},
    {SG_M_TF32, false, {16, 8, 8}},  {SG_M_F64, false, {8, 8, 4}},
    {SG_M_F64, false, {16, 8, 4}},   {SG_M_F64, false, {16, 8, 8}},
    {SG_M_F64, false, {16, 8, 16}},  {SG_M_S8, false, {8, 8, 16}},
    {SG_M_S8, false, {16, 8, 16}},   {SG_M_S8, false, {16, 8, 32}},
    {SG_M_S4, false, {8, 8, 32}},    {SG_M_S4, false, {16, 8, 32}},
    {SG_M_S4, false, {16, 8, 64}},   {SG_M_B1, false, {8, 8, 128}},
    {SG_M_B1, false, {16, 8, 128}},  {SG_M_B1, false, {16, 8, 256}},
    {SG_M_E4M3, false, {16, 8, 32}}, {SG_M_F16, true, {16, 16, 16}},
    {SG_M_F16, true, {32, 8, 16}},   {SG_M_F16, true, {8, 32, 16}},
    {SG_M_BF16, true, {16, 16, 16}}, {SG_M_BF16, true, {32, 8, 16}},
    {SG_M_BF16, true, {8, 32, 16}},  {SG_M_S8, true, {16, 16, 16}},
    {SG_M_S8, true, {32, 8, 16}},    {SG_M_S8, true, {8, 32, 16}},
    {SG_M_TF32, true, {16, 16, 8}},  {SG_M_F64, true, {8, 8, 4}},
    {SG_M_S4, true, {8, 8, 32}},     {SG_M_B1, true, {8, 8, 128}},
};

_Noreturn void sg_matrix_refuse(struct sg_parser *p, const struct sg_statement *s)
{
    sg_fail(p, s->line, "instruction %s is not supported by the soft GPU", s->text);
}

/* .m16n8k16; false: another suffix. */
static bool shape_read(const struct sg_token *t, struct sg_shape *shape)
{
    char text[24];
    int end = 0;
    if (t->size >= sizeof(text))
        return false;
    memcpy(text, t->text, t->size);
    text[t->size] = 0;
    return sscanf(text, ".m%3un%3uk%3u%n", &shape->m, &shape->n, &shape->k, &end) == 3 &&
           end == (int)t->size;
}

static int element_of(const struct sg_token *t)
{
    for (int i = 0; elements[i]; i++)
        if (sg_token_is(t, elements[i]))
            return i; /* enum sg_element */
    return -1;
}

void sg_matrix_words_read(struct sg_parser *p, const struct sg_statement *s,
                          struct sg_matrix_words *out)
{
    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < s->suffixes; i++) {
        const struct sg_token *t = &s->suffix[i];
        bool column = sg_token_is(t, ".col");
        int element = element_of(t);
        if (column || sg_token_is(t, ".row")) {
            if (out->orders == 2)
                sg_matrix_refuse(p, s);
            out->by_columns[out->orders++] = column;
        } else if (element >= 0) {
            if (out->count == 4)
                sg_matrix_refuse(p, s);
            out->element[out->count++] = (uint8_t)element;
        } else {
            shape_read(t, &out->shape);
        }
    }
}

/* Types of one family are multiplied with each other; the first of each stands for it. */
static uint8_t family(uint8_t element)
{
    switch (element) {
    case SG_M_U8:
        return SG_M_S8;
    case SG_M_U4:
        return SG_M_S4;
    case SG_M_E5M2:
        return SG_M_E4M3;
    default:
        return element;
    }
}

static bool sums_fit(const struct sg_matrix *x)
{
    uint8_t d = x->part[SG_D].element, c = x->part[SG_C].element;
    switch (family(x->part[SG_A].element)) {
    case SG_M_F16:
    case SG_M_E4M3:
        return (d == SG_M_F16 || d == SG_M_F32) && (c == SG_M_F16 || c == SG_M_F32);
    case SG_M_BF16:
    case SG_M_TF32:
        return d == SG_M_F32 && c == SG_M_F32;
    case SG_M_F64:
        return d == SG_M_F64 && c == SG_M_F64;
    default:
        return d == SG_M_S32 && c == SG_M_S32;
    }
}

/* Sparse products are as deep as rows of A of 32 or 64 bytes, were they whole. */
static bool sparse_known(const struct sg_matrix *x, const struct sg_shape *shape)
{
    uint8_t a = family(x->part[SG_A].element);
    unsigned bits = shape->k * sg_element_bits(a);
    if (shape->m != 16 || shape->n != 8 || shape->k > 128 || a == SG_M_F64 || a == SG_M_B1)
        return false;
    return bits == 512 || (bits == 256 && a != SG_M_E4M3);
}

static bool product_known(const struct sg_matrix *x, bool wmma, const struct sg_shape *shape)
{
    uint8_t a = family(x->part[SG_A].element);
    if (a != family(x->part[SG_B].element) || !sums_fit(x))
        return false;
    if (x->sparse)
        return sparse_known(x, shape);
    for (size_t i = 0; i < sizeof(products) / sizeof(*products); i++)
        if (products[i].element == a && products[i].wmma == wmma &&
            !memcmp(&products[i].shape, shape, sizeof(*shape)))
            return true;
    return false;
}

static void size_set(struct sg_matrix *x, const struct sg_shape *shape)
{
    const struct {
        unsigned rows, columns;
    } sizes[SG_ROLES] = {[SG_D] = {shape->m, shape->n},
                         [SG_A] = {shape->m, x->sparse ? shape->k / 2 : shape->k},
                         [SG_B] = {shape->k, shape->n},
                         [SG_C] = {shape->m, shape->n}};
    for (unsigned i = 0; i < SG_ROLES; i++) {
        struct sg_fragment *f = &x->part[i];
        unsigned all = sizes[i].rows * sizes[i].columns;
        bool factor = i == SG_A || i == SG_B;
        f->rows = (uint16_t)sizes[i].rows;
        f->columns = (uint16_t)sizes[i].columns;
        if (x->spread == SG_D_QUADS)
            all *= 4;
        if (x->spread == SG_D_WMMA && f->element == SG_M_F16 && factor)
            f->registers = 8; /* always: lanes hold some elements more than once */
        else
            f->registers = (uint8_t)(all / SG_LANES / sg_per_register(f->element));
    }
}

struct sg_matrix *sg_matrix_take(struct sg_parser *p, struct sg_insn *in)
{
    struct sg_matrix *x = sg_take(p, sizeof(*x));
    in->matrix = x;
    return x;
}

void sg_fragment_take(struct sg_parser *p, const struct sg_statement *s,
                      const struct sg_argument *a, const struct sg_fragment *f, bool written,
                      struct sg_operand *x)
{
    if (a->count != f->registers || a->address || a->piped)
        sg_fail(p, s->line, "%s: expected %u registers in braces", s->text, f->registers);
    for (uint32_t i = 0; i < a->count; i++) {
        struct sg_operand *o = &x[f->first + i];
        *o = sg_atom_operand(p, s, sg_element_atom(a, i),
                             f->element == SG_M_F64 ? SG_T_B64 : SG_T_B32);
        bool sound = o->kind == SG_O_REGISTER || (written && o->kind == SG_O_NONE) ||
                     (!written && o->kind == SG_O_IMMEDIATE);
        if (!sound)
            sg_fail(p, s->line, "%s: expected registers in braces", s->text);
    }
}

void sg_sparse_take(struct sg_parser *p, const struct sg_statement *s, unsigned at,
                    struct sg_matrix *x, struct sg_operand *o)
{
    const struct sg_argument *metadata = &s->a[at], *selector = &s->a[at + 1];
    /* four lanes share 16 bits, or a register each, of the metadata of two rows */
    unsigned lanes = x->part[SG_B].rows * sg_element_bits(x->part[SG_A].element) / 256;
    if (sg_element_bits(x->part[SG_A].element) < 16)
        lanes *= 2;
    if (metadata->vector || metadata->address || metadata->e[0].kind != SG_E_REGISTER ||
        selector->vector || selector->e[0].kind != SG_E_INTEGER ||
        selector->e[0].value >= 4 / lanes)
        sg_matrix_refuse(p, s);
    o[x->metadata] = sg_atom_operand(p, s, &metadata->e[0], SG_T_B32);
    x->selector = (uint8_t)selector->e[0].value;
}

/* mma[.sp].sync.aligned.SHAPE.A.B.D.A.B.C[, metadata, selector] and wmma.mma.sync.aligned.A.B.SHAPE.D.[A.B.]C */
static void product_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    struct sg_matrix_words words;
    struct sg_matrix *x = sg_matrix_take(p, in);
    bool wmma = in->mode;
    sg_matrix_words_read(p, s, &words);
    x->sparse = !wmma && (sg_suffix(s, ".sp") || sg_suffix(s, ".sp::ordered_metadata"));
    if (s->arguments != (x->sparse ? 6u : 4u) || words.orders != 2 ||
        (words.count != 4 && !(wmma && words.count == 2)))
        sg_matrix_refuse(p, s);
    uint8_t *w = words.element;
    uint8_t types[SG_ROLES] = {w[0], words.count == 4 ? w[1] : SG_M_F16,
                               words.count == 4 ? w[2] : SG_M_F16, w[words.count - 1]};
    bool quads = !wmma && types[SG_A] == SG_M_F16 && words.shape.k == 4;
    x->spread = wmma ? SG_D_WMMA : quads ? SG_D_QUADS : SG_D_MMA;
    x->conjunction = sg_suffix(s, ".and");
    for (unsigned i = 0; i < SG_ROLES; i++)
        x->part[i].element = types[i];
    x->part[SG_A].by_columns = words.by_columns[0];
    x->part[SG_B].by_columns = words.by_columns[1];
    bool plain = wmma || quads || (!words.by_columns[0] && words.by_columns[1]);
    if (!product_known(x, wmma, &words.shape) || !plain)
        sg_matrix_refuse(p, s);
    size_set(x, &words.shape);
    unsigned total = 0;
    for (unsigned i = 0; i < SG_ROLES; i++) {
        x->part[i].first = (uint8_t)total;
        total += x->part[i].registers;
    }
    x->metadata = (uint8_t)total;
    struct sg_operand *o = sg_operands_take(p, in, total + x->sparse);
    if (x->sparse)
        sg_sparse_take(p, s, SG_ROLES, x, o);
    for (unsigned i = 0; i < SG_ROLES; i++)
        sg_fragment_take(p, s, &s->a[i], &x->part[i], i == SG_D, o);
}

/* Registers in braces, or one without; then the address, then what `extra` names. */
static void move_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in,
                        struct sg_fragment *f, bool store, bool stride)
{
    unsigned data = store ? 1 : 0, address = store ? 0 : 1, n = f->registers;
    if (s->arguments < 2 || s->arguments > 2u + stride || !s->a[address].address)
        sg_fail(p, s->line, "%s: expected registers and an address", s->text);
    struct sg_operand *x = sg_operands_take(p, in, n + s->arguments - 1);
    sg_fragment_take(p, s, &s->a[data], f, !store, x);
    x[n] = sg_address_operand(p, s, &s->a[address]);
    if (s->arguments == 3)
        x[n + 1] = sg_atom_operand(p, s, &s->a[2].e[0], SG_T_U32);
}

/* wmma.load.a.sync.aligned.row.SHAPE.SPACE.TYPE r, [p], stride; wmma.store.d … [p], r, stride */
static void fragment_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    static const char *const roles[] = {".d", ".a", ".b", ".c", NULL};
    struct sg_matrix_words words;
    struct sg_matrix *x = sg_matrix_take(p, in);
    bool store = in->op == SG_P_WMMA_STORE;
    int role = sg_suffix_of(s, roles);
    sg_matrix_words_read(p, s, &words);
    if (role < 0 || store != (role == SG_D) || words.orders != 1 || words.count != 1)
        sg_matrix_refuse(p, s);
    uint8_t type = words.element[0];
    x->role = (uint8_t)role;
    x->spread = SG_D_WMMA;
    bool factor = role == SG_A || role == SG_B;
    bool wide = sg_element_bits(type) >= 32 && type != SG_M_TF32;
    if (factor ? wide && type != SG_M_F64 : !wide && type != SG_M_F16)
        sg_matrix_refuse(p, s);
    for (unsigned i = 0; i < SG_ROLES; i++)
        x->part[i].element = type;
    bool known = false;
    for (size_t i = 0; i < sizeof(products) / sizeof(*products); i++)
        known |= products[i].wmma && (!factor || products[i].element == family(type)) &&
                 !memcmp(&products[i].shape, &words.shape, sizeof(words.shape));
    if (!known)
        sg_matrix_refuse(p, s);
    size_set(x, &words.shape);
    x->part[role].by_columns = words.by_columns[0];
    move_decode(p, s, in, &x->part[role], store, true);
}

/* ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16, stmatrix likewise. */
static void rows_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    static const char *const counts[] = {".x1", ".x2", ".x4", NULL};
    struct sg_matrix *x = sg_matrix_take(p, in);
    int count = sg_suffix_of(s, counts);
    bool shared = in->space == SG_S_SHARED || in->space == SG_S_GENERIC;
    if (count < 0 || !shared || !sg_suffix(s, ".m8n8") || in->type != SG_T_B16)
        sg_matrix_refuse(p, s);
    x->transposed = sg_suffix(s, ".trans");
    x->part[SG_D] = (struct sg_fragment){.element = SG_M_F16, .registers = (uint8_t)(1u << count)};
    move_decode(p, s, in, &x->part[SG_D], in->op == SG_P_STMATRIX, false);
}

/* movmatrix.sync.aligned.m8n8.trans.b16 d, a */
static void transpose_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    struct sg_matrix *x = sg_matrix_take(p, in);
    if (s->arguments != 2 || !sg_suffix(s, ".m8n8") || !sg_suffix(s, ".trans") ||
        in->type != SG_T_B16)
        sg_matrix_refuse(p, s);
    struct sg_fragment d = {.element = SG_M_F16, .registers = 1}, a = d;
    a.first = 1;
    x->part[SG_D] = d;
    x->part[SG_A] = a;
    x->transposed = true;
    struct sg_operand *o = sg_operands_take(p, in, 2);
    sg_fragment_take(p, s, &s->a[0], &d, true, o);
    sg_fragment_take(p, s, &s->a[1], &a, false, o);
}

void sg_matrix_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    if (!sg_suffix(s, ".sync") || !sg_suffix(s, ".aligned"))
        sg_matrix_refuse(p, s);
    switch (in->op) {
    case SG_P_MMA:
        product_decode(p, s, in);
        break;
    case SG_P_WGMMA:
        sg_warpgroup_decode(p, s, in);
        break;
    case SG_P_MOVMATRIX:
        transpose_decode(p, s, in);
        break;
    case SG_P_LDMATRIX:
    case SG_P_STMATRIX:
        rows_decode(p, s, in);
        break;
    default:
        fragment_decode(p, s, in);
        break;
    }
}
