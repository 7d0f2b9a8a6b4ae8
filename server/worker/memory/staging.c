#include "staging.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "budget.h"
#include "green.h"
#include "later.h"
#include "memory_internal.h"

/* So many are made before they are needed. */
#define READY 2
/* From so many on copies wait for each other, and more than the second there never are. */
#define ENOUGH 64
#define MOST 1024
/* A copy may wait for a stream that is blocked on a value which a later message writes: after
 * this long it goes on with more memory than is usual. */
#define PATIENCE_NS UINT64_C(1000000000)

static struct gpw_staging_pool *pool_of(struct gpw_session *s)
{
    return &s->memory->staging;
}

/* Ours, and pinned: what a driver has allocated goes with the context that was current, while
 * copies of others may still be using it. */
static void *memory_new(struct gpw_session *s)
{
    void *memory = mmap(NULL, GP_CHUNK_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);
    if (memory == MAP_FAILED)
        return NULL;
    /* it is our need, not the client's call: no capture minds it */
    bool before = gpw_strict(s, false);
    CUresult r = s->driver->cuMemHostRegister_v2(memory, GP_CHUNK_MAX, CU_MEMHOSTREGISTER_PORTABLE);
    gpw_strict(s, before);
    if (r == CUDA_SUCCESS)
        return memory;
    munmap(memory, GP_CHUNK_MAX);
    return NULL;
}

/* Of a context that ends or has ended, whose end undoes the pinning: to ask the driver for
 * that might wait for streams that are blocked. */
static void piece_free(struct gpw_session *s, struct gpw_staging *piece)
{
    struct gpw_staging_pool *pool = pool_of(s);
    struct gpw_staging **at = &pool->all;
    while (*at != piece)
        at = &(*at)->next_of_all;
    *at = piece->next_of_all;
    pool->count--;
    munmap(piece->memory, GP_CHUNK_MAX);
    gpw_budget_give(s, GPW_USE_STAGING, GP_CHUNK_MAX);
    free(piece);
}

static struct gpw_staging *piece_new(struct gpw_session *s)
{
    struct gpw_staging_pool *pool = pool_of(s);
    struct gpw_staging *piece = pool->count < MOST ? malloc(sizeof *piece) : NULL;
    if (piece && !gpw_budget_take(s, GPW_USE_STAGING, GP_CHUNK_MAX)) {
        free(piece);
        piece = NULL;
        pool->failed = true;
    }
    if (!piece)
        return NULL;
    *piece = (struct gpw_staging){.memory = memory_new(s), .next_of_all = pool->all};
    pool->failed = !piece->memory;
    if (pool->failed) {
        gpw_budget_give(s, GPW_USE_STAGING, GP_CHUNK_MAX);
        free(piece);
        return NULL;
    }
    s->driver->cuCtxGetCurrent(&piece->context);
    piece->context = gpw_context_root(s, piece->context);
    pool->all = piece;
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
    if (piece->ended) {
        piece_free(s, piece);
        return;
    }
    piece->next = pool->free;
    pool->free = piece;
}

static struct gpw_staging *leaving_piece(struct gpw_wait *w)
{
    return (struct gpw_staging *)((char *)w - offsetof(struct gpw_staging, leaving));
}

static bool leaving_ready(struct gpw_session *s, struct gpw_wait *w)
{
    return s->transport->returned(s->channel) >= leaving_piece(w)->number;
}

static bool leaving_poll(struct gpw_session *s, struct gpw_wait *w)
{
    gpw_staging_give(s, leaving_piece(w));
    return true;
}

/* The channel may read it until it is closed. */
static void leaving_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s;
    (void)w;
}

void gpw_staging_leave(struct gpw_session *s, struct gpw_staging *piece)
{
    piece->number = s->transport->lent ? s->transport->lent(s->channel) : 0;
    piece->leaving = (struct gpw_wait){.what = "bytes that are being sent",
                                       .ready = leaving_ready,
                                       .poll = leaving_poll,
                                       .cancel = leaving_cancel};
    if (piece->number == 0 || leaving_ready(s, &piece->leaving))
        gpw_staging_give(s, piece);
    else
        gpw_wait_add(s, &piece->leaving);
}

bool gpw_staging_admit(struct gpw_session *s, const struct gp_header *h, uint64_t held_ns)
{
    struct gpw_staging_pool *pool = pool_of(s);
    if (pool->free || !pool->used || (pool->count < ENOUGH && !pool->failed) ||
        !gp_op_info(h->op)->staged)
        return true;
    pool->stuck |= held_ns > PATIENCE_NS;
    return pool->stuck || gpw_streams_blocked(s);
}

void gpw_staging_context_ended(struct gpw_session *s, CUcontext context)
{
    struct gpw_staging_pool *pool = pool_of(s);
    gpw_landings_context_ended(s, context);
    for (struct gpw_staging *piece = pool->all; piece; piece = piece->next_of_all)
        piece->ended |= piece->context == context;
    for (struct gpw_staging **at = &pool->free; *at;) {
        struct gpw_staging *piece = *at;
        if (!piece->ended) {
            at = &piece->next;
            continue;
        }
        *at = piece->next;
        piece_free(s, piece);
    }
}
