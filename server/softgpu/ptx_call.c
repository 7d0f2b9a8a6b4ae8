/* call (results), function, (arguments)[, prototype or targets]; */
#include "ptx_parse.h"

static uint32_t list_parse(struct sg_parser *p, const struct sg_statement *s,
                           struct sg_operand **out)
{
    struct sg_operand list[256];
    uint32_t count = 0;
    sg_expect(p, '(');
    while (!sg_at(p, ')')) {
        struct sg_argument a;
        if (count == 256)
            sg_fail(p, s->line, "more than 256 arguments");
        sg_argument_parse(p, &a, SG_MAX_ELEMENTS);
        list[count++] = sg_atom_operand(p, s, &a.e[0], SG_T_B64);
        if (!sg_accept(p, ','))
            break;
    }
    sg_expect(p, ')');
    *out = sg_take(p, (count ? count : 1) * sizeof(**out));
    memcpy(*out, list, count * sizeof(**out));
    return count;
}

void sg_call_parse(struct sg_parser *p, const struct sg_statement *s)
{
    struct sg_call *call = sg_take(p, sizeof(*call));
    struct sg_operand pointer = {.kind = SG_O_NONE};
    if (sg_at(p, '(')) {
        call->result_count = list_parse(p, s, &call->results);
        sg_expect(p, ',');
    }
    struct sg_argument target;
    sg_argument_parse(p, &target, SG_MAX_ELEMENTS);
    const struct sg_atom *atom = &target.e[0];
    if (atom->kind == SG_E_SYMBOL && atom->symbol->kind == SG_N_FUNCTION) {
        call->callee = atom->symbol->function;
        atom->symbol->function->called = true;
        sg_list_push(p, &p->function->callees, atom->symbol->function->index);
    } else if (atom->kind == SG_E_REGISTER) {
        pointer = sg_atom_operand(p, s, atom, SG_T_B64);
        p->function->calls_pointer = true;
    } else {
        sg_fail(p, s->line, "call: the target is neither a function nor a register");
    }
    if (sg_accept(p, ',') && sg_at(p, '('))
        call->argument_count = list_parse(p, s, &call->arguments);
    while (sg_accept(p, ',')) { /* a prototype, or a list of targets */
        if (sg_at(p, '{'))
            while (p->token.kind != SG_K_END && !sg_accept(p, '}'))
                sg_advance(p);
        else
            sg_advance(p);
    }
    if (p->token.kind == SG_K_NAME)
        sg_advance(p);
    sg_expect(p, ';');
    struct sg_operand *x = sg_take(p, sizeof(*x));
    *x = pointer;
    struct sg_insn *in = sg_insn_append(p, s->line);
    in->op = SG_P_CALL;
    in->call = call;
    in->x = x;
    in->operands = 1;
    in->guarded = s->guarded;
    in->guard_negated = s->guard_negated;
    in->guard = s->guard;
    in->execute = sg_execute_select(in);
}
