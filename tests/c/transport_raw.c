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
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port + 1)),
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
    if (fd < 0 || bind(fd, (void *)&a, sizeof a) != 0 ||
        getsockname(fd, (void *)&a, &n) != 0)
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
        snprintf(s->url, sizeof s->url, "tcp://127.0.0.1:%d,%d", ports[0], ports[1]);
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
