#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <linux/sockios.h>

#include "transport/tcp_socket.h"

/* How long a sleeper does not look whether its descriptor is still there: what is closed
 * never wakes anybody. */
#define SLICE_MS 500
/* How often a thread that does not sleep looks whether the peer is there. */
#define LOOK_INTERVAL_NS 10000000

/*
 * How the kernel ends the connection of a process that is killed. In order, the end comes behind
 * all that was sent, so a peer that does not read on (a tenant that gets no turn, a stream that
 * never goes on) never sees it. Abrupt, a reset goes out at once and overtakes all that; what the
 * peer's kernel has already can still be read. If that one packet is lost, the peer's next probe
 * gets another.
 */
static void end_set(int fd, bool abrupt)
{
    struct linger end = {.l_onoff = abrupt, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &end, sizeof end);
}

void tcp_socket_init(struct tcp_socket *s, int fd, const struct gp_silence *silence, bool accepted)
{
    const int yes = 1;
    *s = (struct tcp_socket){.fd = fd, .silence_ms = (int64_t)silence->seconds * 1000};
    gp_fd_note(&s->mark, accepted ? -1 : fd);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    gp_silence_set(fd, silence);
    if (!accepted) /* a client reads on whenever it waits, and workers close what they have */
        end_set(fd, true);
}

bool tcp_socket_is_ours(const struct tcp_socket *s)
{
    return gp_fd_is(&s->mark);
}

/* What an error of the socket's says of the channel. */
static int end_of(const struct tcp_socket *s, int error)
{
    if (error == EAGAIN || error == EINTR)
        return -EAGAIN;
    if (error == ENOMEM || error == ENOBUFS)
        return -EAGAIN; /* the kernel's own shortage, which passes */
    return tcp_socket_is_ours(s) ? -EPIPE : -EBADF;
}

void tcp_list_advance(struct iovec **list, int *count, size_t n)
{
    while (*count > 0 && n >= (*list)->iov_len) {
        n -= (*list)->iov_len;
        (*list)++;
        (*count)--;
    }
    if (*count > 0) {
        (*list)->iov_base = (char *)(*list)->iov_base + n;
        (*list)->iov_len -= n;
    }
}

ssize_t tcp_socket_send(struct tcp_socket *s, const struct iovec *iov, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count};
    if (!tcp_socket_is_ours(s))
        return -EBADF;
    ssize_t n = sendmsg(s->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 ? end_of(s, errno) : n;
}

ssize_t tcp_socket_recv(struct tcp_socket *s, void *to, size_t size)
{
    if (!tcp_socket_is_ours(s))
        return -EBADF;
    ssize_t n = recv(s->fd, to, size, MSG_DONTWAIT);
    return n == 0 ? -EPIPE : n > 0 ? n : errno == EFAULT ? -EFAULT : end_of(s, errno);
}

/* Asked of a number that may be somebody else's by now: it takes nothing from him. */
bool tcp_socket_may_recv(const struct tcp_socket *s)
{
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    return s->mark.fd < 0 || poll(&p, 1, 0) != 0;
}

static int socket_look(struct tcp_socket *s)
{
    struct pollfd p = {.fd = s->fd, .events = POLLRDHUP};
    atomic_store_explicit(&s->looked_ns, gp_clock_coarse_ns(), memory_order_relaxed);
    if (!tcp_socket_is_ours(s))
        return -EBADF;
    if (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)))
        return -EPIPE;
    return 0;
}

int tcp_socket_glance(struct tcp_socket *s)
{
    int64_t last = atomic_load_explicit(&s->looked_ns, memory_order_relaxed);
    return gp_clock_coarse_ns() - last < LOOK_INTERVAL_NS ? 0 : socket_look(s);
}

int tcp_socket_wait(struct tcp_socket *s, short events, int64_t deadline)
{
    struct pollfd p = {.fd = s->fd, .events = events};
    int n = gp_poll_until(&p, 1, deadline, SLICE_MS);
    if (n > 0)
        return 0; /* whose it is, is asked by who sends or receives now */
    if (!tcp_socket_is_ours(s))
        return -EBADF;
    return n == 0 && gp_silence_is_over(s->fd, s->silence_ms) ? -EPIPE : 0;
}

void tcp_socket_settle(struct tcp_socket *s, bool drops, int64_t deadline)
{
    static const struct timespec pause = {.tv_nsec = 1000000};
    char rest[4096];
    int under_way = 0;
    while (gp_clock_ns() < deadline && tcp_socket_is_ours(s)) {
        struct pollfd p = {.fd = s->fd};
        /* A socket that is closed with something unread breaks the connection, and what is
         * under way with it. */
        while (drops && recv(s->fd, rest, sizeof rest, MSG_DONTWAIT) > 0)
            ;
        if (ioctl(s->fd, SIOCOUTQ, &under_way) != 0 ||
            (poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR))))
            return;
        if (under_way == 0) {
            end_set(s->fd, false);
            return;
        }
        nanosleep(&pause, NULL);
    }
}

void tcp_socket_finish(struct tcp_socket *s, int64_t deadline)
{
    shutdown(s->fd, SHUT_WR);
    tcp_socket_settle(s, true, deadline);
}

void tcp_socket_shut(struct tcp_socket *s, int how)
{
    if (s->fd >= 0 && tcp_socket_is_ours(s))
        shutdown(s->fd, how);
}
