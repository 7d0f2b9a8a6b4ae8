/* The network, and the sockets of this machine. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "hostile.h"
#include "targets.h"

static bool connects(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool done = fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0;
    if (fd >= 0)
        close(fd);
    return done;
}

/* `path` may begin with an @ for a NUL: a name that is no file. */
static bool connects_here(const char *path, int type)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (n >= sizeof to.sun_path)
        return false;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@')
        to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    bool done = fd >= 0 && connect(fd, (struct sockaddr *)&to, size) == 0;
    if (fd >= 0)
        close(fd);
    return done;
}

static bool front_end(void)
{
    return connects(TARGET_PORT);
}

static bool other_port(void)
{
    return connects(TARGET_OTHER_PORT);
}

static bool listens(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool done = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0;
    if (fd >= 0)
        close(fd);
    return done && connects(TARGET_OTHER_PORT); /* where it means anything to anybody */
}

static bool raw(void)
{
    int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP);
    if (fd < 0)
        fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bool admin(void)
{
    return connects_here(TARGET_ADMIN, SOCK_STREAM);
}

static bool neighbour_control(void)
{
    return connects_here(TARGET_RUN "/sessions/" TARGET_NEIGHBOUR_SESSION "/control.sock",
                         SOCK_STREAM);
}

static bool arbiter(void)
{
    return connects_here(TARGET_RUN "/gpus/0.arbiter", SOCK_SEQPACKET);
}

static bool abstract(void)
{
    return connects_here("@" TARGET_ABSTRACT, SOCK_STREAM);
}

static bool system_bus(void)
{
    return connects_here("/run/dbus/system_bus_socket", SOCK_STREAM) ||
           connects_here("/run/docker.sock", SOCK_STREAM);
}

const struct attack attacks_on_sockets[] = {
    {"socket-front-end", front_end}, {"socket-other-port", other_port},
    {"socket-listen", listens},      {"socket-raw", raw},
    {"socket-admin", admin},         {"socket-neighbour-control", neighbour_control},
    {"socket-arbiter", arbiter},     {"socket-abstract", abstract},
    {"socket-system", system_bus},   {0},
};
