/*
 * A launch. Blocks run one after another; when all that are resident only poll,
 * as in a barrier over the grid, the next ones join them. Blocks of a cluster
 * come and go together. Those of a cooperative launch are all resident at once.
 */
#include "exec_internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 1024u
#define MAX_CLUSTER 16u
#define IDLE_ROUNDS 16u     /* without progress, until more blocks are let in */
#define MAX_RESIDENT 65536u /* threads at once, when blocks wait for others */
#define SHARED_ALIGN 1024u

/* Clusters that run now, oldest first. */
struct resident {
    struct sg_cluster **items;
    uint32_t count, capacity;
};

static CUresult refuse(struct sg_run *run, const char *why)
{
    if (run->fault && run->fault_size)
        snprintf(run->fault, run->fault_size, "%s: %s",
                 run->function ? run->function->info.name : "launch", why);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_cluster(struct sg_run *run)
{
    const struct sg_launch *l = run->launch;
    run->cluster_size = 1;
    for (unsigned i = 0; i < 3; i++) {
        uint32_t c = l->cluster[i] ? l->cluster[i] : 1;
        if (c > MAX_CLUSTER || l->grid[i] % c)
            return refuse(run, "the grid is no multiple of the cluster, or the cluster too large");
        run->cluster_dim[i] = c;
        run->cluster_size *= c;
    }
    if (run->cluster_size > MAX_CLUSTER)
        return refuse(run, "a cluster has more than 16 blocks");
    return CUDA_SUCCESS;
}

static CUresult check_shape(struct sg_run *run)
{
    const struct sg_launch *l = run->launch;
    const struct sg_function_info *info = &run->function->info;
    uint64_t threads = (uint64_t)l->block[0] * l->block[1];
    if (!run->function->entry || !run->function->defined || !run->module->placed)
        return refuse(run, "not an entry of a placed module");
    if (!l->grid[0] || !l->grid[1] || !l->grid[2] || !l->block[2] || !threads)
        return refuse(run, "a dimension of the grid or the block is 0");
    if (l->grid[0] > INT32_MAX || l->grid[1] > 65535 || l->grid[2] > 65535)
        return refuse(run, "the grid is too large");
    if (threads > MAX_THREADS || l->block[2] > MAX_THREADS || threads * l->block[2] > MAX_THREADS)
        return refuse(run, "the block has more than 1024 threads");
    if (info->parameter_bytes && !l->parameters)
        return refuse(run, "the parameters are missing");
    run->threads = (uint32_t)threads * l->block[2];
    run->warps = (run->threads + SG_LANES - 1) / SG_LANES;
    uint64_t shared = (uint64_t)info->static_shared_bytes + l->dynamic_shared_bytes;
    if (shared > SG_MAX_SHARED)
        return refuse(run, "more shared memory than a block may have");
    run->shared_bytes = (uint32_t)shared;
    return check_cluster(run);
}

/* --- blocks ------------------------------------------------------------------ */

static void free_block(struct sg_block *block)
{
    if (!block)
        return;
    for (uint32_t i = 0; block->warps && i < block->warp_count; i++) {
        struct sg_warp *w = &block->warps[i];
        SG_FOR_LANES(l, w->live)
        sg_frame_unwind(w, l);
        if (w->spare)
            block->run->frame_bytes -= w->spare_bytes;
        free(w->spare);
    }
    free(block->warps);
    free(block->shared);
    free(block);
}

static void free_cluster(struct sg_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->size; i++)
        free_block(cluster->blocks[i]);
    free(cluster);
}

static bool start_warp(struct sg_block *block, uint32_t index)
{
    struct sg_run *run = block->run;
    struct sg_warp *w = &block->warps[index];
    uint32_t rest = run->threads - index * SG_LANES;
    uint32_t lanes = rest >= SG_LANES ? SG_ALL_LANES : (1u << rest) - 1;
    w->block = block;
    w->index = index;
    CUresult why;
    struct sg_frame *frame = sg_frame_enter(w, run->function, NULL, lanes, &why);
    if (!frame)
        return false;
    w->live = lanes;
    for (unsigned l = 0; l < SG_LANES; l++) {
        w->lane_frame[l] = frame;
        w->lane_pc[l] = run->function->start;
    }
    return true;
}

static struct sg_block *new_block(struct sg_run *run, const uint32_t *id)
{
    struct sg_block *block = calloc(1, sizeof(*block));
    if (!block)
        return NULL;
    block->run = run;
    memcpy(block->id, id, sizeof(block->id));
    block->warp_count = run->warps;
    block->warps = calloc(run->warps, sizeof(*block->warps));
    size_t bytes = ((size_t)run->shared_bytes / SHARED_ALIGN + 1) * SHARED_ALIGN;
    block->shared = aligned_alloc(SHARED_ALIGN, bytes);
    if (!block->warps || !block->shared) {
        free_block(block);
        return NULL;
    }
    memset(block->shared, 0, bytes);
    for (uint32_t i = 0; i < run->warps; i++) {
        if (!start_warp(block, i)) {
            free_block(block);
            return NULL;
        }
    }
    return block;
}

