/*
 * What a worker, or whoever is in its network, sends to the process that connects for it: an
 * address and descriptors of any kind. Nothing is connected but a TCP socket that does not wait,
 * to the loopback; who asked is told; and no descriptor stays open.
 *
 * The input is a list of datagrams: a byte how many descriptors, one for each of them which, and
 * one how long the address is, then that.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "left_open.h"
#include "loopback.h"

#define MANY 4
#define PACKETS_MAX 4
#define ADDRESS_MOST 64

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum kind { TCP, TCP6, ANSWERS, WAITS, UDP, LOCAL, PIPE, FOLDER, RAW_FILE, KINDS };

static int kinds[KINDS], answers, door, asks;
static int connected; /* how often, by this datagram */

static void must(bool right)
{
    if (!right)
        abort();
}

static int kind_make(enum kind kind)
{
    int ends[2];
    switch (kind) {
    case TCP:
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    case TCP6:
        return socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    case WAITS:
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    case UDP:
        return socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    case LOCAL:
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    case ANSWERS:
        must(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) == 0);
        answers = ends[0];
        return ends[1];
    case PIPE:
        must(pipe2(ends, O_CLOEXEC) == 0);
        return ends[1];
    case FOLDER:
        return open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    case RAW_FILE:
    case KINDS:
        break;
    }
    return open("/dev/null", O_RDWR | O_CLOEXEC);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    int ends[2];
    (void)argc, (void)argv;
    for (int i = 0; i < KINDS; i++)
        kinds[i] = kind_make((enum kind)i);
    if (kinds[TCP6] < 0) /* where there is none */
        kinds[TCP6] = kinds[TCP];
    must(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    door = ends[0];
    asks = ends[1];
    return 0;
}

static int option(int fd, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

/* As bytes say it. */
static bool is_loopback(const unsigned char *a, size_t size)
{
    static const unsigned char six[16] = {[15] = 1};
    uint16_t family;
    memcpy(&family, a, sizeof family);
    return family == AF_INET ? size >= 16 && a[4] == 127
                             : family == AF_INET6 && size >= 28 && memcmp(a + 8, six, 16) == 0;
}

/* In the place of the system's: nothing is connected. */
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size)
{
    connected++;
    must(size >= 16 && size <= sizeof(struct sockaddr_in6));
    must(is_loopback((const void *)address, size));
    must(option(fd, SO_TYPE) == SOCK_STREAM && option(fd, SO_PROTOCOL) == IPPROTO_TCP);
    must(fcntl(fd, F_GETFL) & O_NONBLOCK);
    errno = EINPROGRESS;
    return -1;
}

int __wrap_setitimer(int which, const struct itimerval *to, struct itimerval *was);
int __wrap_setitimer(int which, const struct itimerval *to, struct itimerval *was)
{
    (void)which, (void)to, (void)was; /* the fuzzer has one of its own */
    return 0;
}

static uint8_t take(const uint8_t **at, size_t *left)
{
    if (!*left)
        return 0;
    (*left)--;
    return *(*at)++;
}

static void send_it(void *bytes, size_t size, const int *fds, unsigned count)
{
    struct iovec iov = {bytes, size};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MANY * sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (count) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    must(sendmsg(asks, &msg, MSG_NOSIGNAL) == (ssize_t)size);
}

/* One datagram, and what is said to it. */
static void ask(const uint8_t **at, size_t *left)
{
    unsigned char address[ADDRESS_MOST] = {0};
    int fds[MANY], which[MANY];
    int32_t error = 0;
    unsigned count = take(at, left) % (MANY + 1);
    for (unsigned i = 0; i < count; i++)
        fds[i] = kinds[which[i] = take(at, left) % KINDS];
    size_t size = take(at, left) % (ADDRESS_MOST + 1);
    for (size_t i = 0; i < size; i++)
        address[i] = take(at, left);
    connected = 0;
    send_it(address, size, fds, count);
    gp_loopback_serve(door);
    bool told = recv(answers, &error, sizeof error, MSG_DONTWAIT) == sizeof error;
    must(connected <= (count >= 2));
    must(told == (count >= 2 && which[1] == ANSWERS));
    must(!told || error == (connected ? EINPROGRESS : EPERM) ||
         (error == EINVAL && which[0] == WAITS && !connected));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int before = lowest_free();
    for (int i = 0; i < PACKETS_MAX && size; i++)
        ask(&data, &size);
    if (left_open(before))
        abort();
    return 0;
}
