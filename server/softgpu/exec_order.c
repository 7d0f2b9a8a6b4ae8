/*
 * The order of a grid: clusters are taken one after the other, and what they print is told in that
 * order, as if one thread had run them all. Text of a cluster whose predecessors still run is kept,
 * as much of it as CUDA's buffer for printf has; more goes out at once.
 */
#include "exec_grid.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_MOST ((size_t)1 << 20)

struct sg_text {
    struct sg_text *next; /* by cluster */
    uint64_t cluster;
    size_t n;
    char data[];
};

int sg_grid_open(struct sg_grid *grid)
{
    int error = pthread_mutex_init(&grid->lock, NULL);
    if (error)
        return error;
    error = pthread_cond_init(&grid->changed, NULL);
    if (error)
        pthread_mutex_destroy(&grid->lock);
    return error;
}

static void tell(const struct sg_grid *grid, const char *text, size_t n)
{
    if (grid->launch->print)
        grid->launch->print(grid->launch->print_context, text, n);
}

/* The lock is held, or nobody else is there. */
static void tell_until(struct sg_grid *grid, uint64_t cluster)
{
    while (grid->texts && grid->texts->cluster <= cluster) {
        struct sg_text *t = grid->texts;
        tell(grid, t->data, t->n);
        grid->texts = t->next;
        grid->text_bytes -= t->n;
        free(t);
    }
}

void sg_grid_close(struct sg_grid *grid)
{
    tell_until(grid, SG_NO_CLUSTER);
    pthread_cond_destroy(&grid->changed);
    pthread_mutex_destroy(&grid->lock);
}

void sg_grid_join(struct sg_run *run)
{
    struct sg_grid *grid = run->grid;
    pthread_mutex_lock(&grid->lock);
    run->next_run = grid->runs;
    grid->runs = run;
    pthread_mutex_unlock(&grid->lock);
}

void sg_grid_leave(struct sg_run *run)
{
    struct sg_grid *grid = run->grid;
    pthread_mutex_lock(&grid->lock);
    struct sg_run **at = &grid->runs;
    while (*at != run)
        at = &(*at)->next_run;
    *at = run->next_run;
    grid->instructions += run->instructions;
    pthread_mutex_unlock(&grid->lock);
}

/* No cluster before it can print any more. The lock is held. */
static uint64_t oldest_of_all(const struct sg_grid *grid)
{
    uint64_t oldest = grid->next;
    for (const struct sg_run *run = grid->runs; run; run = run->next_run)
        oldest = run->oldest < oldest ? run->oldest : oldest;
    return oldest;
}

uint64_t sg_grid_take(struct sg_run *run)
{
    struct sg_grid *grid = run->grid;
    uint64_t number = SG_NO_CLUSTER;
    pthread_mutex_lock(&grid->lock);
    if (grid->next < grid->total) {
        number = grid->next;
        __atomic_store_n(&grid->next, number + 1, __ATOMIC_RELAXED);
    }
    if (number < run->oldest)
        run->oldest = number;
    pthread_mutex_unlock(&grid->lock);
    return number;
}

void sg_grid_advance(struct sg_run *run, uint64_t oldest)
{
    struct sg_grid *grid = run->grid;
    if (run->oldest == oldest)
        return;
    pthread_mutex_lock(&grid->lock);
    run->oldest = oldest;
    if (grid->texts)
        tell_until(grid, oldest_of_all(grid));
    pthread_mutex_unlock(&grid->lock);
}

/* false: there is no room or no memory for it. */
static bool keep(struct sg_grid *grid, uint64_t cluster, const char *text, size_t n)
{
    if (n > KEPT_MOST - grid->text_bytes)
        return false;
    struct sg_text *t = malloc(sizeof(*t) + n), **at = &grid->texts;
    if (!t)
        return false;
    while (*at && (*at)->cluster <= cluster)
        at = &(*at)->next;
    t->next = *at;
    t->cluster = cluster;
    t->n = n;
    memcpy(t->data, text, n);
    *at = t;
    grid->text_bytes += n;
    return true;
}

void sg_grid_print(struct sg_run *run, uint64_t cluster, const char *text, size_t n)
{
    struct sg_grid *grid = run->grid;
    if (!n || !grid->launch->print)
        return;
    pthread_mutex_lock(&grid->lock);
    if (cluster == oldest_of_all(grid) || !keep(grid, cluster, text, n))
        tell(grid, text, n);
    pthread_mutex_unlock(&grid->lock);
}
