#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport/shm_channel.h"

/* Peers that have connected and not yet said hello, and how long they may be
 * silent. More of them push out the oldest. */
#define GUESTS_MAX 16
#define GUEST_SILENCE_NS 2000000000

struct guest {
    int socket;
    int64_t since_ns;
};

struct gp_listener {
    int socket;
    unsigned generation;
    dev_t device; /* of the socket file, so that only our own is removed */
    ino_t inode;
    struct sockaddr_un address;
    char *url;
    struct guest guests[GUESTS_MAX];
    int guest_count;
};

static int address_parse(const char *url, struct sockaddr_un *address, struct gp_error *err)
{
    const char *path = url + strlen("shm://");
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (*path != '/') {
        gp_error_set(err, "'%.150s' names no file: write shm:///ABSOLUTE/PATH", url);
        return -EINVAL;
    }
    if (strlen(path) >= sizeof address->sun_path) {
        gp_error_set(err,
                     "the path of '%.150s' is longer than the %zu bytes a socket may have; "
                     "use a shorter folder",
                     url, sizeof address->sun_path - 1);
        return -ENAMETOOLONG;
    }
    memcpy(address->sun_path, path, strlen(path) + 1);
    return 0;
}

static bool peer_is_ours(int sock, struct ucred *cred)
{
    socklen_t length = sizeof *cred;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, cred, &length) != 0) {
        cred->uid = (uid_t)-1;
        return false;
    }
    return cred->uid == geteuid() || cred->uid == 0;
}

/* --- listening ----------------------------------------------------------- */

/* A file that nobody listens on any more is removed; one that somebody does, or
 * that is no socket, is not ours to take. */
static int stale_remove(const struct sockaddr_un *address, struct gp_error *err)
{
    struct stat st;
    if (lstat(address->sun_path, &st) != 0)
        return 0;
    if (!S_ISSOCK(st.st_mode)) {
        gp_error_set(err, "cannot listen at %s: a file that is no socket is there",
                     address->sun_path);
        return -EADDRINUSE;
    }
    int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return -errno;
    int rc = connect(probe, (const void *)address, sizeof *address) == 0 ? 0 : -errno;
    close(probe);
    if (rc == -ECONNREFUSED) {
        unlink(address->sun_path);
        return 0;
    }
    if (rc == -ENOENT)
        return 0;
    gp_error_set(err, "cannot listen at %s: another process does", address->sun_path);
    return -EADDRINUSE;
}

static int listener_open(struct gp_listener *l, struct gp_error *err)
{
    struct stat st;
    const char *path = l->address.sun_path;
    int rc = stale_remove(&l->address, err);
    if (rc)
        return rc;
    l->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->socket < 0)
        goto fail;
    /* Before bind, so that the file is never there with wider rights. */
    if (fchmod(l->socket, 0600) != 0)
        goto fail;
    if (bind(l->socket, (const void *)&l->address, sizeof l->address) != 0)
        goto fail;
    if (listen(l->socket, 64) != 0 || stat(path, &st) != 0) {
        rc = -errno;
        unlink(path);
        errno = -rc;
        goto fail;
    }
    l->device = st.st_dev;
    l->inode = st.st_ino;
    return 0;
fail:
    rc = -errno;
    gp_error_set(err, "cannot listen at %s: %s", path, strerror(-rc));
    return rc;
}

int shm_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    struct gp_listener *l = calloc(1, sizeof *l);
    if (!l) {
        gp_error_set(err, "cannot listen at %.200s: out of memory", url);
        return -ENOMEM;
    }
    l->socket = -1;
    l->generation = gp_fork_generation();
    int rc = address_parse(url, &l->address, err);
    if (rc == 0 && !(l->url = strdup(url)))
        rc = -ENOMEM;
    if (rc == 0)
        rc = listener_open(l, err);
    if (rc) {
        if (l->socket >= 0)
            close(l->socket);
        free(l->url);
        free(l);
        return rc;
    }
    *out = l;
    return 0;
}

const char *shm_listener_url(const struct gp_listener *l)
{
    return l->url;
}

static void guest_drop(struct gp_listener *l, int i)
{
    close(l->guests[i].socket);
    l->guests[i] = l->guests[--l->guest_count];
}

static void guests_expire(struct gp_listener *l)
{
    int64_t now = gp_clock_ns();
    for (int i = l->guest_count - 1; i >= 0; i--)
        if (now - l->guests[i].since_ns > GUEST_SILENCE_NS)
            guest_drop(l, i);
}

static void guests_make_room(struct gp_listener *l)
{
    if (l->guest_count < GUESTS_MAX)
        return;
    int oldest = 0;
    for (int i = 1; i < l->guest_count; i++)
        if (l->guests[i].since_ns < l->guests[oldest].since_ns)
            oldest = i;
    guest_drop(l, oldest);
}

static void guest_admit(struct gp_listener *l)
{
    struct ucred cred;
    int sock = accept4(l->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0)
        return;
    if (!peer_is_ours(sock, &cred)) {
        close(sock);
        return;
    }
    guests_make_room(l);
    l->guests[l->guest_count++] = (struct guest){.socket = sock, .since_ns = gp_clock_ns()};
}

/* The hello's memory becomes a channel. Takes `fd` over, `sock` on success. */
static int guest_welcome(int sock, const struct shm_packet *hello, int fd, struct gp_channel **out)
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
    rc = shm_packet_send(sock, &ready, -1);
    if (rc)
        goto fail;
    rc = shm_channel_new(memory, sock, true, out);
    if (rc)
        goto fail;
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
        rc = guest_welcome(l->guests[i].socket, &hello, fd, out);
    if (rc) {
        guest_drop(l, i);
        return -EAGAIN;
    }
    l->guests[i] = l->guests[--l->guest_count]; /* the socket is the channel's now */
    return 0;
}

