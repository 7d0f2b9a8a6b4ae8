/*
 * The parser's own state: one struct per sg_module_parse. Errors leave through
 * sg_fail (longjmp); everything taken so far lives in arenas or in the module,
 * so that the one place that catches frees it all.
 */
#ifndef SG_PTX_PARSE_H
#define SG_PTX_PARSE_H

#include <setjmp.h>
#include <string.h>

#include "ptx_internal.h"
#include "ptx_lex.h"
#include "ptx_op.h"

#define SG_MAX_ELEMENTS 8u    /* in one braced operand */
#define SG_MOST_ELEMENTS 128u /* of wgmma's D */
#define SG_MAX_ARGUMENTS 10u  /* comma-separated operands of one instruction */
#define SG_MAX_SUFFIXES 16u
#define SG_MAX_COORDINATES 5u

enum sg_symbol_kind {
    SG_N_REGISTER,  /* slot, width, type */
    SG_N_REGISTERS, /* %r<count>: number n has slot + n * step */
    SG_N_GLOBAL,    /* slot: index */
    SG_N_SHARED,    /* slot: index */
    SG_N_LOCAL,     /* slot: offset in the frame; size (also .param in a body) */
    SG_N_PARAM,     /* slot: offset in the kernel's parameters; size */
    SG_N_FUNCTION,
    SG_N_LABEL,   /* slot: pc */
    SG_N_TARGETS, /* a .branchtargets list */
    SG_N_PROTOTYPE,
};

struct sg_symbol {
    const char *name; /* into the text */
    uint32_t size_of_name;
    uint32_t hash;
    struct sg_symbol *next;     /* in its bucket: inner scopes first */
    struct sg_symbol *previous; /* declared before, in order of declaration */
    uint32_t bucket;
    enum sg_symbol_kind kind;
    enum sg_type type;
    uint32_t slot, size, count, step;
    struct sg_function *function;
    uint32_t *targets;
};

/* A label used before its place is known; solved when its scope closes. */
struct sg_fixup {
    const char *name;
    uint32_t size, line;
    uint32_t insn;   /* code index; or */
    uint32_t *patch; /* an entry of a branch table */
};

enum sg_atom_kind {
    SG_E_SINK,
    SG_E_REGISTER,
    SG_E_SPECIAL,
    SG_E_INTEGER,
    SG_E_F32,
    SG_E_F64,
    SG_E_SYMBOL,
    SG_E_NAME
};

/* One value as written. */
struct sg_atom {
    enum sg_atom_kind kind;
    bool negated;      /* !p */
    enum sg_type type; /* of a register */
    uint32_t slot;
    uint64_t value; /* integer or bits; the addend of a symbol */
    const struct sg_symbol *symbol;
    const char *name; /* SG_E_NAME: label or unknown */
    size_t name_size;
};

/* One operand as written: a, {a, b}, [a + 4], a|b. */
struct sg_argument {
    bool vector, address, piped;
    uint32_t count; /* elements */
    struct sg_atom e[SG_MAX_ELEMENTS];
    struct sg_atom *more;  /* elements beyond these; NULL: none */
    struct sg_atom second; /* after `|` */
    int64_t offset;        /* address */
    uint32_t coordinates;  /* of a texture: [a, {x, y}] */
    struct sg_atom at[SG_MAX_COORDINATES];
};

struct sg_statement {
    char text[96]; /* the mnemonic, for messages */
    char opcode[24];
    uint32_t line;
    struct sg_token suffix[SG_MAX_SUFFIXES]; /* with their dots */
    bool used[SG_MAX_SUFFIXES];
    uint32_t suffixes;
    enum sg_type types[4]; /* in order of appearance */
    uint32_t type_count;
    struct sg_argument a[SG_MAX_ARGUMENTS];
    uint32_t arguments;
    bool guarded, guard_negated;
    uint32_t guard;
};

#define SG_BUCKETS 4096u

struct sg_parser {
    struct sg_lexer lexer;
    struct sg_token token, ahead; /* the current one, and one more if have_ahead */
    bool have_ahead;
    jmp_buf escape;
    CUresult result;
    char *log;
    size_t log_size;
    struct sg_module *module;
    struct sg_pool scratch; /* symbols, fixups: gone after the parse */
    struct sg_symbol *buckets[SG_BUCKETS];
    struct sg_symbol *last; /* declared last */
    struct sg_fixup *fixups;
    uint32_t fixup_count, fixup_capacity;
    struct sg_function *function; /* being parsed, or NULL */
    uint32_t depth;               /* of braces */
    bool external;                /* the declaration that is parsed is .extern */
    bool weak;                    /* or .weak: what is defined already stays */
};

