#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "budget.h"
#include "descriptors.h"
#include "image_store.h"
#include "ipc.h"
#include "memory.h"
#include "own_thread.h"
#include "peer.h"
#include "transport/shm_give.h"
#include "transport/support.h"

#define PEERS 8
/* Without descriptors for a server that connects, the kernel tells of it at once again. */
#define DEAF_MS 100
/* Of that there is a line so often at most. */
#define QUIET_NS 5000000000

bool gpw_control_stopped(const struct gpw_control *c)
{
    return __atomic_load_n(&c->stopped, __ATOMIC_ACQUIRE);
}

bool gpw_control_said(struct gpw_control *c, char *text, size_t size)
{
    pthread_mutex_lock(&c->lock);
    snprintf(text, size, "%s", c->said);
    c->said[0] = '\0';
    pthread_mutex_unlock(&c->lock);
    return text[0] != '\0';
}

void gpw_control_clients_to(struct gpw_control *c, struct gp_listener *l)
{
    pthread_mutex_lock(&c->lock);
    c->session->clients_to = l;
    pthread_mutex_unlock(&c->lock);
}

/* The latest counts: an end is said last. */
static void keep_said(struct gpw_control *c, const char *text)
{
    pthread_mutex_lock(&c->lock);
    snprintf(c->said, sizeof c->said, "%s", text);
    pthread_mutex_unlock(&c->lock);
}

/* What follows the word of a command: " TEXT" or nothing. NULL: it is another command. */
static const char *after_word(const char *line, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(line, word, length) != 0 || (line[length] && line[length] != ' '))
        return NULL;
    return line[length] ? line + length + 1 : line + length;
}

/* The worker's own thread goes on meanwhile: what it makes until the client has greeted, and does not
 * change from then on, is told then. */
static int status(const struct gpw_control *c, char *out, size_t size)
{
    const struct gpw_session *s = c->session;
    uint64_t sent, received;
    char host[256], budgets[768];
    bool greeted = __atomic_load_n(&s->greeted, __ATOMIC_ACQUIRE); /* with gpw_gp_hello */
    gpw_peers_bytes(s, &sent, &received);
    gpw_budget_describe_uses(s, host, sizeof host);
    gpw_budget_describe(s, budgets, sizeof budgets);
    return snprintf(
        out, size,
        "{\"session\": \"%s\", \"pid\": %d, \"client_pid\": %u, \"program\": \"%s\", "
        "\"devices\": %u, \"memory_bytes\": %llu, \"calls\": %llu, "
        "\"peer_bytes_sent\": %llu, \"peer_bytes_received\": %llu, \"connected\": %s, "
        "\"host\": %s, \"budgets\": %s}\n",
        c->id, (int)getpid(), greeted ? s->client_pid : 0, greeted ? s->program : "",
        greeted ? s->device_count : 0, greeted ? (unsigned long long)gpw_memory_bytes(s) : 0,
        (unsigned long long)__atomic_load_n(&s->calls, __ATOMIC_RELAXED), (unsigned long long)sent,
        (unsigned long long)received, greeted ? "true" : "false", host, budgets);
}

/* A client's connection, and a pidfd of its process. */
#define BROUGHT 2

/* Lines may come in pieces: only whole ones are commands. */
struct peer {
    int fd;
    unsigned used;
    char line[GPW_COMMAND_BYTES];
    int brought[BROUGHT]; /* descriptors that came and were not taken yet; -1: none */
};

static void brought_drop(struct peer *p)
{
    for (unsigned i = 0; i < BROUGHT; i++)
        if (p->brought[i] >= 0)
            close(p->brought[i]);
    memset(p->brought, -1, sizeof p->brought);
}

/* What does not fit is closed; what came before and was not taken, too. */
static void brought_keep(struct peer *p, struct msghdr *msg)
{
    brought_drop(p);
    gp_descriptors_take(msg, p->brought, BROUGHT);
}

/* Once a client is in, others find nobody. */
static void take_client(struct gpw_control *c, struct peer *p)
{
    pthread_mutex_lock(&c->lock);
    if (c->session->clients_to && p->brought[0] >= 0) {
        if (gp_shm_give(c->session->clients_to, p->brought[0], p->brought[1]) != 0)
            gpw_log("warn", "the server brought a client by something that is no connection");
        memset(p->brought, -1, sizeof p->brought);
    }
    pthread_mutex_unlock(&c->lock);
    brought_drop(p);
}

/* Where the server is asked from now on; anything but a socket is of no use. */
static void take_server(struct gpw_control *c, struct peer *p)
{
    int type = 0;
    socklen_t size = sizeof type;
    if (p->brought[0] >= 0 && getsockopt(p->brought[0], SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
        type == SOCK_SEQPACKET) {
        gpw_ipc_server(c->session, p->brought[0]);
        gpw_image_store_server(c->session);
        p->brought[0] = -1;
    }
    brought_drop(p);
}

static ssize_t receive(struct peer *p)
{
    struct iovec iov = {p->line + p->used, sizeof p->line - 1 - p->used};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(BROUGHT * sizeof(int))];
    } control;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(p->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n >= 0 && msg.msg_controllen)
        brought_keep(p, &msg);
    return n;
}

