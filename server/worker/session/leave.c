#include "leave.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tell.h"

#define LOOK_NS 200000000
/* Longer than the server waits: then there is none. SIGALRM ends a process whatever its
 * threads do. */
#define ALARM_S 4

static struct gpw_session *watched; /* under the lock; NULL: nobody is to be looked for */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool client_gone(void)
{
    pthread_mutex_lock(&lock);
    bool gone = watched && watched->transport->flush(watched->channel) != 0;
    pthread_mutex_unlock(&lock);
    return gone;
}

static bool watching(void)
{
    pthread_mutex_lock(&lock);
    bool is = watched != NULL;
    pthread_mutex_unlock(&lock);
    return is;
}

static void *leave_thread(void *unused)
{
    (void)unused;
    struct timespec pause = {.tv_nsec = LOOK_NS};
    while (watching() && !client_gone())
        nanosleep(&pause, NULL);
    alarm(ALARM_S);
    gpw_tell("leaving");
    return NULL;
}

int gpw_leave_watch(struct gpw_session *s)
{
    pthread_t thread;
    sigset_t all, before;
    signal(SIGALRM, SIG_DFL);
    watched = s;
    sigfillset(&all);
    sigdelset(&all, SIGALRM);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&thread, NULL, leave_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        gpw_log("error", "cannot start a thread: %s", strerror(rc));
        return -1;
    }
    pthread_detach(thread);
    return 0;
}

void gpw_leave_begin(void)
{
    alarm(ALARM_S);
    pthread_mutex_lock(&lock);
    watched = NULL; /* its channel is about to be closed */
    pthread_mutex_unlock(&lock);
}
