/* tex, tld4, txq, suq, suld, sust, sured: geometries, modes and operands. */
#include "ptx_texture.h"
#include "ptx_decode.h"

_Noreturn static void refuse(struct sg_parser *p, const struct sg_statement *s)
{
    sg_fail(p, s->line, "instruction %s with these operands is not supported by the soft GPU",
            s->text);
}

static bool geometry_read(struct sg_statement *s, struct sg_fetch *f)
{
    static const char *const names[] = {".1d",  ".2d",   ".3d",    ".a1d",
                                        ".a2d", ".cube", ".acube", NULL};
    static const struct sg_fetch kinds[] = {
        {.dimensions = 1},
        {.dimensions = 2},
        {.dimensions = 3},
        {.dimensions = 1, .layered = true},
        {.dimensions = 2, .layered = true},
        {.dimensions = 2, .cube = true},
        {.dimensions = 2, .cube = true, .layered = true},
    };
    int i = sg_suffix_of(s, names);
    if (i >= 0)
        *f = kinds[i];
    return i >= 0;
}

/* Up to four elements, in braces or one without. */
static void parts_take(struct sg_parser *p, const struct sg_statement *s,
                       const struct sg_argument *a, enum sg_type type, unsigned least,
                       struct sg_operand *x)
{
    if (a->address || a->count < least || a->count > 4)
        refuse(p, s);
    for (uint32_t i = 0; i < a->count; i++)
        x[i] = sg_atom_operand(p, s, &a->e[i], type);
}

/* [object, {x, y, …}] */
static void place_take(struct sg_parser *p, const struct sg_statement *s,
                       const struct sg_argument *a, const struct sg_fetch *f, struct sg_operand *x)
{
    if (!a->address || a->offset || a->coordinates > SG_FETCH_COORDINATES ||
        a->coordinates < sg_fetch_coordinates(f) + f->layered)
        refuse(p, s);
    x[SG_TX_OBJECT] = sg_atom_operand(p, s, &a->e[0], SG_T_B64);
    for (uint32_t i = 0; i < a->coordinates; i++)
        x[SG_TX_AT + i] = sg_atom_operand(p, s, &a->at[i], SG_T_B32);
}

static bool is_word(unsigned type)
{
    return type == SG_T_F32 || type == SG_T_U32 || type == SG_T_S32;
}

static void fetch_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in,
                         struct sg_fetch *f)
{
    static const char *const components[] = {".r", ".g", ".b", ".a", NULL};
    bool gathers = in->op == SG_P_TLD4;
    struct sg_operand *x = in->x;
    unsigned extra = 0;
    f->whole = s->types[1] == SG_T_S32;
    f->how = gathers                  ? SG_F_GATHER
             : sg_suffix(s, ".level") ? SG_F_LEVEL
             : sg_suffix(s, ".grad")  ? SG_F_GRADIENT
                                      : SG_F_BASE;
    extra = f->how == SG_F_LEVEL ? 1 : f->how == SG_F_GRADIENT ? 2 : 0;
    if (s->type_count != 2 || !is_word(s->types[0]) || !sg_suffix(s, ".v4") ||
        (!f->whole && s->types[1] != SG_T_F32) || s->arguments != 2 + extra)
        refuse(p, s);
    if (gathers) {
        int component = sg_suffix_of(s, components);
        if (component < 0 || f->dimensions != 2 || f->cube || f->whole)
            refuse(p, s);
        f->component = (uint8_t)component;
    }
    parts_take(p, s, &s->a[0], SG_T_B32, 4, &x[SG_TX_DATA]);
    if (s->a[0].piped)
        x[SG_TX_RESIDENT] = sg_atom_operand(p, s, &s->a[0].second, SG_T_PRED);
    place_take(p, s, &s->a[1], f, x);
    if (f->how == SG_F_LEVEL)
        parts_take(p, s, &s->a[2], SG_T_B32, 1, &x[SG_TX_LEVEL]);
    if (f->how == SG_F_GRADIENT) {
        if (f->cube)
            refuse(p, s);
        parts_take(p, s, &s->a[2], SG_T_B32, f->dimensions, &x[SG_TX_DX]);
        parts_take(p, s, &s->a[3], SG_T_B32, f->dimensions, &x[SG_TX_DY]);
    }
}

static void query_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in,
                         struct sg_fetch *f)
{
    static const char *const names[] = {
        ".width", ".height", ".depth", ".array_size", ".num_mipmap_levels", NULL};
    int i = sg_suffix_of(s, names);
    if (i < 0 || in->type != SG_T_B32 || s->arguments != 2 || !s->a[1].address ||
        s->a[1].coordinates || s->a[1].offset || s->a[0].address)
        refuse(p, s);
    in->mode = (uint8_t)i;
    f->surface = s->opcode[0] == 's';
    in->x[SG_TX_DATA] = sg_atom_operand(p, s, &s->a[0].e[0], SG_T_B32);
    in->x[SG_TX_OBJECT] = sg_atom_operand(p, s, &s->a[1].e[0], SG_T_B64);
}

/* A surface: results or values, and a place whose first coordinate counts bytes. */
static void access_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in,
                          struct sg_fetch *f)
{
    static const char *const boundaries[] = {".trap", ".clamp", ".zero", NULL};
    bool loads = in->op == SG_P_SULD, reduces = in->op == SG_P_SURED;
    if (reduces && (in->mode == SG_A_EXCH || in->mode == SG_A_CAS))
        refuse(p, s);
    int boundary = sg_suffix_of(s, boundaries);
    const struct sg_argument *data = &s->a[loads ? 0 : 1];
    f->boundary = boundary < 0 ? SG_B_TRAP : (uint8_t)boundary;
    unsigned size = sg_type_size(in->type);
    if (!sg_suffix(s, ".b") || s->type_count != 1 || s->arguments != 2 || f->cube || size > 8)
        refuse(p, s);
    parts_take(p, s, data, in->type, 1, &in->x[SG_TX_DATA]);
    in->vector = (uint8_t)data->count;
    unsigned vector = sg_suffix(s, ".v4") ? 4 : sg_suffix(s, ".v2") ? 2 : 1;
    if (vector != in->vector || vector * size > 16 || (reduces && vector != 1))
        refuse(p, s);
    place_take(p, s, &s->a[loads ? 1 : 0], f, in->x);
    f->whole = true;
}

void sg_texture_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    struct sg_fetch *f = sg_take(p, sizeof(*f));
    in->fetch = f;
    sg_operands_take(p, in, SG_TX_OPERANDS);
    if (in->op == SG_P_TXQ) {
        query_decode(p, s, in, f);
        return;
    }
    if (!geometry_read(s, f))
        refuse(p, s);
    if (in->op == SG_P_TEX || in->op == SG_P_TLD4)
        fetch_decode(p, s, in, f);
    else
        access_decode(p, s, in, f);
}
