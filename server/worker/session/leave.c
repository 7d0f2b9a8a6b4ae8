#include "leave.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "own_thread.h"
#include "tell.h"

#define LOOK_NS 200000000
/* Longer than the server waits: then there is none. SIGALRM ends a process whatever its
 * threads do. */
#define ALARM_S 4

static bool client_gone(struct gpw_session *s)
{
    pthread_mutex_lock(&s->leave.lock);
    bool gone = s->leave.watches && s->transport->flush(s->channel) != 0;
    pthread_mutex_unlock(&s->leave.lock);
    return gone;
}

static bool watching(struct gpw_session *s)
{
    pthread_mutex_lock(&s->leave.lock);
    bool is = s->leave.watches;
    pthread_mutex_unlock(&s->leave.lock);
    return is;
}

static void *leave_thread(void *session)
{
    struct gpw_session *s = session;
    struct timespec pause = {.tv_nsec = LOOK_NS};
    while (watching(s) && !client_gone(s))
        nanosleep(&pause, NULL);
    alarm(ALARM_S);
    gpw_tell(s, "leaving");
    return NULL;
}

int gpw_leave_watch(struct gpw_session *s)
{
    pthread_t thread;
    static const int takes[] = {SIGALRM, 0};
    signal(SIGALRM, SIG_DFL);
    pthread_mutex_init(&s->leave.lock, NULL);
    s->leave.watches = true;
    int rc = gp_thread_create(&thread, "leave", takes, leave_thread, s);
    if (rc != 0) {
        gpw_log("error", "cannot start a thread: %s", strerror(-rc));
        return -1;
    }
    pthread_detach(thread);
    return 0;
}

void gpw_leave_begin(struct gpw_session *s)
{
    alarm(ALARM_S);
    pthread_mutex_lock(&s->leave.lock);
    s->leave.watches = false; /* its channel is about to be closed */
    pthread_mutex_unlock(&s->leave.lock);
}
