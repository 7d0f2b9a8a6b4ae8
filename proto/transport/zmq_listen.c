/* Listening and accepting: one guest at a time, who is shown out if it says nothing. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/dial.h"
#include "transport/silence.h"
#include "transport/zmq_greet.h"

/* How long somebody may be connected to a listener without a greeting. Our own
 * clients send it with the connection. */
#define GUEST_SILENCE_NS 2500000000
/* And how long who has knocked may take to come in, from far away. */
#define GUEST_COMES_NS 10000000000
/* How long the address of a socket just closed may stay taken. */
#define REBIND_MS 2000

/* What whoever is connected to a listener has said so far. */
struct guest {
    bool has_up, has_down;
    struct link_greeting up, down;
};

struct gp_listener {
    void *ctx;                        /* NULL once a channel has taken it */
    struct door *door;                /* tcp:// only */
    struct link up, down;             /* before a door: while there is a guest */
    struct link_endpoints endpoints;  /* as bound, without wildcards */
    char ports[sizeof "65535-65535"]; /* with a door: where its guest's sockets may be */
    char url[2 * LINK_ENDPOINT_MAX + LINK_QUERY_MAX];
    unsigned generation;
    int64_t guest_since; /* ns, 0: nobody is connected */
    struct guest guest;
    unsigned char expected[DOOR_NONCE_BYTES]; /* with a door: the nonce of its guest */
};

/* --- listening ----------------------------------------------------------- */

struct at_port {
    void *socket;
    char *endpoint;
    ptrdiff_t host; /* its length, without the port */
};

static int bind_port(void *ctx, uint16_t port)
{
    struct at_port *at = ctx;
    size_t room = LINK_ENDPOINT_MAX - (size_t)at->host;
    if (port)
        snprintf(at->endpoint + at->host, room, ":%u", (unsigned)port);
    else /* libzmq's word for any */
        snprintf(at->endpoint + at->host, room, ":*");
    return zmq_bind(at->socket, at->endpoint) == 0 ? 0 : link_errno();
}

/* Bind and write the address that came of it back. A Unix socket is for its
 * owner alone. */
static int link_bind(struct link *link, char endpoint[LINK_ENDPOINT_MAX])
{
    size_t length = LINK_ENDPOINT_MAX;
    if (strncmp(endpoint, "ipc://", 6) == 0) {
        if (zmq_bind(link->socket, endpoint) != 0)
            return link_errno();
        return chmod(endpoint + 6, 0600) == 0 ? 0 : -errno;
    }
    struct gp_ports ports;
    struct at_port at = {link->socket, endpoint, strrchr(endpoint, ':') - endpoint};
    int rc = gp_ports_of(endpoint, &ports);
    if (rc == 0)
        rc = gp_ports_try(&ports, bind_port, &at);
    if (rc)
        return rc;
    if (zmq_getsockopt(link->socket, ZMQ_LAST_ENDPOINT, endpoint, &length) != 0)
        return link_errno();
    return 0;
}

static void links_close(struct gp_listener *l)
{
    link_close(&l->up, 0);
    link_close(&l->down, 0);
}

/* `only`: the address that may come, NULL any. */
static int links_bind(struct gp_listener *l, char up[LINK_ENDPOINT_MAX],
                      char down[LINK_ENDPOINT_MAX], const char *only)
{
    const struct link_curve *curve = &l->endpoints.curve;
    int rc = link_open(&l->up, l->ctx, LINK_RECEIVES, up, curve);
    if (rc == 0)
        rc = link_open(&l->down, l->ctx, LINK_SENDS, down, curve);
    if (rc == 0 && only)
        rc = link_take_only(&l->up, only);
    if (rc == 0 && only)
        rc = link_take_only(&l->down, only);
    if (rc == 0)
        rc = link_bind(&l->up, up);
    if (rc == 0)
        rc = link_bind(&l->down, down);
    if (rc)
        links_close(l);
    l->guest_since = 0;
    l->guest = (struct guest){0};
    return rc;
}

static uint16_t port_of(const char *endpoint)
{
    return (uint16_t)atoi(strrchr(endpoint, ':') + 1);
}

