/*
 * The frame that every message between client and worker starts with.
 *
 * proto/wire-format.md is the prose; the structures behind each operation are
 * generated from proto/spec. All integers are little endian, all messages are
 * padded to 8 bytes, and the padding is zero.
 */
#ifndef GP_WIRE_H
#define GP_WIRE_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "gpupool is for little-endian machines: its messages are written as they lie in memory"
#endif

/* The protocol: how messages are framed, what a handshake is, what their order means. Raised by
 * hand when this header or wire-format.md changes meaning; a side says which versions it speaks,
 * and two sides take the newest that both do. Operations come and go without it: each side says
 * which it has (operations.h). */
#define GP_WIRE_VERSION 1u
#define GP_WIRE_OLDEST 1u

/* The longest message a transport carries, header included. What is longer
 * (user memory, images) travels as several messages, so that a small one never
 * waits behind more than one of these. */
#define GP_MESSAGE_MAX ((size_t)(1u << 20) + 4096u)

/* User bytes that one chunk of a long transfer carries inline. */
#define GP_CHUNK_MAX ((size_t)(1u << 20))

/* The page of the events that the client polls: a number of 64 bits for each. No event has the
 * first place, in which the worker writes that the page is not written any more. */
#define GP_EVENT_PAGE_BYTES ((size_t)(1u << 16))
#define GP_EVENT_PAGE_CLOSED 0
/* Behind these, where both sides have gp_event_record_idle: the worker says that a kernel was launched
 * which may print. */
#define GP_EVENT_PAGE_PRINTS (GP_EVENT_PAGE_BYTES / sizeof(uint64_t))
#define GP_EVENT_PAGE_ALL (GP_EVENT_PAGE_BYTES + 4096)

/* What the GPU tells a client of by itself: for each wait under way a place with a word, which the
 * GPU writes behind the work, and bytes, to which it copies before. */
#define GP_COMPLETION_PLACES 32u
#define GP_COMPLETION_WORD_STEP ((size_t)64)  /* no two in one line of a processor's cache */
#define GP_COMPLETION_DATA ((size_t)4096)     /* where the bytes begin */
#define GP_COMPLETION_DATA_MAX ((size_t)4096) /* of each place */
#define GP_COMPLETION_BYTES (GP_COMPLETION_DATA + GP_COMPLETION_PLACES * GP_COMPLETION_DATA_MAX)

enum gp_header_flags {
    GP_FLAG_REPLY = 1u << 0,  /* answers the request whose seq it repeats */
    GP_FLAG_WAITED = 1u << 1, /* the sender blocks until the reply comes */
};

struct gp_header {
    uint32_t size;  /* bytes of the whole message, this header included */
    uint16_t op;    /* numeric id from the spec */
    uint16_t flags; /* gp_header_flags */
    uint64_t seq;   /* requests: rising by one; replies: the request's */
};
_Static_assert(sizeof(struct gp_header) == 16, "the header is 16 bytes on the wire");

static inline size_t gp_align8(size_t n)
{
    return (n + 7u) & ~(size_t)7u;
}

#endif
