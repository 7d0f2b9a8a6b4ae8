#include "loopback.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71 /* Linux 5.14 */
#endif

/* Who asks gives two descriptors: what is to be connected, and where it is told of it. */
#define GIVEN 2
/* How long who asks waits for an answer. */
#define PATIENCE_MS 2000

union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

/* A name that no file has: it is the network's. */
static socklen_t door_name(struct sockaddr_un *name)
{
    static const char text[] = "\0gpupool-loopback";
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(name->sun_path, text, sizeof text - 1);
    return offsetof(struct sockaddr_un, sun_path) + sizeof text - 1;
}

/* --- who serves -------------------------------------------------------------------------- */

static void nothing(int number)
{
    (void)number;
}

int gp_loopback_open(void)
{
    struct sockaddr_un name;
    socklen_t size = door_name(&name);
    struct sigaction action = {.sa_handler = nothing}; /* ends what blocks */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 &&
        (bind(fd, (struct sockaddr *)&name, size) != 0 || sigaction(SIGALRM, &action, NULL) != 0)) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static int option(int fd, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

/* 0: the kernel does not say. */
static uint64_t network_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    return getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

/* Neither changes, whatever else its sender does with it. */
static bool may_be_connected(int door, int fd)
{
    uint64_t network = network_of(door);
    int family = option(fd, SO_DOMAIN);
    return network && network_of(fd) == network && (family == AF_INET || family == AF_INET6) &&
           option(fd, SO_TYPE) == SOCK_STREAM && option(fd, SO_PROTOCOL) == IPPROTO_TCP;
}

static bool is_loopback(const union address *a, size_t size)
{
    if (size >= sizeof a->four && a->any.sa_family == AF_INET)
        return ntohl(a->four.sin_addr.s_addr) >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
    return size >= sizeof a->six && a->any.sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&a->six.sin6_addr);
}

/* It was said not to block; should that change meanwhile, an alarm ends it. */
static int connect_soon(int fd, const union address *a, size_t size)
{
    const struct itimerval second = {.it_value = {.tv_sec = 1}}, never = {{0}, {0}};
    if (!(fcntl(fd, F_GETFL) & O_NONBLOCK))
        return EINVAL;
    setitimer(ITIMER_REAL, &second, NULL);
    int error = connect(fd, &a->any, (socklen_t)size) == 0 ? 0 : errno;
    setitimer(ITIMER_REAL, &never, NULL);
    return error;
}

/* The descriptors that came; how many. */
static size_t received(struct msghdr *m, int fds[GIVEN])
{
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
        return 0;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof fds[0];
    memcpy(fds, CMSG_DATA(c), (count < GIVEN ? count : GIVEN) * sizeof fds[0]);
    return count < GIVEN ? count : GIVEN;
}

void gp_loopback_serve(int door)
{
    union address a = {0};
    union {
        char bytes[CMSG_SPACE(GIVEN * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {&a, sizeof a};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    int fds[GIVEN];
    ssize_t size = recvmsg(door, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0)
        return;
    size_t count = received(&m, fds);
    if (count == GIVEN) {
        bool may = is_loopback(&a, (size_t)size) && may_be_connected(door, fds[0]);
        int32_t error = may ? connect_soon(fds[0], &a, (size_t)size) : EPERM;
        send(fds[1], &error, sizeof error, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    while (count)
        close(fds[--count]);
}

/* --- who asks ----------------------------------------------------------------------------- */

static bool ask(int door, int fd, int answers, const struct sockaddr *address, socklen_t size)
{
    struct sockaddr_un name;
    union {
        char bytes[CMSG_SPACE(GIVEN * sizeof(int))];
        struct cmsghdr aligned;
    } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)address, size};
    struct msghdr m = {.msg_name = &name,
                       .msg_namelen = door_name(&name),
                       .msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(GIVEN * sizeof(int)),
                          .cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), (int[GIVEN]){fd, answers}, GIVEN * sizeof(int));
    return sendmsg(door, &m, MSG_NOSIGNAL) == (ssize_t)size;
}

/* What connect() would have set errno to, or EPERM. */
static int ask_for(int fd, const struct sockaddr *address, socklen_t size)
{
    int32_t error = EPERM;
    int pair[2], door = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (door < 0 || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) != 0) {
        if (door >= 0)
            close(door);
        return EPERM;
    }
    struct pollfd answer = {.fd = pair[0], .events = POLLIN};
    bool told = ask(door, fd, pair[1], address, size) && poll(&answer, 1, PATIENCE_MS) == 1 &&
                recv(pair[0], &error, sizeof error, MSG_DONTWAIT) == sizeof error;
    close(door);
    close(pair[0]);
    close(pair[1]);
    return told ? error : EPERM;
}

/* The end of a connection that was begun without waiting for it. */
static int await(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    while (poll(&p, 1, -1) < 0)
        if (errno != EINTR)
            return errno;
    return option(fd, SO_ERROR);
}

int gp_loopback_connect(int fd, const struct sockaddr *address, socklen_t size)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return -1;
    if (size > sizeof(union address)) {
        errno = EPERM;
        return -1;
    }
    bool waits = !(flags & O_NONBLOCK);
    if (waits)
        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    int error = ask_for(fd, address, size);
    if (waits) {
        if (error == EINPROGRESS)
            error = await(fd);
        fcntl(fd, F_SETFL, flags);
    }
    errno = error;
    return error ? -1 : 0;
}
