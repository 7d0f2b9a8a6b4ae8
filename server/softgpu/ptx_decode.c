/* From a statement as written to an instruction: suffixes, then operands. */
#include "ptx_decode.h"

bool sg_suffix(struct sg_statement *s, const char *text)
{
    for (uint32_t i = 0; i < s->suffixes; i++)
        if (sg_token_is(&s->suffix[i], text)) {
            s->used[i] = true;
            return true;
        }
    return false;
}

int sg_suffix_of(struct sg_statement *s, const char *const *list)
{
    for (int i = 0; list[i]; i++)
        if (sg_suffix(s, list[i]))
            return i;
    return -1;
}

void sg_operands_refuse(struct sg_parser *p, const struct sg_statement *s)
{
    sg_fail(p, s->line, "%s: these operands are not supported by the soft GPU", s->text);
}

struct sg_operand *sg_operands_take(struct sg_parser *p, struct sg_insn *in, uint32_t count)
{
    in->x = sg_take(p, (count ? count : 1) * sizeof(*in->x));
    in->operands = (uint8_t)count;
    return in->x;
}

/* The type of operand `i` (0: the first destination). */
static enum sg_type operand_type(const struct sg_insn *in, uint32_t i)
{
    switch (in->op) {
    case SG_P_SHL:
    case SG_P_SHR:
        return i == 2 ? SG_T_U32 : (enum sg_type)in->type;
    case SG_P_CVT:
        return i == 1 ? (enum sg_type)in->type2 : (enum sg_type)in->type;
    case SG_P_CVT_PACK:
        return i ? SG_T_F32 : (enum sg_type)in->type;
    case SG_P_MUL:
    case SG_P_MAD:
        if (in->mode == SG_H_WIDE && (i == 0 || i == 3))
            return SG_T_B64;
        return (enum sg_type)in->type;
    case SG_P_SET:
        return i ? (enum sg_type)in->type2 : (enum sg_type)in->type;
    case SG_P_SLCT:
        return i == 3 ? (enum sg_type)in->type2 : (enum sg_type)in->type;
    case SG_P_BFE:
        return i > 1 ? SG_T_U32 : (enum sg_type)in->type;
    case SG_P_BFI:
        return i > 2 ? SG_T_U32 : (enum sg_type)in->type;
    case SG_P_VOTE:
        return i == 2 ? SG_T_B32 : (enum sg_type)in->type; /* the members */
    default:
        return (enum sg_type)in->type;
    }
}

/* All operands in order, one each. */
static void operands_plain(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    struct sg_operand *x = sg_operands_take(p, in, s->arguments);
    for (uint32_t i = 0; i < s->arguments; i++) {
        if (s->a[i].vector)
            sg_fail(p, s->line, "%s: braces are not expected here", s->text);
        x[i] = sg_atom_operand(p, s, &s->a[i].e[0], operand_type(in, i));
        if (s->a[i].address)
            in->offset = s->a[i].offset;
    }
    in->sources = s->arguments ? (uint8_t)(s->arguments - 1) : 0;
}

/* mov.b64 {a, b}, c and mov.b64 c, {a, b}. */
static void move_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    if (s->arguments != 2)
        sg_fail(p, s->line, "%s takes two operands", s->text);
    const struct sg_argument *d = &s->a[0], *a = &s->a[1];
    if (d->vector) {
        in->op = SG_P_UNPACK;
        struct sg_operand *x = sg_operands_take(p, in, d->count + 1);
        for (uint32_t i = 0; i < d->count; i++)
            x[i] = sg_atom_operand(p, s, &d->e[i], SG_T_B64);
        x[d->count] = sg_atom_operand(p, s, &a->e[0], (enum sg_type)in->type);
    } else if (a->vector) {
        in->op = SG_P_PACK;
        struct sg_operand *x = sg_operands_take(p, in, a->count + 1);
        static const enum sg_type parts[] = {SG_T_B8, SG_T_B8, SG_T_B16, SG_T_B32, SG_T_B64};
        uint32_t size = sg_type_size(in->type) / a->count;
        enum sg_type part = parts[size >= 8 ? 4 : size >= 4 ? 3 : size >= 2 ? 2 : 1];
        x[0] = sg_atom_operand(p, s, &d->e[0], (enum sg_type)in->type);
        for (uint32_t i = 0; i < a->count; i++)
            x[i + 1] = sg_atom_operand(p, s, &a->e[i], part);
        in->sources = (uint8_t)a->count;
    } else {
        operands_plain(p, s, in);
    }
}

static void policy_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    if (!s->arguments)
        sg_fail(p, s->line, "%s: no operands", s->text);
    struct sg_operand *x = sg_operands_take(p, in, 2);
    x[0] = sg_atom_operand(p, s, &s->a[0].e[0], SG_T_B64);
    x[1].kind = SG_O_IMMEDIATE;
    in->op = SG_P_MOV;
    in->type = SG_T_B64;
    in->sources = 1;
}

