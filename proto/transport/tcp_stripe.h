/*
 * Long messages over several connections. The channel's own stream has a *note* where such a
 * message would have been, which keeps the order; its bytes come over the *lanes*, a piece of it
 * over each, behind a head that says what it is a piece of. Pure functions over bytes.
 */
#ifndef GP_TCP_STRIPE_H
#define GP_TCP_STRIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "transport/support.h"

#define STRIPE_LANES_MAX 8u
/* A message of less goes whole over the channel's stream, and nobody may say otherwise. */
#define STRIPE_LEAST ((size_t)256 << 10)

/* In a stream, in the place of a message's entry (batch.h). */
struct stripe_note {
    uint32_t value;
    uint32_t kind;
};
#define STRIPE_NOTE_LANES 0x6c616e31u   /* from a worker, once: so many lanes are in */
#define STRIPE_NOTE_MESSAGE 0x6c616e32u /* a message of so many bytes is on the lanes */

/* Whether a note is at `at`: 0 and `out`, -EAGAIN not all of it or no note, -EPROTO a note that
 * nobody may write. */
int stripe_note_read(const unsigned char *at, size_t left, struct stripe_note *out);

/* A lane's number as it comes to the door: those of before pieces began so counted from 0. */
#define STRIPE_MARK 0x80u

/* Before each piece, and behind it the first GP_MESSAGE_HEAD bytes of the message: who reads a piece
 * knows whose it is. */
struct stripe_head {
    uint32_t magic;
    uint32_t lane;
    uint32_t size;   /* of the whole message */
    uint32_t number; /* of the message among those on the lanes, from 0; it wraps */
};
struct stripe_head stripe_head_make(unsigned lane, size_t size, uint64_t number);
struct stripe_opening {
    struct stripe_head head;
    unsigned char message[GP_MESSAGE_HEAD];
};
/* Whether it is the one that is due on this lane: 0 or -EPROTO; `size` is within the limits. */
int stripe_head_check(const struct stripe_head *h, unsigned lane, uint64_t number, size_t *size);

/* Where a lane's piece of a message lies: none is empty, and together they are all of it. */
struct stripe_piece {
    size_t begin, size;
};
struct stripe_piece stripe_piece_of(size_t message, unsigned lane, unsigned lanes);
/* The first GP_MESSAGE_HEAD bytes of a gather list, which has more. */
void stripe_message_head(const struct iovec *iov, int count, unsigned char *out);
/* The part of a gather list that is such a piece: how many entries of `out`, which has
 * GP_GATHER_MAX. */
int stripe_gather(const struct iovec *iov, int count, struct stripe_piece piece, struct iovec *out);

#endif
