/* Operands: registers, numbers, names, addresses, vectors. */
#include "ptx_parse.h"

static void number_take(struct sg_parser *p, struct sg_atom *atom, bool negative)
{
    struct sg_token t = p->token;
    atom->value = t.value;
    if (t.kind == SG_K_INTEGER) {
        atom->kind = SG_E_INTEGER;
        atom->value = negative ? 0 - t.value : t.value;
    } else if (t.kind == SG_K_F32) {
        atom->kind = SG_E_F32;
        atom->value ^= negative ? UINT64_C(0x80000000) : 0;
    } else if (t.kind == SG_K_F64) {
        atom->kind = SG_E_F64;
        atom->value ^= negative ? UINT64_C(1) << 63 : 0;
    } else {
        sg_fail(p, t.line, "expected an operand before '%.*s'", (int)(t.size < 40 ? t.size : 40),
                t.size ? t.text : "");
    }
    sg_advance(p);
}

/* %tid.x comes as a name and a suffix. */
static bool special_take(struct sg_parser *p, struct sg_atom *atom, struct sg_token *name)
{
    size_t size = name->size;
    bool dotted = p->token.kind == SG_K_DOT && p->token.text == name->text + name->size;
    int special = -1;
    if (dotted) {
        special = sg_special_find(name->text, size + p->token.size);
        if (special >= 0)
            sg_advance(p);
    }
    if (special < 0)
        special = sg_special_find(name->text, size);
    if (special < 0)
        return false;
    atom->kind = SG_E_SPECIAL;
    atom->slot = (uint32_t)special;
    p->module->reserves_shared |= special == SG_X_RESERVED_SMEM;
    return true;
}

static void name_take(struct sg_parser *p, struct sg_atom *atom)
{
    struct sg_token name = p->token;
    sg_advance(p);
    struct sg_symbol *s = sg_symbol_find(p, name.text, name.size);
    if (s && s->kind == SG_N_REGISTER) {
        atom->kind = SG_E_REGISTER;
        atom->slot = s->slot;
        atom->type = s->type;
    } else if (s && s->kind != SG_N_LABEL && s->kind != SG_N_TARGETS && s->kind != SG_N_PROTOTYPE) {
        atom->kind = SG_E_SYMBOL;
        atom->symbol = s;
    } else if (sg_token_is(&name, "_")) {
        atom->kind = SG_E_SINK;
    } else if (sg_token_is(&name, "WARP_SZ")) {
        atom->kind = SG_E_INTEGER;
        atom->value = SG_LANES;
    } else if (name.text[0] == '%' && special_take(p, atom, &name)) {
        return;
    } else { /* a label, perhaps one that comes later */
        atom->kind = SG_E_NAME;
        atom->name = name.text;
        atom->name_size = name.size;
    }
}

static void atom_parse(struct sg_parser *p, struct sg_atom *atom)
{
    memset(atom, 0, sizeof(*atom));
    atom->negated = sg_accept(p, '!');
    bool negative = sg_accept(p, '-');
    if (p->token.kind == SG_K_NAME && !negative)
        name_take(p, atom);
    else
        number_take(p, atom, negative);
}

/* {a, b, …}, of which the brace is taken. */
static uint32_t list_parse(struct sg_parser *p, struct sg_atom *list, uint32_t most)
{
    uint32_t count = 0;
    do {
        if (count == most)
            sg_fail(p, p->token.line, "more than %u elements in braces", most);
        atom_parse(p, &list[count++]);
    } while (sg_accept(p, ','));
    sg_expect(p, '}');
    return count;
}

/* The same of an operand, whose first elements have their place in it. */
static void elements_parse(struct sg_parser *p, struct sg_argument *a, uint32_t most)
{
    struct sg_atom list[SG_MOST_ELEMENTS];
    a->count = list_parse(p, list, most);
    uint32_t here = a->count < SG_MAX_ELEMENTS ? a->count : SG_MAX_ELEMENTS;
    memcpy(a->e, list, here * sizeof(*list));
    if (a->count == here)
        return;
    a->more = sg_take_scratch(p, (a->count - here) * sizeof(*list));
    memcpy(a->more, list + here, (a->count - here) * sizeof(*list));
}

static void address_parse(struct sg_parser *p, struct sg_argument *a)
{
    a->address = true;
    a->count = 1;
    atom_parse(p, &a->e[0]);
    while (sg_at(p, '+') || sg_at(p, '-')) {
        bool minus = sg_at(p, '-');
        sg_advance(p);
        int64_t n = sg_expect_integer(p);
        a->offset += minus ? -n : n;
    }
    if (sg_accept(p, ',')) { /* where in a texture */
        if (sg_accept(p, '{')) {
            a->coordinates = list_parse(p, a->at, SG_MAX_COORDINATES);
        } else {
            atom_parse(p, &a->at[0]);
            a->coordinates = 1;
        }
    }
    sg_expect(p, ']');
}

