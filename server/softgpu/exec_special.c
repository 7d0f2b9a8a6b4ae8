/* Special registers. */
#include "exec_internal.h"

#include <time.h>

#define SM_COUNT 1u

static uint64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t ticks(const struct sg_run *run)
{
    uint64_t hz = run->launch->clock_hz ? run->launch->clock_hz : 1000000000u;
    uint64_t ns = now_ns(CLOCK_MONOTONIC);
    return ns / 1000000000u * hz + ns % 1000000000u * (hz / 1000u) / 1000000u;
}

/* %tid of one lane after the other, x first. */
static void threads(const struct sg_warp *w, uint32_t axis, uint64_t *out)
{
    const uint32_t *n = w->block->run->launch->block;
    uint32_t t = w->index * SG_LANES, at[3] = {t % n[0], t / n[0] % n[1], t / n[0] / n[1]};
    for (unsigned l = 0; l < SG_LANES; l++) {
        out[l] = at[axis];
        if (++at[0] < n[0])
            continue;
        at[0] = 0;
        if (++at[1] < n[1])
            continue;
        at[1] = 0;
        at[2]++;
    }
}

static uint64_t of_lane(uint32_t special, unsigned lane)
{
    switch (special) {
    case SG_X_LANEID:
        return lane;
    case SG_X_LANEMASK_EQ:
        return 1u << lane;
    case SG_X_LANEMASK_LT:
        return (1u << lane) - 1;
    case SG_X_LANEMASK_LE:
        return (1u << lane) | ((1u << lane) - 1);
    case SG_X_LANEMASK_GE:
        return (uint32_t)~((1u << lane) - 1);
    default:
        return (uint32_t)~((1u << lane) | ((1u << lane) - 1)); /* GT */
    }
}

static uint64_t of_cluster(const struct sg_block *b, uint32_t special)
{
    const struct sg_run *run = b->run;
    const uint32_t *c = run->cluster_dim, *grid = run->launch->grid;
    switch (special) {
    case SG_X_CLUSTERID_X:
    case SG_X_CLUSTERID_Y:
    case SG_X_CLUSTERID_Z: {
        uint32_t i = special - SG_X_CLUSTERID_X;
        return b->id[i] / c[i];
    }
    case SG_X_NCLUSTERID_X:
    case SG_X_NCLUSTERID_Y:
    case SG_X_NCLUSTERID_Z: {
        uint32_t i = special - SG_X_NCLUSTERID_X;
        return grid[i] / c[i];
    }
    case SG_X_CLUSTER_CTAID_X:
    case SG_X_CLUSTER_CTAID_Y:
    case SG_X_CLUSTER_CTAID_Z: {
        uint32_t i = special - SG_X_CLUSTER_CTAID_X;
        return b->id[i] % c[i];
    }
    case SG_X_CLUSTER_NCTAID_X:
        return c[0];
    case SG_X_CLUSTER_NCTAID_Y:
        return c[1];
    case SG_X_CLUSTER_NCTAID_Z:
        return c[2];
    case SG_X_CLUSTER_CTARANK:
        return b->rank;
    case SG_X_CLUSTER_NCTARANK:
        return run->cluster_size;
    case SG_X_IS_EXPLICIT_CLUSTER:
        return run->launch->cluster[0] != 0;
    default:
        return 0;
    }
}

static uint64_t of_block(const struct sg_warp *w, uint32_t special)
{
    const struct sg_block *b = w->block;
    const struct sg_run *run = b->run;
    const struct sg_launch *launch = run->launch;
    switch (special) {
    case SG_X_NTID_X:
        return launch->block[0];
    case SG_X_NTID_Y:
        return launch->block[1];
    case SG_X_NTID_Z:
        return launch->block[2];
    case SG_X_CTAID_X:
        return b->id[0];
    case SG_X_CTAID_Y:
        return b->id[1];
    case SG_X_CTAID_Z:
        return b->id[2];
    case SG_X_NCTAID_X:
        return launch->grid[0];
    case SG_X_NCTAID_Y:
        return launch->grid[1];
    case SG_X_NCTAID_Z:
        return launch->grid[2];
    case SG_X_WARPID:
        return w->index;
    case SG_X_NWARPID:
        return 64;
    case SG_X_SMID:
        return 0;
    case SG_X_NSMID:
        return SM_COUNT;
    case SG_X_GRIDID:
        return run->grid_id;
    case SG_X_CLOCK:
        return (uint32_t)ticks(run);
    case SG_X_CLOCK_HI:
        return ticks(run) >> 32;
    case SG_X_CLOCK64:
        return ticks(run);
    case SG_X_GLOBALTIMER:
        return now_ns(CLOCK_REALTIME);
    case SG_X_GLOBALTIMER_LO:
        return (uint32_t)now_ns(CLOCK_REALTIME);
    case SG_X_GLOBALTIMER_HI:
        return now_ns(CLOCK_REALTIME) >> 32;
    case SG_X_DYNAMIC_SMEM:
        return launch->dynamic_shared_bytes;
    case SG_X_TOTAL_SMEM:
        return run->function->info.static_shared_bytes + launch->dynamic_shared_bytes;
    case SG_X_RESERVED_SMEM:
        return run->shared_reserved;
    case SG_X_ENVREG1:
        return launch->cooperative ? SG_WINDOW_GRID >> 32 : 0;
    case SG_X_ENVREG2:
        return launch->cooperative ? (uint32_t)SG_WINDOW_GRID : 0;
    default:
        return of_cluster(b, special);
    }
}

void sg_special_all(struct sg_warp *w, uint32_t special, uint64_t *out)
{
    if (special <= SG_X_TID_Z) {
        threads(w, special - SG_X_TID_X, out);
        return;
    }
    bool lanes = special == SG_X_LANEID ||
                 (special >= SG_X_LANEMASK_EQ && special <= SG_X_LANEMASK_GT);
    if (lanes) {
        for (unsigned l = 0; l < SG_LANES; l++)
            out[l] = of_lane(special, l);
        return;
    }
    uint64_t value = of_block(w, special);
    for (unsigned l = 0; l < SG_LANES; l++)
        out[l] = value;
}
