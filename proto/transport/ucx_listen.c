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
#include "transport/ucx_greet.h"
#include "wire/hmac.h"

/* How long who has knocked may take to come in, from far away. */
#define GUEST_COMES_NS 10000000000
/* How often UCX is asked for its first message. */
#define GREETING_STEP_MS 1

/* Who has shown the word, and what it has said since. */
struct guest {
    int fd; /* -1: nobody; the door's to close */
    unsigned char said[DOOR_PROOF_BYTES];
    size_t got;
    struct ucx_proof proof;
    struct ucx_hearing *hearing;
    struct gp_channel *channel; /* from its hello on */
};

struct gp_listener {
    struct door *door;
    struct ucx_address address; /* as bound, without wildcards for the port */
    struct gp_silence silence;
    char url[UCX_URL_MAX];
    unsigned generation;
    struct guest guest;
};

/* --- listening ----------------------------------------------------------- */

static void listener_url_set(struct gp_listener *l)
{
    int length = snprintf(l->url, sizeof l->url, "%s?door=", l->address.endpoint);
    gp_hex_show(door_word(l->door), DOOR_WORD_BYTES, l->url + length);
}

static int listener_open(struct gp_listener *l, const char *url, struct gp_error *err)
{
    const struct ucx_api *api;
    struct ucx_address *a = &l->address;
    int rc = gp_silence_read(&l->silence, err);
    if (rc == 0)
        rc = ucx_address_parse(url, true, a, err);
    if (rc == 0)
        rc = ucx_library_open(&api, err);
    if (rc)
        return rc;
    rc = door_open(a->handed, a->endpoint, sizeof a->endpoint, a->has_word ? a->word : NULL,
                   &l->door);
    if (rc)
        gp_error_set(err, "cannot listen at %.200s: %s", url, strerror(-rc));
    return rc;
}

int ucx_listen(const char *url, struct gp_listener **out, struct gp_error *err)
{
    struct gp_listener *l = calloc(1, sizeof *l);
    if (!l) {
        gp_error_set(err, "cannot listen at %.200s: out of memory", url);
        return -ENOMEM;
    }
    l->generation = gp_fork_generation();
    l->guest.fd = -1;
    int rc = listener_open(l, url, err);
    if (rc) {
        free(l);
        return rc;
    }
    listener_url_set(l);
    *out = l;
    return 0;
}

const char *ucx_listener_url(const struct gp_listener *l)
{
    return l->url;
}

/* Forget it; the door closes its connection unless that is released. */
static void guest_end(struct gp_listener *l)
{
    if (l->guest.channel && l->generation == gp_fork_generation())
        ucx_channel_drop(l->guest.channel);
    free(l->guest.hearing);
    if (l->door)
        door_guest_drop(l->door);
    explicit_bzero(&l->guest, sizeof l->guest);
    l->guest.fd = -1;
}

void ucx_listener_close(struct gp_listener *l)
{
    if (l) {
        guest_end(l);
        door_close(l->door);
        explicit_bzero(&l->address, sizeof l->address); /* it has the word */
        explicit_bzero(l->url, sizeof l->url);
        free(l);
    }
}

/* --- accepting ----------------------------------------------------------- */

static int guest_begin(struct gp_listener *l)
{
    struct guest *g = &l->guest;
    unsigned char body[DOOR_BODY_BYTES];
    *g = (struct guest){.fd = door_guest_lend(l->door), .hearing = calloc(1, sizeof *g->hearing)};
    if (!g->hearing)
        return -ENOMEM;
    if (getrandom(body, sizeof body, 0) != (ssize_t)sizeof body)
        return -EIO;
    door_key(door_word(l->door), g->proof.key);
    door_guest_expects(l->door, body, g->proof.confirmed);
    return door_answer(l->door, body, sizeof body);
}

/* 0: it is the one who knows the word, now. */
static int guest_confirms(struct guest *g)
{
    while (g->got < sizeof g->said) {
        ssize_t n = recv(g->fd, g->said + g->got, sizeof g->said - g->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return -EAGAIN;
        if (n <= 0)
            return -EPIPE;
        g->got += (size_t)n;
    }
    return gp_bytes_same(g->said, g->proof.confirmed, sizeof g->said) ? 0 : -EPROTO;
}

/* Its hello has come: answer it, and greet by UCX. */
static int guest_meet(struct gp_listener *l, const struct ucx_hello *hello)
{
    struct guest *g = &l->guest;
    struct gp_error err = {""};
    int rc = ucx_channel_new(g->fd, &l->silence, true, &g->channel, &err);
    if (rc == 0)
        rc = ucx_hello_say(g->channel, UCX_WORKER, &g->proof);
    if (rc == 0)
        rc = ucx_greet(g->channel, g->hearing, hello);
    return rc;
}

/* A step of its coming in: 0 it is in, -EAGAIN more must come, or it is no client of ours. */
static int guest_step(struct gp_listener *l)
{
    struct guest *g = &l->guest;
    struct ucx_hello hello;
    int rc = 0;
    if (g->fd < 0)
        rc = door_has_guest(l->door) ? guest_begin(l) : -EAGAIN;
    if (rc == 0 && !g->channel) {
        rc = guest_confirms(g);
        if (rc == 0)
            rc = ucx_hello_hear(g->hearing, g->fd, UCX_CLIENT, &g->proof, &hello);
        if (rc == 0)
            rc = guest_meet(l, &hello);
    }
    return rc ? rc : ucx_greeted(g->channel);
}

/* -EAGAIN not yet, or not this one: whoever is no client of ours is shown out. */
static int guest_let_in(struct gp_listener *l, struct gp_channel **out)
{
    struct guest *g = &l->guest;
    int rc = guest_step(l);
    if (rc == 0)
        rc = ucx_channel_start(g->channel);
    if (rc == 0) {
        *out = g->channel;
        g->channel = NULL;
        door_guest_release(l->door);
        guest_end(l);
        door_close(l->door); /* nobody else is meant to come */
        l->door = NULL;
        return 0;
    }
    if (g->fd >= 0 && (rc != -EAGAIN || door_guest_age(l->door) > GUEST_COMES_NS))
        guest_end(l);
    return -EAGAIN;
}

int ucx_accept(struct gp_listener *l, int timeout_ms, struct gp_channel **out, struct gp_error *err)
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
        int step = l->guest.channel && left > GREETING_STEP_MS ? GREETING_STEP_MS : left;
        poll(items, (nfds_t)door_items(l->door, items), step);
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
