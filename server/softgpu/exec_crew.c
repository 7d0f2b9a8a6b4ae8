/*
 * Threads that help with launches. There is one crew for the process, which grows when a launch
 * takes long enough for help to pay, to as many as the process has cores; GPUPOOL_SOFT_THREADS
 * says another number. Those who help stop where the thread that launched stops for others who
 * have the device's next turn: what a kernel costs is the device's time, whoever computes.
 */
#include "exec_grid.h"
#include "monotonic.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define SHORT_NS 100000u /* no help for what is done by then */
#define LOOK_NS 500000   /* how often the leader looks whether it must stop, while it waits */
#define THREADS_MOST 256u

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct sg_grid *wanting; /* launches that helpers may join */
    unsigned most;           /* threads of a launch; 0: not known yet */
    unsigned threads, idle;  /* helpers */
} crew = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0, 0};

static unsigned threads_most(void)
{
    cpu_set_t cores;
    const char *told = getenv("GPUPOOL_SOFT_THREADS");
    long n = told ? strtol(told, NULL, 10) : 0;
    if (n <= 0)
        n = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return n < (long)THREADS_MOST ? (unsigned)n : THREADS_MOST;
}

static void help(struct sg_grid *grid)
{
    struct sg_run run = *grid->plan;
    sg_grid_join(&run);
    sg_grid_run(&run);
    sg_grid_leave(&run);
}

/* The lock is held. */
static void unwant(struct sg_grid *grid)
{
    grid->wanted = 0;
    struct sg_grid **at = &crew.wanting;
    while (*at && *at != grid)
        at = &(*at)->next_wanting;
    if (*at)
        *at = grid->next_wanting;
}

static void *helper_main(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&crew.lock);
    for (;;) {
        struct sg_grid *grid = crew.wanting;
        if (!grid) {
            crew.idle++;
            pthread_cond_wait(&crew.work, &crew.lock);
            crew.idle--;
            continue;
        }
        grid->helpers++;
        if (--grid->wanted == 0)
            unwant(grid);
        pthread_mutex_unlock(&crew.lock);
        help(grid);
        pthread_mutex_lock(&crew.lock);
        grid->helpers--;
        pthread_cond_broadcast(&grid->changed);
    }
    return NULL;
}

/* The lock is held. Where no thread can be had, the launch goes on with those there are. */
static void grow(unsigned wanted)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (unsigned n = crew.idle; n < wanted && crew.threads + 1 < crew.most; n++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, helper_main, NULL) != 0)
            break;
        crew.threads++;
    }
    pthread_attr_destroy(&attributes);
}

void sg_crew_call(struct sg_grid *grid)
{
    uint64_t next = __atomic_load_n(&grid->next, __ATOMIC_RELAXED);
    uint64_t left = next < grid->total ? grid->total - next : 0;
    pthread_mutex_lock(&crew.lock);
    grid->called = true;
    if (!crew.most)
        crew.most = threads_most();
    unsigned wanted = left < crew.most ? (unsigned)left : crew.most - 1;
    if (wanted) {
        grid->wanted = wanted;
        grid->next_wanting = crew.wanting;
        crew.wanting = grid;
        grow(wanted);
        pthread_cond_broadcast(&crew.work);
    }
    pthread_mutex_unlock(&crew.lock);
}

static void park(struct sg_grid *grid)
{
    pthread_mutex_lock(&crew.lock);
    grid->parked++;
    pthread_cond_broadcast(&grid->changed);
    while (grid->held)
        pthread_cond_wait(&grid->changed, &crew.lock);
    grid->parked--;
    pthread_mutex_unlock(&crew.lock);
}

/* All helpers stop at their next breath, and the launch's own follows. */
static void breathe_together(struct sg_grid *grid)
{
    const struct sg_launch *l = grid->launch;
    pthread_mutex_lock(&crew.lock);
    __atomic_store_n(&grid->held, 1, __ATOMIC_RELAXED);
    while (grid->parked < grid->helpers)
        pthread_cond_wait(&grid->changed, &crew.lock);
    pthread_mutex_unlock(&crew.lock);
    l->breathe(l->breathe_context);
    pthread_mutex_lock(&crew.lock);
    __atomic_store_n(&grid->held, 0, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&grid->changed);
    pthread_mutex_unlock(&crew.lock);
}

static void lead(struct sg_grid *grid)
{
    const struct sg_launch *l = grid->launch;
    if (!grid->called && __atomic_load_n(&grid->next, __ATOMIC_RELAXED) < grid->total &&
        gp_now_ns() - grid->start > SHORT_NS)
        sg_crew_call(grid);
    if (!l->breathe)
        return;
    if (!grid->called)
        l->breathe(l->breathe_context);
    else if (!l->due || l->due(l->breathe_context))
        breathe_together(grid);
}

void sg_crew_breathe(struct sg_run *run)
{
    if (run->leads)
        lead(run->grid);
    else if (__atomic_load_n(&run->grid->held, __ATOMIC_RELAXED))
        park(run->grid);
}

void sg_crew_dismiss(struct sg_run *run)
{
    struct sg_grid *grid = run->grid;
    if (!grid->called)
        return;
    pthread_mutex_lock(&crew.lock);
    unwant(grid);
    while (grid->helpers) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&grid->changed, &crew.lock, &until) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&crew.lock);
        sg_crew_breathe(run);
        pthread_mutex_lock(&crew.lock);
    }
    pthread_mutex_unlock(&crew.lock);
}