_Noreturn void sg_fail(struct sg_parser *p, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void sg_fail_memory(struct sg_parser *p);

void *sg_take(struct sg_parser *p, size_t bytes);         /* lives as long as the module */
void *sg_take_scratch(struct sg_parser *p, size_t bytes); /* lives as long as the parse */
char *sg_take_name(struct sg_parser *p, const struct sg_token *token);
/* Room for one more item in an array of `capacity`, in malloc memory. */
void *sg_grow(struct sg_parser *p, void *items, uint32_t count, uint32_t *capacity, size_t item);

/* Tokens. */
void sg_advance(struct sg_parser *p);
bool sg_at(const struct sg_parser *p, char punct);
bool sg_at_dot(const struct sg_parser *p, const char *word);
bool sg_token_is(const struct sg_token *token, const char *text);
void sg_expect(struct sg_parser *p, char punct);
bool sg_accept(struct sg_parser *p, char punct);
int64_t sg_expect_integer(struct sg_parser *p); /* with sign */
uint64_t sg_expect_count(struct sg_parser *p, uint64_t limit, const char *what);
enum sg_type sg_type_of(const struct sg_token *token); /* SG_T_NONE: not a type */

/* Names: ptx_symbol.c. */
struct sg_symbol *sg_symbol_find(struct sg_parser *p, const char *name, size_t size);
struct sg_symbol *sg_symbol_declare(struct sg_parser *p, const struct sg_token *name,
                                    enum sg_symbol_kind kind);
void sg_scope_close(struct sg_parser *p, struct sg_symbol *mark, uint32_t first_fixup,
                    bool outermost);
void sg_fixup_add(struct sg_parser *p, const char *name, size_t size, uint32_t line, uint32_t insn,
                  uint32_t *patch);
int sg_special_find(const char *name, size_t size); /* enum sg_special, or -1 */

/* Declarations: ptx_declare.c. */
bool sg_declaration_starts(const struct sg_parser *p);
void sg_declaration_parse(struct sg_parser *p);
struct sg_formal sg_formal_parse(struct sg_parser *p, uint32_t *kernel_bytes,
                                 struct sg_parameter *parameter);
void sg_list_push(struct sg_parser *p, struct sg_index_list *list, uint32_t item);

/* Functions and their bodies: ptx_function.c. */
void sg_function_parse(struct sg_parser *p, bool entry);
struct sg_insn *sg_insn_append(struct sg_parser *p, uint32_t line);

/* Instructions: ptx_operand.c, ptx_call.c, ptx_decode*.c. */
/* At most `most` elements; whoever allows more than SG_MAX_ELEMENTS reads them one by one. */
void sg_argument_parse(struct sg_parser *p, struct sg_argument *a, uint32_t most);
static inline const struct sg_atom *sg_element_atom(const struct sg_argument *a, uint32_t i)
{
    return i < SG_MAX_ELEMENTS ? &a->e[i] : &a->more[i - SG_MAX_ELEMENTS];
}
struct sg_operand sg_atom_operand(struct sg_parser *p, const struct sg_statement *s,
                                  const struct sg_atom *atom, enum sg_type type);
/* [a + offset] of an instruction that may have several: `value` of a register is the offset. */
struct sg_operand sg_address_operand(struct sg_parser *p, const struct sg_statement *s,
                                     const struct sg_argument *a);
void sg_call_parse(struct sg_parser *p, const struct sg_statement *s);
void sg_statement_decode(struct sg_parser *p, struct sg_statement *s);

/* Matrices: ptx_matrix.c. */
void sg_matrix_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in);

/* Textures and surfaces: ptx_texture.c. */
void sg_texture_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in);

/* Copies and barriers in shared memory: ptx_async.c. */
void sg_copy_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in);
void sg_tensor_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in);
void sg_tensormap_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in);
void sg_counted_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in);
void sg_mbarrier_decode(struct sg_parser *p, struct sg_statement *s, struct sg_insn *in);

/* Linking: ptx_module.c. */
void sg_module_finish(struct sg_parser *p);

#endif
