/* Listening and accepting: strangers at the door, then one guest at a time. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/hex.h"
#include "transport/tcp_channel.h"
#include "transport/tcp_guest.h"

struct gp_listener {
    struct door *door;
    struct tcp_address address; /* as bound, without wildcards for the port */
    struct gp_silence silence;
    char url[TCP_URL_MAX];
    unsigned generation;
    struct tcp_guest guest;
    unsigned lanes;
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
    int rc = gp_silence_read(&l->silence, err);
    if (rc == 0)
        rc = tcp_address_parse(url, true, a, err);
    if (rc == 0)
        rc = tcp_lanes_setting(&l->lanes, err);
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
    tcp_guest_init(&l->guest, l->door, a->encrypts);
    if (l->lanes > 1)
        door_queue(l->door);
    listener_url_set(l);
    *out = l;
    return 0;
}

const char *tcp_listener_url(const struct gp_listener *l)
{
    return l->url;
}

void tcp_listener_close(struct gp_listener *l)
{
    if (!l)
        return;
    tcp_guest_drop(&l->guest);
    door_close(l->door);
    explicit_bzero(l, sizeof *l);
    free(l);
}

/* --- accepting ----------------------------------------------------------- */

/* The door stays open a while for the client's further connections, and for nobody else. */
static void door_pass_on(struct gp_listener *l, struct gp_channel *ch, const unsigned char *word)
{
    struct door *door = l->door;
    l->door = l->guest.entry.door = NULL;
    if (word)
        tcp_lanes_accept(ch, l->lanes, &l->silence, word, door);
    else
        door_close(door);
}

/* -EAGAIN not yet, or not this one. */
static int guest_let_in(struct gp_listener *l, struct gp_channel **out)
{
    struct tcp_guest *g = &l->guest;
    unsigned char word[DOOR_WORD_BYTES];
    if (tcp_guest_step(g) != 0)
        return -EAGAIN;
    tcp_guest_word(g, word);
    if (tcp_channel_new(g->entry.fd, g->tls, &l->silence, true, out) != 0) {
        tcp_guest_drop(g);
        return -EAGAIN;
    }
    tcp_guest_taken(g);
    door_pass_on(l, *out, l->lanes > 1 ? word : NULL);
    explicit_bzero(word, sizeof word);
    return 0;
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
