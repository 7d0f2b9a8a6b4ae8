/*
 * The copy engines' account. A GPU moves memory to and from its host beside the kernels,
 * with an engine for each way, so such copies take no turn: each way has a queue of its
 * own, start-time fair by the tenants' weights and paced a little faster than any bus is,
 * so that what one tenant submits ahead does not come before everybody else's next copy.
 * A tenant that copies alone is never held up, unless it has a ceiling.
 */
#include "board_internal.h"

#define MS UINT64_C(1000000)
/* Bytes a nanosecond: no less than what a PCIe 5.0 x16 bus carries. */
#define RATE 56u
/* Copies that may be submitted ahead while others copy, too. */
#define AHEAD (4 * MS)
/* Who has copied so lately counts as one that still does. */
#define LATELY (50 * MS)
/* Who was refused so lately still waits: it asks again every millisecond. */
#define WAITS (5 * MS)
/* Who copies alone need not ask for so long. */
#define LEASE (20 * MS)
/* What a ceiling lets through at once. */
#define BURST (30 * MS)

/* Whether another tenant copies this way, and whether one that waits goes first. */
static bool rivals(const struct gp_board *f, const struct tenant_slot *t, enum gp_board_way way,
                   uint64_t now, bool *behind)
{
    bool found = false;
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        const struct copy_account *c = &f->tenants[i].copies[way];
        if (&f->tenants[i] == t || !f->tenants[i].name[0] || !c->seen_at ||
            now - c->seen_at > LATELY)
            continue;
        found = true;
        if (c->waits_since && now - c->seen_at <= WAITS && c->vtime < t->copies[way].vtime)
            *behind = true;
    }
    return found;
}

static bool may_go(const struct gp_board *f, const struct tenant_slot *t, enum gp_board_way way,
                   uint64_t now)
{
    bool behind = false;
    if (t->ceiling < 1000 && t->copies[way].paced_to > now + BURST)
        return false;
    if (!rivals(f, t, way, now, &behind))
        return true;
    return !behind && f->copies[way].free_at <= now + AHEAD;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* No GPU has more, so no copy is longer. */
#define BYTES_MOST (UINT64_C(1) << 40)

static uint64_t length_of(const struct gp_board *f, uint64_t bytes)
{
    uint64_t most = f->gpu.memory_total ? f->gpu.memory_total : BYTES_MOST;
    return (bytes < most ? bytes : most) / RATE;
}

static void let_through(struct gp_board *f, struct tenant_slot *t, enum gp_board_way way,
                        uint64_t ns, uint64_t now)
{
    struct copy_account *c = &t->copies[way];
    f->copies[way].vclock = c->vtime;
    c->vtime += ns * 1000 / gp_board_weight(t);
    c->paced_to = later(c->paced_to, now) + ns * 1000 / gp_board_ceiling(t);
    t->usage.copy_ns += ns;
}

bool gp_board_copy(struct gp_board *f, int member, enum gp_board_way way, uint64_t bytes)
{
    uint64_t now = gp_board_now(), ns = length_of(f, bytes);
    struct tenant_slot *t = gp_board_tenant_of(f, &f->members[member]);
    struct copy_account *c = &t->copies[way];
    if (!c->waits_since)
        c->vtime = later(c->vtime, f->copies[way].vclock);
    bool go = may_go(f, t, way, now);
    c->seen_at = now;
    if (!go) {
        if (!c->waits_since)
            c->waits_since = now;
        return false;
    }
    if (c->waits_since)
        t->usage.waited_ns += now - c->waits_since;
    c->waits_since = 0;
    let_through(f, t, way, ns, now);
    /* as in gp_board_copied: sizes are what is said, and hold nobody up for longer */
    uint64_t free_at = later(f->copies[way].free_at, now) + ns;
    f->copies[way].free_at = free_at < now + LATELY ? free_at : now + LATELY;
    return true;
}

uint64_t gp_board_copy_lease(struct gp_board *f, int member, enum gp_board_way way)
{
    uint64_t now = gp_board_now();
    const struct tenant_slot *t = gp_board_tenant_of(f, &f->members[member]);
    bool behind = false;
    if (t->ceiling < 1000 || rivals(f, t, way, now, &behind))
        return 0;
    return now + LEASE;
}

void gp_board_copied(struct gp_board *f, int member, enum gp_board_way way, uint64_t bytes)
{
    uint64_t now = gp_board_now(), ns = length_of(f, bytes);
    struct tenant_slot *t = gp_board_tenant_of(f, &f->members[member]);
    struct copy_account *c = &t->copies[way];
    c->seen_at = now;
    c->vtime = later(c->vtime, f->copies[way].vclock);
    let_through(f, t, way, ns, now);
    /* what is still to be done of it is less than what would hold others up for long */
    uint64_t ahead = ns < LATELY ? ns : LATELY;
    f->copies[way].free_at = later(f->copies[way].free_at, now + ahead);
}
