/* How lanes come to be: a client's knocks behind its own, and a worker's door for them. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp_channel.h"
#include "transport/tcp_guest.h"

/* How long a worker waits for them, and a client for a worker. */
#define OPEN_NS 10000000000
#define SLICE_MS 200

/* --- connecting -------------------------------------------------------------------- */

/* In the caller's thread: descriptors come in calls of the application's, not whenever. */
int tcp_lanes_dial(struct tcp_lanes *l, int fd)
{
    struct sockaddr_storage there = {0};
    socklen_t length = sizeof there;
    if (getpeername(fd, (void *)&there, &length) != 0)
        return -errno;
    for (unsigned i = 0; i < l->wanted; i++) {
        int s = socket(there.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s < 0)
            return -errno;
        tcp_socket_init(&l->lane[i].socket, s, &l->silence, false);
        if (connect(s, (void *)&there, length) != 0 && errno != EINPROGRESS)
            return -errno;
    }
    return 0;
}

static int connected_wait(const struct tcp_socket *s, int64_t deadline)
{
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};
    int error = 0, left;
    socklen_t size = sizeof error;
    do {
        left = gp_deadline_left_ms(deadline, SLICE_MS);
        if (!tcp_socket_is_ours(s))
            return -EBADF;
    } while (poll(&p, 1, left) <= 0 && left > 0);
    if (left == 0)
        return -ETIMEDOUT;
    return getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 ? -errno : -error;
}

static int lane_come(struct tcp_lane *lane, int64_t deadline)
{
    struct tcp_lanes *l = lane->all;
    const unsigned char mark[DOOR_MARK_BYTES] = {(unsigned char)(STRIPE_MARK + lane->number),
                                                 (unsigned char)l->wanted};
    unsigned char unused[DOOR_WORD_BYTES];
    struct door_knocked k;
    int rc = connected_wait(&lane->socket, deadline);
    if (rc == 0)
        rc = door_knock_at(lane->socket.fd, l->word, mark, &k);
    if (rc == 0)
        rc = tcp_greet(&k, l->word, l->encrypts, deadline, &lane->tls, unused);
    lane->sealed_left = lane->tls != NULL; /* what came behind the handshake */
    return rc;
}

/* Whether another one is wanted. */
static bool lane_came(struct tcp_lanes *l, unsigned opened)
{
    pthread_mutex_lock(&l->lock);
    l->opened = opened;
    tcp_lanes_agree(l);
    bool enough = opened == l->wanted || (l->agreed > 0 && opened >= l->agreed);
    pthread_mutex_unlock(&l->lock);
    return !enough && !atomic_load(&l->stop);
}

/* What did not come is let go of. */
static void opening_end(struct tcp_lanes *l)
{
    pthread_mutex_lock(&l->lock);
    l->opening = false;
    for (unsigned i = l->opened; i < l->wanted; i++) {
        struct tcp_socket *s = &l->lane[i].socket;
        if (tcp_socket_is_ours(s))
            close(s->fd);
        s->fd = -1;
    }
    int rc = tcp_lanes_agree(l);
    if (rc)
        tcp_lanes_break(l, 0, rc);
    explicit_bzero(l->word, sizeof l->word);
    pthread_cond_broadcast(&l->arrived);
    pthread_mutex_unlock(&l->lock);
    if (rc)
        tcp_channel_kill(l->channel, rc);
}

void *tcp_lanes_opener(void *arg)
{
    struct tcp_lanes *l = arg;
    int64_t deadline = gp_clock_ns() + OPEN_NS;
    unsigned opened = 0;
    bool more = tcp_lanes_prepare(l, l->wanted) == 0;
    while (more && lane_come(&l->lane[opened], deadline) == 0)
        more = lane_came(l, ++opened);
    opening_end(l);
    return NULL;
}

/* --- accepting --------------------------------------------------------------------- */

struct porter {
    struct tcp_lanes *lanes;
    struct tcp_guest guest;
    unsigned count; /* as many as come in: of what both sides want, the less; 0: not yet known */
    unsigned asked; /* as the client says */
};

/* Whether it is the lane that is next: each says which it is, and of how many. */
static bool mark_fits(struct porter *p, const unsigned char *mark)
{
    struct tcp_lanes *l = p->lanes;
    if (p->count == 0 && mark[1] >= 2) {
        p->asked = mark[1];
        p->count = p->asked < l->wanted ? p->asked : l->wanted;
    }
    return mark[0] == STRIPE_MARK + l->opened && mark[1] == p->asked && l->opened < p->count;
}

static int lane_take_in(struct porter *p)
{
    struct tcp_lanes *l = p->lanes;
    struct tcp_guest *g = &p->guest;
    if (!mark_fits(p, door_guest_nonce(g->entry.door))) {
        tcp_guest_drop(g);
        return 0;
    }
    if (l->opened == 0 && tcp_lanes_prepare(l, p->count) != 0)
        return -ENOMEM;
    struct tcp_lane *lane = &l->lane[l->opened];
    pthread_mutex_lock(&l->lock);
    tcp_socket_init(&lane->socket, g->entry.fd, &l->silence, true);
    lane->tls = g->tls;
    lane->sealed_left = lane->tls != NULL;
    l->opened++;
    pthread_mutex_unlock(&l->lock);
    tcp_guest_taken(g);
    return 0;
}

/* All are in, or it is too late: nobody else is let in. */
static void door_shut(struct porter *p)
{
    struct tcp_lanes *l = p->lanes;
    tcp_guest_drop(&p->guest);
    pthread_mutex_lock(&l->lock);
    door_close(l->door);
    l->door = NULL;
    explicit_bzero(l->word, sizeof l->word);
    pthread_mutex_unlock(&l->lock);
}

static void client_tell(struct tcp_lanes *l, unsigned lanes)
{
    while (!atomic_load(&l->stop) && tcp_lanes_tell(l->channel, lanes) == -EAGAIN)
        usleep(1000);
}

void *tcp_lanes_porter(void *arg)
{
    struct tcp_lanes *l = arg;
    struct porter p = {.lanes = l};
    int64_t deadline = gp_clock_ns() + OPEN_NS;
    int rc = 0;
    tcp_guest_init(&p.guest, l->door, l->encrypts);
    while (rc == 0 && !atomic_load(&l->stop) && !l->channel->dead && gp_clock_ns() < deadline &&
           (p.count == 0 || l->opened < p.count)) {
        struct pollfd items[DOOR_ITEMS];
        poll(items, (nfds_t)door_items(l->door, items), SLICE_MS);
        door_serve(l->door);
        if (tcp_guest_step(&p.guest) == 0)
            rc = lane_take_in(&p);
    }
    door_shut(&p);
    if (rc == 0 && p.count > 0 && l->opened == p.count)
        client_tell(l, p.count);
    pthread_mutex_lock(&l->lock);
    l->opening = false;
    pthread_cond_broadcast(&l->wake);
    pthread_cond_broadcast(&l->arrived);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}
