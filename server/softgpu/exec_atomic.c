/*
 * Atomic operations, with the host's own atomics: other streams may run
 * kernels on the same memory at the same time.
 */
#include "exec_float.h"
#include "exec_internal.h"

#include <pthread.h>
#include <string.h>

/* 128 bits have no portable lock-free form; PTX mixes them with nothing else. */
static pthread_mutex_t wide_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_float(unsigned t)
{
    return t == SG_T_F16 || t == SG_T_BF16 || t == SG_T_F16X2 || t == SG_T_BF16X2 ||
           t == SG_T_F32 || t == SG_T_F64;
}

static bool is_signed(unsigned t)
{
    return t == SG_T_S32 || t == SG_T_S64;
}

bool sg_atomic_known(const struct sg_insn *in)
{
    unsigned size = sg_type_size(in->type), mode = in->mode;
    if (size == 16)
        return in->op == SG_P_ATOM && (mode == SG_A_EXCH || mode == SG_A_CAS);
    if (is_float(in->type))
        return mode == SG_A_ADD || mode == SG_A_MIN || mode == SG_A_MAX || mode == SG_A_EXCH;
    if (size == 2)
        return mode == SG_A_CAS;
    return (size == 4 || size == 8) && mode <= SG_A_CAS;
}

/* The last NaN of a sum of f64 stays as it is in global memory; in shared memory, where
 * the sum is a loop of instructions, the first one does, quiet. */
static uint64_t nan_sum(bool shared, uint64_t a, uint64_t b)
{
    bool first = sg_is_nan(&sg_f64, a), last = sg_is_nan(&sg_f64, b);
    if (!first && !last)
        return sg_f64.nan;
    if (shared)
        return (first ? a : b) | sg_quiet64;
    return last ? b : a;
}

static uint64_t float_one(const struct sg_format *f, unsigned mode, bool ftz, bool shared,
                          uint64_t a, uint64_t b)
{
    if (mode == SG_A_MIN || mode == SG_A_MAX)
        return sg_float_extreme(f, a, b, mode == SG_A_MIN, 0);
    if (mode == SG_A_EXCH)
        return b;
    if (ftz) {
        a = sg_flush(f, a);
        b = sg_flush(f, b);
    }
    if (f == &sg_f64) {
        double sum = sg_as_double(a) + sg_as_double(b);
        return sum == sum ? sg_of_double(sum) : nan_sum(shared, a, b);
    }
    if (f == &sg_f32) {
        uint64_t sum = sg_of_float(sg_as_float(a) + sg_as_float(b));
        return ftz ? sg_flush(f, sum) : sum;
    }
    /* Sums of two short numbers are exact in double or round the same way. */
    double sum = sg_float_to_double(f, a) + sg_float_to_double(f, b);
    return sum == sum ? sg_float_from_double(f, sum, SG_R_NEAREST) : f->nan;
}

static uint64_t float_two(const struct sg_insn *in, bool global, uint64_t a, uint64_t b)
{
    const struct sg_format *f = sg_format_of(in->type);
    /* Sums of f32 flush subnormals in global memory, and there alone: so PTX has it. */
    if (in->type == SG_T_F32)
        return float_one(f, in->mode, in->ftz || global, !global, a, b);
    if (in->type != SG_T_F16X2 && in->type != SG_T_BF16X2)
        return float_one(f, in->mode, in->ftz, !global, a, b);
    uint64_t low = float_one(f, in->mode, in->ftz, !global, a & 0xffff, b & 0xffff);
    return low | float_one(f, in->mode, in->ftz, !global, a >> 16 & 0xffff, b >> 16 & 0xffff) << 16;
}

