/* What both ends of a pair of sockets do: greetings, and waiting for both. */
#include <errno.h>
#include <string.h>

#include "transport/zmq_greet.h"

static bool greeting_matches(const struct link_greeting *g, bool is_reply, bool is_down)
{
    return strncmp(g->magic, LINK_MAGIC, sizeof g->magic) == 0 && g->is_reply == is_reply &&
           g->is_down == is_down;
}

int link_greeting_recv(struct link *link, bool is_reply, bool is_down, struct link_greeting *out,
                       int *peer_fd)
{
    zmq_msg_t msg;
    zmq_msg_init(&msg);
    if (zmq_msg_recv(&msg, link->socket, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&msg);
        return -EAGAIN;
    }
    int rc = -EPROTO;
    if (zmq_msg_size(&msg) == sizeof *out && !zmq_msg_more(&msg)) {
        memcpy(out, zmq_msg_data(&msg), sizeof *out);
        rc = greeting_matches(out, is_reply, is_down) ? 0 : -EPROTO;
    }
    if (rc == 0 && peer_fd)
        *peer_fd = zmq_msg_get(&msg, ZMQ_SRCFD);
    zmq_msg_close(&msg);
    return rc;
}

int link_greeting_send(struct link *link, bool is_reply, bool is_down,
                       const unsigned char nonce[16])
{
    struct link_greeting g = {.magic = LINK_MAGIC, .is_reply = is_reply, .is_down = is_down};
    memcpy(g.nonce, nonce, sizeof g.nonce);
    return zmq_send(link->socket, &g, sizeof g, ZMQ_DONTWAIT) < 0 ? -EPIPE : 0;
}

int link_pair_items(struct link *up, struct link *down, zmq_pollitem_t items[4])
{
    if (!up->socket)
        return 0;
    items[0] = (zmq_pollitem_t){.socket = up->socket, .events = ZMQ_POLLIN};
    items[1] = (zmq_pollitem_t){.socket = down->socket, .events = ZMQ_POLLIN};
    items[2] = (zmq_pollitem_t){.socket = up->monitor, .events = ZMQ_POLLIN};
    items[3] = (zmq_pollitem_t){.socket = down->monitor, .events = ZMQ_POLLIN};
    return 4;
}

void link_pair_poll(struct link *up, struct link *down, int timeout_ms)
{
    zmq_pollitem_t items[4];
    zmq_poll(items, link_pair_items(up, down, items), timeout_ms);
    link_events(up);
    link_events(down);
}
