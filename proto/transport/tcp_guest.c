#include "transport/tcp_guest.h"

#include <errno.h>
#include <string.h>

/* How long who has knocked may take to come in, from far away. */
#define GUEST_COMES_NS 10000000000

void tcp_guest_init(struct tcp_guest *g, struct door *door, bool encrypts)
{
    *g = (struct tcp_guest){.entry = {.door = door, .fd = -1}, .encrypts = encrypts};
}

static void guest_reset(struct tcp_guest *g)
{
    tcp_guest_init(g, g->entry.door, g->encrypts);
}

static int guest_begin(struct tcp_guest *g)
{
    unsigned char key[DOOR_PROOF_BYTES];
    guest_reset(g);
    g->entry.fd = door_guest_lend(g->entry.door);
    if (!g->encrypts)
        return door_entry_challenge(&g->entry);
    door_key(door_word(g->entry.door), key);
    int rc = tcp_tls_new(key, true, &g->tls);
    explicit_bzero(key, sizeof key);
    return rc;
}

int tcp_guest_step(struct tcp_guest *g)
{
    int rc = 0;
    if (g->entry.fd < 0)
        rc = door_has_guest(g->entry.door) ? guest_begin(g) : -EAGAIN;
    if (rc == 0)
        rc = g->tls ? tcp_tls_pump(g->tls, g->entry.fd) : door_entry_confirmed(&g->entry);
    if (rc == 0)
        return 0;
    if (g->entry.fd >= 0 && (rc != -EAGAIN || door_guest_age(g->entry.door) > GUEST_COMES_NS))
        tcp_guest_drop(g);
    return -EAGAIN;
}

_Static_assert(TLS_WORD_BYTES == DOOR_WORD_BYTES, "a door's word is what TLS has for it");

void tcp_guest_word(const struct tcp_guest *g, unsigned char word[DOOR_WORD_BYTES])
{
    if (g->tls)
        tcp_tls_word(g->tls, word);
    else
        door_lanes_word(door_word(g->entry.door), door_guest_nonce(g->entry.door), g->entry.body,
                        word);
}

void tcp_guest_taken(struct tcp_guest *g)
{
    door_guest_release(g->entry.door);
    guest_reset(g);
}

void tcp_guest_drop(struct tcp_guest *g)
{
    tcp_tls_free(g->tls);
    if (g->entry.door)
        door_guest_drop(g->entry.door);
    guest_reset(g);
}
