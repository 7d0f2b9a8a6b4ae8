/*
 * How far ranks in several workers of a tenant have come. Such a tenant is a gang: without its other
 * ranks each waits on its GPU in the next collective. One that a rank has begun at the end of a window
 * and another has not would keep the first one's GPU until the next window. So each worker says
 * which it has begun last, at the boards of all GPUs that it has, and is told the latest that another
 * worker of its tenant has: up to there it goes on for a moment (../worker/sharing/gate.c).
 *
 * What workers say is believed as little as it matters: it makes their tenant a gang, which changes
 * when it has its turns and not how much, and prolongs these by 4 ms, which are charged to it.
 */
#include "arbiter_internal.h"

/* Communicators of a tenant at a time; of more nothing is said. */
#define MOST 8

struct latest {
    uint32_t communicator, number;
    uint32_t ranks; /* how many members have it; 0: free */
};

static uint32_t communicator_of(uint64_t collective)
{
    return (uint32_t)(collective >> 32);
}

static bool takes_part(const struct gp_arbiter *a, int member)
{
    return a->seats[member].page && a->seats[member].collective;
}

/* The latest of a member's communicator; NULL: it is not looked at. */
static struct latest *find(const struct gp_arbiter *a, struct latest all[][MOST], int member)
{
    struct latest *l = all[a->board->members[member].tenant], *end = l + MOST;
    uint32_t communicator = communicator_of(a->seats[member].collective);
    while (l < end && l->ranks && l->communicator != communicator)
        l++;
    if (l == end)
        return NULL;
    l->communicator = communicator;
    return l;
}

static void look(const struct gp_arbiter *a, struct latest all[][MOST])
{
    for (int i = 0; i < a->top; i++) {
        struct latest *l = takes_part(a, i) ? find(a, all, i) : NULL;
        uint32_t number = (uint32_t)a->seats[i].collective;
        if (l && (l->ranks++ == 0 || (int32_t)(number - l->number) > 0)) /* they wrap */
            l->number = number;
    }
}

void gp_arbiter_collectives_tell(struct gp_arbiter *a)
{
    struct latest all[GP_BOARD_TENANTS][MOST] = {{{0}}};
    look(a, all);
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        a->board->tenants[i].ranks = a->board->tenants[i].behind = 0;
    for (int i = 0; i < a->top; i++) {
        struct seat *s = &a->seats[i];
        const struct latest *l = takes_part(a, i) ? find(a, all, i) : NULL;
        uint64_t most = l ? GP_PAGE_COLLECTIVE(l->communicator, l->number) : 0;
        if (l && l->ranks > 1) {
            struct tenant_slot *t = &a->board->tenants[a->board->members[i].tenant];
            t->ranks = 1;
            t->behind |= most != s->collective;
        }
        if (s->page && most != s->collective_most)
            GP_PAGE_STORE(s->page->collective_most, most);
        s->collective_most = most;
    }
}
