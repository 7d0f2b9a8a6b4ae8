/* Blocks and clusters: their warps, registers and shared memory. */
#include "exec_grid.h"

#include <stdlib.h>
#include <string.h>

#define SHARED_ALIGN 1024u

static void free_block(struct sg_block *block)
{
    if (!block)
        return;
    for (uint32_t i = 0; block->warps && i < block->warp_count; i++) {
        struct sg_warp *w = &block->warps[i];
        SG_FOR_LANES(l, w->live)
        sg_frame_unwind(w, l);
        sg_frame_discard(w);
    }
    free(block->warps);
    free(block->shared);
    free(block);
}

void sg_cluster_free(struct sg_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->size; i++)
        free_block(cluster->blocks[i]);
    free(cluster);
}

/* A warp that has run before keeps the memory of its frame. */
static bool start_warp(struct sg_block *block, uint32_t index)
{
    struct sg_run *run = block->run;
    struct sg_warp *w = &block->warps[index];
    uint32_t rest = run->threads - index * SG_LANES;
    uint32_t lanes = rest >= SG_LANES ? SG_ALL_LANES : (1u << rest) - 1;
    *w = (struct sg_warp){
        .block = block, .index = index, .spare = w->spare, .spare_bytes = w->spare_bytes};
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

static size_t shared_room(const struct sg_run *run)
{
    return ((size_t)run->shared_bytes / SHARED_ALIGN + 1) * SHARED_ALIGN;
}

static struct sg_block *new_block(struct sg_run *run)
{
    struct sg_block *block = calloc(1, sizeof(*block));
    if (!block)
        return NULL;
    block->run = run;
    block->warp_count = run->warps;
    block->warps = calloc(run->warps, sizeof(*block->warps));
    block->shared = aligned_alloc(SHARED_ALIGN, shared_room(run));
    for (uint32_t i = 0; block->warps && i < run->warps; i++)
        block->warps[i].block = block;
    if (block->warps && block->shared)
        return block;
    free_block(block);
    return NULL;
}

static bool start_block(struct sg_block *block, struct sg_cluster *cluster, uint32_t rank,
                        const uint32_t *id)
{
    memcpy(block->id, id, sizeof(block->id));
    memset(block->shared, 0, shared_room(block->run));
    memset(block->barriers, 0, sizeof(block->barriers));
    block->cluster = cluster;
    block->rank = rank;
    for (uint32_t i = 0; i < block->warp_count; i++)
        if (!start_warp(block, i))
            return false;
    return true;
}

static struct sg_cluster *new_cluster(struct sg_run *run)
{
    struct sg_cluster *cluster = calloc(1, sizeof(*cluster));
    for (uint32_t rank = 0; cluster && rank < run->cluster_size; rank++) {
        struct sg_block *block = new_block(run);
        if (!block) {
            sg_cluster_free(cluster);
            return NULL;
        }
        cluster->blocks[cluster->size++] = block;
    }
    return cluster;
}

static bool start_cluster(struct sg_cluster *cluster, const struct sg_run *run, uint64_t number)
{
    const uint32_t *c = run->cluster_dim, *grid = run->launch->grid;
    uint64_t nx = grid[0] / c[0], ny = grid[1] / c[1];
    uint32_t first[3] = {(uint32_t)(number % nx) * c[0], (uint32_t)(number / nx % ny) * c[1],
                         (uint32_t)(number / nx / ny) * c[2]};
    cluster->number = number;
    cluster->used = false;
    for (uint32_t rank = 0; rank < cluster->size; rank++) {
        uint32_t id[3] = {first[0] + rank % c[0], first[1] + rank / c[0] % c[1],
                          first[2] + rank / c[0] / c[1]};
        if (!start_block(cluster->blocks[rank], cluster, rank, id))
            return false;
    }
    return true;
}

struct sg_cluster *sg_cluster_new(struct sg_run *run, uint64_t number)
{
    struct sg_cluster *cluster = run->spare ? run->spare : new_cluster(run);
    run->spare = NULL;
    if (cluster && !start_cluster(cluster, run, number)) {
        sg_cluster_free(cluster);
        return NULL;
    }
    return cluster;
}

void sg_cluster_done(struct sg_run *run, struct sg_cluster *cluster)
{
    if (run->spare)
        sg_cluster_free(run->spare);
    run->spare = cluster;
}
