#include "exec_build.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void name_function(struct build *b, uint32_t index, const char *name, uint32_t slots)
{
    struct sg_function *f = &b->functions[index];
    f->info.name = name;
    f->info.max_threads = 1024;
    f->module = &b->module;
    f->index = index;
    f->defined = true;
    f->slots = slots;
    f->start = b->module.code_count;
    b->function_list[index] = f;
    b->module.functions = b->function_list;
    b->module.function_count = index + 1;
}

struct build *build_new(uint32_t slots, uint32_t shared_bytes)
{
    struct build *b = aligned_alloc(64, (sizeof(*b) + 63) / 64 * 64);
    if (!b)
        abort();
    memset(b, 0, sizeof(*b));
    b->module.code = b->code;
    name_function(b, 0, "kernel", slots);
    b->functions[0].entry = true;
    b->functions[0].info.static_shared_bytes = shared_bytes;
    b->functions[0].shared_offset = b->shared_offset;
    b->shared_list[0] = &b->shared;
    b->shared.size = shared_bytes;
    b->module.shared = b->shared_list;
    b->module.shared_count = 1;
    b->module.placed = true;
    return b;
}

void build_free(struct build *b)
{
    free(b);
}

struct sg_function *build_function(struct build *b, uint32_t slots)
{
    uint32_t index = b->module.function_count;
    if (index >= 8)
        abort();
    name_function(b, index, "function", slots);
    return &b->functions[index];
}

uint32_t build_pc(const struct build *b)
{
    return b->module.code_count;
}

struct sg_insn *build_add(struct build *b, unsigned op, unsigned type, ...)
{
    if (b->module.code_count >= BUILD_INSNS)
        abort();
    struct sg_insn *in = &b->code[b->module.code_count++];
    in->op = (uint8_t)op;
    in->type = (uint8_t)type;
    in->line = b->module.code_count;
    in->vector = 1;
    in->x = &b->pool[b->pool_used];
    va_list list;
    va_start(list, type);
    for (;;) {
        struct sg_operand x = va_arg(list, struct sg_operand);
        if (x.kind == SG_O_NONE && x.value == 1)
            break;
        b->pool[b->pool_used++] = x;
        in->operands++;
    }
    va_end(list);
    in->sources = op < SG_P_UNPACK ? (uint8_t)(in->operands - 1) : 0;
    return in;
}

void build_finish(struct build *b)
{
    for (uint32_t i = 0; i < b->module.code_count; i++) {
        struct sg_insn *in = &b->code[i];
        in->pure = sg_pure_select(in);
        in->execute = sg_execute_select(in);
        if (!in->execute)
            abort();
    }
}

static void *resolve(void *context, uint64_t address, uint64_t size, uint64_t *begin, uint64_t *end)
{
    struct build *b = context;
    if (address < BUILD_BASE || address - BUILD_BASE > BUILD_MEMORY ||
        size > BUILD_MEMORY - (address - BUILD_BASE))
        return NULL;
    *begin = BUILD_BASE;
    *end = BUILD_BASE + BUILD_MEMORY;
    return b->memory + (address - BUILD_BASE);
}

static void print(void *context, const char *text, size_t n)
{
    struct build *b = context;
    if (n > sizeof(b->printed) - 1 - b->printed_size)
        abort();
    memcpy(b->printed + b->printed_size, text, n);
    b->printed_size += n;
    b->printed[b->printed_size] = 0;
}

CUresult build_launch(struct build *b, const struct sg_launch *with, uint32_t blocks,
                      uint32_t threads)
{
    struct sg_memory memory = {resolve, b};
    struct sg_launch launch = *with;
    launch.function = &b->functions[0];
    memcpy(launch.grid, (uint32_t[]){blocks, 1, 1}, sizeof(launch.grid));
    memcpy(launch.block, (uint32_t[]){threads, 1, 1}, sizeof(launch.block));
    launch.parameters = b->parameters;
    launch.memory = &memory;
    launch.print = print;
    launch.print_context = b;
    launch.cancel = &b->cancel;
    return sg_launch_run(&launch, b->fault, sizeof(b->fault));
}

CUresult build_run(struct build *b, uint32_t blocks, uint32_t threads)
{
    return build_launch(b, &(struct sg_launch){0}, blocks, threads);
}

void build_slot_address(struct build *b, uint32_t d, struct sg_operand index)
{
    struct sg_insn *in = build_add(b, SG_P_MAD, SG_T_U32, REG64(d), index, NUMBER(4),
                                   NUMBER(BUILD_BASE), END);
    in->mode = SG_H_WIDE;
}

void build_store(struct build *b, uint32_t scratch, struct sg_operand index,
                 struct sg_operand value)
{
    build_slot_address(b, scratch, index);
    build_add(b, SG_P_ST, SG_T_B32, REG64(scratch), value, END)->space = SG_S_GLOBAL;
}

void build_test(struct build *b, uint32_t p, unsigned type, unsigned compare, struct sg_operand x,
                struct sg_operand y)
{
    struct sg_insn *in = build_add(b, SG_P_SETP, type, PREDICATE(p), SINK, x, y, END);
    in->compare = (uint8_t)compare;
}

struct sg_insn *build_jump(struct build *b, uint32_t p, bool inverse)
{
    struct sg_insn *in = build_add(b, SG_P_BRA, SG_T_NONE, END);
    in->guarded = true;
    in->guard = p;
    in->guard_negated = inverse;
    return in;
}
