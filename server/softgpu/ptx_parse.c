/* The parser: tokens, errors, memory, and the top level of a module. */
#include "ptx_parse.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sg_fail(struct sg_parser *p, uint32_t line, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (p->log && p->log_size)
        snprintf(p->log, p->log_size, "line %u: %s", line, text);
    p->result = CUDA_ERROR_INVALID_PTX;
    longjmp(p->escape, 1);
}

void sg_fail_memory(struct sg_parser *p)
{
    if (p->log && p->log_size)
        snprintf(p->log, p->log_size, "line %u: no memory for the module", p->token.line);
    p->result = CUDA_ERROR_OUT_OF_MEMORY;
    longjmp(p->escape, 1);
}

void *sg_take(struct sg_parser *p, size_t bytes)
{
    void *taken = sg_pool_take(&p->module->arena, bytes);
    if (!taken)
        sg_fail_memory(p);
    return taken;
}

void *sg_take_scratch(struct sg_parser *p, size_t bytes)
{
    void *taken = sg_pool_take(&p->scratch, bytes);
    if (!taken)
        sg_fail_memory(p);
    return taken;
}

char *sg_take_name(struct sg_parser *p, const struct sg_token *token)
{
    char *name = sg_take(p, token->size + 1);
    memcpy(name, token->text, token->size);
    return name;
}

void *sg_grow(struct sg_parser *p, void *items, uint32_t count, uint32_t *capacity, size_t item)
{
    if (count < *capacity)
        return items;
    uint32_t more = *capacity ? 2 * *capacity : 64;
    void *grown = more > *capacity ? realloc(items, more * item) : NULL;
    if (!grown)
        sg_fail_memory(p);
    *capacity = more;
    return grown;
}

void sg_list_push(struct sg_parser *p, struct sg_index_list *list, uint32_t item)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i] == item)
            return;
    if (list->count == list->capacity) {
        uint32_t more = list->capacity ? 2 * list->capacity : 8;
        uint32_t *items = sg_take(p, more * sizeof(*items));
        if (list->count)
            memcpy(items, list->items, list->count * sizeof(*items));
        list->items = items;
        list->capacity = more;
    }
    list->items[list->count++] = item;
}

/* --- tokens -------------------------------------------------------------------- */

void sg_advance(struct sg_parser *p)
{
    if (p->have_ahead) {
        p->token = p->ahead;
        p->have_ahead = false;
    } else {
        sg_lexer_next(&p->lexer, &p->token);
    }
    if (p->token.kind == SG_K_BAD)
        sg_fail(p, p->token.line, "unexpected character or bad number '%.*s'",
                (int)(p->token.size < 40 ? p->token.size : 40), p->token.text);
}

bool sg_token_is(const struct sg_token *token, const char *text)
{
    return strlen(text) == token->size && !memcmp(token->text, text, token->size);
}

bool sg_at(const struct sg_parser *p, char punct)
{
    return p->token.kind == SG_K_PUNCT && p->token.text[0] == punct;
}

bool sg_at_dot(const struct sg_parser *p, const char *word)
{
    return p->token.kind == SG_K_DOT && sg_token_is(&p->token, word);
}

bool sg_accept(struct sg_parser *p, char punct)
{
    if (!sg_at(p, punct))
        return false;
    sg_advance(p);
    return true;
}

void sg_expect(struct sg_parser *p, char punct)
{
    if (!sg_accept(p, punct))
        sg_fail(p, p->token.line, "expected '%c' before '%.*s'", punct,
                (int)(p->token.size < 40 ? p->token.size : 40), p->token.size ? p->token.text : "");
}

int64_t sg_expect_integer(struct sg_parser *p)
{
    bool negative = sg_accept(p, '-');
    if (p->token.kind != SG_K_INTEGER)
        sg_fail(p, p->token.line, "expected a number");
    uint64_t value = p->token.value;
    sg_advance(p);
    return (int64_t)(negative ? 0 - value : value);
}

uint64_t sg_expect_count(struct sg_parser *p, uint64_t limit, const char *what)
{
    uint32_t line = p->token.line;
    int64_t value = sg_expect_integer(p);
    if (value < 0 || (uint64_t)value > limit)
        sg_fail(p, line, "%s %lld is not in 0..%llu", what, (long long)value,
                (unsigned long long)limit);
    return (uint64_t)value;
}

