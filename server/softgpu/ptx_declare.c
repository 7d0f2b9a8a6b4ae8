/* Declarations: variables of a module and of a body, and formals. */
#include "ptx_parse.h"

#include <stdio.h>

bool sg_declaration_starts(const struct sg_parser *p)
{
    static const char *const spaces[] = {".reg",    ".local", ".shared",
                                         ".global", ".const", ".param"};
    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++)
        if (sg_at_dot(p, spaces[i]))
            return true;
    return false;
}

struct shape {
    enum sg_type type;
    uint32_t align;
    uint64_t vector;
    enum sg_global_kind kind;
    bool managed;
};

/* .texref and .surfref: kernels know one by its address. */
static enum sg_global_kind reference_at(const struct sg_parser *p)
{
    return sg_at_dot(p, ".texref")    ? SG_G_TEXREF
           : sg_at_dot(p, ".surfref") ? SG_G_SURFREF
                                      : SG_G_PLAIN;
}

/* .attribute(.managed), or .unified with two numbers, which says nothing here. */
static void attributes_parse(struct sg_parser *p, struct shape *s)
{
    sg_expect(p, '(');
    do {
        if (sg_at_dot(p, ".managed"))
            s->managed = true;
        else if (!sg_at_dot(p, ".unified"))
            sg_fail(p, p->token.line, "'%.*s' is no attribute of a variable", (int)p->token.size,
                    p->token.text);
        sg_advance(p);
        if (!sg_accept(p, '('))
            continue;
        sg_expect_integer(p);
        sg_expect(p, ',');
        sg_expect_integer(p);
        sg_expect(p, ')');
    } while (sg_accept(p, ','));
    sg_expect(p, ')');
}

/* .align N, .v4, .ptr … and the type. */
static struct shape shape_parse(struct sg_parser *p)
{
    struct shape s = {SG_T_NONE, 0, 1, SG_G_PLAIN, false};
    uint32_t pointee, *align = &s.align; /* behind .ptr it is that of what is pointed to */
    while (p->token.kind == SG_K_DOT) {
        enum sg_type type = sg_type_of(&p->token);
        if (type != SG_T_NONE) {
            s.type = type;
        } else if (reference_at(p) != SG_G_PLAIN) {
            s.type = SG_T_B64;
            s.kind = reference_at(p);
        } else if (sg_at_dot(p, ".align")) {
            sg_advance(p);
            *align = (uint32_t)sg_expect_count(p, 1u << 16, ".align");
            continue;
        } else if (sg_at_dot(p, ".attribute")) {
            sg_advance(p);
            attributes_parse(p, &s);
            continue;
        } else if (sg_at_dot(p, ".v2") || sg_at_dot(p, ".v4")) {
            s.vector = p->token.text[2] - '0';
        } else if (sg_at_dot(p, ".ptr")) {
            align = &pointee;
        } else if (!sg_at_dot(p, ".global") && !sg_at_dot(p, ".const") && !sg_at_dot(p, ".local") &&
                   !sg_at_dot(p, ".shared")) {
            sg_fail(p, p->token.line, "'%.*s' is no type", (int)p->token.size, p->token.text);
        }
        sg_advance(p);
    }
    if (s.type == SG_T_NONE)
        sg_fail(p, p->token.line, "a declaration without a type");
    uint32_t natural = sg_type_size(s.type) * (uint32_t)s.vector;
    if (s.align < natural && !s.align)
        s.align = natural;
    if (s.align == 0 || (s.align & (s.align - 1)))
        sg_fail(p, p->token.line, ".align must be a power of two");
    return s;
}

/* [4][8] behind a name: elements, 0 for []. */
static uint64_t array_parse(struct sg_parser *p)
{
    uint64_t count = 1;
    while (sg_accept(p, '[')) {
        uint64_t n = 0;
        if (!sg_at(p, ']'))
            n = sg_expect_count(p, SG_MAX_INIT, "array size");
        sg_expect(p, ']');
        if (__builtin_mul_overflow(count, n, &count) || count > ((uint64_t)1 << 40))
            sg_fail(p, p->token.line, "the array is too large");
    }
    return count;
}