/* Somebody has shown the word: sockets for it alone, at ports of their own. */
static int guest_let_in(struct gp_listener *l)
{
    char theirs[DOOR_HOST_MAX], ours[DOOR_HOST_MAX];
    char up[LINK_ENDPOINT_MAX], down[LINK_ENDPOINT_MAX];
    door_guest_names(l->door, theirs, ours, l->expected);
    snprintf(up, sizeof up, "tcp://%s:%s", ours, l->ports);
    snprintf(down, sizeof down, "tcp://%s:%s", ours, l->ports);
    int rc = links_bind(l, up, down, theirs);
    uint16_t ports[2] = {htons(port_of(up)), htons(port_of(down))};
    if (rc == 0 && door_answer(l->door, (const void *)ports, sizeof ports) != 0)
        links_close(l);
    return rc;
}

/* The door has moved: open or close what is behind it. */
static int door_follow(struct gp_listener *l)
{
    door_serve(l->door);
    bool has = door_has_guest(l->door);
    int rc = 0;
    if (l->up.socket && !has)
        links_close(l);
    if (!l->up.socket && has)
        rc = guest_let_in(l);
    if (!l->up.socket)
        door_guest_drop(l->door);
    return rc;
}

static int listener_bind(struct gp_listener *l)
{
    struct link_word *word = &l->endpoints.word;
    if (strncmp(l->endpoints.up, "tcp://", 6) != 0)
        return links_bind(l, l->endpoints.up, l->endpoints.down, NULL);
    const char *port = strrchr(l->endpoints.up, ':') + 1;
    snprintf(l->ports, sizeof l->ports, "%s", strchr(port, '-') ? port : "*");
    int rc = door_open(-1, l->endpoints.up, sizeof l->endpoints.up,
                       word->given ? word->bytes : NULL, &l->door);
    if (rc == 0) {
        memcpy(word->bytes, door_word(l->door), sizeof word->bytes);
        word->given = true;
    }
    return rc;
}

/* Whoever holds the sockets is no client of ours: drop the connections by
 * dropping the sockets, and listen again at the same place. */
static int listener_reset(struct gp_listener *l)
{
    int64_t deadline = gp_deadline_us((int64_t)REBIND_MS * 1000);
    int rc;
    links_close(l);
    if (l->door) {
        door_guest_drop(l->door);
        return 0;
    }
    while ((rc = listener_bind(l)) == -EADDRINUSE && gp_clock_ns() < deadline)
        usleep(2000); /* libzmq closes in its own time */
    return rc;
}

static void listener_url_set(struct gp_listener *l)
{
    char query[LINK_QUERY_MAX];
    link_query_show(&l->endpoints.curve, &l->endpoints.word, query);
    if (l->door)
        snprintf(l->url, sizeof l->url, "%s%s", l->endpoints.up, query);
    else
        snprintf(l->url, sizeof l->url, "%s,%s", l->endpoints.up,
                 l->endpoints.down + strlen("ipc://"));
}

int gpz_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    struct gp_listener *l = calloc(1, sizeof *l);
    if (!l) {
        gp_error_set(err, "cannot listen at %.200s: out of memory", url);
        return -ENOMEM;
    }
    l->generation = gp_fork_generation();
    struct gp_silence silence;
    int rc = gp_silence_read(&silence, err);
    if (rc == 0)
        rc = link_url_parse(url, true, &l->endpoints, err);
    if (rc) {
        free(l);
        return rc;
    }
    l->ctx = zmq_ctx_new();
    rc = l->ctx ? listener_bind(l) : link_errno();
    if (rc) {
        gp_error_set(err, "cannot listen at %.200s: %s", url, strerror(-rc));
        if (l->ctx)
            link_context_end(l->ctx);
        free(l);
        return rc;
    }
    listener_url_set(l);
    *out = l;
    return 0;
}

const char *gpz_listener_url(const struct gp_listener *l)
{
    return l->url;
}

void gpz_listener_close(struct gp_listener *l)
{
    /* In a forked child libzmq's threads are missing: leave all as it is. */
    if (!l || l->generation != gp_fork_generation())
        return;
    if (l->ctx) {
        links_close(l);
        link_context_end(l->ctx);
    }
    door_close(l->door);
    free(l);
}

/* --- accepting ----------------------------------------------------------- */

