/*
 * What a thread does for a grid. Its clusters run one after another, each warp in its turn; when
 * all that are resident only poll, as in a barrier over the grid, the next ones join them. Blocks
 * of a cluster come and go together. Those of a cooperative launch are all resident at once.
 */
#include "exec_grid.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define IDLE_ROUNDS 16u     /* without progress, until more blocks are let in */
#define MAX_RESIDENT 65536u /* threads at once, when blocks wait for others */

/* Clusters that run now, oldest first. */
struct resident {
    struct sg_cluster **items;
    uint32_t count, capacity;
};

struct round {
    bool ran, progressed, done;
};

static bool turn_block(struct sg_block *block, struct round *round)
{
    bool live = false;
    block->progressed = false;
    for (uint32_t i = 0; i < block->warp_count; i++) {
        struct sg_warp *w = &block->warps[i];
        if (!w->live)
            continue;
        if (!sg_warp_turn(w))
            return false;
        round->ran |= w->ran;
        live |= w->live != 0;
    }
    round->progressed |= block->progressed;
    if (live && sg_barrier_release(block))
        round->ran = round->progressed = true;
    round->done &= !live;
    return true;
}

static bool turn_cluster(struct sg_cluster *cluster, struct round *all, bool *done)
{
    struct round round = {false, false, true};
    for (uint32_t i = 0; i < cluster->size; i++)
        if (!turn_block(cluster->blocks[i], &round))
            return false;
    if (sg_cluster_release(cluster))
        round.ran = round.progressed = true;
    all->ran |= round.ran;
    all->progressed |= round.progressed || round.done;
    *done = round.done;
    return true;
}

bool sg_grid_fail(struct sg_grid *grid, CUresult result)
{
    int none = CUDA_SUCCESS;
    return __atomic_compare_exchange_n(&grid->result, &none, (int)result, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

static void fail_whole(const struct sg_run *run, CUresult result, const char *why)
{
    struct sg_grid *grid = run->grid;
    if (sg_grid_fail(grid, result) && grid->fault && grid->fault_size)
        snprintf(grid->fault, grid->fault_size, "%s: %s", run->function->info.name, why);
}

static bool make_room(struct resident *r)
{
    if (r->count < r->capacity)
        return true;
    uint32_t capacity = r->capacity ? 2 * r->capacity : 16;
    struct sg_cluster **items = realloc(r->items, capacity * sizeof(*items));
    if (!items)
        return false;
    r->items = items;
    r->capacity = capacity;
    return true;
}

static void admit(struct sg_run *run, struct resident *r, uint64_t number)
{
    struct sg_cluster *cluster = make_room(r) ? sg_cluster_new(run, number) : NULL;
    if (cluster)
        r->items[r->count++] = cluster;
    else
        fail_whole(run, CUDA_ERROR_OUT_OF_MEMORY, "no memory for a block's registers");
}

static bool turn_all(struct sg_run *run, struct resident *r, struct round *round)
{
    uint32_t kept = 0;
    bool good = true;
    for (uint32_t i = 0; i < r->count; i++) {
        bool done = false;
        good = good && turn_cluster(r->items[i], round, &done);
        if (good && done)
            sg_cluster_done(run, r->items[i]);
        else
            r->items[kept++] = r->items[i];
    }
    r->count = kept;
    return good;
}

static unsigned waiting_lane(const struct sg_cluster *cluster, struct sg_warp **out)
{
    for (uint32_t i = 0; i < cluster->size; i++)
        for (uint32_t j = 0; j < cluster->blocks[i]->warp_count; j++) {
            struct sg_warp *w = &cluster->blocks[i]->warps[j];
            *out = w;
            if (w->live)
                return (unsigned)__builtin_ctz(w->live);
        }
    return 0;
}

static void report_stuck(struct sg_run *run, struct resident *r)
{
    struct sg_warp *w = NULL;
    unsigned lane = waiting_lane(r->items[0], &w);
    const struct sg_insn *in = &run->module->code[w->lane_pc[lane] - 1];
    const char *what = w->barrier >> lane & 1   ? "a barrier"
                       : w->sync >> lane & 1    ? "other lanes of the warp"
                       : w->cluster >> lane & 1 ? "the cluster's barrier"
                                                : "another thread";
    sg_fault(w, in, lane, CUDA_ERROR_LAUNCH_FAILED,
             "deadlock: waits for %s that some thread never reaches", what);
}

/* Another cluster for the thread, if it may have one; false: it has all that it may. */
static bool take_more(struct sg_run *run, struct resident *r, uint32_t idle)
{
    uint32_t limit = MAX_RESIDENT / (run->threads * run->cluster_size);
    bool all = run->launch->cooperative; /* none of its blocks begins before all are there */
    if (!all && r->count && (idle < IDLE_ROUNDS || r->count >= limit))
        return false;
    uint64_t number = sg_grid_take(run);
    if (number == SG_NO_CLUSTER)
        return false;
    admit(run, r, number);
    return true;
}

/* false: no more of them. */
static bool run_round(struct sg_run *run, struct resident *r, uint32_t *idle)
{
    const struct sg_launch *l = run->launch;
    if (l->cancel && __atomic_load_n(l->cancel, __ATOMIC_RELAXED)) {
        fail_whole(run, CUDA_ERROR_LAUNCH_TIMEOUT, "cancelled while it ran");
        return false;
    }
    struct round round = {false, false, true};
    if (!turn_all(run, r, &round))
        return false;
    sg_grid_advance(run, r->count ? r->items[0]->number : SG_NO_CLUSTER);
    *idle = round.progressed ? 0 : *idle + 1;
    if (*idle)
        sched_yield(); /* whoever is waited for may need the core */
    if (!round.ran && !round.progressed && r->count)
        report_stuck(run, r);
    return true;
}

void sg_grid_run(struct sg_run *run)
{
    uint32_t idle = 0;
    struct resident r = {NULL, 0, 0};
    while (!sg_grid_failed(run->grid)) {
        if (take_more(run, &r, idle)) {
            idle = 0;
            if (run->launch->cooperative)
                continue;
        }
        if (!r.count || !run_round(run, &r, &idle))
            break;
    }
    for (uint32_t i = 0; i < r.count; i++)
        sg_cluster_free(r.items[i]);
    free(r.items);
    if (run->spare)
        sg_cluster_free(run->spare);
    run->spare = NULL;
    sg_grid_advance(run, SG_NO_CLUSTER);
}