/* The length of the answer, mostly 0. */
static int obey(struct gpw_control *c, struct peer *p, const char *line, char *answer, size_t size)
{
    const char *text;
    if (strcmp(line, "status") == 0)
        return status(c, answer, size);
    if (strcmp(line, "client") == 0) {
        take_client(c, p);
    } else if (strcmp(line, "questions") == 0) {
        take_server(c, p);
    } else if ((text = after_word(line, "share")) != NULL) {
        gpw_shareable_tell(c->session, text, p->fd);
    } else if ((text = after_word(line, "image")) != NULL) {
        gpw_image_store_tell(c->session, text, p->fd);
    } else if ((text = after_word(line, "stop")) != NULL) {
        keep_said(c, text);
        __atomic_store_n(&c->stopped, true, __ATOMIC_RELEASE);
    } else if ((text = after_word(line, "say")) != NULL) {
        keep_said(c, text);
    } else {
        return snprintf(answer, size, "{\"error\": \"unknown command\"}\n");
    }
    return 0;
}

/* False when the peer is to be closed. */
static bool serve(struct gpw_control *c, struct peer *p)
{
    ssize_t n = receive(p);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    p->used += (unsigned)n;
    p->line[p->used] = '\0';
    char *end;
    while ((end = strchr(p->line, '\n')) != NULL) {
        *end = '\0';
        char answer[4096];
        int length = obey(c, p, p->line, answer, sizeof answer);
        if ((size_t)length >= sizeof answer ||
            (length > 0 && send(p->fd, answer, (size_t)length, MSG_NOSIGNAL) < 0))
            return false;
        p->used -= (unsigned)(end + 1 - p->line);
        memmove(p->line, end + 1, p->used + 1);
    }
    return p->used < sizeof p->line - 1;
}

static void complain(int64_t *quiet_until)
{
    int64_t now = gp_clock_ns();
    if (now < *quiet_until)
        return;
    *quiet_until = now + QUIET_NS;
    gpw_log("warn", "a server cannot connect to this worker: %m");
}

/* False when there is nothing to take it in with. */
static bool peer_comes(struct gpw_control *c, struct peer *peers, unsigned *count)
{
    int fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return false;
    if (*count == PEERS) {
        close(fd);
        return true;
    }
    struct peer *p = &peers[(*count)++];
    *p = (struct peer){.fd = fd};
    memset(p->brought, -1, sizeof p->brought);
    return true;
}

static void *control_thread(void *control)
{
    struct gpw_control *c = control;
    struct peer peers[PEERS];
    unsigned count = 0;
    int64_t quiet_until = 0;
    bool deaf = false;
    for (;;) {
        struct pollfd polled[PEERS + 1] = {{c->listener, deaf ? 0 : POLLIN, 0}};
        for (unsigned i = 0; i < count; i++)
            polled[i + 1] = (struct pollfd){peers[i].fd, POLLIN, 0};
        if (poll(polled, count + 1, deaf ? DEAF_MS : -1) < 0 && errno != EINTR)
            return NULL;
        if (polled[0].revents & (POLLERR | POLLNVAL | POLLHUP))
            return NULL;
        for (unsigned i = count; i-- > 0;)
            if (polled[i + 1].revents && !serve(c, &peers[i])) {
                brought_drop(&peers[i]);
                close(peers[i].fd);
                peers[i] = peers[--count];
            }
        deaf = polled[0].revents & POLLIN && !peer_comes(c, peers, &count);
        if (deaf)
            complain(&quiet_until);
    }
}

/* A listening Unix socket that was handed in; -1 if the number is of none. */
static int handed_in(const char *number)
{
    char *end;
    int listens = 0;
    socklen_t size = sizeof listens;
    long fd = strtol(number, &end, 10);
    if (*end || end == number || fd < 0 || fd > INT_MAX ||
        getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens)
        return -1;
    return fcntl((int)fd, F_SETFD, FD_CLOEXEC) == 0 ? (int)fd : -1;
}

static int listen_at(struct gpw_control *c, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t before = umask(077);
    int r = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&address, sizeof address);
    umask(before);
    if (r == 0 && listen(fd, PEERS) == 0) {
        snprintf(c->path, sizeof c->path, "%s", path);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

int gpw_control_open(struct gpw_control *c, const char *path, const char *fd, const char *id,
                     struct gpw_session *s)
{
    pthread_t thread;
    snprintf(c->id, sizeof c->id, "%s", id);
    c->session = s;
    pthread_mutex_init(&c->lock, NULL);
    c->listener = fd ? handed_in(fd) : listen_at(c, path);
    if (c->listener < 0 || gp_thread_create(&thread, "control", NULL, control_thread, c) != 0) {
        gpw_log("error", "cannot listen at the control socket %s: %m", path);
        return -1;
    }
    pthread_detach(thread);
    return 0;
}

void gpw_control_close(const struct gpw_control *c)
{
    if (c->path[0])
        unlink(c->path);
}