static uint64_t bytes_of(struct sg_parser *p, const struct shape *s, uint64_t count)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(sg_type_size(s->type) * s->vector, count, &bytes) ||
        bytes > ((uint64_t)1 << 40))
        sg_fail(p, p->token.line, "the variable is too large");
    return bytes;
}

static uint32_t frame_take(struct sg_parser *p, uint64_t bytes, uint32_t align)
{
    uint64_t at = (p->function->frame_bytes + (uint64_t)align - 1) / align * align;
    if (bytes > SG_MAX_FRAME || at > SG_MAX_FRAME - bytes)
        sg_fail(p, p->token.line, "more than %u bytes of local memory", SG_MAX_FRAME);
    p->function->frame_bytes = (uint32_t)(at + bytes);
    if (p->function->frame_align < align)
        p->function->frame_align = align;
    return (uint32_t)at;
}

static uint32_t slots_take(struct sg_parser *p, uint64_t count)
{
    if (count > SG_MAX_SLOTS || p->function->slots > SG_MAX_SLOTS - count)
        sg_fail(p, p->token.line, "more than %u registers", SG_MAX_SLOTS);
    uint32_t at = p->function->slots;
    p->function->slots += (uint32_t)count;
    return at;
}

/* --- initialisers ------------------------------------------------------------------ */

struct initial {
    unsigned char *bytes;
    uint64_t size, at;
    uint32_t element;
    enum sg_type type;
    struct sg_variable *variable;
};

static void relocate(struct sg_parser *p, struct initial *in, const struct sg_token *name,
                     bool is_generic)
{
    (void)is_generic; /* global and generic addresses are the same numbers */
    struct sg_symbol *s = sg_symbol_find(p, name->text, name->size);
    if (!s || (s->kind != SG_N_GLOBAL && s->kind != SG_N_FUNCTION))
        sg_fail(p, name->line, "'%.*s' in an initialiser is no variable or function",
                (int)name->size, name->text);
    int64_t addend = 0;
    if (sg_at(p, '+') || sg_at(p, '-')) {
        bool minus = sg_at(p, '-');
        sg_advance(p);
        addend = sg_expect_integer(p);
        addend = minus ? -addend : addend;
    }
    struct sg_variable *v = in->variable;
    if (v->relocation_count == v->relocation_capacity) {
        uint32_t more = v->relocation_capacity ? 2 * v->relocation_capacity : 8;
        struct sg_relocation *list = sg_take(p, more * sizeof(*list));
        if (v->relocation_count)
            memcpy(list, v->relocations, v->relocation_count * sizeof(*list));
        v->relocations = list;
        v->relocation_capacity = more;
    }
    bool function = s->kind == SG_N_FUNCTION;
    v->relocations[v->relocation_count++] = (struct sg_relocation){
        .offset = in->at,
        .addend = addend,
        .symbol = function ? s->function->index : s->slot,
        .size = (uint8_t)in->element,
        .function = function};
    if (function)
        s->function->address_taken = true;
}

static void value_parse(struct sg_parser *p, struct initial *in)
{
    if (in->at + in->element > in->size)
        sg_fail(p, p->token.line, "more initial values than the variable has room for");
    bool negative = sg_accept(p, '-');
    struct sg_token t = p->token;
    if (t.kind == SG_K_NAME) {
        sg_advance(p);
        if (sg_token_is(&t, "generic") && sg_accept(p, '(')) {
            t = p->token;
            sg_advance(p);
            sg_expect(p, ')');
        }
        relocate(p, in, &t, true);
    } else {
        uint64_t bits = t.value;
        if (t.kind == SG_K_F32 || t.kind == SG_K_F64) {
            double d;
            float f;
            memcpy(&f, &t.value, sizeof(f));
            memcpy(&d, &t.value, sizeof(d));
            if (t.kind == SG_K_F32)
                d = f;
            d = negative ? -d : d;
            f = (float)d;
            bits = 0;
            if (in->type == SG_T_F32)
                memcpy(&bits, &f, sizeof(f));
            else
                memcpy(&bits, &d, sizeof(d));
        } else if (t.kind == SG_K_INTEGER) {
            bits = negative ? 0 - bits : bits;
        } else {
            sg_fail(p, t.line, "expected an initial value");
        }
        sg_advance(p);
        memcpy(in->bytes + in->at, &bits, in->element < 8 ? in->element : 8);
    }
    in->at += in->element;
}

