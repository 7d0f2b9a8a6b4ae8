/* What both ends of a pair of sockets do: greetings, and waiting for both. */
#ifndef GP_ZMQ_GREET_H
#define GP_ZMQ_GREET_H

#include "transport/zmq_link.h"

/* One greeting: 0, -EAGAIN nothing there, -EPROTO something else was said.
 * `peer_fd` (may be NULL): the connection it came from. */
int link_greeting_recv(struct link *link, bool is_reply, bool is_down, struct link_greeting *out,
                       int *peer_fd);
int link_greeting_send(struct link *link, bool is_reply, bool is_down,
                       const unsigned char nonce[16]);

/* What to wait for at both sockets and their monitors; how many, 0 where they are not open. */
int link_pair_items(struct link *up, struct link *down, zmq_pollitem_t items[4]);
void link_pair_poll(struct link *up, struct link *down, int timeout_ms);

#endif
