/*
 * How messages lie back to back in a ZeroMQ message of ours and in a stream of tcp: each
 * 8 bytes (struct gp_batch_entry) and the message, padded to 8. Pure functions over bytes:
 * no socket, no allocation.
 */
#ifndef GP_TRANSPORT_BATCH_H
#define GP_TRANSPORT_BATCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "wire/wire.h"

struct gp_batch_entry {
    uint32_t size; /* bytes of the message, without padding */
    uint32_t kind; /* GP_BATCH_MESSAGE */
};
#define GP_BATCH_MESSAGE 0x62617431u

/* The bytes that a message of `size` takes in a batch. */
static inline size_t gp_batch_room(size_t size)
{
    return sizeof(struct gp_batch_entry) + gp_align8(size);
}
#define GP_BATCH_MAX (sizeof(struct gp_batch_entry) + GP_MESSAGE_MAX)

/* Write an entry; `at` has gp_batch_room(size) bytes, and the list `size`. */
void gp_batch_put(void *at, const struct iovec *iov, int count, size_t size);

/* The entry at `at`, of which `left` bytes are there: its message's size; 0, -EAGAIN it is not
 * all there (`*size` is right if its first 8 bytes are, else 0), -EPROTO it is none. */
int gp_batch_entry_read(const unsigned char *at, size_t left, size_t *size);

struct gp_batch_reader {
    const unsigned char *bytes; /* 8-byte aligned */
    size_t size, at;
};

/* The next message: 0, -EAGAIN at the end, -EPROTO for a malformed batch (an
 * empty one included). */
int gp_batch_next(struct gp_batch_reader *r, const void **message, size_t *size);

#endif
