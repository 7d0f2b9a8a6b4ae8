/* Functions: heads, bodies, labels. */
#include "ptx_parse.h"

#include <stdio.h>

struct sg_insn *sg_insn_append(struct sg_parser *p, uint32_t line)
{
    struct sg_module *m = p->module;
    m->code = sg_grow(p, m->code, m->code_count, &m->code_capacity, sizeof(*m->code));
    struct sg_insn *in = &m->code[m->code_count++];
    memset(in, 0, sizeof(*in));
    in->line = line;
    in->vector = 1;
    return in;
}

/* Of CUDA's runtime on the device, behind "__cudaCDP2". */
static uint8_t runtime_named(const char *name)
{
    static const struct {
        const char *name;
        uint8_t builtin;
    } known[] = {{"GetParameterBufferV2", SG_B_CHILD_BUFFER},
                 {"LaunchDeviceV2", SG_B_CHILD_LAUNCH},
                 {"LaunchDeviceV2_ptsz", SG_B_CHILD_LAUNCH},
                 {"StreamCreateWithFlags", SG_B_OBJECT_NEW},
                 {"StreamDestroy", SG_B_OBJECT_USE},
                 {"StreamWaitEvent", SG_B_OBJECT_PAIR},
                 {"StreamWaitEvent_ptsz", SG_B_OBJECT_PAIR},
                 {"EventCreateWithFlags", SG_B_OBJECT_NEW},
                 {"EventDestroy", SG_B_OBJECT_USE},
                 {"EventRecord", SG_B_OBJECT_PAIR},
                 {"EventRecord_ptsz", SG_B_OBJECT_PAIR},
                 {"EventRecordWithFlags", SG_B_OBJECT_PAIR},
                 {"EventRecordWithFlags_ptsz", SG_B_OBJECT_PAIR},
                 {"Malloc", SG_B_RUNTIME_MALLOC},
                 {"Free", SG_B_RUNTIME_FREE},
                 {"GetLastError", SG_B_TAKE_ERROR},
                 {"PeekAtLastError", SG_B_PEEK_ERROR}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(known[i].name, name))
            return known[i].builtin;
    return SG_B_NONE;
}

static uint8_t builtin_named(const char *name)
{
    static const char runtime[] = "__cudaCDP2";
    static const struct {
        const char *name;
        uint8_t builtin;
    } known[] = {{"vprintf", SG_B_VPRINTF},
                 {"malloc", SG_B_MALLOC},
                 {"free", SG_B_FREE},
                 {"__assertfail", SG_B_ASSERTFAIL},
                 {"cudaGraphSetConditional", SG_B_SET_CONDITION},
                 {"cudaGraphKernelNodeSetParam", SG_B_NODE_PARAMETERS},
                 {"cudaGraphKernelNodeSetGridDim", SG_B_NODE_GRID},
                 {"cudaGraphKernelNodeSetEnabled", SG_B_NODE_ENABLED},
                 {"cudaGraphKernelNodeUpdatesApply", SG_B_NODE_UPDATES}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(known[i].name, name))
            return known[i].builtin;
    if (!strncmp(name, runtime, sizeof(runtime) - 1))
        return runtime_named(name + sizeof(runtime) - 1);
    return SG_B_NONE;
}

static struct sg_function *function_new(struct sg_parser *p, const struct sg_token *name,
                                        bool entry)
{
    struct sg_module *m = p->module;
    struct sg_function *f = sg_take(p, sizeof(*f));
    m->functions = sg_grow(p, m->functions, m->function_count, &m->function_capacity,
                           sizeof(*m->functions));
    f->info.name = sg_take_name(p, name);
    f->module = m;
    f->index = m->function_count;
    f->line = name->line;
    f->entry = entry;
    f->builtin = entry ? SG_B_NONE : builtin_named(f->info.name);
    f->info.max_threads = 1024;
    m->functions[m->function_count++] = f;
    if (entry) {
        m->entries = sg_grow(p, m->entries, m->entry_count, &m->entry_capacity,
                             sizeof(*m->entries));
        m->entries[m->entry_count++] = f;
    }
    return f;
}

