/*
 * The bytes of a stream that have come and not yet been taken: entries of batch.h, cut
 * anywhere. Pure functions over one buffer: no socket. A peer's size is believed only within
 * GP_MESSAGE_MAX, so the buffer never grows.
 */
#ifndef GP_TCP_FRAMES_H
#define GP_TCP_FRAMES_H

#include <stddef.h>

#include "transport/batch.h"
#include "transport/tcp_stripe.h"

/* Room for the longest message, and for many small ones at once. */
#define FRAMES_ROOM (GP_BATCH_MAX + ((size_t)256 << 10))

struct tcp_frames {
    unsigned char *bytes; /* FRAMES_ROOM, 8-byte aligned */
    size_t at, end;       /* what has come and was not taken lies between */
    size_t held;          /* bytes at `at` that are lent out */
};

/* Take the note that is next: 0, -EAGAIN what is next is none or has not all come, -EPROTO. */
int tcp_frames_note(struct tcp_frames *f, struct stripe_note *note);
/* Lend the next message: 0, -EAGAIN it has not all come, -EPROTO it is none. */
int tcp_frames_next(struct tcp_frames *f, const void **message, size_t *size);
/* It is given back. */
void tcp_frames_release(struct tcp_frames *f);
/* Where what comes next belongs, and how much of it (at least 1 byte); nothing is lent out. */
void *tcp_frames_space(struct tcp_frames *f, size_t *room);
void tcp_frames_filled(struct tcp_frames *f, size_t size);

#endif
