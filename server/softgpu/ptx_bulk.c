/* Copies that a tensor map tells of, and what changes one; stores that a barrier counts. */
#include "ptx_decode.h"

bool sg_tensor_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const ranks[] = {".1d", ".2d", ".3d", ".4d", ".5d", NULL};
    int rank = sg_suffix_of(s, ranks);
    bool load = sg_suffix(s, ".mbarrier::complete_tx::bytes"), columns = sg_suffix(s, ".im2col");
    bool reduces = sg_suffix(s, ".reduce");
    in->op = load ? SG_P_TENSOR_LOAD : reduces ? SG_P_TENSOR_REDUCE : SG_P_TENSOR_STORE;
    in->vector = (uint8_t)(rank + 1);
    for (uint32_t i = 0; i < s->suffixes; i++) /* of newer GPUs, and columns that are stored */
        if (sg_token_is(&s->suffix[i], ".tile::gather4") ||
            sg_token_is(&s->suffix[i], ".tile::scatter4") ||
            sg_token_is(&s->suffix[i], ".im2col::w") ||
            sg_token_is(&s->suffix[i], ".im2col::w::128") ||
            sg_token_is(&s->suffix[i], ".im2col_no_offs"))
            return false;
    if (load)
        in->mode = columns;
    return rank >= 0 && !(columns && (!load || rank < 2)) && !(load && reduces) &&
           (load || sg_suffix(s, ".bulk_group")) && (!reduces || sg_atomic_read(s, in));
}

/* The coordinates, of as many dimensions as the tensor has. */
static void place_take(struct sg_parser *p, const struct sg_statement *s, unsigned argument,
                       struct sg_insn *in)
{
    const struct sg_argument *a = &s->a[argument];
    if (!a->address || a->coordinates != in->vector)
        sg_operands_refuse(p, s);
    in->x[SG_TENSOR_MAP] = sg_address_operand(p, s, a);
    for (uint32_t i = 0; i < a->coordinates; i++)
        in->x[SG_TENSOR_AT + i] = sg_atom_operand(p, s, &a->at[i], SG_T_S32);
}

/* {w, h, d} of columns */
static void offsets_take(struct sg_parser *p, const struct sg_statement *s, unsigned argument,
                         struct sg_insn *in)
{
    const struct sg_argument *a = &s->a[argument];
    if (argument >= s->arguments || !a->vector || a->count + 2 != in->vector)
        sg_operands_refuse(p, s);
    for (uint32_t i = 0; i < a->count; i++)
        in->x[SG_TENSOR_OFFSET + i] = sg_atom_operand(p, s, &a->e[i], SG_T_U16);
}

/* [to], [map, place], [barrier][, offsets][, blocks][, policy]; or [map, place], [from][, policy] */
void sg_tensor_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    bool load = in->op == SG_P_TENSOR_LOAD, shared = sg_suffix(s, ".multicast::cluster");
    uint32_t n = s->arguments, next = load ? 3 : 2;
    if (n && sg_suffix(s, ".L2::cache_hint"))
        n--; /* the policy */
    struct sg_operand *x = sg_operands_take(p, in, SG_TENSOR_OPERANDS);
    if (n < next)
        sg_operands_refuse(p, s);
    place_take(p, s, load ? 1 : 0, in);
    x[SG_TENSOR_SHARED] = sg_address_operand(p, s, &s->a[load ? 0 : 1]);
    if (load)
        x[SG_TENSOR_BARRIER] = sg_address_operand(p, s, &s->a[2]);
    if (load && in->mode)
        offsets_take(p, s, next++, in);
    if (load && shared) {
        if (next >= n || s->a[next].vector || s->a[next].address)
            sg_operands_refuse(p, s);
        x[SG_TENSOR_BLOCKS] = sg_atom_operand(p, s, &s->a[next++].e[0], SG_T_U16);
    }
    if (next != n)
        sg_operands_refuse(p, s);
}

/* --- tensormap.replace and tensormap.cp_fenceproxy ---------------------------------------------- */

bool sg_tensormap_read(struct sg_statement *s, struct sg_insn *in)
{
    static const char *const fields[] = {
        ".global_address", ".rank",           ".box_dim",  ".global_dim",
        ".global_stride",  ".element_stride", ".elemtype", ".interleave_layout",
        ".swizzle_mode",   ".fill_mode",      NULL}; /* enum sg_tensor_field */
    if (sg_suffix(s, ".cp_fenceproxy")) {            /* it is a copy from shared memory */
        in->op = SG_P_CP_BULK;
        in->space = SG_S_GLOBAL;
        in->mode = SG_S_SHARED;
        return sg_suffix(s, ".global") && sg_suffix(s, ".shared::cta");
    }
    int field = sg_suffix_of(s, fields);
    in->mode = (uint8_t)field;
    return field >= 0 && sg_suffix(s, ".replace") && sg_suffix(s, ".tile") &&
           sg_suffix(s, ".b1024");
}

/* [map], [dimension,] value */
void sg_tensormap_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    bool one = in->mode >= SG_TF_BOX && in->mode <= SG_TF_STEP;
    struct sg_operand *x = sg_operands_take(p, in, SG_TF_OPERANDS);
    if (s->arguments != (one ? 3u : 2u))
        sg_operands_refuse(p, s);
    x[SG_TF_MAP] = sg_address_operand(p, s, &s->a[0]);
    for (uint32_t i = 1; i < s->arguments; i++)
        if (s->a[i].vector || s->a[i].address)
            sg_operands_refuse(p, s);
    if (one && (s->a[1].e[0].kind != SG_E_INTEGER || s->a[1].e[0].value >= 5))
        sg_operands_refuse(p, s);
    if (one)
        x[SG_TF_DIMENSION] = sg_atom_operand(p, s, &s->a[1].e[0], SG_T_B32);
    x[SG_TF_VALUE] = sg_atom_operand(p, s, &s->a[s->arguments - 1].e[0], in->type);
}

/* --- st.async and red.async ------------------------------------------------------------------- */

/* [to], values, [barrier]: in registers as a store or a reduction has them, then the barrier. */
void sg_counted_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    if (s->arguments != 3 || !s->a[0].address || s->a[1].address ||
        !sg_suffix(s, ".mbarrier::complete_tx::bytes"))
        sg_operands_refuse(p, s);
    const struct sg_argument *v = &s->a[1];
    in->vector = (uint8_t)v->count;
    struct sg_operand *x = sg_operands_take(p, in, v->count + 2);
    x[0] = sg_atom_operand(p, s, &s->a[0].e[0], SG_T_B64);
    in->offset = s->a[0].offset;
    for (uint32_t i = 0; i < v->count; i++)
        x[i + 1] = sg_atom_operand(p, s, &v->e[i], in->type);
    x[v->count + 1] = sg_address_operand(p, s, &s->a[2]);
}
