/*
 * Shuffles and votes when all lanes of the warp that live come together, as they do outside of
 * branches that part them.
 */
#include "exec_whole.h"

/* Those that run are all that live, and each waits for no other. */
static bool all_here(struct sg_warp *w, const struct sg_operand *members, uint32_t mask)
{
    uint64_t room[SG_LANES];
    const uint64_t *named = sg_whole_operand(w, members, room);
    uint32_t missing = mask ^ w->live;
    for (unsigned l = 0; l < SG_LANES; l++)
        missing |= mask >> l & 1 ? mask & ~(uint32_t)named[l] : 0;
    return missing == 0;
}

static void write_all(struct sg_warp *w, const struct sg_operand *x, const uint64_t *values,
                      uint32_t mask)
{
    if (x->kind == SG_O_REGISTER)
        sg_whole_write(sg_register(w, x), values, mask);
}

/* What the lanes of a shuffle read: lane, and whether it is within the segment. */
struct route {
    uint32_t from[SG_LANES];
    uint64_t inside[SG_LANES];
};

#define ROUTE(name, from_lane, is_inside)                                                          \
    static void route_##name(const uint64_t *b, const uint64_t *c, struct route *r)                \
    {                                                                                              \
        SG_LANEWISE                                                                                \
        for (unsigned l = 0; l < SG_LANES; l++) {                                                  \
            int lane = (int)l, by = (int)(b[l] & 31), clamp = (int)(c[l] & 31);                    \
            int segment = (int)(c[l] >> 8 & 31), low = lane & segment;                             \
            int high = low | (clamp & ~segment), from = from_lane;                                 \
            (void)low, (void)lane;                                                                 \
            bool inside = is_inside;                                                               \
            r->from[l] = inside ? (uint32_t)from : l;                                              \
            r->inside[l] = inside;                                                                 \
        }                                                                                          \
    }
ROUTE(up, lane - by, from >= high)
ROUTE(down, lane + by, from <= high)
ROUTE(butterfly, lane ^ by, from <= high)
ROUTE(index, low | (by & ~segment), from <= high)

static SG_HANDLER(whole_shuffle)
{
    static void (*const routes[])(const uint64_t *, const uint64_t *, struct route *) = {
        route_up, route_down, route_butterfly, route_index};
    const struct sg_operand *x = in->x; /* d, p, a, b, c, members */
    if (!all_here(w, &x[5], mask))
        return sg_do_lanes(w, in, mask);
    uint64_t room[3][SG_LANES], result[SG_LANES];
    const uint64_t *a = sg_whole_operand(w, &x[2], room[0]);
    struct route r;
    routes[in->mode](sg_whole_operand(w, &x[3], room[1]), sg_whole_operand(w, &x[4], room[2]), &r);
    for (unsigned l = 0; l < SG_LANES; l++)
        result[l] = (uint32_t)a[mask >> r.from[l] & 1 ? r.from[l] : l];
    write_all(w, &x[0], result, mask);
    write_all(w, &x[1], r.inside, mask);
    return SG_NEXT;
}

static SG_HANDLER(whole_vote)
{
    if (!all_here(w, &in->x[2], mask))
        return sg_do_lanes(w, in, mask);
    uint64_t room[SG_LANES];
    const uint64_t *p = sg_whole_operand(w, &in->x[1], room);
    uint32_t yes = 0;
    for (unsigned l = 0; l < SG_LANES; l++)
        yes |= (uint32_t)(p[l] & 1) << l;
    yes &= mask;
    const uint32_t answers[] = {yes == mask, yes != 0, yes == mask || yes == 0, yes};
    for (unsigned l = 0; l < SG_LANES; l++)
        room[l] = answers[in->mode];
    write_all(w, &in->x[0], room, mask);
    return SG_NEXT;
}

static SG_HANDLER(whole_meeting)
{
    return all_here(w, &in->x[0], mask) ? SG_NEXT : sg_do_lanes(w, in, mask);
}

sg_execute sg_whole_lanes(const struct sg_insn *in)
{
    return in->op == SG_P_SHFL ? whole_shuffle : in->op == SG_P_VOTE ? whole_vote : whole_meeting;
}
