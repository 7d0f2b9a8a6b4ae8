/* What pages are told: whose turn it is, what is left of the memory, slices. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arbiter_internal.h"

static uint32_t flags_of(struct gp_board *b, const struct member_slot *m)
{
    const struct tenant_slot *t = gp_board_tenant_of(b, m);
    uint32_t flags = 0;
    if (b->open)
        flags |= GP_PAGE_OPEN;
    else if (gp_board_holder(b) == t)
        flags |= GP_PAGE_HOLDS | (b->yielding ? GP_PAGE_YIELD : 0) |
                 (b->turn_fresh ? GP_PAGE_FRESH : 0);
    if (b->contended)
        flags |= GP_PAGE_CONTENDED;
    if (m->beside)
        flags |= GP_PAGE_BESIDE;
    if (m->wants_since)
        flags |= GP_PAGE_WAITS;
    if (b->contended || t->ceiling < 1000 || t->usage.members > 1 || t->grant.high_priority)
        flags |= GP_PAGE_TELL;
    return flags;
}

static bool has_turn(uint32_t flags)
{
    return flags & GP_PAGE_OPEN || (flags & (GP_PAGE_HOLDS | GP_PAGE_YIELD)) == GP_PAGE_HOLDS;
}

void gp_arbiter_wake(uint32_t *word)
{
    /* a worker of ours has one that waits; another's threads are not to cost us time */
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void tell_flags(struct seat *s, uint32_t flags, bool waits)
{
    bool woken = waits && has_turn(flags) && !has_turn(s->flags);
    s->flags = flags;
    GP_PAGE_STORE(s->page->flags, flags);
    if (woken) {
        __atomic_fetch_add(&s->page->epoch, 1, __ATOMIC_RELEASE);
        gp_arbiter_wake(&s->page->epoch);
    }
}

static void tell_numbers(struct gp_arbiter *a, int member)
{
    struct gp_page *p = a->seats[member].page;
    uint64_t limit, others = gp_board_memory_others(a->board, member, &limit);
    GP_PAGE_STORE(p->memory_limit, limit);
    GP_PAGE_STORE(p->memory_others, others);
    GP_PAGE_STORE(p->granted, gp_board_memory_given(a->board, member));
    GP_PAGE_STORE(p->members,
                  gp_board_tenant_of(a->board, &a->board->members[member])->usage.members);
    GP_PAGE_STORE(p->check_at, a->board->check_at);
    if (a->entitled != a->board->entitled)
        GP_PAGE_STORE(p->slice_us, gp_board_slice_us(a->board, member));
}

/* True: it has begun or ended work while it was told to say so. */
static bool tell(struct gp_arbiter *a, int member, uint64_t now)
{
    struct seat *s = &a->seats[member];
    struct member_slot *m = &a->board->members[member];
    uint32_t flags = flags_of(a->board, m), runs = s->runs;
    bool lazy = !(flags & GP_PAGE_TELL), shut = s->flags & GP_PAGE_OPEN && !(flags & GP_PAGE_OPEN);
    if (flags != s->flags)
        tell_flags(s, flags, m->wants_since != 0);
    if (lazy == s->lazy && !shut)
        return false;
    GP_PAGE_FENCE();
    gp_arbiter_sync(a, member, now);
    s->lazy = lazy;
    if (shut && m->busy) /* it needed no turn for the work that it is at */
        m->late = 1;
    return s->runs != runs;
}

bool gp_arbiter_publish(struct gp_arbiter *a, uint64_t now)
{
    bool again = false;
    for (int i = 0; i < a->top; i++)
        if (a->seats[i].page)
            tell_numbers(a, i);
    a->entitled = a->board->entitled;
    /* who has the turn hears it last: nobody thinks any more that it has it */
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < a->top; i++)
            if (a->seats[i].page && has_turn(flags_of(a->board, &a->board->members[i])) == last)
                again |= tell(a, i, now);
    for (int i = 0; i < a->top; i++) {
        struct seat *s = &a->seats[i];
        if (!s->page || !s->answer)
            continue;
        s->answer = false;
        s->page->result = s->result;
        GP_PAGE_STORE(s->page->answered, s->asked);
        gp_arbiter_wake(&s->page->answered);
    }
    return again;
}

bool gp_arbiter_shut(struct gp_board *b, const struct tenant_slot *t)
{
    struct gp_arbiter *a = b->context;
    uint64_t now = gp_board_now();
    for (int i = 0; i < a->top; i++) {
        struct seat *s = &a->seats[i];
        if (!s->page || gp_board_tenant_of(b, &b->members[i]) != t)
            continue;
        tell_flags(s, s->flags | GP_PAGE_YIELD, false);
        GP_PAGE_FENCE();
        gp_arbiter_sync(a, i, now);
    }
    return t->busy != 0;
}
