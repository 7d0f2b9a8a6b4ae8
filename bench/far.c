/*
 * A network that takes its time, for programs on one machine:
 *
 *   bench_far DELAY_US [GBIT [LINK]]
 *
 * makes a network namespace that reaches this one at 198.18.LINK.1, is itself 198.18.LINK.2, and whose
 * packets take so long each way, however many are under way; with GBIT above 0 no more than so many
 * 10^9 bits of them start in a second, each way. It says "ready PID" on a line of its
 * own; `nsenter --net=/proc/PID/ns/net COMMAND` runs a program there. It all ends when standard
 * input does. Needs root and /dev/net/tun; kernels without netem do.
 *
 * Two tun devices are the ends, and a queue for each direction is the link: a packet is written
 * once its time has come. The addresses are those that RFC 2544 keeps for benchmarks. Links with
 * other numbers may be there at the same time.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MTU = 65000, SLOTS = 1024, NEAR_NS = 80000, MOST_US = 1000000, MOST_LINKS = 256 };

struct packet {
    uint64_t due_ns;
    size_t length;
    uint8_t bytes[MTU];
};

/* One direction. One thread puts packets in, another takes them out. */
struct direction {
    int from, to;
    uint64_t delay_ns;
    double ns_per_byte; /* 0: it takes everything at once */
    uint64_t free_ns;   /* when the packets before have started */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t put, taken;
    struct packet *packets;
};

static void stop(const char *what)
{
    fprintf(stderr, "bench_far: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

/* Most of the wait is slept; the rest is spun, for a timer is late by half of what is measured. */
static void wait_until(uint64_t due_ns)
{
    uint64_t now = now_ns();
    if (due_ns > now + NEAR_NS) {
        uint64_t until = due_ns - NEAR_NS;
        struct timespec t = {.tv_sec = (time_t)(until / 1000000000U),
                             .tv_nsec = (long)(until % 1000000000U)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    }
    while (now_ns() < due_ns)
        ;
}

/* A packet starts behind those before it, takes its bytes' time for that, and then the link's. */
static uint64_t due(struct direction *d, size_t length)
{
    uint64_t now = now_ns(), begin = d->free_ns > now ? d->free_ns : now;
    d->free_ns = begin + (uint64_t)(d->ns_per_byte * (double)length);
    return d->free_ns + d->delay_ns;
}

static void *take_in(void *argument)
{
    struct direction *d = argument;
    for (;;) {
        pthread_mutex_lock(&d->lock);
        while (d->put - d->taken == SLOTS)
            pthread_cond_wait(&d->moved, &d->lock);
        pthread_mutex_unlock(&d->lock);
        struct packet *packet = &d->packets[d->put % SLOTS];
        ssize_t got = read(d->from, packet->bytes, MTU);
        if (got < 0)
            stop("cannot read a packet");
        packet->length = (size_t)got;
        packet->due_ns = due(d, packet->length);
        pthread_mutex_lock(&d->lock);
        d->put++;
        pthread_cond_signal(&d->moved);
        pthread_mutex_unlock(&d->lock);
    }
    return NULL;
}

static void *let_out(void *argument)
{
    struct direction *d = argument;
    for (;;) {
        pthread_mutex_lock(&d->lock);
        while (d->put == d->taken)
            pthread_cond_wait(&d->moved, &d->lock);
        pthread_mutex_unlock(&d->lock);
        const struct packet *packet = &d->packets[d->taken % SLOTS];
        wait_until(packet->due_ns);
        /* What the other side cannot take is lost, as on any network. */
        if (write(d->to, packet->bytes, packet->length) < 0 && errno == EBADF)
            stop("cannot write a packet");
        pthread_mutex_lock(&d->lock);
        d->taken++;
        pthread_cond_signal(&d->moved);
        pthread_mutex_unlock(&d->lock);
    }
    return NULL;
}

static void address_of(struct ifreq *request, const char *address)
{
    struct sockaddr_in *in = (struct sockaddr_in *)&request->ifr_addr;
    *in = (struct sockaddr_in){.sin_family = AF_INET};
    inet_pton(AF_INET, address, &in->sin_addr);
}

static void bring_up(int s, struct ifreq *request)
{
    if (ioctl(s, SIOCGIFFLAGS, request) != 0)
        stop("cannot ask for an interface's flags");
    request->ifr_flags |= IFF_UP | IFF_RUNNING;
    if (ioctl(s, SIOCSIFFLAGS, request) != 0)
        stop("cannot bring an interface up");
}

/* A tun device of the network that this process is in. */
static int make_device(int link, int end)
{
    char address[sizeof "198.18.255.255"];
    snprintf(address, sizeof address, "198.18.%d.%d", link % MOST_LINKS, end);
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        stop("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strcpy(request.ifr_name, "gpfar%d");
    if (ioctl(fd, TUNSETIFF, &request) != 0)
        stop("cannot make a tun device");
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        stop("cannot make a socket");
    address_of(&request, address);
    if (ioctl(s, SIOCSIFADDR, &request) != 0)
        stop("cannot give a tun device its address");
    address_of(&request, "255.255.255.252");
    if (ioctl(s, SIOCSIFNETMASK, &request) != 0)
        stop("cannot give a tun device its netmask");
    request.ifr_mtu = MTU;
    if (ioctl(s, SIOCSIFMTU, &request) != 0)
        stop("cannot give a tun device its MTU");
    request.ifr_qlen = SLOTS;
    if (ioctl(s, SIOCSIFTXQLEN, &request) != 0)
        stop("cannot give a tun device its queue");
    bring_up(s, &request);
    struct ifreq loopback = {.ifr_name = "lo"};
    bring_up(s, &loopback);
    close(s);
    return fd;
}

static void send_descriptor(int to, int fd)
{
    char byte = 0;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(fd))] = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room};
    message.msg_controllen = sizeof(room);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(head), &fd, sizeof(fd));
    if (sendmsg(to, &message, 0) != 1)
        stop("cannot hand a descriptor over");
}

