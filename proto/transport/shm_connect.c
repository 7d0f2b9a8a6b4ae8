#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport/shm_channel.h"

/* What stands behind the path of an address: the word that its server asks for. */
#define DOOR "?door="

struct way {
    struct sockaddr_un address;
    bool has_word;
    struct shm_knock knock;
};

static bool word_parse(const char *text, uint8_t word[16])
{
    if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return false;
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        word[i] = (uint8_t)byte;
    }
    return true;
}

int shm_address_parse(const char *url, struct sockaddr_un *address, struct gp_error *err)
{
    const char *path = strstr(url, "://") + strlen("://");
    size_t length = strcspn(path, "?");
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (*path != '/') {
        gp_error_set(err, "'%.150s' names no file: write shm:///ABSOLUTE/PATH", url);
        return -EINVAL;
    }
    if (length >= sizeof address->sun_path) {
        gp_error_set(err,
                     "the path of '%.150s' is longer than the %zu bytes a socket may have; "
                     "use a shorter folder",
                     url, sizeof address->sun_path - 1);
        return -ENAMETOOLONG;
    }
    memcpy(address->sun_path, path, length);
    return 0;
}

static int way_parse(const char *url, struct way *way, struct gp_error *err)
{
    *way = (struct way){.knock.magic = SHM_KNOCK_MAGIC};
    int rc = shm_address_parse(url, &way->address, err);
    const char *door = strchr(url, '?');
    if (rc || !door)
        return rc;
    way->has_word = strncmp(door, DOOR, strlen(DOOR)) == 0 &&
                    word_parse(door + strlen(DOOR), way->knock.word);
    if (!way->has_word) /* which may be half of one */
        gp_error_set(err, "'%s?…': behind the path comes door= and 32 digits 0-9 a-f",
                     way->address.sun_path);
    return way->has_word ? 0 : -EINVAL;
}

static int connect_fail(const struct way *way, int rc, int timeout_ms, struct gp_error *err)
{
    const char *path = way->address.sun_path;
    switch (rc) {
    case -ENOENT:
    case -ECONNREFUSED:
        gp_error_set(err,
                     "no gpupool-server listens at %s: %s; in a container, is its folder "
                     "mounted?",
                     path, strerror(-rc));
        return -ECONNREFUSED;
    case -EACCES:
    case -EPERM:
        gp_error_set(err,
                     "this user may not connect to %s; let its operator open the folder "
                     "(shm_listen) or use tcp://",
                     path);
        return -ECONNREFUSED;
    case -EAGAIN:
    case -ETIMEDOUT:
        gp_error_set(err, "%s does not answer within %d ms; is its worker stopped?", path,
                     timeout_ms);
        return -ETIMEDOUT;
    case -EPROTOTYPE:
    case -ENOTSOCK:
    case -EPROTO:
    case -EPIPE:
    case -ECONNRESET:
        gp_error_set(err,
                     "what listens at %s shows this client out: it does not admit this user "
                     "(shm_allow), the session is over, or it is no gpupool-server",
                     path);
        return -EPROTO;
    default:
        gp_error_set(err, "cannot connect to %s: %s", path, strerror(-rc));
        return rc;
    }
}

int shm_socket_connect(const struct sockaddr_un *address, int timeout_ms, int *out)
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

/* The connecting side makes the memory, so that it is charged for it. A descriptor of it, or
 * -errno. */
static int rings_new(unsigned char **memory, struct gp_error *err)
{
    int fd = shm_memory_new("gpupool-rings", SHM_BYTES);
    int rc = fd < 0 ? fd : 0;
    if (rc == 0) {
        *memory = mmap(NULL, SHM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        rc = *memory == MAP_FAILED ? -errno : 0;
        if (rc)
            close(fd);
    }
    if (rc)
        gp_error_set(err,
                     "no shared memory: a memory file of %zu MiB cannot be made: %s; see `ulimit "
                     "-f`, `-n` and `-v`, and whether seccomp forbids memfd_create",
                     (size_t)SHM_BYTES >> 20, strerror(-rc));
    return rc ? rc : fd;
}

static int hello_send(int sock, int rings)
{
    struct shm_packet hello = {.magic = SHM_MAGIC, .kind = SHM_HELLO, .bytes = SHM_BYTES};
    return shm_packet_send(sock, &hello, rings);
}

static int knock_send(int sock, const struct shm_knock *knock)
{
    return send(sock, knock, sizeof *knock, MSG_NOSIGNAL) == sizeof *knock ? 0 : -EPIPE;
}

int shm_connect(const char *url, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    struct way way;
    int rc = way_parse(url, &way, err);
    if (rc)
        return rc;
    int64_t deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000);
    int sock = -1;
    unsigned char *memory;
    int rings = rings_new(&memory, err);
    if (rings < 0)
        return rings;
    rc = shm_socket_connect(&way.address, timeout_ms, &sock);
    if (rc == 0 && way.has_word)
        rc = knock_send(sock, &way.knock);
    /* Without waiting: the server takes the knock alone, the worker all that is behind it. */
    if (rc == 0)
        rc = hello_send(sock, rings);
    close(rings);
    if (rc == 0)
        rc = ready_wait(sock, deadline);
    if (rc == 0)
        rc = shm_channel_new(memory, sock, false, out);
    if (rc) {
        munmap(memory, SHM_BYTES);
        if (sock >= 0)
            close(sock);
        return connect_fail(&way, rc, timeout_ms, err);
    }
    return 0;
}