/* The number-th cluster of the grid, x fastest. */
static struct sg_cluster *new_cluster(struct sg_run *run, uint64_t number)
{
    struct sg_cluster *cluster = calloc(1, sizeof(*cluster));
    if (!cluster)
        return NULL;
    const uint32_t *c = run->cluster_dim, *grid = run->launch->grid;
    uint64_t nx = grid[0] / c[0], ny = grid[1] / c[1];
    uint32_t first[3] = {(uint32_t)(number % nx) * c[0], (uint32_t)(number / nx % ny) * c[1],
                         (uint32_t)(number / nx / ny) * c[2]};
    for (uint32_t rank = 0; rank < run->cluster_size; rank++) {
        uint32_t id[3] = {first[0] + rank % c[0], first[1] + rank / c[0] % c[1],
                          first[2] + rank / c[0] / c[1]};
        struct sg_block *block = new_block(run, id);
        if (!block) {
            free_cluster(cluster);
            return NULL;
        }
        block->cluster = cluster;
        block->rank = rank;
        cluster->blocks[cluster->size++] = block;
    }
    return cluster;
}

/* --- turns ------------------------------------------------------------------- */

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

static bool admit(struct sg_run *run, struct resident *r, uint64_t number)
{
    if (r->count == r->capacity) {
        uint32_t capacity = r->capacity ? 2 * r->capacity : 16;
        struct sg_cluster **items = realloc(r->items, capacity * sizeof(*items));
        if (!items) {
            run->result = CUDA_ERROR_OUT_OF_MEMORY;
            return false;
        }
        r->items = items;
        r->capacity = capacity;
    }
    struct sg_cluster *cluster = new_cluster(run, number);
    if (!cluster) {
        run->result = CUDA_ERROR_OUT_OF_MEMORY;
        if (run->fault && run->fault_size)
            snprintf(run->fault, run->fault_size, "%s: no memory for a block's registers",
                     run->function->info.name);
        return false;
    }
    r->items[r->count++] = cluster;
    return true;
}

static bool turn_all(struct resident *r, struct round *round)
{
    uint32_t kept = 0;
    bool good = true;
    for (uint32_t i = 0; i < r->count; i++) {
        bool done = false;
        good = good && turn_cluster(r->items[i], round, &done);
        if (good && done)
            free_cluster(r->items[i]);
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

static void report_cancel(struct sg_run *run)
{
    run->result = CUDA_ERROR_LAUNCH_TIMEOUT;
    if (run->fault && run->fault_size)
        snprintf(run->fault, run->fault_size, "%s: cancelled while it ran",
                 run->function->info.name);
}

static void run_grid(struct sg_run *run)
{
    const struct sg_launch *l = run->launch;
    const uint32_t *c = run->cluster_dim;
    uint64_t total = (uint64_t)(l->grid[0] / c[0]) * (l->grid[1] / c[1]) * (l->grid[2] / c[2]);
    uint64_t next = 0;
    uint32_t idle = 0, limit = MAX_RESIDENT / (run->threads * run->cluster_size);
    struct resident r = {NULL, 0, 0};
    while (run->result == CUDA_SUCCESS && (r.count || next < total)) {
        bool more = l->cooperative || r.count == 0 || (idle >= IDLE_ROUNDS && r.count < limit);
        if (next < total && more) {
            if (!admit(run, &r, next++))
                break;
            idle = 0;
            if (l->cooperative)
                continue; /* none of its blocks begins before all are there */
        }
        if (l->cancel && __atomic_load_n(l->cancel, __ATOMIC_RELAXED)) {
            report_cancel(run);
            break;
        }
        struct round round = {false, false, true};
        if (!turn_all(&r, &round))
            break;
        idle = round.progressed ? 0 : idle + 1;
        if (!round.ran && !round.progressed && r.count)
            report_stuck(run, &r);
    }
    for (uint32_t i = 0; i < r.count; i++)
        free_cluster(r.items[i]);
    free(r.items);
}

static bool copy_parameters(struct sg_run *run)
{
    uint32_t n = run->function->info.parameter_bytes;
    run->parameters = aligned_alloc(64, ((size_t)n / 64 + 1) * 64);
    if (!run->parameters)
        return false;
    if (n)
        memcpy(run->parameters, run->launch->parameters, n);
    return true;
}

CUresult sg_launch_run(const struct sg_launch *launch, char *fault, size_t fault_size)
{
    static uint64_t grids;
    struct sg_run run = {.launch = launch, .fault = fault, .fault_size = fault_size};
    if (fault && fault_size)
        fault[0] = 0;
    if (!launch || !launch->function)
        return refuse(&run, "no function");
    run.function = launch->function;
    run.module = run.function->module;
    CUresult result = check_shape(&run);
    if (result != CUDA_SUCCESS)
        return result;
    run.workspace[0] = sizeof(run.workspace);
    run.grid_id = __atomic_add_fetch(&grids, 1, __ATOMIC_RELAXED);
    if (!copy_parameters(&run)) {
        refuse(&run, "no memory for the parameters");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    run_grid(&run);
    free(run.parameters);
    return run.result;
}
