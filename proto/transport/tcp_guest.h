/* Who has knocked at a door of tcp's and is being let in: without TLS by a proof, else by its
 * handshake. One at a time; nothing here waits. */
#ifndef GP_TCP_GUEST_H
#define GP_TCP_GUEST_H

#include "transport/door_entry.h"
#include "transport/tcp_tls.h"

struct tcp_guest {
    struct door_entry entry; /* of which the steps without TLS are taken */
    bool encrypts;
    struct tcp_tls *tls;
};

void tcp_guest_init(struct tcp_guest *g, struct door *door, bool encrypts);
/* 0 somebody is in: `entry.fd` and `tls` may be taken. -EAGAIN not yet, or not this one: whoever is no
 * client of ours is shown out. */
int tcp_guest_step(struct tcp_guest *g);
/* A word for further connections of the one who is in, which only he can know. */
void tcp_guest_word(const struct tcp_guest *g, unsigned char word[DOOR_WORD_BYTES]);
/* Its connection and `tls` have another owner now. */
void tcp_guest_taken(struct tcp_guest *g);
void tcp_guest_drop(struct tcp_guest *g);

#endif
