/* Between the two halves of decoding: the mnemonic, and its operands. */
#ifndef SG_PTX_DECODE_H
#define SG_PTX_DECODE_H

#include "ptx_parse.h"

/* Whether the statement has this suffix (with its dot). */
bool sg_suffix(struct sg_statement *s, const char *text);
/* Index of the first suffix of a NULL-ended list that it has, or -1. */
int sg_suffix_of(struct sg_statement *s, const char *const *list);
/* Fill op, types, modes, space from opcode and suffixes; false: not known. */
bool sg_opcode_decode(struct sg_statement *s, struct sg_insn *in);
bool sg_atomic_read(struct sg_statement *s, struct sg_insn *in); /* its operation */
bool sg_copy_read(struct sg_statement *s, struct sg_insn *in);   /* cp.async in its forms */
bool sg_tensormap_read(struct sg_statement *s, struct sg_insn *in);
bool sg_tensor_read(struct sg_statement *s, struct sg_insn *in); /* cp.async.bulk.tensor */
bool sg_warpgroup_read(struct sg_statement *s, struct sg_insn *in);
bool sg_mbarrier_read(struct sg_statement *s, struct sg_insn *in);
_Noreturn void sg_operands_refuse(struct sg_parser *p, const struct sg_statement *s);
struct sg_operand *sg_operands_take(struct sg_parser *p, struct sg_insn *in, uint32_t count);

#endif
