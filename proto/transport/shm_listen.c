/*
 * Listening: connections that a server has accepted at its own socket come here, and the
 * first of them whose hello is in order becomes the channel. No name of a file is needed.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/shm_channel.h"
#include "transport/shm_give.h"

/* Peers that have connected and not yet said hello, and how long they may be
 * silent. More of them push out the oldest. */
#define GUESTS_MAX 16
#define GUEST_SILENCE_NS 2000000000

struct guest {
    int socket;
    int pidfd; /* of who connected; -1: not known */
    int64_t since_ns;
};

struct gp_listener {
    int wake;             /* an eventfd: somebody was given */
    pthread_mutex_t lock; /* given, given_count */
    struct guest given[GUESTS_MAX];
    int given_count;
    struct guest guests[GUESTS_MAX]; /* of the accepting thread */
    int guest_count;
};

int shm_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    if (strcmp(url, SHM_HANDED) != 0) {
        gp_error_set(err, "cannot listen at '%.150s': shared memory is listened at " SHM_HANDED,
                     url);
        return -EINVAL;
    }
    struct gp_listener *l = calloc(1, sizeof *l);
    int rc = l ? 0 : -ENOMEM;
    if (l && (l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        rc = -errno;
        free(l);
    }
    if (rc) {
        gp_error_set(err, "cannot listen at %s: %s", url, strerror(-rc));
        return rc;
    }
    pthread_mutex_init(&l->lock, NULL);
    *out = l;
    return 0;
}

const char *shm_listener_url(const struct gp_listener *l)
{
    (void)l;
    return SHM_HANDED;
}

static void guest_close(const struct guest *g)
{
    close(g->socket);
    if (g->pidfd >= 0)
        close(g->pidfd);
}

static void guest_drop(struct guest *guests, int *count, int i)
{
    guest_close(&guests[i]);
    guests[i] = guests[--*count];
}

/* One place at least is free afterwards: who has been there for longest goes. */
static void guests_make_room(struct guest *guests, int *count)
{
    if (*count < GUESTS_MAX)
        return;
    int oldest = 0;
    for (int i = 1; i < *count; i++)
        if (guests[i].since_ns < guests[oldest].since_ns)
            oldest = i;
    guest_drop(guests, count, oldest);
}

/* Anything else than a connection of ours would be read and waited for like one. */
static bool is_connection(int sock)
{
    int domain = 0, type = 0;
    socklen_t size = sizeof domain;
    return getsockopt(sock, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX &&
           getsockopt(sock, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

int gp_shm_give(struct gp_listener *l, int sock, int pidfd)
{
    struct guest g = {sock, pidfd, gp_clock_ns()};
    if (!is_connection(sock)) {
        guest_close(&g);
        return -EINVAL;
    }
    pthread_mutex_lock(&l->lock);
    guests_make_room(l->given, &l->given_count);
    l->given[l->given_count++] = g;
    pthread_mutex_unlock(&l->lock);
    uint64_t one = 1;
    while (write(l->wake, &one, sizeof one) < 0 && errno == EINTR)
        ;
    return 0;
}

static void guests_expire(struct gp_listener *l)
{
    int64_t now = gp_clock_ns();
    for (int i = l->guest_count - 1; i >= 0; i--)
        if (now - l->guests[i].since_ns > GUEST_SILENCE_NS)
            guest_drop(l->guests, &l->guest_count, i);
}

static void guests_admit(struct gp_listener *l)
{
    uint64_t times;
    if (read(l->wake, &times, sizeof times) < 0)
        return;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < l->given_count; i++) {
        guests_make_room(l->guests, &l->guest_count);
        l->guests[l->guest_count++] = l->given[i];
    }
    l->given_count = 0;
    pthread_mutex_unlock(&l->lock);
}

/* The hello's memory becomes a channel. Takes `fd` over, the guest's on success. */
static int guest_welcome(const struct guest *g, const struct shm_packet *hello, int fd,
                         struct gp_channel **out)
{
    int rc = -EPROTO;
    unsigned char *memory = MAP_FAILED;
    if (hello->kind != SHM_HELLO || hello->bytes != SHM_BYTES || fd < 0)
        goto fail;
    rc = shm_memory_check(fd, SHM_BYTES);
    if (rc)
        goto fail;
    memory = mmap(NULL, SHM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    rc = -ENOMEM;
    if (memory == MAP_FAILED)
        goto fail;
    struct shm_packet ready = {.magic = SHM_MAGIC, .kind = SHM_READY, .bytes = SHM_BYTES};
    rc = shm_packet_send(g->socket, &ready, -1);
    if (rc)
        goto fail;
    rc = shm_channel_new(memory, g->socket, true, out);
    if (rc)
        goto fail;
    (*out)->peer_pidfd = g->pidfd;
    close(fd);
    return 0;
fail:
    if (memory != MAP_FAILED)
        munmap(memory, SHM_BYTES);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Hear what guest `i` has to say: 0 with a channel, -EAGAIN otherwise. A guest
 * that talks nonsense is shown out and no concern of the listener's. */
static int guest_hear(struct gp_listener *l, int i, struct gp_channel **out)
{
    struct shm_packet hello;
    int fd;
    int rc = shm_packet_recv(l->guests[i].socket, &hello, &fd);
    if (rc == -EAGAIN)
        return rc;
    if (rc == 0)
        rc = guest_welcome(&l->guests[i], &hello, fd, out);
    if (rc) {
        guest_drop(l->guests, &l->guest_count, i);
        return -EAGAIN;
    }
    l->guests[i] = l->guests[--l->guest_count]; /* the descriptors are the channel's now */
    return 0;
}

static int listener_step(struct gp_listener *l, int wait_ms, struct gp_channel **out)
{
    struct pollfd fds[1 + GUESTS_MAX];
    int count = l->guest_count;
    fds[0] = (struct pollfd){.fd = l->wake, .events = POLLIN};
    for (int i = 0; i < count; i++)
        fds[1 + i] = (struct pollfd){.fd = l->guests[i].socket, .events = POLLIN};
    /* With guests, wake in time to show the silent ones out. */
    if (count > 0 && (wait_ms < 0 || wait_ms > 200))
        wait_ms = 200;
    if (poll(fds, (nfds_t)(1 + count), wait_ms) < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    /* From the last: what is dropped is replaced by the last. */
    for (int i = count - 1; i >= 0; i--)
        if (fds[1 + i].revents && guest_hear(l, i, out) == 0)
            return 0;
    guests_expire(l);
    if (fds[0].revents)
        guests_admit(l);
    return -EAGAIN;
}

int shm_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    int64_t deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000);
    for (;;) {
        int left = deadline == INT64_MAX ? -1 : gp_deadline_left_ms(deadline, 1 << 30);
        int rc = listener_step(l, left, out);
        if (rc != -EAGAIN) {
            if (rc)
                gp_error_set(err, "cannot accept at " SHM_HANDED ": %s", strerror(-rc));
            return rc;
        }
        if (left == 0) {
            gp_error_set(err, "nobody came to " SHM_HANDED " within %d ms", timeout_ms);
            return -EAGAIN;
        }
    }
}

void shm_listener_close(struct gp_listener *l)
{
    if (!l)
        return;
    while (l->guest_count > 0)
        guest_drop(l->guests, &l->guest_count, 0);
    while (l->given_count > 0)
        guest_drop(l->given, &l->given_count, 0);
    close(l->wake);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
