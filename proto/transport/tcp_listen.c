/* Listening and accepting: strangers at the door, then one guest at a time. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/hex.h"
#include "transport/tcp_channel.h"
#include "wire/hmac.h"

/* How long who has knocked may take to come in, from far away. */
#define GUEST_COMES_NS 10000000000

/* Who has shown the word, and what it has said since. */
struct guest {
    int fd; /* -1: nobody; the door's to close */
    struct tcp_tls *tls;
    unsigned char expected[DOOR_PROOF_BYTES], said[DOOR_PROOF_BYTES];
    size_t got;
};

struct gp_listener {
    struct door *door;
    struct tcp_address address; /* as bound, without wildcards for the port */
    struct gp_silence silence;
    char url[TCP_URL_MAX];
    unsigned generation;
    struct guest guest;
};

/* --- listening ----------------------------------------------------------- */

static void listener_url_set(struct gp_listener *l)
{
    int length = snprintf(l->url, sizeof l->url, "%s?door=", l->address.endpoint);
    gp_hex_show(door_word(l->door), DOOR_WORD_BYTES, l->url + length);
}

int tcp_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    struct gp_listener *l = calloc(1, sizeof *l);
    if (!l) {
        gp_error_set(err, "cannot listen at %.200s: out of memory", url);
        return -ENOMEM;
    }
    struct tcp_address *a = &l->address;
    l->generation = gp_fork_generation();
    l->guest.fd = -1;
    int rc = gp_silence_read(&l->silence, err);
    if (rc == 0)
        rc = tcp_address_parse(url, true, a, err);
    if (rc) {
        free(l);
        return rc;
    }
    rc = door_open(a->handed, a->endpoint, sizeof a->endpoint, a->has_word ? a->word : NULL,
                   &l->door);
    if (rc) {
        gp_error_set(err, "cannot listen at %.200s: %s", url, strerror(-rc));
        free(l);
        return rc;
    }
    listener_url_set(l);
    *out = l;
    return 0;
}

const char *tcp_listener_url(const struct gp_listener *l)
{
    return l->url;
}

/* Forget it; the door closes its connection unless that is released. */
static void guest_end(struct gp_listener *l)
{
    tcp_tls_free(l->guest.tls);
    if (l->door)
        door_guest_drop(l->door);
    l->guest = (struct guest){.fd = -1};
}

void tcp_listener_close(struct gp_listener *l)
{
    if (!l)
        return;
    guest_end(l);
    door_close(l->door);
    explicit_bzero(l, sizeof *l);
    free(l);
}

/* --- accepting ----------------------------------------------------------- */

static int guest_begin(struct gp_listener *l)
{
    struct guest *g = &l->guest;
    unsigned char body[DOOR_BODY_BYTES], key[DOOR_PROOF_BYTES];
    *g = (struct guest){.fd = door_guest_lend(l->door)};
    if (l->address.encrypts) {
        door_key(door_word(l->door), key);
        int rc = tcp_tls_new(key, true, &g->tls);
        explicit_bzero(key, sizeof key);
        return rc;
    }
    if (getrandom(body, sizeof body, 0) != (ssize_t)sizeof body)
        return -EIO;
    door_guest_expects(l->door, body, g->expected);
    return door_answer(l->door, body, sizeof body);
}

/* Without TLS: 0 it is the one who knows the word, now. */
static int guest_hear_plain(struct guest *g)
{
    while (g->got < sizeof g->said) {
        ssize_t n = recv(g->fd, g->said + g->got, sizeof g->said - g->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return -EAGAIN;
        if (n <= 0)
            return -EPIPE;
        g->got += (size_t)n;
    }
    return gp_bytes_same(g->said, g->expected, sizeof g->said) ? 0 : -EPROTO;
}

/* -EAGAIN not yet, or not this one: whoever is no client of ours is shown out. */
static int guest_let_in(struct gp_listener *l, struct gp_channel **out)
{
    struct guest *g = &l->guest;
    int rc = 0;
    if (g->fd < 0)
        rc = door_has_guest(l->door) ? guest_begin(l) : -EAGAIN;
    if (rc == 0)
        rc = g->tls ? tcp_tls_pump(g->tls, g->fd) : guest_hear_plain(g);
    if (rc == 0)
        rc = tcp_channel_new(g->fd, g->tls, &l->silence, true, out);
    if (rc == 0) {
        door_guest_release(l->door);
        *g = (struct guest){.fd = -1};
        door_close(l->door); /* nobody else is meant to come */
        l->door = NULL;
        return 0;
    }
    if (g->fd >= 0 && (rc != -EAGAIN || door_guest_age(l->door) > GUEST_COMES_NS))
        guest_end(l);
    return -EAGAIN;
}

int tcp_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out, struct gp_error *err)
{
    int64_t deadline = gp_deadline_us(timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000);
    if (!l->door || l->generation != gp_fork_generation()) {
        gp_error_set(err, "%s takes one client and has had it; listen again for another",
                     l->address.endpoint);
        return -ENOTSUP;
    }
    for (;;) {
        struct pollfd items[DOOR_ITEMS];
        int left = gp_deadline_left_ms(deadline, 200);
        poll(items, (nfds_t)door_items(l->door, items), left);
        door_serve(l->door);
        if (guest_let_in(l, out) == 0)
            return 0;
        if (left == 0) {
            gp_error_set(err, "nobody connected to %s within %d ms", l->address.endpoint,
                         timeout_ms);
            return -EAGAIN;
        }
    }
}
