/*
 * A launch on several threads of the host. Each has a sg_run of its own, takes the next cluster of
 * the grid when it has none, and keeps it to its end; what they share is here. The thread that
 * launches leads: it calls the others when the launch takes a while, and waits for them.
 */
#ifndef SG_EXEC_GRID_H
#define SG_EXEC_GRID_H

#include "exec_internal.h"

#include <pthread.h>

#define SG_NO_CLUSTER UINT64_MAX

struct sg_text;
struct sg_child;

/* What waits of a launch of the host's and all below it. */
struct sg_family {
    uint32_t count;
    uint64_t bytes;
};

struct sg_grid {
    const struct sg_launch *launch;
    const struct sg_run *plan;        /* what each thread's run is when it begins */
    uint64_t total;                   /* clusters */
    uint64_t start;                   /* ns */
    uint32_t workspace[SG_WORKSPACE]; /* its size, then the counter that grid.sync() waits on */

    /* Written by all, atomically. */
    size_t frame_bytes; /* all frames of the launch */
    int result;         /* CUresult; of the first fault */

    char *fault; /* whoever has set the result writes it */
    size_t fault_size;

    /* exec_order.c */
    pthread_mutex_t lock;
    uint64_t next; /* the first cluster that nobody has taken; read without the lock, too */
    struct sg_run *runs;
    struct sg_text *texts;
    size_t text_bytes;
    uint64_t instructions;

    /* exec_children.c, under the lock: being given their parameters; launched; to come behind all. */
    struct sg_child *prepared, *children, *children_end, *last_children, *last_end;
    struct sg_family *family;
    uint64_t objects; /* streams and events that kernels have made */

    /* exec_crew.c, under its lock. */
    bool called;
    unsigned wanted, helpers, parked;
    int held; /* read without the lock, too */
    pthread_cond_t changed;
    struct sg_grid *next_wanting;
};

/* --- order (exec_order.c): clusters are taken, and what they print is told, in order ---------- */

/* 0, or an error number. */
int sg_grid_open(struct sg_grid *grid);
/* Tells what is left of the text. */
void sg_grid_close(struct sg_grid *grid);
/* A thread takes part, and does so no more. */
void sg_grid_join(struct sg_run *run);
void sg_grid_leave(struct sg_run *run);
/* The number of a cluster, which is the caller's now; SG_NO_CLUSTER: there is none left. */
uint64_t sg_grid_take(struct sg_run *run);
/* `oldest` is the first of the thread's clusters that is not done; SG_NO_CLUSTER: it has none. */
void sg_grid_advance(struct sg_run *run, uint64_t oldest);
/* Tells the text when no cluster before this one can print any more. */
void sg_grid_print(struct sg_run *run, uint64_t cluster, const char *text, size_t n);

/* --- children (exec_children.c): what kernels have launched ---------------------------------- */

/* The grid is through: what it launched comes before what waits already. */
void sg_children_queue(struct sg_grid *grid, struct sg_child **waiting);
struct sg_child *sg_child_take(struct sg_child **waiting);
const struct sg_launch *sg_child_launch(const struct sg_child *child);
/* One that was taken has run. */
void sg_child_done(struct sg_grid *grid, struct sg_child *child);
void sg_children_drop(struct sg_child *waiting);
/* Whether a kernel may launch this. */
CUresult sg_launch_check(const struct sg_launch *launch);

/* --- rounds (exec_rounds.c) ---------------------------------------------------------------- */

/* Takes clusters and runs them until none is left, or the launch has failed. */
void sg_grid_run(struct sg_run *run);
/* false: another fault came first. */
bool sg_grid_fail(struct sg_grid *grid, CUresult result);
static inline bool sg_grid_failed(const struct sg_grid *grid)
{
    return __atomic_load_n(&grid->result, __ATOMIC_RELAXED) != CUDA_SUCCESS;
}

/* --- blocks (exec_block.c) ----------------------------------------------------------------- */

/* The number-th cluster of the grid, x fastest; NULL: no memory. */
struct sg_cluster *sg_cluster_new(struct sg_run *run, uint64_t number);
void sg_cluster_free(struct sg_cluster *cluster);
/* It has ended: its memory may serve the next one. */
void sg_cluster_done(struct sg_run *run, struct sg_cluster *cluster);

/* --- the crew (exec_crew.c): threads that help, as many as the process may have cores --------- */

/* Of a launch that takes a while, called very often: others come to help, all threads wait where
 * the launch's own `breathe` does. */
void sg_crew_breathe(struct sg_run *run);
/* Whoever is free may help. */
void sg_crew_call(struct sg_grid *grid);
/* Nobody comes any more, and whoever helped has gone. The thread that launched. */
void sg_crew_dismiss(struct sg_run *run);

#endif
