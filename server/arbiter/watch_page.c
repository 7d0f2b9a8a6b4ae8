/*
 * What a worker's page says, as far as it can be. Every word is loaded once. Times are
 * bounded by what the arbiter's own clock has seen: a worker that says that its work began
 * late or ended early gains no more than the time since the last look, and whoever takes
 * turns with others is looked at whenever its turn begins and ends.
 */
#include "arbiter_internal.h"

/* From being let in to the first work: a worker of ours needs microseconds. */
#define UNUSED UINT64_C(100000000)

static uint64_t within(uint64_t value, uint64_t from, uint64_t to)
{
    return value < from ? from : value > to ? to : value;
}

void gp_arbiter_fault(struct gp_arbiter *a, int member, const char *what)
{
    struct member_slot *m = &a->board->members[member];
    if (m->fault)
        return;
    m->fault = what;
    gp_arbiter_watch(a, a->seats[member].bell_fd, GP_ARBITER_BELL, member, 0);
}

/* How much more a counter says than before. */
static uint64_t more(struct gp_arbiter *a, int member, const uint64_t *word, uint64_t *before)
{
    uint64_t value = GP_PAGE_LOAD(*word), gain = value - *before;
    if (value < *before || gain > GP_PAGE_MEMORY_MOST) {
        gp_arbiter_fault(a, member, "a counter of its page goes back or too far");
        return 0;
    }
    *before = value;
    return gain;
}

static void sync_counters(struct gp_arbiter *a, int member)
{
    struct seat *s = &a->seats[member];
    const struct gp_page *p = s->page;
    uint64_t launches = more(a, member, &p->launches, &s->launches);
    uint64_t bytes = more(a, member, &p->bytes_copied, &s->bytes_copied);
    gp_board_count(a->board, member, launches, bytes);
    for (int way = 0; way < GP_BOARD_WAYS; way++) {
        bytes = more(a, member, &p->copied[way], &s->copied[way]);
        if (bytes)
            gp_board_copied(a->board, member, (enum gp_board_way)way, bytes);
    }
    uint64_t host = GP_PAGE_LOAD(p->host_used);
    if (host > GP_PAGE_MEMORY_MOST)
        gp_arbiter_fault(a, member, "it says that it has more host memory than there is");
    else if (host != a->board->members[member].host_used)
        gp_board_host_set(a->board, member, host);
}

/* What it held at most since the last look: it may have taken and given back of what it was
 * granted. */
static void sync_most(struct gp_arbiter *a, int member)
{
    uint64_t most = __atomic_exchange_n(&a->seats[member].page->most, 0, __ATOMIC_ACQ_REL);
    if (most > GP_PAGE_MEMORY_MOST)
        gp_arbiter_fault(a, member, "its page says that it had more memory than there is");
    else
        gp_board_memory_had(a->board, member, most);
}

/* What it holds, all told: whatever it had no chance to ask for is charged. */
static void sync_memory(struct gp_arbiter *a, int member)
{
    uint64_t held = GP_PAGE_LOAD(a->seats[member].page->held);
    if (held > GP_PAGE_MEMORY_MOST)
        gp_arbiter_fault(a, member, "its page says that it has more memory than there is");
    else if (held != a->board->members[member].memory_used)
        gp_board_memory_use(a->board, member, held);
}

/* It only rises: what went on unseen may do so still. */
static void sync_sight(struct member_slot *m, uint32_t sight)
{
    if (sight > m->sight)
        m->sight = sight < GP_PAGE_LOST ? sight : GP_PAGE_LOST;
}

uint64_t gp_arbiter_keeps(struct gp_board *b, int member)
{
    struct gp_arbiter *a = b->context;
    struct gp_page *p = a->seats[member].page;
    uint64_t given = gp_board_memory_given(b, member);
    if (!p || b->members[member].fault)
        return given;
    GP_PAGE_STORE(p->granted, 0);
    GP_PAGE_FENCE();
    sync_most(a, member); /* while what it had is nobody else's */
    uint64_t held = GP_PAGE_LOAD(p->held), claims = GP_PAGE_LOAD(p->claims);
    uint64_t keeps = within(held > claims ? held : claims, 0, given);
    GP_PAGE_STORE(p->granted, keeps);
    return keeps;
}

void gp_arbiter_sync_all(struct gp_arbiter *a)
{
    uint64_t now = gp_board_now();
    for (int i = 0; i < a->top; i++) /* before any of them is known to have what another gave */
        if (a->seats[i].page)
            sync_most(a, i);
    for (int i = 0; i < a->top; i++)
        if (a->seats[i].page)
            gp_arbiter_sync(a, i, now);
}

void gp_arbiter_sync(struct gp_arbiter *a, int member, uint64_t now)
{
    struct seat *s = &a->seats[member];
    struct member_slot *m = &a->board->members[member];
    const struct gp_page *p = s->page;
    uint32_t runs = GP_PAGE_LOAD(p->runs);
    uint64_t began = within(GP_PAGE_LOAD(p->began), 0, now), ended = GP_PAGE_LOAD(p->ended);
    uint64_t claimed = GP_PAGE_LOAD(p->busy_ns) + (runs & 1 ? now - began : 0);
    uint64_t elapsed = now > s->synced ? now - s->synced : 0;
    if (s->lazy) {
        uint64_t ns = claimed > s->claimed ? claimed - s->claimed : 0;
        ns = within(ns, 0, elapsed);
        gp_board_member_worked(a->board, member, ns, now);
        m->busy_ns += ns;
    } else if (m->busy) {
        m->busy_ns += elapsed;
    }
    s->claimed = claimed;
    if (runs != s->runs) {
        s->runs = runs;
        s->let_in = 0;
        if (runs & 1 && !m->busy)
            gp_board_member_begins(a->board, member, within(began, s->synced, now));
        else if (!(runs & 1) && m->busy)
            gp_board_member_idle(a->board, member, within(ended, s->synced, now));
    }
    if (s->let_in && now - s->let_in > UNUSED) { /* it does not use what it asked for */
        s->let_in = 0;
        gp_board_member_idle(a->board, member, now);
    }
    s->synced = now;
    s->collective = GP_PAGE_LOAD(p->collective);
    sync_sight(m, GP_PAGE_LOAD(p->sight));
    sync_counters(a, member);
    sync_memory(a, member);
}
