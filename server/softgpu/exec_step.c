/* Operands of instructions, and the wrapper around the pure handlers. */
#include "exec_internal.h"

#include <string.h>

static uint64_t shared_address(const struct sg_run *run, const struct sg_operand *x)
{
    return run->function->shared_offset[x->slot] + x->value;
}

static void fill(uint64_t *room, uint64_t value)
{
    for (unsigned l = 0; l < SG_LANES; l++)
        room[l] = value;
}

const uint64_t *sg_operand_all(struct sg_warp *w, const struct sg_operand *x, uint64_t *room)
{
    switch (x->kind) {
    case SG_O_REGISTER: {
        const uint64_t *r = sg_register(w, x);
        if (!x->negated)
            return r;
        for (unsigned l = 0; l < SG_LANES; l++)
            room[l] = !(r[l] & 1);
        return room;
    }
    case SG_O_SPECIAL:
        sg_special_all(w, x->slot, room);
        return room;
    case SG_O_SHARED:
        fill(room, shared_address(w->block->run, x));
        return room;
    case SG_O_LOCAL:
        fill(room, w->frame->base + x->value);
        return room;
    case SG_O_IMMEDIATE:
        fill(room, x->negated ? !(x->value & 1) : x->value);
        return room;
    default:
        fill(room, x->value);
        return room;
    }
}

uint64_t sg_operand_lane(struct sg_warp *w, const struct sg_operand *x, unsigned lane)
{
    if (x->kind == SG_O_REGISTER) {
        uint64_t v = sg_register(w, x)[lane];
        return x->negated ? !(v & 1) : v;
    }
    uint64_t room[SG_LANES];
    return sg_operand_all(w, x, room)[lane];
}

static enum sg_step move_pair(struct sg_warp *w, const struct sg_insn *in, uint32_t mask)
{
    uint64_t *d = sg_register(w, &in->x[0]);
    const uint64_t *s = sg_register(w, &in->x[1]);
    SG_FOR_LANES(l, mask)
    {
        d[l] = s[l];
        d[l + SG_LANES] = s[l + SG_LANES];
    }
    return SG_NEXT;
}

SG_HANDLER(sg_do_pure)
{
    if (in->x[0].kind != SG_O_REGISTER)
        return SG_NEXT;
    if (in->type == SG_T_B128 && in->op == SG_P_MOV)
        return move_pair(w, in, mask);
    uint64_t room[9][SG_LANES];
    const uint64_t *s[8];
    for (unsigned i = 0; i < SG_SOURCES; i++)
        s[i] = room[i];
    for (unsigned i = 0; i < in->sources; i++)
        s[i] = sg_operand_all(w, &in->x[i + 1], room[i]);
    uint64_t *d = sg_register(w, &in->x[0]);
    if (in->type == SG_T_B128 && in->op == SG_P_PACK) {
        SG_FOR_LANES(l, mask)
        {
            uint64_t low = s[0][l], high = s[1][l];
            d[l] = low;
            d[l + SG_LANES] = high;
        }
        return SG_NEXT;
    }
    if (mask == SG_ALL_LANES) {
        in->pure(in, s, d);
        return SG_NEXT;
    }
    in->pure(in, s, room[8]);
    SG_FOR_LANES(l, mask)
    d[l] = room[8][l];
    return SG_NEXT;
}
