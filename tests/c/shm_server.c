#include "shm_server.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport/shm_channel.h"
#include "transport/shm_give.h"

struct gp_transport shm_served;

/* One that is listened at, and the listener that the suite knows of it. */
struct served {
    struct served *next;
    struct gp_listener *listener;
    char url[160];
    int socket;
    pid_t owner;
    pthread_t thread;
};
static struct served *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int pidfd_of(int sock)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
        return -1;
    return (int)syscall(SYS_pidfd_open, cred.pid, 0);
}

static void *serve(void *arg)
{
    struct served *s = arg;
    for (;;) {
        int fd = accept4(s->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return NULL; /* shut down */
        gp_shm_give(s->listener, fd, pidfd_of(fd));
    }
}

static int served_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct served *s = calloc(1, sizeof *s);
    if (!s || strncmp(url, "shm:///", 7) != 0) {
        free(s);
        return gp_transport_shm.listen(url, out, err);
    }
    int rc = gp_transport_shm.listen(SHM_HANDED, &s->listener, err);
    if (rc) {
        free(s);
        return rc;
    }
    memcpy(s->url, url, strlen(url) + 1);
    memcpy(a.sun_path, url + 6, strlen(url + 6) + 1);
    s->owner = getpid();
    unlink(a.sun_path);
    s->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (bind(s->socket, (void *)&a, sizeof a) != 0 || listen(s->socket, 64) != 0 ||
        pthread_create(&s->thread, NULL, serve, s) != 0)
        abort();
    pthread_mutex_lock(&lock);
    s->next = all;
    all = s;
    pthread_mutex_unlock(&lock);
    *out = s->listener;
    return 0;
}

static const char *served_url(const struct gp_listener *l)
{
    pthread_mutex_lock(&lock);
    struct served *s = all;
    while (s && s->listener != l)
        s = s->next;
    pthread_mutex_unlock(&lock);
    return s ? s->url : gp_transport_shm.listener_url(l);
}

static void served_close(struct gp_listener *l)
{
    pthread_mutex_lock(&lock);
    struct served **at = &all;
    while (*at && (*at)->listener != l)
        at = &(*at)->next;
    struct served *s = *at;
    if (s)
        *at = s->next;
    pthread_mutex_unlock(&lock);
    if (s && s->owner == getpid()) {
        shutdown(s->socket, SHUT_RDWR);
        pthread_join(s->thread, NULL);
        unlink(s->url + 6);
    }
    if (s)
        close(s->socket);
    free(s);
    gp_transport_shm.listener_close(l);
}

const struct gp_transport *shm_served_make(void)
{
    shm_served = gp_transport_shm;
    shm_served.listen = served_listen;
    shm_served.listener_url = served_url;
    shm_served.listener_close = served_close;
    return &shm_served;
}