/* clang-format off */
static const struct { const char *name; enum sg_type type; } types[] = {
    {".u8", SG_T_U8}, {".s8", SG_T_S8}, {".b8", SG_T_B8},
    {".u16", SG_T_U16}, {".s16", SG_T_S16}, {".b16", SG_T_B16},
    {".u32", SG_T_U32}, {".s32", SG_T_S32}, {".b32", SG_T_B32},
    {".u64", SG_T_U64}, {".s64", SG_T_S64}, {".b64", SG_T_B64},
    {".b128", SG_T_B128}, {".f16", SG_T_F16}, {".f16x2", SG_T_F16X2},
    {".bf16", SG_T_BF16}, {".bf16x2", SG_T_BF16X2}, {".f32", SG_T_F32},
    {".f64", SG_T_F64}, {".pred", SG_T_PRED}, {".u16x2", SG_T_U16X2},
    {".s16x2", SG_T_S16X2}, {".tf32", SG_T_TF32}, {".e4m3x2", SG_T_E4M3X2},
    {".e5m2x2", SG_T_E5M2X2},
};
/* clang-format on */

enum sg_type sg_type_of(const struct sg_token *token)
{
    if (token->kind == SG_K_DOT)
        for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
            if (sg_token_is(token, types[i].name))
                return types[i].type;
    return SG_T_NONE;
}

/* --- the module ------------------------------------------------------------------ */

/* .target sm_90a, texmode */
static void target_parse(struct sg_parser *p)
{
    uint32_t target = 0;
    sg_advance(p);
    if (p->token.kind != SG_K_NAME || p->token.size < 4 || memcmp(p->token.text, "sm_", 3) != 0)
        sg_fail(p, p->token.line, ".target names no sm_");
    for (size_t i = 3; i < p->token.size && i < 6 && isdigit((unsigned char)p->token.text[i]); i++)
        target = 10 * target + (uint32_t)(p->token.text[i] - '0');
    p->module->target = target;
}

/* .version 9.0, .target sm_90, texmode, .address_size 64, debug sections. */
static bool directive(struct sg_parser *p)
{
    bool target = sg_at_dot(p, ".target");
    if (target)
        target_parse(p);
    if (target || sg_at_dot(p, ".version") || sg_at_dot(p, ".file") || sg_at_dot(p, ".loc")) {
        sg_lexer_skip_line(&p->lexer);
        p->have_ahead = false;
        sg_advance(p);
        return true;
    }
    if (sg_at_dot(p, ".address_size")) {
        sg_advance(p);
        uint32_t line = p->token.line;
        if (sg_expect_integer(p) != 64)
            sg_fail(p, line, ".address_size: only 64 is supported");
        return true;
    }
    if (sg_at_dot(p, ".section")) { /* debug information: { … } */
        while (p->token.kind != SG_K_END && !sg_at(p, '{'))
            sg_advance(p);
        while (p->token.kind != SG_K_END && !sg_at(p, '}'))
            sg_advance(p);
        sg_accept(p, '}');
        return true;
    }
    return false;
}

static void item(struct sg_parser *p)
{
    p->external = p->weak = false;
    if (directive(p) || sg_accept(p, ';'))
        return;
    while (sg_at_dot(p, ".visible") || sg_at_dot(p, ".extern") || sg_at_dot(p, ".weak") ||
           sg_at_dot(p, ".common")) {
        p->external |= sg_at_dot(p, ".extern");
        p->weak |= sg_at_dot(p, ".weak");
        sg_advance(p);
    }
    if (sg_at_dot(p, ".entry") || sg_at_dot(p, ".func")) {
        bool entry = sg_at_dot(p, ".entry");
        sg_advance(p);
        sg_function_parse(p, entry);
    } else if (sg_declaration_starts(p)) {
        sg_declaration_parse(p);
    } else if (sg_at_dot(p, ".alias") || sg_at_dot(p, ".pragma")) {
        while (p->token.kind != SG_K_END && !sg_accept(p, ';'))
            sg_advance(p);
    } else {
        sg_fail(p, p->token.line, "'%.*s' starts no declaration",
                (int)(p->token.size < 40 ? p->token.size : 40), p->token.size ? p->token.text : "");
    }
}

CUresult sg_module_parse(const char *ptx, size_t size, struct sg_module **out, char *log,
                         size_t log_size)
{
    if (!ptx || !out)
        return CUDA_ERROR_INVALID_VALUE;
    while (size && ptx[size - 1] == '\0')
        size--;
    struct sg_parser *p = calloc(1, sizeof(*p));
    struct sg_module *module = calloc(1, sizeof(*module));
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (p && module) {
        p->module = module;
        p->log = log;
        p->log_size = log_size;
        sg_lexer_init(&p->lexer, ptx, size);
        if (setjmp(p->escape) == 0) {
            sg_advance(p);
            if (!sg_at_dot(p, ".version"))
                sg_fail(p, p->token.line, "PTX starts with .version");
            while (p->token.kind != SG_K_END)
                item(p);
            sg_module_finish(p);
        }
        result = p->result;
        free(p->fixups);
        sg_pool_free(&p->scratch);
    }
    free(p);
    if (result != CUDA_SUCCESS)
        sg_module_free(module);
    else
        *out = module;
    return result;
}
