#include "transport/dial.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/support.h"

/* 0..65535, or -1. */
static long port_read(const char *text, size_t length)
{
    if (length == 0 || length > 5 || strspn(text, "0123456789") < length)
        return -1;
    long port = strtol(text, NULL, 10);
    return port <= 65535 ? port : -1;
}

static bool range_ok(const char *text, size_t length, size_t dash)
{
    long first = port_read(text, dash), last = port_read(text + dash + 1, length - dash - 1);
    return first >= 1 && last >= first;
}

bool gp_port_ok(const char *text, size_t length, bool listening)
{
    const char *dash = memchr(text, '-', length);
    if (length == 1 && *text == '*')
        return listening;
    if (dash)
        return listening && range_ok(text, length, (size_t)(dash - text));
    return port_read(text, length) >= (listening ? 0 : 1);
}

int gp_ports_of(const char *endpoint, struct gp_ports *out)
{
    const char *text = strrchr(endpoint, ':');
    if (!text || !gp_port_ok(text + 1, strlen(text + 1), true))
        return -EINVAL;
    const char *dash = strchr(++text, '-');
    long first = *text == '*' ? 0 : strtol(text, NULL, 10);
    long last = dash ? strtol(dash + 1, NULL, 10) : first;
    *out = (struct gp_ports){.first = (uint16_t)first, .count = (uint32_t)(last - first) + 1};
    return 0;
}

int gp_ports_try(const struct gp_ports *ports, int (*listen_at)(void *ctx, uint16_t port),
                 void *ctx)
{
    uint32_t begin = 0;
    if (ports->count > 1 && getrandom(&begin, sizeof begin, 0) != (ssize_t)sizeof begin)
        begin = 0; /* then those who come after us try more of them */
    int rc = -EADDRINUSE;
    begin %= ports->count;
    for (uint32_t i = 0; i < ports->count && rc == -EADDRINUSE; i++)
        rc = listen_at(ctx, (uint16_t)(ports->first + (begin + i) % ports->count));
    return rc;
}

int gp_endpoint_find(const char *endpoint, bool listening, struct addrinfo **found)
{
    char host[GP_ENDPOINT_MAX];
    const char *begin = strstr(endpoint, "://");
    snprintf(host, sizeof host, "%s", begin ? begin + 3 : endpoint);
    char *colon = strrchr(host, ':'), *name = host;
    if (!colon)
        return -EINVAL;
    *colon = '\0';
    if (*name == '[' && colon > host && colon[-1] == ']') {
        colon[-1] = '\0';
        name++;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    bool any = listening && strcmp(name, "*") == 0;
    if (listening)
        hints.ai_flags = AI_PASSIVE;
    if (any)
        hints.ai_family = AF_INET;
    const char *port = listening && strpbrk(colon + 1, "*-") ? "0" : colon + 1;
    errno = 0;
    if (getaddrinfo(any ? NULL : name, port, &hints, found) == 0)
        return 0;
    /* glibc says of these that there is no such name */
    return errno == EMFILE || errno == ENFILE ? -errno : -EADDRNOTAVAIL;
}

int gp_connect_within(int fd, const struct sockaddr *address, socklen_t length, int timeout_ms)
{
    int64_t deadline = gp_deadline_us((int64_t)timeout_ms * 1000);
    if (connect(fd, address, length) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return -errno;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int error = 0, ready;
    socklen_t size = sizeof error;
    do /* the application's signals, an interval timer's among them, end no wait */
        ready = poll(&p, 1, gp_deadline_left_ms(deadline, INT_MAX));
    while (ready < 0 && errno == EINTR);
    if (ready <= 0)
        return ready == 0 ? -ETIMEDOUT : -errno;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        return -errno;
    return -error;
}

int gp_reach_ms(int64_t deadline_ns)
{
    return gp_deadline_left_ms(deadline_ns, GP_REACH_MS);
}

int gp_dial(const char *endpoint, int timeout_ms, int *out)
{
    struct addrinfo *found = NULL;
    int rc = gp_endpoint_find(endpoint, false, &found);
    if (rc)
        return rc;
    rc = -EADDRNOTAVAIL;
    for (struct addrinfo *a = found; a && rc != 0; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        rc = gp_connect_within(fd, a->ai_addr, a->ai_addrlen, timeout_ms);
        if (rc == 0)
            *out = fd;
        else
            close(fd);
    }
    freeaddrinfo(found);
    return rc;
}

int gp_dial_explain(const char *url, int rc, int timeout_ms, bool accepted, struct gp_error *err)
{
    switch (rc) {
    case -ECONNREFUSED:
        gp_error_set(err,
                     "no gpupool worker listens at %.100s: connection refused; has it ended, "
                     "or does a firewall keep its ports closed?",
                     url);
        return rc;
    case -EADDRNOTAVAIL:
        gp_error_set(err, "the host of %.100s is not known: check its name", url);
        return -EHOSTUNREACH;
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        gp_error_set(err, "%.100s cannot be reached: %s; check the address and the network", url,
                     strerror(-rc));
        return -EHOSTUNREACH;
    case -ETIMEDOUT:
        if (!accepted && timeout_ms > GP_REACH_MS)
            timeout_ms = GP_REACH_MS;
        gp_error_set(err, "%.100s does not answer within %d ms: %s", url, timeout_ms,
                     accepted ? "somebody accepts the connection, but not as a gpupool worker"
                              : "check the address, and that no firewall drops its ports");
        return rc;
    case -EPROTO:
        gp_error_set(err,
                     "what answers at %.100s is not a gpupool worker of this version that waits "
                     "for a client; check the address",
                     url);
        return rc;
    default:
        gp_error_set(err, "cannot connect to %.100s: %s", url, strerror(-rc));
        return rc;
    }
}