static int receive_descriptor(int from)
{
    char byte;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))];
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room};
    message.msg_controllen = sizeof(room);
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == NULL)
        exit(1); /* the other has said why */
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    return fd;
}

/* The process that the namespace belongs to: it makes the device there, and waits for its end. */
static void be_there(int parent, int link)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWNET) != 0)
        stop("cannot make a network namespace");
    int fd = make_device(link, 2);
    send_descriptor(parent, fd);
    close(fd);
    for (;;)
        pause();
}

static void join(struct direction *d, int from, int to, struct direction like)
{
    *d = like;
    d->from = from;
    d->to = to;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->moved, NULL);
    d->packets = malloc(SLOTS * sizeof(*d->packets));
    pthread_t in, out;
    if (d->packets == NULL || pthread_create(&in, NULL, take_in, d) != 0 ||
        pthread_create(&out, NULL, let_out, d) != 0)
        stop("cannot make a direction");
}

/* A number that is all of a text, from 0 to `most`; -1 if it is none. */
static double number(const char *text, double most)
{
    char *end;
    double value = strtod(text, &end);
    return end != text && *end == '\0' && value >= 0 && value <= most ? value : -1;
}

int main(int argc, char **argv)
{
    double delay_us = argc > 1 && argc < 5 ? number(argv[1], MOST_US) : -1;
    double gbit = argc > 2 ? number(argv[2], 1000) : 0;
    double link = argc > 3 ? number(argv[3], MOST_LINKS - 1) : 0;
    if (delay_us < 0 || gbit < 0 || link < 0) {
        fprintf(stderr,
                "usage: bench_far DELAY_US (each way, 0 to %d) [GBIT (0: no limit) [LINK]]\n",
                MOST_US);
        return 2;
    }
    struct direction like = {.delay_ns = (uint64_t)(delay_us * 1000)};
    like.ns_per_byte = gbit > 0 ? 8 / gbit : 0;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        stop("cannot make a pair of sockets");
    pid_t child = fork();
    if (child < 0)
        stop("cannot fork");
    if (child == 0)
        be_there(pair[1], (int)link);
    close(pair[1]);
    int there = receive_descriptor(pair[0]), here = make_device((int)link, 1);
    static struct direction out, back;
    join(&out, here, there, like);
    join(&back, there, here, like);
    printf("ready %d\n", (int)child);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
