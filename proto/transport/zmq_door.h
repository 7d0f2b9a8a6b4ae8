/*
 * The door before a worker's sockets at tcp://. ZeroMQ is not shown to strangers: what
 * listens at the address that a client is given is a plain socket, which takes one short
 * *knock* from everybody and compares it with the *word* in that address. Only for who
 * knows the word are ZeroMQ's sockets opened, at ports of their own, for its address
 * alone, until it is in or has gone; then the ports are shut again.
 */
#ifndef GP_ZMQ_DOOR_H
#define GP_ZMQ_DOOR_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#define DOOR_WORD_BYTES 16
#define DOOR_NONCE_BYTES 16
/* Strangers that are connected at once: who comes then takes the place of another. */
#define DOOR_VISITORS 64
#define DOOR_HOST_MAX 64

struct door;

/* Listen at "tcp://HOST:PORT" ("*" for any); a NULL word is made up. `endpoint` (of
 * `size` bytes) is overwritten with the address bound. */
int door_open(char *endpoint, size_t size, const unsigned char *word, struct door **out);
void door_close(struct door *d);
const unsigned char *door_word(const struct door *d);

/* What to poll for, at most DOOR_VISITORS + 2 items. */
int door_items(const struct door *d, zmq_pollitem_t *items);
/* Take in all there is, without waiting. */
void door_serve(struct door *d);

/* The one who has shown the word, and is still there. */
bool door_has_guest(const struct door *d);
/* For how long, in ns. */
int64_t door_guest_age(const struct door *d);
/* As which address ZeroMQ shows it, ours that it came to (for tcp://…), and the nonce
 * with which its greetings must begin. */
void door_guest_names(const struct door *d, char theirs[DOOR_HOST_MAX], char ours[DOOR_HOST_MAX],
                      unsigned char nonce[DOOR_NONCE_BYTES]);
/* Tell it where the sockets are now. -EPIPE: it has gone. */
int door_answer(struct door *d, const uint16_t ports[2]);
void door_guest_drop(struct door *d);

/* The other side. `fd` is to be kept open until the sockets are connected: the worker
 * takes its end for ours. -EAGAIN it hung up, -EPROTO it speaks otherwise, or as
 * link_dial. */
struct door_opened {
    int fd;
    char host[DOOR_HOST_MAX]; /* as reached, for tcp://… */
    uint16_t ports[2];
    unsigned char nonce[DOOR_NONCE_BYTES]; /* for the greetings */
};
int door_knock(const char *endpoint, const unsigned char *word, int64_t deadline, bool *connected,
               struct door_opened *out);

#endif