static void values_parse(struct sg_parser *p, struct initial *in, unsigned depth)
{
    if (!sg_accept(p, '{')) {
        value_parse(p, in);
        return;
    }
    if (depth > 8)
        sg_fail(p, p->token.line, "initialisers are nested too deep");
    while (!sg_at(p, '}')) {
        values_parse(p, in, depth + 1);
        if (!sg_accept(p, ','))
            break;
    }
    sg_expect(p, '}');
}

/* --- variables ------------------------------------------------------------------------ */

/* The variable of this name, if one of the two declarations is .extern, or this one .weak: then they
 * are one. */
static struct sg_variable *global_known(struct sg_parser *p, const struct sg_token *name)
{
    struct sg_symbol *s = sg_symbol_find(p, name->text, name->size);
    if (!s || s->kind != SG_N_GLOBAL)
        return NULL;
    struct sg_variable *v = p->module->globals[s->slot];
    return v->external || p->external || p->weak ? v : NULL;
}

static struct sg_variable *global_new(struct sg_parser *p, const struct sg_token *name)
{
    struct sg_module *m = p->module;
    struct sg_variable *v = sg_take(p, sizeof(*v));
    m->globals = sg_grow(p, m->globals, m->global_count, &m->global_capacity, sizeof(*m->globals));
    v->global.name = sg_take_name(p, name);
    v->external = true;
    struct sg_symbol *symbol = sg_symbol_declare(p, name, SG_N_GLOBAL);
    symbol->slot = m->global_count;
    m->globals[m->global_count++] = v;
    return v;
}

static void global_declare(struct sg_parser *p, const struct sg_token *name, const struct shape *s,
                           uint64_t bytes, bool constant)
{
    struct sg_variable *v = global_known(p, name);
    if (!v)
        v = global_new(p, name);
    else if (p->external)
        return; /* promised again */
    else if (!v->external)
        v = sg_take(p, sizeof(*v)); /* another part has it: what it begins with is nobody's */
    v->external = p->external;
    v->global.size = bytes;
    v->global.align = s->align;
    v->global.constant = constant;
    v->global.kind = (uint8_t)s->kind;
    v->global.managed = s->managed;
    if (s->kind != SG_G_PLAIN || !sg_accept(p, '='))
        return;
    if (bytes > SG_MAX_INIT)
        sg_fail(p, p->token.line, "the initial value is too large");
    struct initial in = {sg_take(p, bytes), bytes, 0, sg_type_size(s->type), s->type, v};
    values_parse(p, &in, 0);
    v->global.init = in.bytes;
}

static void shared_declare(struct sg_parser *p, const struct sg_token *name, const struct shape *s,
                           uint64_t bytes)
{
    struct sg_module *m = p->module;
    struct sg_symbol *known = sg_symbol_find(p, name->text, name->size);
    if (known && known->kind == SG_N_SHARED && !p->function)
        return; /* .extern, declared again */
    if (bytes > SG_MAX_SHARED)
        sg_fail(p, name->line, "'%.*s' has more shared memory than a block may use",
                (int)name->size, name->text);
    struct sg_shared *shared = sg_take(p, sizeof(*shared));
    m->shared = sg_grow(p, m->shared, m->shared_count, &m->shared_capacity, sizeof(*m->shared));
    *shared = (struct sg_shared){sg_take_name(p, name), bytes, s->align, bytes == 0};
    struct sg_symbol *symbol = sg_symbol_declare(p, name, SG_N_SHARED);
    symbol->slot = m->shared_count;
    m->shared[m->shared_count++] = shared;
}

static void registers_declare(struct sg_parser *p, const struct sg_token *name,
                              const struct shape *s)
{
    uint32_t step = sg_type_size(s->type) > 8 ? 2 : 1;
    bool range = sg_accept(p, '<');
    uint64_t count = 1;
    if (range) {
        count = sg_expect_count(p, SG_MAX_SLOTS, "register count");
        sg_expect(p, '>');
    }
    struct sg_symbol *r = sg_symbol_declare(p, name, range ? SG_N_REGISTERS : SG_N_REGISTER);
    r->type = s->type;
    r->count = (uint32_t)count;
    r->step = step;
    r->slot = slots_take(p, count * step);
}