/* ( .param … a, .param … b ) of a device function. */
static uint32_t formals_parse(struct sg_parser *p, struct sg_formal **out)
{
    struct sg_formal list[256];
    uint32_t count = 0;
    sg_expect(p, '(');
    while (!sg_at(p, ')')) {
        if (count == 256)
            sg_fail(p, p->token.line, "more than 256 formals");
        list[count++] = sg_formal_parse(p, NULL, NULL);
        if (!sg_accept(p, ','))
            break;
    }
    sg_expect(p, ')');
    *out = sg_take(p, (count ? count : 1) * sizeof(**out));
    memcpy(*out, list, count * sizeof(**out));
    return count;
}

static void kernel_parameters_parse(struct sg_parser *p, struct sg_function *f)
{
    struct sg_parameter *list = NULL;
    uint32_t count = 0, room = 0;
    if (!sg_accept(p, '('))
        return;
    while (!sg_at(p, ')')) {
        if (count == room) {
            uint32_t more = room ? 2 * room : 16;
            struct sg_parameter *grown = sg_take(p, more * sizeof(*grown));
            if (count)
                memcpy(grown, list, count * sizeof(*grown));
            list = grown;
            room = more;
        }
        sg_formal_parse(p, &f->info.parameter_bytes, &list[count++]);
        if (!sg_accept(p, ','))
            break;
    }
    sg_expect(p, ')');
    f->info.parameters = list;
    f->info.parameter_count = count;
}

/* Of the next function: some leave a declaration's semicolon out, and ptxas does not mind. */
static bool next_begins(const struct sg_parser *p)
{
    return sg_at_dot(p, ".visible") || sg_at_dot(p, ".extern") || sg_at_dot(p, ".entry") ||
           sg_at_dot(p, ".func");
}

/* .reqnctapercluster x, y, z: what is not named is 1. */
static void cluster_parse(struct sg_parser *p, struct sg_function *f)
{
    uint32_t n = 0;
    do
        f->info.cluster[n++] = (uint32_t)sg_expect_count(p, 1u << 20, "blocks of a cluster");
    while (n < 3 && sg_accept(p, ','));
    for (; n < 3; n++)
        f->info.cluster[n] = 1;
}

/* .maxntid 256, 1, 1 and its like; others are hints. */
static void bounds_parse(struct sg_parser *p, struct sg_function *f)
{
    while (p->token.kind == SG_K_DOT && !next_begins(p)) {
        if (sg_at_dot(p, ".reqnctapercluster")) {
            sg_advance(p);
            cluster_parse(p, f);
            continue;
        }
        bool required = sg_at_dot(p, ".reqntid"), most = sg_at_dot(p, ".maxntid");
        uint64_t threads = 1;
        uint32_t n = 0;
        sg_advance(p);
        while (p->token.kind == SG_K_INTEGER) {
            uint64_t v = sg_expect_count(p, 1u << 20, "thread bound");
            threads *= v ? v : 1;
            if (required && n < 3)
                f->info.reqntid[n] = (uint32_t)v;
            n++;
            if (threads > 1u << 20 || !sg_accept(p, ','))
                break;
        }
        for (; required && n < 3; n++)
            f->info.reqntid[n] = 1;
        if ((required || most) && threads < f->info.max_threads)
            f->info.max_threads = (uint32_t)threads;
    }
}

/* --- bodies ------------------------------------------------------------------------- */

static void block_parse(struct sg_parser *p, bool outermost);

/* The predicate of `@p` or `@!p`. */
static void guard_parse(struct sg_parser *p, struct sg_statement *s)
{
    s->guarded = true;
    s->guard_negated = sg_accept(p, '!');
    struct sg_symbol *guard = sg_symbol_find(p, p->token.text, p->token.size);
    if (p->token.kind != SG_K_NAME || !guard || guard->kind != SG_N_REGISTER)
        sg_fail(p, s->line, "the guard is no predicate register");
    s->guard = guard->slot;
    sg_advance(p);
}

/* The labels that an indirect branch may go to; they may come later. */
static void targets_parse(struct sg_parser *p, struct sg_symbol *label)
{
    uint32_t count = 0;
    sg_advance(p);
    struct sg_token list[1024];
    do {
        if (count == 1024)
            sg_fail(p, p->token.line, "more than 1024 branch targets");
        list[count++] = p->token;
        sg_advance(p);
    } while (sg_accept(p, ','));
    sg_expect(p, ';');
    label->kind = SG_N_TARGETS;
    label->targets = sg_take(p, (count + 1) * sizeof(uint32_t));
    label->targets[0] = count;
    for (uint32_t i = 0; i < count; i++)
        sg_fixup_add(p, list[i].text, list[i].size, list[i].line, 0, &label->targets[1 + i]);
}

