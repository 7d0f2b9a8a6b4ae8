/*
 * The door before a worker's sockets. Neither ZeroMQ nor TLS is shown to strangers: what
 * listens at the address that a client is given is a plain socket, which takes one short
 * *knock* from everybody and compares it with the *word* in that address. Who knows the word
 * becomes the *guest*, one at a time. For zmq, sockets are then opened for it, at ports of
 * their own, for its address alone, until it is in or has gone; then the ports are shut
 * again. For tcp the guest's own connection is what the channel is made of.
 */
#ifndef GP_TRANSPORT_DOOR_H
#define GP_TRANSPORT_DOOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

#define DOOR_WORD_BYTES 16
#define DOOR_NONCE_BYTES 16
/* What an answer carries besides its proof. */
#define DOOR_BODY_BYTES 16
#define DOOR_PROOF_BYTES 32
/* Strangers that are connected at once: who comes then takes the place of another. */
#define DOOR_VISITORS 64
#define DOOR_HOST_MAX 64

struct door;

/* Listen at "SCHEME://HOST:PORT" ("*" for any), or by `handed`, a socket that listens and is the
 * door's on success (-1: none); a NULL word is made up. `endpoint` (of `size` bytes) is
 * overwritten with the address bound. */
int door_open(int handed, char *endpoint, size_t size, const unsigned char *word,
              struct door **out);
void door_close(struct door *d);
const unsigned char *door_word(const struct door *d);

/* What to poll for, for a moment: at most DOOR_ITEMS. */
#define DOOR_ITEMS (DOOR_VISITORS + 2)
struct pollfd;
int door_items(const struct door *d, struct pollfd *items);
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
/* Answer its knock with `size` bytes, which the proof covers; what is missing to
 * DOOR_BODY_BYTES is zero. -EPIPE: it has gone. */
int door_answer(struct door *d, const unsigned char *body, size_t size);
/* Its connection, to be spoken to; the door does not read from it any more. */
int door_guest_lend(struct door *d);
/* It is let in: its connection is the caller's. */
void door_guest_release(struct door *d);
/* Its nonce, of which a client may have made the first DOOR_MARK_BYTES. */
const unsigned char *door_guest_nonce(const struct door *d);
/* What it has to show to confirm an answer of `body`. */
void door_guest_expects(const struct door *d, const unsigned char body[DOOR_BODY_BYTES],
                        unsigned char proof[DOOR_PROOF_BYTES]);
void door_guest_drop(struct door *d);

/* Who knocks while there is a guest waits for his turn, as long as a visitor may. */
void door_queue(struct door *d);
/* From now on another word opens it. */
void door_reword(struct door *d, const unsigned char word[DOOR_WORD_BYTES]);
/* Wake whoever polls the door: nobody comes any more. From any thread. */
void door_hush(struct door *d);

/* The other side: connect and knock. The caller closes `fd`; a worker takes its end for the
 * client's. -EAGAIN it hung up, or as gp_dial. */
struct door_knocked {
    int fd;
    char host[DOOR_HOST_MAX]; /* as reached, for tcp://… */
    unsigned char nonce[DOOR_NONCE_BYTES];
};
int door_knock(const char *endpoint, const unsigned char *word, int64_t deadline,
               struct door_knocked *out);
/* Knock at a connection, which stays the caller's: `mark`, unless NULL, is how the nonce begins.
 * `out` has no host. -EAGAIN, -EIO. */
#define DOOR_MARK_BYTES 2
int door_knock_at(int fd, const unsigned char *word, const unsigned char *mark,
                  struct door_knocked *out);
/* The answer, of which `size` bytes must be proved. -EAGAIN it hung up, -EPROTO it speaks
 * otherwise, -ETIMEDOUT. */
int door_hear_answer(const struct door_knocked *k, const unsigned char *word, int64_t deadline,
                     size_t size, unsigned char body[DOOR_BODY_BYTES]);
/* The nonce with which zmq's greetings begin, and the proof that confirms an answer. */
void door_greeting_nonce(const struct door_knocked *k, const unsigned char *word,
                         unsigned char nonce[DOOR_NONCE_BYTES]);
void door_confirm(const struct door_knocked *k, const unsigned char *word,
                  const unsigned char body[DOOR_BODY_BYTES], unsigned char proof[DOOR_PROOF_BYTES]);
/* A word that only these two have: who saw the answer `body` to this nonce, and knows the word. */
void door_lanes_word(const unsigned char *word, const unsigned char nonce[DOOR_NONCE_BYTES],
                     const unsigned char body[DOOR_BODY_BYTES], unsigned char out[DOOR_WORD_BYTES]);
/* The key that both have for tls://. */
void door_key(const unsigned char *word, unsigned char key[DOOR_PROOF_BYTES]);

/* The word behind an address, "?door=" and 32 digits: 0 or -EINVAL. */
int door_word_read(const char *text, unsigned char word[DOOR_WORD_BYTES], struct gp_error *err);

#endif