/* Destinations (a vector or one), then the address; a store the other way round. */
static void access_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in,
                          bool store)
{
    uint32_t address = store ? 0 : 1, data = store ? 1 : 0;
    if (s->arguments < 2 || !s->a[address].address)
        sg_fail(p, s->line, "%s: expected an address in brackets", s->text);
    const struct sg_argument *v = &s->a[data];
    uint32_t n = v->vector ? v->count : 1;
    struct sg_operand *x = sg_operands_take(p, in, n + 1), *at = store ? x + 1 : x;
    in->vector = (uint8_t)n;
    in->offset = s->a[address].offset;
    x[store ? 0 : n] = sg_atom_operand(p, s, &s->a[address].e[0], SG_T_B64);
    for (uint32_t i = 0; i < n; i++)
        at[i] = sg_atom_operand(p, s, &v->e[i], (enum sg_type)in->type);
}

static void branch_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    uint32_t index = (uint32_t)(in - p->module->code);
    const struct sg_argument *target = &s->a[in->op == SG_P_BRX ? 1 : 0];
    if (s->arguments < (in->op == SG_P_BRX ? 2u : 1u))
        sg_fail(p, s->line, "%s: no target", s->text);
    sg_operands_take(p, in, in->op == SG_P_BRX);
    if (in->op == SG_P_BRX)
        in->x[0] = sg_atom_operand(p, s, &s->a[0].e[0], SG_T_U32);
    /* known labels are no symbols for operands: the name is what counts */
    if (target->e[0].kind != SG_E_NAME)
        sg_fail(p, s->line, "%s: the target is no label", s->text);
    sg_fixup_add(p, target->e[0].name, target->e[0].name_size, s->line, index, NULL);
}

/* d|p, a, b, …: the second destination apart, or absent. */
static void piped_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    struct sg_operand *x = sg_operands_take(p, in, s->arguments + 1);
    if (!s->arguments)
        sg_fail(p, s->line, "%s: no operands", s->text);
    x[0] = sg_atom_operand(p, s, &s->a[0].e[0], (enum sg_type)in->type);
    if (s->a[0].piped)
        x[1] = sg_atom_operand(p, s, &s->a[0].second, SG_T_PRED);
    for (uint32_t i = 1; i < s->arguments; i++)
        x[i + 1] = sg_atom_operand(p, s, &s->a[i].e[0],
                                   in->op == SG_P_SETP ? (enum sg_type)in->type : SG_T_B32);
    if (in->op == SG_P_MATCH && s->arguments > 1)
        x[2] = sg_atom_operand(p, s, &s->a[1].e[0], (enum sg_type)in->type);
}

/* What has a file of its own, or nothing special. */
static void operands_other(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in)
{
    switch (in->op) {
    case SG_P_CP_ASYNC:
    case SG_P_CP_BULK:
    case SG_P_RED_BULK:
        sg_copy_decode(p, s, in);
        break;
    case SG_P_TENSOR_REPLACE:
        sg_tensormap_decode(p, s, in);
        break;
    case SG_P_ST_ASYNC:
    case SG_P_RED_ASYNC:
        sg_counted_decode(p, s, in);
        break;
    case SG_P_TENSOR_LOAD:
    case SG_P_TENSOR_STORE:
    case SG_P_TENSOR_REDUCE:
        sg_tensor_decode(p, s, in);
        break;
    case SG_P_MBARRIER:
        sg_mbarrier_decode(p, s, in);
        break;
    case SG_P_TEX:
    case SG_P_TLD4:
    case SG_P_TXQ:
    case SG_P_SULD:
    case SG_P_SUST:
    case SG_P_SURED:
        sg_texture_decode(p, s, in);
        break;
    case SG_P_MMA:
    case SG_P_WGMMA:
    case SG_P_MOVMATRIX:
    case SG_P_LDMATRIX:
    case SG_P_STMATRIX:
    case SG_P_WMMA_LOAD:
    case SG_P_WMMA_STORE:
        sg_matrix_decode(p, s, in);
        break;
    default:
        operands_plain(p, s, in);
        break;
    }
}

void sg_statement_decode(struct sg_parser *p, struct sg_statement *s)
{
    struct sg_insn *in = sg_insn_append(p, s->line);
    in->guarded = s->guarded;
    in->guard_negated = s->guard_negated;
    in->guard = s->guard;
    if (!sg_opcode_decode(s, in))
        sg_fail(p, s->line, "instruction %s is not supported by the soft GPU", s->text);
    switch (in->op) {
    case SG_P_MOV:
        move_decode(p, s, in);
        break;
    case SG_P_LD:
    case SG_P_LDU:
        access_decode(p, s, in, false);
        break;
    case SG_P_ST:
        access_decode(p, s, in, true);
        break;
    case SG_P_BRA:
    case SG_P_BRX:
        branch_decode(p, s, in);
        break;
    case SG_P_SETP:
    case SG_P_LOP3_TEST:
    case SG_P_SHFL:
    case SG_P_MATCH:
    case SG_P_ELECT:
        piped_decode(p, s, in);
        break;
    case SG_P_FENCE:
    case SG_P_WARPGROUP:
        sg_operands_take(p, in, 0);
        break;
    case SG_P_CREATEPOLICY:
        policy_decode(p, s, in);
        break;
    default:
        operands_other(p, s, in);
        break;
    }
    in->pure = sg_pure_select(in);
    in->execute = sg_execute_select(in);
    if (!in->execute)
        sg_fail(p, s->line, "instruction %s is not supported by the soft GPU", s->text);
}
