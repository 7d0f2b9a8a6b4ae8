#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport/silence.h"
#include "transport/zmq_link.h"

/* A link that has broken stays broken: the session behind it is gone. */
#define RECONNECT_NEVER_MS (3600 * 1000)

/* --- addresses ----------------------------------------------------------- */

/* tcp://HOST:PORT */
static int tcp_parse(const char *url, bool listening, struct link_endpoints *out)
{
    const char *host = url + strlen("tcp://");
    const char *colon = strrchr(host, ':');
    if (!colon || colon == host || strlen(url) >= LINK_ENDPOINT_MAX - 8)
        return -EINVAL;
    if (!gp_port_ok(colon + 1, strlen(colon + 1), listening) || (!listening && !out->word.given))
        return -EINVAL;
    snprintf(out->up, sizeof out->up, "%s", url);
    out->down[0] = '\0';
    return 0;
}

/* ipc://P[,Q]; Q is P.down unless given. */
static int ipc_parse(const char *url, struct link_endpoints *out)
{
    const struct sockaddr_un *limit = NULL;
    size_t most = sizeof limit->sun_path - 1;
    const char *a = url + strlen("ipc://");
    size_t a_length = strcspn(a, ",");
    const char *b = a[a_length] ? a + a_length + 1 : NULL;
    if (*a != '/' || a_length > most - strlen(".down") || (b && (*b != '/' || strlen(b) > most)))
        return -EINVAL;
    snprintf(out->up, sizeof out->up, "ipc://%.*s", (int)a_length, a);
    if (b)
        snprintf(out->down, sizeof out->down, "ipc://%s", b);
    else
        snprintf(out->down, sizeof out->down, "ipc://%.*s.down", (int)a_length, a);
    return 0;
}

int link_url_parse(const char *url, bool listening, struct link_endpoints *out,
                   struct gp_error *err)
{
    char plain[2 * LINK_ENDPOINT_MAX];
    int rc = link_query_parse(url, listening, plain, &out->curve, &out->word, err);
    if (rc)
        return rc;
    bool tcp = strncmp(plain, "tcp://", 6) == 0;
    rc = tcp ? tcp_parse(plain, listening, out) : ipc_parse(plain, out);
    if (rc)
        gp_error_set(err, "'%.120s' is not an address of a worker: write %s", plain,
                     !tcp        ? "ipc:///ABSOLUTE/PATH of at most 102 bytes"
                     : listening ? "tcp://HOST:* or tcp://HOST:PORT"
                                 : "tcp://HOST:PORT?door=WORD");
    return rc;
}

/* --- sockets ------------------------------------------------------------- */

static int option_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0 ? 0 : link_errno();
}

/*
 * Who is there is asked by TCP, not by ZeroMQ's heartbeats. Those end the process (an
 * assertion in libzmq 4.3.5) when a connection breaks off of which no more is read, and
 * strangers can see to that.
 */
static int silence_options(void *socket)
{
    struct gp_silence silence;
    (void)gp_silence_read(&silence, NULL);
    int rc = option_int(socket, ZMQ_TCP_KEEPALIVE, 1);
    if (rc == 0)
        rc = option_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, silence.idle);
    if (rc == 0)
        rc = option_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, silence.interval);
    /* How many go unanswered does not count where a time does (TCP_USER_TIMEOUT). */
    if (rc == 0)
        rc = option_int(socket, ZMQ_TCP_KEEPALIVE_CNT, 5);
    return rc == 0 ? option_int(socket, ZMQ_TCP_MAXRT, silence.seconds * 1000) : rc;
}

int link_common_options(void *socket, const char *endpoint, const struct link_curve *curve)
{
    int rc = link_curve_options(socket, curve);
    if (rc == 0)
        rc = option_int(socket, ZMQ_LINGER, 0);
    if (rc == 0)
        rc = silence_options(socket);
    if (rc == 0)
        rc = option_int(socket, ZMQ_HANDSHAKE_IVL, LINK_HANDSHAKE_MS);
    if (rc == 0)
        rc = option_int(socket, ZMQ_RECONNECT_IVL, RECONNECT_NEVER_MS);
    if (rc == 0 && strchr(endpoint, '['))
        rc = option_int(socket, ZMQ_IPV6, 1);
    return rc;
}

static int link_options(void *socket, enum link_direction direction, const char *endpoint,
                        const struct link_curve *curve)
{
    bool receives = direction == LINK_RECEIVES, encrypts = curve->role != LINK_CLEAR;
    int64_t longest = receives ? (int64_t)GP_BATCH_MAX + (encrypts ? LINK_CURVE_EXTRA : 0)
                               : (encrypts ? LINK_CURVE_HANDSHAKE_MAX : LINK_BACKWARD_MAX);
    int rc = link_common_options(socket, endpoint, curve);
    if (rc == 0 && zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &longest, sizeof longest) != 0)
        rc = link_errno();
    /* A sender is bounded by its credit, so its socket never says "full". */
    if (rc == 0)
        rc = option_int(socket, ZMQ_SNDHWM, receives ? 1000 : 0);
    if (rc == 0)
        rc = option_int(socket, ZMQ_RCVHWM, receives ? (int)LINK_RECEIVE_HWM : 1000);
    return rc;
}