/* d|p */
static void pipe_parse(struct sg_parser *p, struct sg_argument *a)
{
    a->piped = sg_accept(p, '|');
    if (a->piped)
        atom_parse(p, &a->second);
}

void sg_argument_parse(struct sg_parser *p, struct sg_argument *a, uint32_t most)
{
    memset(a, 0, sizeof(*a));
    if (sg_accept(p, '[')) {
        address_parse(p, a);
        return;
    }
    if (sg_accept(p, '{')) {
        a->vector = true;
        elements_parse(p, a, most);
        pipe_parse(p, a);
        return;
    }
    a->count = 1;
    atom_parse(p, &a->e[0]);
    pipe_parse(p, a);
    if (sg_at(p, '+') || sg_at(p, '-')) { /* symbol+8 */
        bool minus = sg_at(p, '-');
        sg_advance(p);
        int64_t n = sg_expect_integer(p);
        a->e[0].value += (uint64_t)(minus ? -n : n);
    }
}

static struct sg_operand symbol_operand(struct sg_parser *p, const struct sg_statement *s,
                                        const struct sg_atom *atom)
{
    const struct sg_symbol *symbol = atom->symbol;
    struct sg_operand o = {.width = 8, .slot = symbol->slot, .value = atom->value};
    switch (symbol->kind) {
    case SG_N_GLOBAL:
        o.kind = SG_O_GLOBAL;
        break;
    case SG_N_SHARED:
        o.kind = SG_O_SHARED;
        sg_list_push(p, &p->function->shared_used, symbol->slot);
        break;
    case SG_N_LOCAL:
        o.kind = SG_O_LOCAL;
        o.value += symbol->slot;
        o.slot = symbol->size;
        break;
    case SG_N_PARAM:
        o.kind = SG_O_IMMEDIATE;
        o.value += symbol->slot;
        break;
    case SG_N_FUNCTION:
        o.kind = SG_O_IMMEDIATE;
        o.value = SG_WINDOW_CODE | (symbol->function->index + 1);
        symbol->function->address_taken = true;
        break;
    default:
        sg_fail(p, s->line, "%s: '%.*s' cannot be an operand here", s->text,
                (int)symbol->size_of_name, symbol->name);
    }
    return o;
}

/* Numbers in the form that the type's registers have. */
static uint64_t number_as(const struct sg_atom *atom, enum sg_type type)
{
    double d;
    float f;
    uint64_t bits = atom->value;
    uint32_t size = sg_type_size(type);
    /* 0f… where f64 is wanted is its pattern, longer by zeros: so ptxas has it */
    if (atom->kind == SG_E_F64 && type == SG_T_F32) {
        memcpy(&d, &atom->value, sizeof(d));
        f = (float)d;
        bits = 0;
        memcpy(&bits, &f, sizeof(f));
    }
    return size && size < 8 ? bits & ((UINT64_C(1) << (8 * size)) - 1) : bits;
}

struct sg_operand sg_atom_operand(struct sg_parser *p, const struct sg_statement *s,
                                  const struct sg_atom *atom, enum sg_type type)
{
    struct sg_operand o = {.kind = SG_O_NONE, .negated = atom->negated};
    switch (atom->kind) {
    case SG_E_SINK:
        return o;
    case SG_E_REGISTER:
        o.kind = SG_O_REGISTER;
        o.slot = atom->slot;
        o.width = (uint8_t)sg_type_size(atom->type);
        return o;
    case SG_E_SPECIAL:
        o.kind = SG_O_SPECIAL;
        o.slot = atom->slot;
        o.width = 8;
        return o;
    case SG_E_INTEGER:
    case SG_E_F32:
    case SG_E_F64:
        o.kind = SG_O_IMMEDIATE;
        o.width = 8;
        o.value = number_as(atom, type);
        return o;
    case SG_E_SYMBOL:
        return symbol_operand(p, s, atom);
    case SG_E_NAME:
        break;
    }
    sg_fail(p, s->line, "%s: '%.*s' is not declared", s->text,
            (int)(atom->name_size < 80 ? atom->name_size : 80), atom->name);
}

struct sg_operand sg_address_operand(struct sg_parser *p, const struct sg_statement *s,
                                     const struct sg_argument *a)
{
    struct sg_operand o = sg_atom_operand(p, s, &a->e[0], SG_T_B64);
    if (!a->address)
        sg_fail(p, s->line, "%s: expected an address in brackets", s->text);
    o.value += (uint64_t)a->offset;
    return o;
}
