/*
 * Instructions between lanes of a warp. Each lane leaves what it brings in its
 * deposit; once every live lane that its mask names has come, in one group or
 * in several, the exchange happens for all of them.
 */
#include "exec_matrix.h"

static void put(struct sg_warp *w, unsigned lane, unsigned operand, uint64_t value)
{
    const struct sg_insn *in = w->deposit[lane].in;
    sg_write(w->lane_frame[lane], &in->x[operand], lane, value);
}

static void shuffle(struct sg_warp *w, uint32_t set)
{
    SG_FOR_LANES(l, set)
    {
        const struct sg_deposit *own = &w->deposit[l];
        int b = (int)(own->b & 31), clamp = (int)(own->c & 31), segment = (int)(own->c >> 8 & 31);
        int lane = (int)l, low = lane & segment, high = low | (clamp & ~segment), from;
        bool inside;
        switch (own->in->mode) {
        case 0:
            from = lane - b;
            inside = from >= high;
            break;
        case 1:
            from = lane + b;
            inside = from <= high;
            break;
        case 2:
            from = lane ^ b;
            inside = from <= high;
            break;
        default:
            from = low | (b & ~segment);
            inside = from <= high;
            break;
        }
        if (!inside || !(set >> from & 1))
            from = lane;
        put(w, l, 0, (uint32_t)w->deposit[from].value);
        put(w, l, 1, inside);
    }
}

static void vote(struct sg_warp *w, uint32_t set)
{
    uint32_t yes = 0;
    SG_FOR_LANES(l, set)
    yes |= (uint32_t)(w->deposit[l].value & 1) << l;
    SG_FOR_LANES(l, set)
    {
        switch (w->deposit[l].in->mode) {
        case 0:
            put(w, l, 0, yes == set);
            break;
        case 1:
            put(w, l, 0, yes != 0);
            break;
        case 2:
            put(w, l, 0, yes == set || yes == 0);
            break;
        default:
            put(w, l, 0, yes);
            break;
        }
    }
}

static void match(struct sg_warp *w, uint32_t set)
{
    SG_FOR_LANES(l, set)
    {
        uint32_t same = 0;
        SG_FOR_LANES(m, set)
        same |= (uint32_t)(w->deposit[m].value == w->deposit[l].value) << m;
        bool all = w->deposit[l].in->mode == 1;
        put(w, l, 0, !all || same == set ? same : 0);
        if (all)
            put(w, l, 1, same == set);
    }
}

static uint32_t reduce_two(unsigned mode, bool is_signed, uint32_t a, uint32_t b)
{
    bool less = is_signed ? (int32_t)a < (int32_t)b : a < b;
    switch (mode) {
    case SG_A_ADD:
        return a + b;
    case SG_A_MIN:
        return less ? a : b;
    case SG_A_MAX:
        return less ? b : a;
    case SG_A_AND:
        return a & b;
    case SG_A_OR:
        return a | b;
    default:
        return a ^ b;
    }
}

static void reduce(struct sg_warp *w, uint32_t set)
{
    unsigned first = (unsigned)__builtin_ctz(set);
    const struct sg_insn *in = w->deposit[first].in;
    uint32_t sum = (uint32_t)w->deposit[first].value;
    SG_FOR_LANES(l, set & (set - 1))
    sum = reduce_two(in->mode, in->type == SG_T_S32, sum, (uint32_t)w->deposit[l].value);
    SG_FOR_LANES(l, set)
    put(w, l, 0, sum);
}

static void elect(struct sg_warp *w, uint32_t set)
{
    unsigned first = (unsigned)__builtin_ctz(set);
    SG_FOR_LANES(l, set)
    {
        put(w, l, 0, first);
        put(w, l, 1, l == first);
    }
}

/* One instruction that all lanes of the warp execute together. */
static bool matrix(struct sg_warp *w, uint32_t set)
{
    unsigned first = (unsigned)__builtin_ctz(set);
    const struct sg_insn *in = w->deposit[first].in;
    SG_FOR_LANES(l, set)
    if (w->deposit[l].in != in) {
        sg_fault(w, in, l, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                 "lanes of the warp execute different matrix instructions");
        return false;
    }
    if (in->op == SG_P_WGMMA)
        return sg_warpgroup_product(w, in, set);
    return in->op == SG_P_MMA ? sg_matrix_product(w, in, set) : sg_matrix_move(w, in, set);
}

