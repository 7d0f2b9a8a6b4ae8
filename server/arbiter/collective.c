/*
 * How far the ranks of a gang have come. A collective that one rank has begun at the end of a window
 * and another has not would keep the first one's GPU until the next window. So each worker says
 * which it has begun last, at the boards of all GPUs that it has, and is told the latest that another
 * worker of its tenant has: up to there it goes on for a moment (../worker/sharing/gate.c).
 *
 * What workers say is believed as little as it matters: it comes to their own tenant alone, whose
 * turn is charged for as long as it lasts.
 */
#include "arbiter_internal.h"

/* Communicators at a time; of more nothing is said. */
#define MOST 16

struct latest {
    uint32_t tenant, communicator, number;
};

static uint32_t communicator_of(uint64_t collective)
{
    return (uint32_t)(collective >> 32);
}

static bool takes_part(const struct gp_arbiter *a, int member)
{
    const struct seat *s = &a->seats[member];
    return s->page && s->collective &&
           a->board->tenants[a->board->members[member].tenant].grant.gang;
}

/* Where there is none, at the end. */
static struct latest *find(struct latest *all, unsigned count, uint32_t tenant,
                           uint32_t communicator)
{
    struct latest *l = all;
    while (l < all + count && (l->tenant != tenant || l->communicator != communicator))
        l++;
    return l;
}

void gp_arbiter_collectives_tell(struct gp_arbiter *a)
{
    struct latest all[MOST];
    unsigned count = 0;
    for (int i = 0; i < a->top; i++) {
        if (!takes_part(a, i))
            continue;
        uint32_t tenant = a->board->members[i].tenant, number = (uint32_t)a->seats[i].collective;
        uint32_t communicator = communicator_of(a->seats[i].collective);
        struct latest *l = find(all, count, tenant, communicator);
        if (l == all + MOST)
            continue;
        if (l == all + count) {
            *l = (struct latest){tenant, communicator, number};
            count++;
        } else if ((int32_t)(number - l->number) > 0) { /* they wrap */
            l->number = number;
        }
    }
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        a->board->tenants[i].behind = 0;
    for (int i = 0; i < a->top; i++) {
        struct seat *s = &a->seats[i];
        uint64_t most = 0;
        if (takes_part(a, i)) {
            uint32_t tenant = a->board->members[i].tenant;
            const struct latest *l = find(all, count, tenant, communicator_of(s->collective));
            most = l < all + count ? GP_PAGE_COLLECTIVE(l->communicator, l->number) : 0;
            a->board->tenants[tenant].behind |= most && most != s->collective;
        }
        if (s->page && most != s->collective_most)
            GP_PAGE_STORE(s->page->collective_most, most);
        s->collective_most = most;
    }
}
