/* Copies that a tensor map tells of, and copies that reduce: suffixes and operands. */
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
