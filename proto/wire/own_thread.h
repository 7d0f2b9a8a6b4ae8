/* Threads of ours, in processes that may be a program's. */
#ifndef GP_OWN_THREAD_H
#define GP_OWN_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

struct gp_thread_start {
    char name[16]; /* as long as the kernel keeps it */
    void *(*main)(void *);
    void *arg;
};

static inline void *gp_thread_main(void *arg)
{
    struct gp_thread_start start = *(struct gp_thread_start *)arg;
    free(arg);
    prctl(PR_SET_NAME, start.name);
    return start.main(start.arg);
}

/* Start one that debuggers and `top -H` show as gpupool-WHAT, of at most 7 characters. Signals are
 * the program's, and so are their handlers: it takes none but those in `takes`, which ends with 0
 * (NULL: none). 0 or -errno. */
static inline int gp_thread_create(pthread_t *thread, const char *what, const int *takes,
                                   void *(*main)(void *), void *arg)
{
    sigset_t blocked, before;
    struct gp_thread_start *start = malloc(sizeof *start);
    if (!start)
        return -ENOMEM;
    *start = (struct gp_thread_start){.main = main, .arg = arg};
    snprintf(start->name, sizeof start->name, "gpupool-%.7s", what);
    sigfillset(&blocked);
    for (; takes && *takes; takes++)
        sigdelset(&blocked, *takes);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int r = pthread_create(thread, NULL, gp_thread_main, start);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r != 0)
        free(start);
    return -r;
}

#endif