/* The new content; a old, b and c the operands, all cut to the type. */
static uint64_t apply(const struct sg_insn *in, bool global, uint64_t a, uint64_t b, uint64_t c)
{
    if (is_float(in->type))
        return float_two(in, global, a, b);
    bool wide = sg_type_size(in->type) == 8;
    bool less = !is_signed(in->type) ? a < b
                : wide               ? (int64_t)a < (int64_t)b
                                     : (int32_t)a < (int32_t)b;
    switch (in->mode) {
    case SG_A_ADD:
        return a + b;
    case SG_A_MIN:
        return less ? a : b;
    case SG_A_MAX:
        return less ? b : a;
    case SG_A_INC:
        return a >= b ? 0 : a + 1;
    case SG_A_DEC:
        return a == 0 || a > b ? b : a - 1;
    case SG_A_AND:
        return a & b;
    case SG_A_OR:
        return a | b;
    case SG_A_XOR:
        return a ^ b;
    case SG_A_EXCH:
        return b;
    default:
        return a == b ? c : a;
    }
}

#define UPDATE(bits)                                                                               \
    static uint64_t update_##bits(const struct sg_insn *in, bool global, void *memory, uint64_t b, \
                                  uint64_t c)                                                      \
    {                                                                                              \
        uint##bits##_t *p = memory, old = __atomic_load_n(p, __ATOMIC_SEQ_CST), new;               \
        do                                                                                         \
            new = (uint##bits##_t)apply(in, global, old, (uint##bits##_t)b, (uint##bits##_t)c);    \
        while (!__atomic_compare_exchange_n(p, &old, new, false, __ATOMIC_SEQ_CST,                 \
                                            __ATOMIC_SEQ_CST));                                    \
        return old;                                                                                \
    }
UPDATE(16)
UPDATE(32)
UPDATE(64)

uint64_t sg_atomic_update(const struct sg_insn *in, bool global, void *memory, uint64_t b,
                          uint64_t c)
{
    switch (sg_type_size(in->type)) {
    case 2:
        return update_16(in, global, memory, b, c);
    case 4:
        return update_32(in, global, memory, b, c);
    default:
        return update_64(in, global, memory, b, c);
    }
}

static enum sg_step wide(struct sg_warp *w, const struct sg_insn *in, unsigned lane, void *memory)
{
    uint64_t old[2], b[2], c[2];
    const struct sg_operand *x = in->x;
    for (unsigned i = 2; i < in->operands; i++)
        if (x[i].kind != SG_O_REGISTER)
            return sg_fault(w, in, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                            "128-bit atomics take registers");
    for (unsigned i = 0; i < 2; i++) {
        b[i] = sg_register(w, &x[2])[lane + i * SG_LANES];
        c[i] = in->mode == SG_A_CAS ? sg_register(w, &x[3])[lane + i * SG_LANES] : b[i];
    }
    pthread_mutex_lock(&wide_lock);
    memcpy(old, memory, sizeof(old));
    if (in->mode != SG_A_CAS || memcmp(old, b, sizeof(old)) == 0)
        memcpy(memory, c, sizeof(c));
    pthread_mutex_unlock(&wide_lock);
    if (x[0].kind == SG_O_REGISTER)
        for (unsigned i = 0; i < 2; i++)
            sg_register(w, &x[0])[lane + i * SG_LANES] = old[i];
    return SG_NEXT;
}

SG_HANDLER(sg_do_atomic)
{
    const struct sg_operand *x = in->op == SG_P_ATOM ? in->x + 1 : in->x; /* the address */
    uint32_t size = sg_type_size(in->type);
    SG_FOR_LANES(l, mask)
    {
        uint64_t address = sg_address(x, sg_operand_lane(w, x, l), in->offset);
        void *memory = sg_reach(w, in, l, in->space, address, size, size);
        if (!memory)
            return SG_FAULT;
        if (size == 16) {
            if (wide(w, in, l, memory) == SG_FAULT)
                return SG_FAULT;
            continue;
        }
        uint64_t b = sg_operand_lane(w, &x[1], l);
        uint64_t c = in->mode == SG_A_CAS ? sg_operand_lane(w, &x[2], l) : 0;
        bool global = in->space == SG_S_GLOBAL ||
                      (in->space == SG_S_GENERIC && address >> SG_WINDOW_SHIFT == 0);
        uint64_t old = sg_atomic_update(in, global, memory, b, c);
        if (in->op == SG_P_ATOM)
            sg_write(w->frame, &in->x[0], l, old);
    }
    return SG_NEXT;
}
