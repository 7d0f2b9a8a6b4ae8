/* What the policy of a GPU makes of its tenants' grants: weights and ceilings. */
#include "board_internal.h"

#define WHOLE 1000u

static uint32_t present_weights(const struct gp_board *f, uint32_t *present)
{
    uint32_t sum = 0;
    *present = 0;
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        const struct tenant_slot *t = &f->tenants[i];
        if (t->name[0] && t->usage.members) {
            sum += t->grant.weight;
            ++*present;
        }
    }
    return sum;
}

static uint32_t part(uint32_t of, uint32_t all)
{
    uint32_t permille = all ? (WHOLE * of + all / 2) / all : WHOLE;
    return permille < 1 ? 1 : permille > WHOLE ? WHOLE : permille;
}

static void entitle(const struct gp_board_gpu *gpu, uint32_t sum, uint32_t present,
                    struct tenant_slot *t)
{
    const struct gp_board_grant *g = &t->grant;
    t->weight = 1;
    t->ceiling = WHOLE;
    switch ((enum gp_policy)gpu->policy) {
    case GP_POLICY_AVERAGE:
        t->ceiling = part(1, gpu->max_inst);
        break;
    case GP_POLICY_WEIGHTED:
        /* one that is there without work still uses up its slices */
        t->weight = g->weight;
        t->ceiling = present > 1 ? part(g->weight, sum) : WHOLE;
        break;
    case GP_POLICY_FIXED:
        t->weight = g->weight;
        t->ceiling = part(g->weight, gpu->max_inst);
        break;
    case GP_POLICY_SHARE:
        t->weight = g->share;
        t->ceiling = g->ceiling;
        break;
    case GP_POLICY_PREEMPTIVE:
    case GP_POLICY_WEAK:
    case GP_POLICY_NATIVE:
        break;
    }
}

void gp_board_entitle(struct gp_board *f)
{
    f->entitled++;
    uint32_t present, sum = present_weights(f, &present);
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        if (f->tenants[i].name[0])
            entitle(&f->gpu, sum, present, &f->tenants[i]);
    bool open = f->gpu.policy == GP_POLICY_NATIVE || f->gpu.policy == GP_POLICY_WEAK;
    f->open = open;
    if (open)
        f->holder = -1;
}

/* The smallest weight among those present, so that its slice is the base. */
static uint32_t least_weight(const struct gp_board *f)
{
    uint32_t least = UINT32_MAX;
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        const struct tenant_slot *t = &f->tenants[i];
        uint32_t weight = t->weight;
        if (t->name[0] && t->usage.members && weight && weight < least)
            least = weight;
    }
    return least == UINT32_MAX ? 1 : least;
}

static bool high_present(const struct gp_board *f)
{
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        if (f->tenants[i].usage.members && f->tenants[i].grant.high_priority)
            return true;
    return false;
}

/* A switch costs about 0.2 ms: from 10 ms on that is little. Where somebody must get
 * in at once, the others' slices are short, which costs only while both work. */
#define SLICE_BASE_US 10000u
#define SLICE_LOW_US 300u
#define SLICE_HIGH_US 20000u
#define SLICE_MOST_US 200000u

uint64_t gp_board_slice_us(struct gp_board *f, int member)
{
    uint64_t us = 0;
    struct member_slot *m = &f->members[member];
    const struct tenant_slot *t = gp_board_tenant_of(f, m);
    if (m->pid && f->gpu.hardware && f->gpu.policy != GP_POLICY_NATIVE) {
        if (high_present(f)) {
            us = t->grant.high_priority ? SLICE_HIGH_US : SLICE_LOW_US;
        } else {
            us = (uint64_t)SLICE_BASE_US * t->weight / least_weight(f);
            uint32_t members = t->usage.members;
            us /= members ? members : 1; /* a tenant's processes share its time */
            us = us > SLICE_MOST_US ? SLICE_MOST_US : us < 1000 ? 1000 : us;
        }
    }
    m->slice_us = us;
    return us;
}
