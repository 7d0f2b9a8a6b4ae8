/* What workers ask for. A request is copied out of its page once, then checked. */
#include "arbiter_internal.h"

/* Others may not copy this way without asking any more; what they have let through counts. */
static void leases_end(struct gp_arbiter *a, int member, enum gp_board_way way, uint64_t now)
{
    for (int i = 0; i < a->top; i++) {
        struct seat *s = &a->seats[i];
        if (!s->page || s->lease[way] <= now ||
            a->board->members[i].tenant == a->board->members[member].tenant)
            continue;
        s->lease[way] = 0;
        GP_PAGE_STORE(s->page->alone_until[way], 0);
        GP_PAGE_FENCE();
        gp_arbiter_sync(a, i, now);
    }
}

static uint32_t copy(struct gp_arbiter *a, int member, enum gp_board_way way, uint64_t bytes)
{
    struct seat *s = &a->seats[member];
    leases_end(a, member, way, gp_board_now());
    if (!gp_board_copy(a->board, member, way, bytes))
        return 0;
    s->lease[way] = gp_board_copy_lease(a->board, member, way);
    GP_PAGE_STORE(s->page->alone_until[way], s->lease[way]);
    return 1;
}

static uint32_t enter(struct gp_arbiter *a, int member)
{
    struct seat *s = &a->seats[member];
    bool worked = a->board->members[member].busy;
    if (!gp_board_enter(a->board, member))
        return 0;
    if (!worked)
        s->let_in = gp_board_now();
    return 1;
}

static uint32_t serve(struct gp_arbiter *a, int member, uint32_t op, uint64_t x, uint64_t y)
{
    struct gp_board *b = a->board;
    switch (op) {
    case GP_PAGE_ENTER:
        return enter(a, member);
    case GP_PAGE_STARTED:
        if (gp_board_holder(b) == gp_board_tenant_of(b, &b->members[member]))
            gp_board_started(b, member);
        return 1;
    case GP_PAGE_TAKE: /* too much for anybody is refused, as it is to an honest worker */
        return gp_board_memory_take(b, member, x);
    case GP_PAGE_LOOK:
        return 1; /* all were looked at, and are told */
    case GP_PAGE_COPY:
        if (x < GP_BOARD_WAYS)
            return copy(a, member, (enum gp_board_way)x, y);
        break;
    case GP_PAGE_LEAVE:
        return 1; /* by the caller */
    }
    gp_arbiter_fault(a, member, "it asks for what there is not");
    return 0;
}

void gp_arbiter_serve(struct gp_arbiter *a, int member)
{
    struct seat *s = &a->seats[member];
    uint32_t asked = GP_PAGE_LOAD(s->page->asked);
    if (asked == s->asked || a->board->members[member].fault)
        return;
    uint32_t op = GP_PAGE_LOAD(s->page->op);
    uint64_t x = GP_PAGE_LOAD(s->page->a), y = GP_PAGE_LOAD(s->page->b);
    s->asked = asked;
    a->board->members[member].questions++;
    s->result = serve(a, member, op, x, y);
    s->answer = true;
    if (op == GP_PAGE_LEAVE && a->board->members[member].pid != GP_BOARD_NOT_STARTED) {
        GP_PAGE_STORE(s->page->answered, asked); /* it goes, whether it hears that or not */
        gp_arbiter_wake(&s->page->answered);
        gp_arbiter_leave(a, member);
    }
}