static void label_parse(struct sg_parser *p, const struct sg_token *name)
{
    sg_advance(p);
    struct sg_symbol *label = sg_symbol_declare(p, name, SG_N_LABEL);
    label->slot = p->module->code_count;
    if (sg_at_dot(p, ".branchtargets")) {
        targets_parse(p, label);
    } else if (sg_at_dot(p, ".callprototype")) {
        label->kind = SG_N_PROTOTYPE;
        while (p->token.kind != SG_K_END && !sg_accept(p, ';'))
            sg_advance(p);
    }
}

/* An instruction's name with all its suffixes, of which some are types. */
static void opcode_parse(struct sg_parser *p, const struct sg_token *name, struct sg_statement *s)
{
    snprintf(s->opcode, sizeof(s->opcode), "%.*s", (int)name->size, name->text);
    size_t used = (size_t)snprintf(s->text, sizeof(s->text), "%.*s",
                                   (int)(name->size < 60 ? name->size : 60), name->text);
    while (p->token.kind == SG_K_DOT) {
        if (s->suffixes == SG_MAX_SUFFIXES)
            sg_fail(p, s->line, "%s: too many suffixes", s->text);
        if (used < sizeof(s->text))
            used += (size_t)snprintf(s->text + used, sizeof(s->text) - used, "%.*s",
                                     (int)(p->token.size < 30 ? p->token.size : 30), p->token.text);
        enum sg_type type = sg_type_of(&p->token);
        if (type != SG_T_NONE && s->type_count < 4)
            s->types[s->type_count++] = type;
        s->suffix[s->suffixes++] = p->token;
        sg_advance(p);
    }
}

static void operands_parse(struct sg_parser *p, struct sg_statement *s)
{
    uint32_t most = strcmp(s->opcode, "wgmma") ? SG_MAX_ELEMENTS : SG_MOST_ELEMENTS;
    while (!sg_at(p, ';')) {
        if (s->arguments == SG_MAX_ARGUMENTS)
            sg_fail(p, s->line, "%s: too many operands", s->text);
        sg_argument_parse(p, &s->a[s->arguments++], most);
        if (!sg_accept(p, ','))
            break;
    }
    sg_expect(p, ';');
}

static void label_or_statement(struct sg_parser *p)
{
    struct sg_statement s;
    memset(&s, 0, sizeof(s));
    s.line = p->token.line;
    if (sg_accept(p, '@'))
        guard_parse(p, &s);
    struct sg_token name = p->token;
    if (name.kind != SG_K_NAME)
        sg_fail(p, name.line, "'%.*s' starts no instruction",
                (int)(name.size < 40 ? name.size : 40), name.size ? name.text : "");
    sg_advance(p);
    if (!s.guarded && sg_at(p, ':')) {
        label_parse(p, &name);
        return;
    }
    opcode_parse(p, &name, &s);
    if (!strcmp(s.opcode, "call")) {
        sg_call_parse(p, &s);
        return;
    }
    operands_parse(p, &s);
    sg_statement_decode(p, &s);
}

static void body_item(struct sg_parser *p)
{
    if (sg_at(p, '{')) {
        block_parse(p, false);
    } else if (sg_at_dot(p, ".loc") || sg_at_dot(p, ".file")) {
        sg_lexer_skip_line(&p->lexer);
        p->have_ahead = false;
        sg_advance(p);
    } else if (sg_at_dot(p, ".pragma")) {
        while (p->token.kind != SG_K_END && !sg_accept(p, ';'))
            sg_advance(p);
    } else if (sg_declaration_starts(p)) {
        sg_declaration_parse(p);
    } else if (!sg_accept(p, ';')) {
        label_or_statement(p);
    }
}

