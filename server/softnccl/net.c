/* Sockets that wait for two things: the other end, and to be told to stop. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "softnccl.h"

/* So often who waits looks whether the other end's host is there. */
#define LOOK_MS 500

static struct gp_silence silence;

static void silence_find(void)
{
    gp_silence_read(&silence, NULL);
}

const struct gp_silence *sn_silence(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, silence_find);
    return &silence;
}

int sn_poll(struct pollfd *polled, nfds_t count)
{
    for (;;) {
        int n = poll(polled, count, LOOK_MS);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
        for (nfds_t i = 0; n == 0 && i < count; i++)
            if (gp_silence_is_over(polled[i].fd, sn_silence()->seconds * INT64_C(1000))) {
                polled[i].revents = POLLERR;
                return -ETIMEDOUT;
            }
    }
}

int sn_wait(int fd, short events, int wake)
{
    struct pollfd both[2] = {{.fd = fd, .events = events}, {.fd = wake, .events = POLLIN}};
    int r = sn_poll(both, 2);
    return r == 0 && both[1].revents ? -ECANCELED : r;
}

/* After a call on a socket that did not do all: 0 to try again. */
static int again(int fd, short events, int wake)
{
    if (errno == EINTR)
        return 0;
    if (errno == EAGAIN)
        return sn_wait(fd, events, wake);
    return errno == EPIPE || errno == ETIMEDOUT ? -ECONNRESET : -errno;
}

int sn_send(int fd, const void *data, size_t size, int wake)
{
    const char *at = data;
    while (size) {
        ssize_t n = send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        int r = n < 0 ? again(fd, POLLOUT, wake) : 0;
        if (r < 0)
            return r;
        at += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int sn_receive(int fd, void *data, size_t size, int wake)
{
    char *at = data;
    while (size) {
        ssize_t n = recv(fd, at, size, MSG_DONTWAIT);
        int r = n < 0 ? again(fd, POLLIN, wake) : 0;
        if (r < 0 || n == 0)
            return n == 0 ? -ECONNRESET : r;
        at += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

union any {
    struct sockaddr one;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

static socklen_t to_socket(const struct sn_address *a, union any *out)
{
    memset(out, 0, sizeof *out);
    if (a->family == AF_INET) {
        out->four.sin_family = AF_INET;
        out->four.sin_port = htons(a->port);
        memcpy(&out->four.sin_addr, a->ip, 4);
        return sizeof out->four;
    }
    out->six.sin6_family = AF_INET6;
    out->six.sin6_port = htons(a->port);
    memcpy(&out->six.sin6_addr, a->ip, 16);
    return sizeof out->six;
}

static void option_set(int fd, int option, int value)
{
    setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
}

static void options_set(int fd)
{
    option_set(fd, TCP_NODELAY, 1);
    gp_silence_set(fd, sn_silence());
}

static int connected(int fd, int wake)
{
    int error = 0;
    socklen_t size = sizeof error;
    int r = sn_wait(fd, POLLOUT, wake);
    if (r == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        return -errno;
    return r < 0 ? r : -error;
}

int sn_connect(const struct sn_address *address, int wake)
{
    union any to;
    socklen_t size = to_socket(address, &to);
    int fd = socket(address->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    options_set(fd);
    option_set(fd, TCP_USER_TIMEOUT, sn_silence()->seconds * 1000);
    int r = connect(fd, &to.one, size) == 0 ? 0 : -errno;
    if (r == -EINPROGRESS)
        r = connected(fd, wake);
    option_set(fd, TCP_USER_TIMEOUT, 0); /* who is busy takes nothing for as long as that lasts */
    if (r < 0)
        close(fd);
    return r < 0 ? r : fd;
}

int sn_listen(struct sn_address *address)
{
    struct sn_address own;
    union any at;
    socklen_t size;
    if (!sn_address_own(&own))
        return -EADDRNOTAVAIL;
    size = to_socket(&own, &at);
    int fd = socket(own.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    options_set(fd); /* what is accepted has them too */
    if (bind(fd, &at.one, size) != 0 || listen(fd, SN_RANKS_MAX) != 0 ||
        getsockname(fd, &at.one, &size) != 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    own.port = ntohs(own.family == AF_INET ? at.four.sin_port : at.six.sin6_port);
    *address = own;
    return fd;
}