static int listener_step(struct gp_listener *l, int wait_ms, struct gp_channel **out)
{
    struct pollfd fds[1 + GUESTS_MAX];
    int count = l->guest_count;
    fds[0] = (struct pollfd){.fd = l->socket, .events = POLLIN};
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
        guest_admit(l);
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
                gp_error_set(err, "cannot accept at %s: %s", l->url, strerror(-rc));
            return rc;
        }
        if (left == 0) {
            gp_error_set(err, "nobody connected to %s within %d ms", l->url, timeout_ms);
            return -EAGAIN;
        }
    }
}

void shm_listener_close(struct gp_listener *l)
{
    struct stat st;
    if (!l)
        return;
    while (l->guest_count > 0)
        guest_drop(l, 0);
    /* A forked child must not take away its parent's file. */
    if (l->generation == gp_fork_generation() && stat(l->address.sun_path, &st) == 0 &&
        st.st_dev == l->device && st.st_ino == l->inode)
        unlink(l->address.sun_path);
    close(l->socket);
    free(l->url);
    free(l);
}

/* --- connecting ---------------------------------------------------------- */

static int connect_fail(const char *url, int rc, int timeout_ms, struct gp_error *err)
{
    switch (rc) {
    case -ENOENT:
    case -ECONNREFUSED:
        gp_error_set(err,
                     "no gpupool worker listens at %s: %s; is gpupool-server running on this "
                     "machine?",
                     url, strerror(-rc));
        return -ECONNREFUSED;
    case -EACCES:
    case -EPERM:
        gp_error_set(err,
                     "may not connect to %s: it belongs to another user; run as that user or "
                     "use tcp://",
                     url);
        return -ECONNREFUSED;
    case -EAGAIN:
    case -ETIMEDOUT:
        gp_error_set(err, "%s does not answer within %d ms; is its worker stopped?", url,
                     timeout_ms);
        return -ETIMEDOUT;
    case -EPROTOTYPE:
    case -ENOTSOCK:
    case -EPROTO:
    case -EPIPE:
    case -ECONNRESET:
        gp_error_set(
            err, "what answers at %s is not a gpupool worker of this version; check the path", url);
        return -EPROTO;
    default:
        gp_error_set(err, "cannot connect to %s: %s", url, strerror(-rc));
        return rc;
    }
}

static int socket_connect(const struct sockaddr_un *address, int timeout_ms, int *out)
{
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return -errno;
    /* A listener whose queue is full makes connect block; for Unix sockets this
     * time-out bounds it. */
    struct timeval tv = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    if (timeout_ms == 0)
        tv.tv_usec = 1;
    if (timeout_ms >= 0)
        setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    int rc;
    do
        rc = connect(sock, (const void *)address, sizeof *address) == 0 ? 0 : -errno;
    while (rc == -EINTR);
    struct ucred cred;
    if (rc == 0 && !peer_is_ours(sock, &cred))
        rc = -EPERM;
    if (rc) {
        close(sock);
        return rc;
    }
    *out = sock;
    return 0;
}

static int ready_wait(int sock, int64_t deadline)
{
    for (;;) {
        struct shm_packet ready;
        int fd = -1;
        int rc = shm_packet_recv(sock, &ready, &fd);
        if (rc == 0) {
            if (fd >= 0)
                close(fd);
            return ready.kind == SHM_READY && ready.bytes == SHM_BYTES ? 0 : -EPROTO;
        }
        if (rc != -EAGAIN)
            return rc;
        int left = gp_deadline_left_ms(deadline, 1 << 30);
        if (left == 0)
            return -ETIMEDOUT;
        struct pollfd p = {.fd = sock, .events = POLLIN};
        if (poll(&p, 1, left) < 0 && errno != EINTR)
            return -errno;
    }
}

/* The connecting side makes the memory, so that it is charged for it. */
static int hello_send(int sock, unsigned char **memory)
{
    int fd = shm_memory_new("gpupool-rings", SHM_BYTES);
    if (fd < 0)
        return fd;
    unsigned char *at = mmap(NULL, SHM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int rc = at == MAP_FAILED ? -ENOMEM : 0;
    struct shm_packet hello = {.magic = SHM_MAGIC, .kind = SHM_HELLO, .bytes = SHM_BYTES};
    if (rc == 0)
        rc = shm_packet_send(sock, &hello, fd);
    close(fd);
    if (rc) {
        if (at != MAP_FAILED)
            munmap(at, SHM_BYTES);
        return rc;
    }
    *memory = at;
    return 0;
}

int shm_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    struct sockaddr_un address;
    int rc = address_parse(url, &address, err);
    if (rc)
        return rc;
    int64_t deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000);
    int sock = -1;
    rc = socket_connect(&address, timeout_ms, &sock);
    if (rc)
        return connect_fail(url, rc, timeout_ms, err);
    unsigned char *memory = NULL;
    rc = hello_send(sock, &memory);
    if (rc == 0)
        rc = ready_wait(sock, deadline);
    if (rc == 0)
        rc = shm_channel_new(memory, sock, false, out);
    if (rc) {
        if (memory)
            munmap(memory, SHM_BYTES);
        close(sock);
        return connect_fail(url, rc, timeout_ms, err);
    }
    return 0;
}
