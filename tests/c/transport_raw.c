#include "transport_raw.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *after_scheme(const char *url)
{
    const char *p = strstr(url, "://");
    return p ? p + 3 : url;
}

static int unix_type(enum raw_kind kind)
{
    return (kind == RAW_SEQPACKET ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC;
}

static void unix_address(struct sockaddr_un *a, const char *path)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    snprintf(a->sun_path, sizeof a->sun_path, "%.*s", (int)strcspn(path, ","), path);
}

int raw_dial(enum raw_kind kind, const char *url)
{
    if (kind == RAW_TCP) {
        const char *port = strrchr(url, ':');
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)atoi(port + 1)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (void *)&a, sizeof a) == 0)
            return fd;
        close(fd);
        return -1;
    }
    struct sockaddr_un a;
    unix_address(&a, after_scheme(url));
    int fd = socket(AF_UNIX, unix_type(kind), 0);
    if (fd >= 0 && connect(fd, (void *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

static void *server_main(void *arg)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n"
                                 "Server: something else entirely, and not what you want\r\n\r\n";
    struct raw_server *s = arg;
    for (;;) {
        struct pollfd fds[2] = {{.fd = s->sockets[0], .events = POLLIN},
                                {.fd = s->sockets[1], .events = POLLIN}};
        if (poll(fds, 2, -1) < 0)
            continue;
        for (int i = 0; i < 2; i++) {
            if (!fds[i].revents)
                continue;
            int fd = accept(s->sockets[i], NULL, NULL);
            if (fd < 0)
                return NULL; /* shut down */
            if (send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL) < 0)
                perror("send");
            close(fd);
        }
    }
}

static int tcp_listen(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (void *)&a, sizeof a) != 0 || getsockname(fd, (void *)&a, &n) != 0)
        return -1;
    *port = ntohs(a.sin_port);
    return fd;
}

int raw_port_reserve(int *port)
{
    return tcp_listen(port); /* bound, never listening: connections are refused */
}

static int unix_listen(enum raw_kind kind, const char *path)
{
    struct sockaddr_un a;
    unix_address(&a, path);
    int fd = socket(AF_UNIX, unix_type(kind), 0);
    if (fd < 0 || bind(fd, (void *)&a, sizeof a) != 0)
        return -1;
    return fd;
}

int raw_server_start(struct raw_server *s, enum raw_kind kind, const char *url)
{
    memset(s, 0, sizeof *s);
    if (kind == RAW_TCP) {
        int ports[2];
        for (int i = 0; i < 2; i++)
            s->sockets[i] = tcp_listen(&ports[i]);
        snprintf(s->url, sizeof s->url, "%.*s://127.0.0.1:%d?door=00112233445566778899aabbccddeeff",
                 (int)strcspn(url, ":"), url, ports[0]);
    } else {
        snprintf(s->url, sizeof s->url, "%.200s", url);
        snprintf(s->paths[0], sizeof s->paths[0], "%.100s", after_scheme(url));
        snprintf(s->paths[1], sizeof s->paths[1], "%.100s.down", after_scheme(url));
        for (int i = 0; i < 2; i++)
            s->sockets[i] = unix_listen(kind, s->paths[i]);
    }
    for (int i = 0; i < 2; i++)
        if (s->sockets[i] < 0 || listen(s->sockets[i], 16) != 0)
            return -1;
    return pthread_create(&s->thread, NULL, server_main, s) == 0 ? 0 : -1;
}

void raw_server_stop(struct raw_server *s)
{
    for (int i = 0; i < 2; i++)
        shutdown(s->sockets[i], SHUT_RDWR);
    pthread_join(s->thread, NULL);
    for (int i = 0; i < 2; i++) {
        close(s->sockets[i]);
        if (s->paths[i][0])
            unlink(s->paths[i]);
    }
}

/* --- a tap ------------------------------------------------------------------ */

#define TAP_SEEN_MAX ((size_t)8 << 20)

static int send_whole(int fd, const unsigned char *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t n = send(fd, bytes + at, size - at, MSG_NOSIGNAL);
        if (n <= 0)
            return -1;
        at += (size_t)n;
    }
    return 0;
}

static void tap_see(struct raw_tap *tap, unsigned char *bytes, size_t size)
{
    size_t room = TAP_SEEN_MAX - tap->seen_bytes, keep = size < room ? size : room;
    memcpy(tap->seen + tap->seen_bytes, bytes, keep);
    tap->seen_bytes += keep;
    size_t in = tap->spoil_in;
    if (in == 0)
        return;
    if (in > size) {
        tap->spoil_in = in - size;
        return;
    }
    bytes[in - 1] ^= 0x10;
    tap->spoil_in = 0;
    tap->spoiled = true;
}

/* False at the end of what `from` has to say. */
static bool tap_pass(struct raw_tap *tap, int from, int to, bool forward)
{
    static const size_t room = 65536;
    unsigned char *bytes = malloc(room);
    ssize_t n = bytes ? recv(from, bytes, room, 0) : -1;
    if (n > 0 && forward)
        tap_see(tap, bytes, (size_t)n);
    bool goes_on = n > 0 && send_whole(to, bytes, (size_t)n) == 0;
    free(bytes);
    return goes_on;
}

static void *tap_main(void *arg)
{
    struct raw_tap *tap = arg;
    int client = accept(tap->listener, NULL, NULL);
    if (client < 0)
        return NULL; /* shut down */
    bool goes_on = true;
    while (goes_on) {
        struct pollfd fds[2] = {{.fd = client, .events = POLLIN},
                                {.fd = tap->behind, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[0].revents)
            goes_on = tap_pass(tap, client, tap->behind, true);
        if (goes_on && fds[1].revents)
            goes_on = tap_pass(tap, tap->behind, client, false);
    }
    shutdown(client, SHUT_RDWR);
    shutdown(tap->behind, SHUT_RDWR);
    close(client);
    return NULL;
}

int raw_tap_start(struct raw_tap *tap, int port)
{
    char url[64];
    memset(tap, 0, sizeof *tap);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    tap->seen = malloc(TAP_SEEN_MAX);
    tap->behind = raw_dial(RAW_TCP, url);
    tap->listener = tcp_listen(&tap->port);
    if (!tap->seen || tap->behind < 0 || tap->listener < 0 || listen(tap->listener, 1) != 0)
        return -1;
    return pthread_create(&tap->thread, NULL, tap_main, tap) == 0 ? 0 : -1;
}

void raw_tap_spoil(struct raw_tap *tap, size_t offset)
{
    tap->spoil_in = offset + 1;
}

void raw_tap_stop(struct raw_tap *tap)
{
    shutdown(tap->listener, SHUT_RDWR);
    shutdown(tap->behind, SHUT_RDWR);
    pthread_join(tap->thread, NULL);
    close(tap->listener);
    close(tap->behind);
}

void raw_tap_free(struct raw_tap *tap)
{
    free(tap->seen);
    tap->seen = NULL;
}
