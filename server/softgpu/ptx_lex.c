#include "ptx_lex.h"

#include <stdlib.h>
#include <string.h>

void sg_lexer_init(struct sg_lexer *lexer, const char *text, size_t size)
{
    lexer->at = text;
    /* A NUL ends the text: drivers get PTX as a C string or with its NUL. */
    const char *nul = size ? memchr(text, 0, size) : NULL;
    lexer->end = nul ? nul : text + size;
    lexer->line = 1;
}

void sg_lexer_skip_line(struct sg_lexer *lexer)
{
    while (lexer->at < lexer->end && *lexer->at != '\n')
        lexer->at++;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$';
}

static int hex_value(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static void skip_block_comment(struct sg_lexer *l)
{
    l->at += 2;
    while (l->at < l->end) {
        if (*l->at == '\n')
            l->line++;
        if (*l->at == '*' && l->at + 1 < l->end && l->at[1] == '/') {
            l->at += 2;
            return;
        }
        l->at++;
    }
}

static void skip_blank(struct sg_lexer *l)
{
    while (l->at < l->end) {
        char c = *l->at;
        char next = l->at + 1 < l->end ? l->at[1] : 0;

        if (c == '\n') {
            l->line++;
            l->at++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
            l->at++;
        } else if (c == '/' && next == '/') {
            sg_lexer_skip_line(l);
        } else if (c == '/' && next == '*') {
            skip_block_comment(l);
        } else if (c == '@' && next == '@') { /* @@DWARF lines of old compilers */
            sg_lexer_skip_line(l);
        } else if (c == '#') { /* # 1 "file" left by a preprocessor */
            sg_lexer_skip_line(l);
        } else {
            return;
        }
    }
}

/* 0f and 0d: the bits of a float in exactly 8 or 16 hex digits. */
static void lex_float_bits(struct sg_lexer *l, struct sg_token *t, size_t digits)
{
    uint64_t value = 0;

    l->at += 2;
    for (size_t i = 0; i < digits; i++) {
        int h = l->at < l->end ? hex_value(*l->at) : -1;
        if (h < 0) {
            t->kind = SG_K_BAD;
            break;
        }
        value = value << 4 | (uint64_t)h;
        l->at++;
    }
    if (t->kind != SG_K_BAD)
        t->kind = digits == 8 ? SG_K_F32 : SG_K_F64;
    t->value = value;
}

static void lex_decimal_float(struct sg_lexer *l, struct sg_token *t)
{
    char buffer[64];
    size_t n = 0;

    while (l->at < l->end && n < sizeof(buffer) - 1) {
        char c = *l->at;
        bool exponent_sign = (c == '+' || c == '-') && n && (buffer[n - 1] | 32) == 'e';
        if (!is_digit(c) && c != '.' && (c | 32) != 'e' && !exponent_sign)
            break;
        buffer[n++] = c;
        l->at++;
    }
    buffer[n] = 0;
    char *end;
    double value = strtod(buffer, &end);
    t->kind = *end ? SG_K_BAD : SG_K_F64;
    memcpy(&t->value, &value, sizeof(value));
}

static bool looks_like_float(const struct sg_lexer *l)
{
    const char *p = l->at;

    while (p < l->end && is_digit(*p))
        p++;
    if (p >= l->end || p + 1 >= l->end)
        return false;
    if (*p == '.')
        return is_digit(p[1]);
    return (*p | 32) == 'e' && (is_digit(p[1]) || p[1] == '-' || p[1] == '+');
}

static void lex_number(struct sg_lexer *l, struct sg_token *t)
{
    char next = l->at + 1 < l->end ? (char)(l->at[1] | 32) : 0;
    unsigned base = 10;

    if (*l->at == '0' && (next == 'f' || next == 'd')) {
        lex_float_bits(l, t, next == 'f' ? 8 : 16);
        return;
    }
    if (looks_like_float(l)) {
        lex_decimal_float(l, t);
        return;
    }
    if (*l->at == '0' && (next == 'x' || next == 'b')) {
        base = next == 'x' ? 16 : 2;
        l->at += 2;
    } else if (*l->at == '0') {
        base = 8;
    }
    t->kind = SG_K_INTEGER;
    const char *start = l->at;
    while (l->at < l->end) {
        int h = hex_value(*l->at);
        if (h < 0 || (unsigned)h >= base)
            break;
        if (t->value > (UINT64_MAX - (unsigned)h) / base)
            t->kind = SG_K_BAD;
        t->value = t->value * base + (unsigned)h;
        l->at++;
    }
    if (l->at == start)
        t->kind = SG_K_BAD;
    if (l->at < l->end && *l->at == 'U')
        l->at++;
    if (l->at < l->end && is_word(*l->at))
        t->kind = SG_K_BAD;
}

static void lex_string(struct sg_lexer *l, struct sg_token *t)
{
    t->kind = SG_K_STRING;
    t->text = ++l->at;
    while (l->at < l->end && *l->at != '"' && *l->at != '\n') {
        if (*l->at == '\\' && l->at + 1 < l->end && l->at[1] != '\n')
            l->at++;
        l->at++;
    }
    t->size = (size_t)(l->at - t->text);
    if (l->at < l->end && *l->at == '"')
        l->at++;
    else
        t->kind = SG_K_BAD;
}

static void lex_dot(struct sg_lexer *l)
{
    l->at++;
    for (;;) {
        while (l->at < l->end && is_word(*l->at))
            l->at++;
        if (l->end - l->at >= 3 && l->at[0] == ':' && l->at[1] == ':' && is_word(l->at[2]))
            l->at += 2;
        else
            return;
    }
}

void sg_lexer_next(struct sg_lexer *l, struct sg_token *t)
{
    skip_blank(l);
    memset(t, 0, sizeof(*t));
    t->text = l->at;
    t->line = l->line;
    if (l->at >= l->end) {
        t->kind = SG_K_END;
        return;
    }
    char c = *l->at;
    char next = l->at + 1 < l->end ? l->at[1] : 0;
    if (is_digit(c)) {
        lex_number(l, t);
    } else if (is_word(c) || (c == '%' && is_word(next))) {
        t->kind = SG_K_NAME;
        l->at++;
        while (l->at < l->end && is_word(*l->at))
            l->at++;
    } else if (c == '.' && is_word(next)) {
        t->kind = SG_K_DOT;
        lex_dot(l);
    } else if (c == '"') {
        lex_string(l, t);
        return;
    } else {
        t->kind = strchr("{}[]()<>,;:=+-*/!~|&^@?%", c) ? SG_K_PUNCT : SG_K_BAD;
        l->at++;
    }
    t->size = (size_t)(l->at - t->text);
}
