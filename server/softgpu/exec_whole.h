/*
 * Handlers that serve all 32 lanes of a warp by loops without a branch, which become vector
 * instructions: each level of processors has its own (exec_level.h). What they do not serve they
 * leave to the ordinary handler, which goes from lane to lane and knows every case.
 */
#ifndef SG_EXEC_WHOLE_H
#define SG_EXEC_WHOLE_H

#include "exec_internal.h"
#include "exec_pure.h"

#define sg_whole_pure SG_LEVELLED(sg_whole_pure)
#define sg_whole_access SG_LEVELLED(sg_whole_access)
#define sg_whole_atomic SG_LEVELLED(sg_whole_atomic)
#define sg_whole_lanes SG_LEVELLED(sg_whole_lanes)
#define sg_whole_reach SG_LEVELLED(sg_whole_reach)

/* As sg_level's. */
sg_execute sg_whole_pure(const struct sg_insn *in);
sg_execute sg_whole_access(const struct sg_insn *in);
sg_execute sg_whole_atomic(const struct sg_insn *in);
sg_execute sg_whole_lanes(const struct sg_insn *in);

/* Where the lanes reach; those that do not run have the address of one that does. */
struct sg_reach {
    uint64_t address[SG_LANES];
    uint64_t low, high;
    const unsigned char *host; /* of address 0, as it were */
    size_t stride;             /* from lane to lane of local memory */
    bool shared;               /* the block's own */
};

/* The memory of `size` bytes for each lane at operand x, all in one piece and at multiples of
 * `size`; false: it is not as simple as that. */
bool sg_whole_reach(struct sg_warp *w, const struct sg_insn *in, const struct sg_operand *x,
                    uint32_t mask, uint32_t size, struct sg_reach *r);

static inline unsigned char *sg_whole_host(const struct sg_reach *r, unsigned lane)
{
    return (unsigned char *)((uintptr_t)r->host + r->address[lane] + lane * r->stride);
}

/* All lanes of the operand, which lie in its register or are put into `room`. */
static inline const uint64_t *sg_whole_operand(struct sg_warp *w, const struct sg_operand *x,
                                               uint64_t *room)
{
    if (x->kind == SG_O_REGISTER && !x->negated)
        return sg_register(w, x);
    if (x->kind != SG_O_IMMEDIATE || x->negated)
        return sg_operand_all(w, x, room);
    uint64_t value = x->value;
    for (unsigned l = 0; l < SG_LANES; l++)
        room[l] = value;
    return room;
}

/* To the lanes of the mask alone. */
static inline void sg_whole_write(uint64_t *d, const uint64_t *values, uint32_t mask)
{
    SG_LANEWISE
    for (unsigned l = 0; l < SG_LANES; l++)
        d[l] = mask >> l & 1 ? values[l] : d[l];
}

#endif