static void block_parse(struct sg_parser *p, bool outermost)
{
    struct sg_symbol *mark = p->last;
    uint32_t first = p->fixup_count;
    if (++p->depth > 64)
        sg_fail(p, p->token.line, "blocks are nested too deep");
    sg_expect(p, '{');
    while (!sg_at(p, '}')) {
        if (p->token.kind == SG_K_END)
            sg_fail(p, p->token.line, "the text ends inside a function");
        body_item(p);
    }
    sg_scope_close(p, mark, first, outermost);
    sg_advance(p);
    p->depth--;
}

/* Of a weak function that another part has defined. */
static void body_skip(struct sg_parser *p)
{
    uint32_t depth = 0;
    do {
        if (p->token.kind == SG_K_END)
            sg_fail(p, p->token.line, "the text ends inside a function");
        depth += sg_at(p, '{');
        depth -= sg_at(p, '}');
        if (sg_at_dot(p, ".loc") || sg_at_dot(p, ".file")) {
            sg_lexer_skip_line(&p->lexer);
            p->have_ahead = false;
        }
        sg_advance(p);
    } while (depth);
}

/* The instructions of `f`, whose parameters `scratch` has counted. */
static void definition_parse(struct sg_parser *p, const struct sg_token *name,
                             struct sg_function *f, const struct sg_function *scratch)
{
    if (f->defined)
        sg_fail(p, name->line, "'%s' is defined twice", f->info.name);
    f->slots = scratch->slots;
    f->frame_bytes = scratch->frame_bytes;
    f->frame_align = scratch->frame_align;
    f->defined = true;
    f->start = p->module->code_count;
    p->function = f;
    /* a function may call itself: its name is known inside */
    struct sg_symbol *self = sg_symbol_declare(p, name, SG_N_FUNCTION);
    self->function = f;
    block_parse(p, true);
    sg_insn_append(p, p->token.line)->op = f->entry ? SG_P_EXIT : SG_P_RET;
    struct sg_insn *end = &p->module->code[p->module->code_count - 1];
    end->execute = sg_execute_select(end);
    f->info.local_bytes = f->frame_bytes;
    f->info.ptx_target = p->module->target;
    /* virtual registers have no count in hardware; 64 fit a block of 1024 threads */
    f->info.register_count = f->slots < 16 ? 16 : f->slots > 64 ? 64 : f->slots;
}

void sg_function_parse(struct sg_parser *p, bool entry)
{
    struct sg_symbol *outside;
    struct sg_function scratch = {.slots = 0}, *f = &scratch;
    struct sg_formal *results = NULL, *arguments = NULL;
    uint32_t result_count = 0, argument_count = 0;
    struct sg_symbol *mark = p->last;
    p->function = f;
    if (!entry && sg_at(p, '('))
        result_count = formals_parse(p, &results);
    struct sg_token name = p->token;
    if (name.kind != SG_K_NAME)
        sg_fail(p, name.line, "a function without a name");
    sg_advance(p);
    outside = sg_symbol_find(p, name.text, name.size);
    if (outside && outside->kind == SG_N_FUNCTION) {
        f = outside->function;
        if (f->entry != entry)
            sg_fail(p, name.line, "'%s' is declared in two ways", f->info.name);
    } else {
        f = function_new(p, &name, entry);
        f->external = p->external;
    }
    p->function = &scratch;
    if (entry)
        kernel_parameters_parse(p, f->defined ? &scratch : f);
    else if (sg_at(p, '('))
        argument_count = formals_parse(p, &arguments);
    if (sg_at_dot(p, ".noreturn"))
        sg_advance(p);
    bool again = f->defined && p->weak;
    bounds_parse(p, again ? &scratch : f);
    if (!again) {
        f->results = results;
        f->arguments = arguments;
        f->result_count = result_count;
        f->argument_count = argument_count;
    }
    if (again && sg_at(p, '{')) {
        body_skip(p);
    } else if (sg_at(p, '{')) {
        definition_parse(p, &name, f, &scratch);
    } else {
        if (!next_begins(p))
            sg_expect(p, ';');
        if (!f->defined) /* the definition counts again */
            f->info.parameter_count = f->info.parameter_bytes = 0;
    }
    sg_scope_close(p, mark, p->fixup_count, false);
    p->function = NULL;
    if (!outside || outside->kind != SG_N_FUNCTION)
        sg_symbol_declare(p, &name, SG_N_FUNCTION)->function = f;
}