/* 0 the guest has said all, -EAGAIN not yet, -EPROTO it is no client of ours. */
static int guest_hear(struct gp_listener *l)
{
    struct guest *g = &l->guest;
    if (!g->has_up) {
        int rc = link_greeting_recv(&l->up, false, false, &g->up, &l->up.peer_fd);
        if (rc == -EPROTO)
            return rc;
        g->has_up = rc == 0;
    }
    if (!g->has_down) {
        int rc = link_greeting_recv(&l->down, false, true, &g->down, &l->down.peer_fd);
        if (rc == -EPROTO)
            return rc;
        g->has_down = rc == 0;
    }
    if (!g->has_up || !g->has_down)
        return -EAGAIN;
    if (l->door && memcmp(g->up.nonce, l->expected, sizeof g->up.nonce) != 0)
        return -EPROTO;
    return memcmp(g->up.nonce, g->down.nonce, sizeof g->up.nonce) == 0 ? 0 : -EPROTO;
}

static bool peer_left(const struct link *link)
{
    for (int i = 0; i < link->open_count; i++)
        if (link->open[i] == link->peer_fd)
            return false;
    return true;
}

/* Everything the monitors said before the greetings came is taken in first, so
 * that the end of an earlier connection with the same number is not the peer's. */
static int guest_welcome(struct gp_listener *l, struct gp_channel **out)
{
    const struct guest *g = &l->guest;
    link_events(&l->up);
    link_events(&l->down);
    if (peer_left(&l->up) || peer_left(&l->down))
        return -EPROTO;
    l->up.gone = l->down.gone = false;
    int rc = link_greeting_send(&l->up, true, false, g->up.nonce);
    if (rc == 0)
        rc = link_greeting_send(&l->down, true, true, g->up.nonce);
    if (rc)
        return -EPROTO;
    if (l->door) {
        link_shut(&l->up);
        link_shut(&l->down);
    }
    rc = gpz_channel_new(l->ctx, &l->up, &l->down, true, -1, out);
    if (rc)
        return rc;
    l->ctx = NULL;
    door_close(l->door);
    l->door = NULL;
    return 0;
}

static bool guest_overdue(struct gp_listener *l)
{
    if (l->door)
        return l->up.socket && door_guest_age(l->door) > GUEST_COMES_NS;
    if (l->up.open_count == 0 && l->down.open_count == 0) {
        l->guest_since = 0;
        return false;
    }
    int64_t now = gp_clock_ns();
    if (l->guest_since == 0)
        l->guest_since = now;
    return now - l->guest_since > GUEST_SILENCE_NS || l->up.open_count == LINK_OPEN_MAX ||
           l->down.open_count == LINK_OPEN_MAX;
}

/* Wait for something to happen: 0 who is here has said all, -EAGAIN, -EPROTO. */
static int listener_hear(struct gp_listener *l, int timeout_ms)
{
    struct pollfd at_door[DOOR_ITEMS];
    zmq_pollitem_t items[DOOR_ITEMS + 4];
    int count = l->door ? door_items(l->door, at_door) : 0;
    for (int i = 0; i < count; i++)
        items[i] = (zmq_pollitem_t){.fd = at_door[i].fd,
                                    .events = at_door[i].events & POLLIN ? ZMQ_POLLIN : 0};
    count += link_pair_items(&l->up, &l->down, items + count);
    zmq_poll(items, count, timeout_ms);
    if (l->door && door_follow(l) != 0)
        return -EAGAIN; /* no sockets for it: it comes again */
    if (!l->up.socket)
        return -EAGAIN;
    link_events(&l->up);
    link_events(&l->down);
    return guest_hear(l);
}

static int accept_fail(const struct gp_listener *l, int rc, int timeout_ms, struct gp_error *err)
{
    if (rc == -EAGAIN)
        gp_error_set(err, "nobody connected to %s within %d ms", l->url, timeout_ms);
    else
        gp_error_set(err, "cannot go on listening at %s: %s", l->url, strerror(-rc));
    return rc;
}

int gpz_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    int64_t deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000);
    if (!l->ctx || l->generation != gp_fork_generation()) {
        gp_error_set(err, "%s takes one client and has had it; listen again for another", l->url);
        return -ENOTSUP;
    }
    for (;;) {
        int left = gp_deadline_left_ms(deadline, 200);
        int rc = listener_hear(l, left);
        if (rc == 0)
            rc = guest_welcome(l, out);
        if (rc == 0)
            return 0;
        if (rc == -EPROTO || (rc == -EAGAIN && guest_overdue(l))) {
            rc = listener_reset(l);
            if (rc == 0)
                rc = -EAGAIN;
        }
        if (rc != -EAGAIN || left == 0)
            return accept_fail(l, rc, timeout_ms, err);
    }
}
