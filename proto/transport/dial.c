#include "transport/dial.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/support.h"

bool gp_port_ok(const char *text, size_t length, bool listening)
{
    if (length == 1 && *text == '*')
        return listening;
    if (length == 0 || length > 5 || strspn(text, "0123456789") < length)
        return false;
    long port = strtol(text, NULL, 10);
    return port >= (listening ? 0 : 1) && port <= 65535;
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
    const char *port = listening && strcmp(colon + 1, "*") == 0 ? "0" : colon + 1;
    return getaddrinfo(any ? NULL : name, port, &hints, found) == 0 ? 0 : -EADDRNOTAVAIL;
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
