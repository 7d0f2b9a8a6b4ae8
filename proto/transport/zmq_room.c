/*
 * libzmq ends the process where it lacks a descriptor or a thread, or waits for its own thread for
 * ever. So it is asked for nothing unless there is room for all that it takes.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/zmq_link.h"
#include "wire/own_thread.h"

/* What a context with its sockets takes for its life. */
#define DESCRIPTORS 9
/* Its own two, at the same time. */
#define THREADS 2

static int descriptors_free(void)
{
    int taken[DESCRIPTORS], count = 0, rc = 0;
    while (count < DESCRIPTORS && rc == 0) {
        taken[count] = eventfd(0, EFD_CLOEXEC);
        if (taken[count] < 0)
            rc = -errno;
        else
            count++;
    }
    while (count)
        close(taken[--count]);
    return rc;
}

static void *wait_for_leave(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

static int threads_free(void)
{
    pthread_mutex_t leave = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread[THREADS];
    int count = 0, rc = 0;
    pthread_mutex_lock(&leave);
    while (count < THREADS && rc == 0)
        if ((rc = gp_thread_create(&thread[count], "room", NULL, wait_for_leave, &leave)) == 0)
            count++;
    pthread_mutex_unlock(&leave);
    while (count)
        pthread_join(thread[--count], NULL);
    pthread_mutex_destroy(&leave);
    return rc ? LINK_NO_THREAD : 0;
}

int link_room(void)
{
    int rc = descriptors_free();
    return rc ? rc : threads_free();
}

int link_no_thread(const char *url, struct gp_error *err)
{
    gp_error_set(err,
                 "cannot reach %.100s: this process may start no further thread; see `ulimit -u`, "
                 "`ulimit -d`, and what its container may have (pids.max)",
                 url);
    return LINK_NO_THREAD;
}