static bool exchange(struct sg_warp *w, uint32_t set)
{
    switch (w->deposit[__builtin_ctz(set)].in->op) {
    case SG_P_SHFL:
        shuffle(w, set);
        break;
    case SG_P_VOTE:
        vote(w, set);
        break;
    case SG_P_MATCH:
        match(w, set);
        break;
    case SG_P_REDUX:
        reduce(w, set);
        break;
    case SG_P_ELECT:
        elect(w, set);
        break;
    case SG_P_BAR_WARP:
        break; /* to have come is all */
    default:
        return matrix(w, set);
    }
    return true;
}

/* Where the operands are: value, b, c, members; -1: none. */
struct layout {
    int value, b, c, members;
};

static struct layout layout_of(const struct sg_insn *in)
{
    switch (in->op) {
    case SG_P_SHFL:
        return (struct layout){2, 3, 4, 5};
    case SG_P_VOTE:
        return (struct layout){1, -1, -1, 2};
    case SG_P_MATCH:
        return (struct layout){2, -1, -1, 3};
    case SG_P_REDUX:
        return (struct layout){1, -1, -1, 2};
    case SG_P_ELECT:
        return (struct layout){-1, -1, -1, 2};
    case SG_P_BAR_WARP:
        return (struct layout){-1, -1, -1, 0};
    case SG_P_LDMATRIX:
    case SG_P_STMATRIX:
    case SG_P_WMMA_LOAD:
    case SG_P_WMMA_STORE: {
        int address = in->matrix->part[in->matrix->role].registers;
        return (struct layout){address, address + 1, -1, -1};
    }
    default:
        return (struct layout){-1, -1, -1, -1};
    }
}

static const uint64_t *source(struct sg_warp *w, const struct sg_insn *in, int i, uint64_t *room)
{
    static const uint64_t none[SG_LANES];
    return i < 0 || i >= in->operands ? none : sg_operand_all(w, &in->x[i], room);
}

static void deposit(struct sg_warp *w, const struct sg_insn *in, uint32_t mask)
{
    uint64_t room[4][SG_LANES];
    struct layout at = layout_of(in);
    const uint64_t *value = source(w, in, at.value, room[0]), *b = source(w, in, at.b, room[1]),
                   *c = source(w, in, at.c, room[2]), *members = source(w, in, at.members, room[3]);
    bool matrix = at.members < 0; /* which all lanes take part in */
    uint64_t keep = in->op == SG_P_MATCH && sg_type_size(in->type) == 8 ? UINT64_MAX : UINT32_MAX;
    SG_FOR_LANES(l, mask)
    {
        uint64_t v = matrix && at.value >= 0 ? sg_address_own(&in->x[at.value], value[l])
                                             : value[l] & keep;
        w->deposit[l] = (struct sg_deposit){v, (uint32_t)b[l], (uint32_t)c[l],
                                            matrix ? SG_ALL_LANES : (uint32_t)members[l], in};
    }
}

SG_HANDLER(sg_do_lanes)
{
    deposit(w, in, mask);
    uint32_t left = mask, waiting = 0;
    while (left) {
        unsigned first = (unsigned)__builtin_ctz(left);
        uint32_t members = w->deposit[first].members;
        uint32_t set = (members & w->live) | 1u << first;
        if (set & ~left) {
            waiting |= 1u << first;
            left &= ~(1u << first);
            continue;
        }
        if (!exchange(w, set))
            return SG_FAULT;
        left &= ~set;
    }
    if (!waiting)
        return SG_NEXT;
    sg_warp_split(w, 0, 0);
    w->sync |= waiting;
    return SG_SELECT;
}

/* All of them wait for the same kind of exchange. */
static bool complete(const struct sg_warp *w, uint32_t set, unsigned op)
{
    if (set & ~w->sync)
        return false;
    SG_FOR_LANES(l, set)
    if (w->deposit[l].in->op != op)
        return false;
    return true;
}

bool sg_lanes_release(struct sg_warp *w)
{
    SG_FOR_LANES(l, w->sync)
    {
        if (!(w->sync >> l & 1))
            continue;
        uint32_t set = (w->deposit[l].members & w->live) | 1u << l;
        if (!complete(w, set, w->deposit[l].in->op))
            continue;
        if (!exchange(w, set))
            return false;
        w->sync &= ~set;
    }
    return true;
}

SG_HANDLER(sg_do_activemask)
{
    SG_FOR_LANES(l, mask)
    sg_write(w->frame, &in->x[0], l, mask);
    return SG_NEXT;
}
