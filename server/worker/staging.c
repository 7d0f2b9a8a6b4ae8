#include "staging.h"

#include <stdlib.h>

#include "budget.h"
#include "memory_internal.h"

/* So many are made before they are needed. */
#define READY 2
/* From so many on copies wait for each other, and more than the second there never are. */
#define ENOUGH 64
#define MOST 1024
/* A copy may wait for a stream that stands at a value which a later message writes: after
 * this long it goes on with more memory than is usual. */
#define PATIENCE_NS UINT64_C(1000000000)

static struct gpw_staging_pool *pool_of(struct gpw_session *s)
{
    return &s->memory->staging;
}

static struct gpw_staging *piece_new(struct gpw_session *s)
{
    struct gpw_staging_pool *pool = pool_of(s);
    struct gpw_staging *piece = pool->count < MOST ? malloc(sizeof *piece) : NULL;
    if (piece && !gpw_budget_take(GPW_BUDGET_STAGING, GP_CHUNK_MAX)) {
        free(piece);
        piece = NULL;
        pool->failed = true;
    }
    if (!piece)
        return NULL;
    /* it is our need, not the client's call: no capture minds it */
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuMemHostAlloc(&piece->memory, GP_CHUNK_MAX, CU_MEMHOSTALLOC_PORTABLE);
    gpw_strict(s, before);
    pool->failed = r != CUDA_SUCCESS;
    if (r != CUDA_SUCCESS) {
        gpw_budget_give(GPW_BUDGET_STAGING, GP_CHUNK_MAX);
        free(piece);
        return NULL;
    }
    pool->count++;
    return piece;
}

void gpw_staging_prepare(struct gpw_session *s)
{
    struct gpw_staging_pool *pool = pool_of(s);
    while (pool->count < READY) {
        struct gpw_staging *piece = piece_new(s);
        if (!piece)
            return;
        piece->next = pool->free;
        pool->free = piece;
    }
}

struct gpw_staging *gpw_staging_take(struct gpw_session *s)
{
    struct gpw_staging_pool *pool = pool_of(s);
    struct gpw_staging *piece = pool->free;
    if (piece)
        pool->free = piece->next;
    else
        piece = piece_new(s);
    pool->used += piece != NULL;
    return piece;
}

void gpw_staging_give(struct gpw_session *s, struct gpw_staging *piece)
{
    struct gpw_staging_pool *pool = pool_of(s);
    pool->used--;
    pool->failed = pool->stuck = false;
    piece->next = pool->free;
    pool->free = piece;
}

bool gpw_staging_admit(struct gpw_session *s, const struct gp_header *h, uint64_t held_ns,
                       bool streams_stand)
{
    struct gpw_staging_pool *pool = pool_of(s);
    if (pool->free || !pool->used || (pool->count < ENOUGH && !pool->failed) ||
        h->op >= GP_OP_COUNT || !gp_op_table[h->op].staged)
        return true;
    pool->stuck |= held_ns > PATIENCE_NS;
    return pool->stuck || streams_stand;
}

void gpw_staging_context_ended(struct gpw_session *s)
{
    struct gpw_staging_pool *pool = pool_of(s);
    while (pool->free) {
        struct gpw_staging *piece = pool->free;
        pool->free = piece->next;
        pool->count--;
        s->driver->cuMemFreeHost(piece->memory);
        gpw_budget_give(GPW_BUDGET_STAGING, GP_CHUNK_MAX);
        free(piece);
    }
}
