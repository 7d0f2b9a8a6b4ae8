/*
 * A ring of messages in memory that two processes share: one writes, the other
 * reads, and neither believes what the other put there.
 *
 * Positions are byte counts that only rise; position modulo capacity is the
 * place in `data`. An entry is 8 bytes (struct gp_ring_entry) and the message,
 * padded to 8. A message is never cut: where it does not fit before the end, a
 * wrap entry says "go on at the start".
 *
 * Each side keeps its own position privately and only publishes it, so that the
 * peer can lie about its own position alone, and that is checked against the
 * capacity at each look.
 */
#ifndef GP_RING_H
#define GP_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GP_RING_LINE 128 /* two cache lines: x86 prefetches them in pairs */

/* In shared memory. One group of words per cache line and per writing side. */
struct gp_ring_shared {
    /* The writer's: bytes written. */
    _Alignas(GP_RING_LINE) _Atomic uint64_t tail;
    /* The reader's: bytes read. */
    _Alignas(GP_RING_LINE) _Atomic uint64_t head;
    /* Rarely written, read at each send: 1 while the reader sleeps on it. */
    _Alignas(GP_RING_LINE) _Atomic uint32_t reader_sleeps;
    _Atomic uint32_t reader_closed;
    /* Rarely written, read at each release: 1 while the writer sleeps on it. */
    _Alignas(GP_RING_LINE) _Atomic uint32_t writer_sleeps;
    _Atomic uint32_t writer_closed;
};

enum gp_ring_kind {
    GP_RING_MESSAGE = 0x6d736731, /* a message of `size` bytes follows */
    GP_RING_WRAP = 0x77726170,    /* the rest of the ring is unused */
};

struct gp_ring_entry {
    uint32_t size;
    uint32_t kind;
};

struct gp_ring_writer {
    struct gp_ring_shared *shared;
    unsigned char *data;
    uint64_t capacity;  /* bytes, a power of two */
    uint64_t tail;      /* ours; shared->tail is what the reader may see */
    uint64_t head_seen; /* shared->head when last looked at and found sane */
    uint64_t next_tail; /* tail once the reserved message is published */
};

struct gp_ring_reader {
    struct gp_ring_shared *shared;
    const unsigned char *data;
    uint64_t capacity;
    uint64_t head;      /* ours; shared->head is what the writer may reuse up to */
    uint64_t tail_seen; /* shared->tail when last looked at and found sane */
    uint64_t next_head; /* head once the message at hand is consumed */
};

void gp_ring_writer_init(struct gp_ring_writer *w, struct gp_ring_shared *shared, void *data,
                         size_t capacity);
void gp_ring_reader_init(struct gp_ring_reader *r, struct gp_ring_shared *shared, const void *data,
                         size_t capacity);

/* Room for a message of `size` bytes (16..GP_MESSAGE_MAX), 8-byte aligned, to
 * be filled before gp_ring_publish. -EAGAIN when the ring is full, -EPROTO when
 * the reader's position is impossible. */
int gp_ring_reserve(struct gp_ring_writer *w, size_t size, void **at);
void gp_ring_publish(struct gp_ring_writer *w);

/* The next message, in place. -EAGAIN when the ring is empty, -EPROTO when it
 * holds what no writer of ours writes. The same message until gp_ring_consume. */
int gp_ring_peek(struct gp_ring_reader *r, const void **message, size_t *size);
/* True: the caller is to look at writer_sleeps. A writer that waits for room is woken once it has
 * plenty, for waking it for each message would have both sides sleep and wake in turn, and when the
 * reader has read what it knew of: however much that was, it goes on then. */
bool gp_ring_consume(struct gp_ring_reader *r);

#endif