void *link_monitor_open(void *ctx, void *socket)
{
    static _Atomic unsigned counter;
    char name[64];
    int linger = 0;
    unsigned number = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
    snprintf(name, sizeof name, "inproc://gpupool-monitor-%u", number);
    if (zmq_socket_monitor(socket, name, ZMQ_EVENT_ALL) != 0)
        return NULL;
    void *monitor = zmq_socket(ctx, ZMQ_PAIR);
    if (!monitor)
        return NULL;
    if (zmq_setsockopt(monitor, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_connect(monitor, name) != 0) {
        zmq_close(monitor);
        return NULL;
    }
    return monitor;
}

int link_open(struct link *link, void *ctx, enum link_direction direction, const char *endpoint,
              const struct link_curve *curve)
{
    *link = (struct link){.peer_fd = -1, .listens_fd = -1};
    link->socket = zmq_socket(ctx, ZMQ_PAIR);
    if (!link->socket)
        return link_errno();
    int rc = link_options(link->socket, direction, endpoint, curve);
    if (rc == 0) {
        link->monitor = link_monitor_open(ctx, link->socket);
        if (!link->monitor)
            rc = link_errno();
    }
    if (rc)
        link_close(link, 0);
    return rc;
}

int link_take_only(struct link *link, const char *host)
{
    char range[DOOR_HOST_MAX + 8];
    if (*host == '[') /* libzmq's filter knows no scopes; the port is nobody's to know */
        return 0;
    int size = snprintf(range, sizeof range, "%s/32", host);
    return zmq_setsockopt(link->socket, ZMQ_TCP_ACCEPT_FILTER, range, (size_t)size) == 0
               ? 0
               : link_errno();
}

void link_shut(struct link *link)
{
    /* libzmq can stop to listen only together with the connections that came of it. The
     * kernel can drop what comes for this socket before there is a connection. */
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {.len = 1, .filter = &nothing};
    if (setsockopt(link->listens_fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0)
        link->alone = true;
}

void link_close(struct link *link, int linger_ms)
{
    if (link->socket) {
        zmq_socket_monitor(link->socket, NULL, 0);
        zmq_setsockopt(link->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        zmq_close(link->socket);
    }
    if (link->monitor)
        zmq_close(link->monitor);
    link->socket = link->monitor = NULL;
}

void link_context_end(void *ctx)
{
    while (zmq_ctx_term(ctx) != 0 && zmq_errno() == EINTR)
        ;
}

/* --- events -------------------------------------------------------------- */

static void open_add(struct link *link, int fd)
{
    if (link->open_count < LINK_OPEN_MAX)
        link->open[link->open_count++] = fd;
}

static void open_remove(struct link *link, int fd)
{
    for (int i = 0; i < link->open_count; i++)
        if (link->open[i] == fd)
            link->open[i--] = link->open[--link->open_count];
}

static void link_event(struct link *link, unsigned event, int value)
{
    switch (event) {
    case ZMQ_EVENT_LISTENING:
        link->listens_fd = value;
        break;
    case ZMQ_EVENT_ACCEPTED:
        open_add(link, value);
        break;
    case ZMQ_EVENT_CONNECTED:
        link->connected = true;
        break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        link->shaken = true;
        break;
    case ZMQ_EVENT_DISCONNECTED:
        open_remove(link, value);
        link->broken = true;
        if (link->peer_fd < 0 || link->peer_fd == value)
            link->gone = true;
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        /* Also a message that was changed on its way, which libzmq drops, and no more. */
        if (link->alone)
            link->gone = true;
        link->broken = true;
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        link->broken = true;
        break;
    case ZMQ_EVENT_CLOSED:
    case ZMQ_EVENT_CONNECT_RETRIED:
        if (!link->connected)
            link->refused = true;
        break;
    default:
        break;
    }
}

void link_events(struct link *link)
{
    unsigned char frame[6];
    while (zmq_recv(link->monitor, frame, sizeof frame, ZMQ_DONTWAIT) >= 0) {
        uint16_t event;
        uint32_t value;
        char rest[8];
        int more = 0;
        size_t length = sizeof more;
        memcpy(&event, frame, sizeof event);
        memcpy(&value, frame + 2, sizeof value);
        while (zmq_getsockopt(link->monitor, ZMQ_RCVMORE, &more, &length) == 0 && more &&
               zmq_recv(link->monitor, rest, sizeof rest, ZMQ_DONTWAIT) >= 0)
            ;
        link_event(link, event, (int)value);
    }
}

/* --- finding out why ------------------------------------------------------ */

static int probe_unix(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int rc = gp_connect_within(fd, (const void *)&a, sizeof a, 0);
    close(fd);
    return rc == -ENOENT ? -ECONNREFUSED : rc;
}

static int probe_tcp(const char *endpoint, int timeout_ms)
{
    int fd, rc = gp_dial(endpoint, timeout_ms, &fd);
    if (rc == 0)
        close(fd);
    return rc;
}

int link_probe(const char *endpoint, int timeout_ms)
{
    if (strncmp(endpoint, "ipc://", 6) == 0)
        return probe_unix(endpoint + 6);
    return probe_tcp(endpoint, timeout_ms < 1000 ? timeout_ms : 1000);
}
