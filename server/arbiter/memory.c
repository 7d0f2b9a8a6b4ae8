/*
 * Memory on the board. What a member was *given* is charged to its tenant, and the sum of that is
 * what a limit bounds; what of it is *used* its page says, and that is what is shown. A member is
 * given somewhat more than it asks for, its advance, so that it seldom asks. What it does not use
 * is taken back where another of its tenant needs it, without its help.
 */
#include "board_internal.h"

/* An advance: a part of the limit, within these bounds. */
#define AHEAD_PART 32
#define AHEAD_LEAST (UINT64_C(8) << 20)
#define AHEAD_MOST (UINT64_C(1) << 30)

static uint64_t limit_of(const struct gp_board *f, const struct tenant_slot *t)
{
    uint64_t limit = t->grant.memory_limit ? t->grant.memory_limit : f->gpu.memory_total;
    return limit ? limit : UINT64_MAX;
}

static void peak_set(struct tenant_slot *t, uint64_t used)
{
    if (t->usage.memory_peak < used)
        t->usage.memory_peak = used;
}

/* What of what it was given a member does not use is its no more. */
static void recall(struct gp_board *f, int member)
{
    struct member_slot *m = &f->members[member];
    struct tenant_slot *t = gp_board_tenant_of(f, m);
    uint64_t keeps = f->keeps ? f->keeps(f, member) : m->memory_used;
    if (keeps >= m->memory_given)
        return;
    t->memory_given -= m->memory_given - keeps;
    m->memory_given = keeps;
    if (m->memory_used > keeps) { /* it has given back since the last look */
        t->usage.memory_used -= m->memory_used - keeps;
        m->memory_used = keeps;
    }
}

static bool fits(const struct gp_board *f, const struct tenant_slot *t, uint64_t bytes)
{
    uint64_t limit = limit_of(f, t);
    if (limit > GP_BOARD_MEMORY_MOST)
        limit = GP_BOARD_MEMORY_MOST;
    return t->memory_given <= limit && bytes <= limit - t->memory_given;
}

/* Members other than `member` (-1: all) give back what they do not use until `bytes` fit. */
static bool make_room(struct gp_board *f, const struct tenant_slot *t, int member, uint64_t bytes)
{
    for (int i = 0; i < GP_BOARD_MEMBERS && !fits(f, t, bytes); i++)
        if (i != member && f->members[i].pid && gp_board_tenant_of(f, &f->members[i]) == t)
            recall(f, i);
    return fits(f, t, bytes);
}

bool gp_board_memory_fits(struct gp_board *f, struct tenant_slot *t, uint64_t limit)
{
    struct gp_board_grant before = t->grant;
    t->grant.memory_limit = limit;
    bool all = make_room(f, t, -1, 0);
    t->grant = before;
    return all;
}

static void give(struct member_slot *m, struct tenant_slot *t, uint64_t bytes)
{
    m->memory_given += bytes;
    t->memory_given += bytes;
}

/* What is left is for the others, too. */
static uint64_t ahead(const struct gp_board *f, const struct tenant_slot *t)
{
    uint64_t limit = limit_of(f, t), bytes = limit / AHEAD_PART;
    uint64_t part = (limit - t->memory_given) / (t->usage.members ? t->usage.members : 1);
    if (bytes < AHEAD_LEAST)
        bytes = AHEAD_LEAST;
    if (bytes > AHEAD_MOST)
        bytes = AHEAD_MOST;
    return bytes < part ? bytes : part;
}

bool gp_board_memory_take(struct gp_board *f, int member, uint64_t total)
{
    struct member_slot *m = &f->members[member];
    struct tenant_slot *t = gp_board_tenant_of(f, m);
    if (total > m->memory_given) {
        uint64_t more = total - m->memory_given;
        if (!t->name[0] || !make_room(f, t, member, more)) {
            t->usage.memory_denied++;
            return false;
        }
        give(m, t, more);
        give(m, t, ahead(f, t));
    }
    gp_board_memory_had(f, member, total); /* which its page says only after the answer */
    return true;
}

void gp_board_memory_use(struct gp_board *f, int member, uint64_t total)
{
    struct member_slot *m = &f->members[member];
    struct tenant_slot *t = gp_board_tenant_of(f, m);
    if (total > m->memory_given)
        give(m, t, total - m->memory_given);
    t->usage.memory_used += total - m->memory_used;
    m->memory_used = total;
    peak_set(t, t->usage.memory_used);
    if (t->memory_given > limit_of(f, t)) /* it was charged beyond it, and gives back */
        recall(f, member);
}

void gp_board_memory_had(struct gp_board *f, int member, uint64_t most)
{
    const struct member_slot *m = &f->members[member];
    struct tenant_slot *t = gp_board_tenant_of(f, m);
    if (most > m->memory_used)
        peak_set(t, t->usage.memory_used + (most - m->memory_used));
}

uint64_t gp_board_memory_given(const struct gp_board *f, int member)
{
    return f->members[member].memory_given;
}

uint64_t gp_board_memory_others(struct gp_board *f, int member, uint64_t *limit)
{
    const struct member_slot *m = &f->members[member];
    const struct tenant_slot *t = gp_board_tenant_of(f, m);
    *limit = limit_of(f, t);
    return t->usage.memory_used - m->memory_used;
}

void gp_board_host_set(struct gp_board *f, int member, uint64_t bytes)
{
    struct member_slot *m = &f->members[member];
    gp_board_tenant_of(f, m)->usage.host_used += bytes - m->host_used;
    m->host_used = bytes;
}
