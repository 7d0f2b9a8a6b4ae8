/* Builds decoded modules by hand, to run the executor without the parser. */
#ifndef EXEC_BUILD_H
#define EXEC_BUILD_H

#include "ptx_op.h"

#define BUILD_INSNS 512
#define BUILD_MEMORY 65536
#define BUILD_BASE UINT64_C(0x10000000) /* device address of build.memory */

struct build {
    struct sg_module module;
    struct sg_insn code[BUILD_INSNS];
    struct sg_function functions[8];
    struct sg_function *function_list[8];
    struct sg_shared shared;
    struct sg_shared *shared_list[1];
    uint32_t shared_offset[1];
    struct sg_operand pool[BUILD_INSNS * 8];
    uint32_t pool_used;
    _Alignas(64) unsigned char memory[BUILD_MEMORY];
    char printed[65536];
    size_t printed_size;
    char fault[256];
    const void *parameters;
    volatile int cancel;
};

/* One module with function 0, the entry, at pc 0; shared variable 0 of the size. */
struct build *build_new(uint32_t slots, uint32_t shared_bytes);
void build_free(struct build *b);
/* A device function that begins at the next instruction. */
struct sg_function *build_function(struct build *b, uint32_t slots);
uint32_t build_pc(const struct build *b);
/* Appends; the list ends with an operand of kind SG_O_NONE and value 1 (END). */
struct sg_insn *build_add(struct build *b, unsigned op, unsigned type, ...);
/* As the decoder does, once all fields are set. */
void build_finish(struct build *b);
CUresult build_run(struct build *b, uint32_t blocks, uint32_t threads);
/* As `with` says, but for what build_run sets. */
CUresult build_launch(struct build *b, const struct sg_launch *with, uint32_t blocks,
                      uint32_t threads);
static inline uint32_t *build_words(struct build *b)
{
    return (uint32_t *)(void *)b->memory;
}

#define REG32(n) ((struct sg_operand){.kind = SG_O_REGISTER, .width = 4, .slot = (n)})
#define REG64(n) ((struct sg_operand){.kind = SG_O_REGISTER, .width = 8, .slot = (n)})
#define PREDICATE(n) ((struct sg_operand){.kind = SG_O_REGISTER, .width = 1, .slot = (n)})
#define INVERSE(n)                                                                                 \
    ((struct sg_operand){.kind = SG_O_REGISTER, .width = 1, .slot = (n), .negated = true})
#define NUMBER(v) ((struct sg_operand){.kind = SG_O_IMMEDIATE, .width = 8, .value = (uint64_t)(v)})
#define SPECIAL(x) ((struct sg_operand){.kind = SG_O_SPECIAL, .width = 4, .slot = (x)})
#define LOCAL(at, size) ((struct sg_operand){.kind = SG_O_LOCAL, .slot = (size), .value = (at)})
#define SHARED(at) ((struct sg_operand){.kind = SG_O_SHARED, .value = (at)})
#define SINK ((struct sg_operand){.kind = SG_O_NONE})
#define END ((struct sg_operand){.kind = SG_O_NONE, .value = 1})

/* d (64 bits) = BUILD_BASE + 4 * index */
void build_slot_address(struct build *b, uint32_t d, struct sg_operand index);
/* memory[4 * index register] = value, with register `scratch` (64 bits) spent. */
void build_store(struct build *b, uint32_t scratch, struct sg_operand index,
                 struct sg_operand value);
/* p = a <compare> b */
void build_test(struct build *b, uint32_t p, unsigned type, unsigned compare, struct sg_operand x,
                struct sg_operand y);
/* A jump if the predicate holds (or does not); patch in->target later. */
struct sg_insn *build_jump(struct build *b, uint32_t p, bool inverse);

#endif