void sg_declaration_parse(struct sg_parser *p)
{
    char space[16];
    snprintf(space, sizeof(space), "%.*s", (int)p->token.size, p->token.text);
    sg_advance(p);
    struct shape s = shape_parse(p);
    if (s.kind != SG_G_PLAIN && (strcmp(space, ".global") || s.vector != 1))
        sg_fail(p, p->token.line, "a reference is no variable of the state space %s", space);
    do {
        struct sg_token name = p->token;
        if (name.kind != SG_K_NAME)
            sg_fail(p, name.line, "expected a name");
        sg_advance(p);
        if (!strcmp(space, ".reg")) {
            if (!p->function)
                sg_fail(p, name.line, ".reg outside a function");
            registers_declare(p, &name, &s);
            continue;
        }
        uint64_t bytes = bytes_of(p, &s, array_parse(p));
        if (s.managed && (strcmp(space, ".global") != 0 || s.kind != SG_G_PLAIN))
            sg_fail(p, name.line, "%s memory is never managed", space);
        if (!strcmp(space, ".shared")) {
            shared_declare(p, &name, &s, bytes);
        } else if (!strcmp(space, ".global") || !strcmp(space, ".const")) {
            global_declare(p, &name, &s, bytes, !strcmp(space, ".const"));
        } else if (p->function) { /* .local, .param of a call */
            struct sg_symbol *v = sg_symbol_declare(p, &name, SG_N_LOCAL);
            v->slot = frame_take(p, bytes, s.align);
            v->size = (uint32_t)bytes;
        } else {
            sg_fail(p, name.line, "%s outside a function", space);
        }
    } while (sg_accept(p, ','));
    sg_expect(p, ';');
}

/* One formal. Of a kernel: a place in the parameter buffer (`kernel_bytes` grows);
 * of a device function: a register, or memory of its frame. */
struct sg_formal sg_formal_parse(struct sg_parser *p, uint32_t *kernel_bytes,
                                 struct sg_parameter *parameter)
{
    bool in_register = sg_at_dot(p, ".reg");
    if (!in_register && !sg_at_dot(p, ".param"))
        sg_fail(p, p->token.line, "expected .param or .reg");
    sg_advance(p);
    struct shape s = shape_parse(p);
    struct sg_token name = p->token;
    if (s.kind != SG_G_PLAIN)
        sg_fail(p, name.line, "references as parameters are not supported by the soft GPU");
    sg_advance(p);
    uint64_t bytes = bytes_of(p, &s, array_parse(p));
    struct sg_formal f = {.in_register = in_register, .size = (uint32_t)bytes};
    if (kernel_bytes) {
        uint64_t at = (*kernel_bytes + (uint64_t)s.align - 1) / s.align * s.align;
        if (bytes > SG_MAX_PARAMETERS || at > SG_MAX_PARAMETERS - bytes)
            sg_fail(p, name.line, "more than %u bytes of parameters", SG_MAX_PARAMETERS);
        struct sg_symbol *symbol = sg_symbol_declare(p, &name, SG_N_PARAM);
        symbol->slot = (uint32_t)at;
        symbol->size = (uint32_t)bytes;
        *parameter = (struct sg_parameter){(uint32_t)at, (uint32_t)bytes, s.align};
        *kernel_bytes = (uint32_t)(at + bytes);
        return f;
    }
    if (bytes > SG_MAX_FRAME)
        sg_fail(p, name.line, "the formal is too large");
    struct sg_symbol *symbol = sg_symbol_declare(p, &name,
                                                 in_register ? SG_N_REGISTER : SG_N_LOCAL);
    symbol->type = s.type;
    symbol->size = (uint32_t)bytes;
    if (in_register)
        f.slot = symbol->slot = slots_take(p, sg_type_size(s.type) > 8 ? 2 : 1);
    else
        f.offset = symbol->slot = frame_take(p, bytes, s.align);
    return f;
}
