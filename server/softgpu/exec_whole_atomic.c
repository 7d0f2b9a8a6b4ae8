/*
 * Atomic operations of whole warps. A block's own shared memory belongs to its thread alone, where
 * plain reads and writes do; sums of all lanes at one place of global memory go there as one.
 */
#include "exec_whole.h"

#include <string.h>

/* Integers of 4 or 8 bytes. */
static bool is_sum(const struct sg_insn *in)
{
    return in->mode == SG_A_ADD && (sg_is_integer(in->type) || sg_is_bits(in->type));
}

/* As if one lane after the other had added: old[l] is what was there before. */
#define ADD(T)                                                                                     \
    static void add_##T(const struct sg_reach *r, uint32_t mask, const uint64_t *b, uint64_t *old) \
    {                                                                                              \
        T sum = 0;                                                                                 \
        if (r->low == r->high && !r->shared) {                                                     \
            SG_FOR_LANES(l, mask)                                                                  \
            {                                                                                      \
                old[l] = sum;                                                                      \
                sum += (T)b[l];                                                                    \
            }                                                                                      \
            T first = __atomic_fetch_add((T *)(void *)sg_whole_host(r, 0), sum, __ATOMIC_SEQ_CST); \
            for (unsigned l = 0; l < SG_LANES; l++)                                                \
                old[l] = (T)(old[l] + first);                                                      \
            return;                                                                                \
        }                                                                                          \
        SG_FOR_LANES(l, mask)                                                                      \
        {                                                                                          \
            T *at = (T *)(void *)sg_whole_host(r, l);                                              \
            old[l] = r->shared ? *at : __atomic_fetch_add(at, (T)b[l], __ATOMIC_SEQ_CST);          \
            if (r->shared)                                                                         \
                *at += (T)b[l];                                                                    \
        }                                                                                          \
    }
ADD(uint32_t)
ADD(uint64_t)

static SG_HANDLER(whole_atomic)
{
    const struct sg_operand *x = in->op == SG_P_ATOM ? in->x + 1 : in->x; /* the address */
    uint32_t size = sg_type_size(in->type);
    uint64_t room[2][SG_LANES], old[SG_LANES] = {0};
    struct sg_reach r;
    if (!sg_whole_reach(w, in, x, mask, size, &r) || r.stride)
        return sg_do_atomic(w, in, mask);
    const uint64_t *b = sg_whole_operand(w, &x[1], room[0]);
    const uint64_t *c = in->mode == SG_A_CAS ? sg_whole_operand(w, &x[2], room[1]) : b;
    bool global = r.low >> SG_WINDOW_SHIFT == 0 && !r.shared;
    if (is_sum(in) && size == 4)
        add_uint32_t(&r, mask, b, old);
    else if (is_sum(in))
        add_uint64_t(&r, mask, b, old);
    else
        SG_FOR_LANES(l, mask)
    old[l] = sg_atomic_update(in, global, sg_whole_host(&r, l), b[l], c[l]);
    if (in->op == SG_P_ATOM && in->x[0].kind == SG_O_REGISTER)
        sg_whole_write(sg_register(w, &in->x[0]), old, mask);
    return SG_NEXT;
}

sg_execute sg_whole_atomic(const struct sg_insn *in)
{
    uint32_t size = sg_type_size(in->type);
    return size <= 8 && (!is_sum(in) || size >= 4) ? whole_atomic : NULL;
}
