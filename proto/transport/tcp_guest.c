#include "transport/tcp_guest.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "wire/hmac.h"

/* How long who has knocked may take to come in, from far away. */
#define GUEST_COMES_NS 10000000000

static void guest_reset(struct tcp_guest *g)
{
    *g = (struct tcp_guest){.door = g->door, .encrypts = g->encrypts, .fd = -1};
}

static int guest_begin(struct tcp_guest *g)
{
    unsigned char key[DOOR_PROOF_BYTES];
    guest_reset(g);
    g->fd = door_guest_lend(g->door);
    if (g->encrypts) {
        door_key(door_word(g->door), key);
        int rc = tcp_tls_new(key, true, &g->tls);
        explicit_bzero(key, sizeof key);
        return rc;
    }
    if (getrandom(g->body, sizeof g->body, 0) != (ssize_t)sizeof g->body)
        return -EIO;
    door_guest_expects(g->door, g->body, g->expected);
    return door_answer(g->door, g->body, sizeof g->body);
}

/* Without TLS: 0 it is the one who knows the word, now. */
static int guest_hear_plain(struct tcp_guest *g)
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

int tcp_guest_step(struct tcp_guest *g)
{
    int rc = 0;
    if (g->fd < 0)
        rc = door_has_guest(g->door) ? guest_begin(g) : -EAGAIN;
    if (rc == 0)
        rc = g->tls ? tcp_tls_pump(g->tls, g->fd) : guest_hear_plain(g);
    if (rc == 0)
        return 0;
    if (g->fd >= 0 && (rc != -EAGAIN || door_guest_age(g->door) > GUEST_COMES_NS))
        tcp_guest_drop(g);
    return -EAGAIN;
}

int tcp_guest_word(const struct tcp_guest *g, unsigned char word[DOOR_WORD_BYTES])
{
    if (g->tls)
        return tcp_tls_word(g->tls, word, DOOR_WORD_BYTES);
    door_lanes_word(door_word(g->door), door_guest_nonce(g->door), g->body, word);
    return 0;
}

void tcp_guest_taken(struct tcp_guest *g)
{
    door_guest_release(g->door);
    guest_reset(g);
}

void tcp_guest_drop(struct tcp_guest *g)
{
    tcp_tls_free(g->tls);
    if (g->door)
        door_guest_drop(g->door);
    guest_reset(g);
}
