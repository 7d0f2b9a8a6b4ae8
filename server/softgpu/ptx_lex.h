/* Tokens of PTX text. The lexer keeps pointers into the text and never writes. */
#ifndef SG_PTX_LEX_H
#define SG_PTX_LEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sg_token_kind {
    SG_K_END,
    SG_K_NAME,    /* foo, %r1, $L__BB0_2 */
    SG_K_DOT,     /* .global, .shared::cta, .m16n8k16: the dot is part of it */
    SG_K_INTEGER, /* value */
    SG_K_F32,     /* value: the bits */
    SG_K_F64,     /* value: the bits */
    SG_K_STRING,  /* text without the quotes */
    SG_K_PUNCT,   /* one character, in text[0] */
    SG_K_BAD,     /* text: the character that starts no token, or a bad number */
};

struct sg_token {
    enum sg_token_kind kind;
    const char *text;
    size_t size;
    uint32_t line;
    uint64_t value;
};

struct sg_lexer {
    const char *at, *end;
    uint32_t line;
};

void sg_lexer_init(struct sg_lexer *lexer, const char *text, size_t size);
void sg_lexer_next(struct sg_lexer *lexer, struct sg_token *token);
/* Moves to the end of the current line (.loc and .file have no terminator). */
void sg_lexer_skip_line(struct sg_lexer *lexer);

#endif
