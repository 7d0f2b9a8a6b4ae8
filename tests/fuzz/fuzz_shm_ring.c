/*
 * A ring whose every shared word a hostile peer has written, read to the end
 * and then written to. The input: 8 bytes tail, 8 bytes head, 2 bytes of where
 * our own positions stand, and the ring's bytes.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ring.h"
#include "wire/wire.h"

#define CAPACITY 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Where every byte goes, so that reading it is not optimised away. */
static volatile unsigned char sink;

struct input {
    uint64_t tail, head;
    uint16_t start;
};

static size_t input_take(struct input *in, const uint8_t *data, size_t size)
{
    size_t at = 0;
    memset(in, 0, sizeof *in);
    if (size < 18)
        return size;
    memcpy(&in->tail, data + at, 8);
    memcpy(&in->head, data + at + 8, 8);
    memcpy(&in->start, data + at + 16, 2);
    return 18;
}

static void ring_read_all(struct gp_ring_shared *shared, const unsigned char *bytes, uint64_t start)
{
    struct gp_ring_reader r;
    gp_ring_reader_init(&r, shared, bytes, CAPACITY);
    r.head = r.tail_seen = start;
    const void *message;
    size_t length;
    int rc;
    while ((rc = gp_ring_peek(&r, &message, &length)) == 0) {
        const unsigned char *at = message;
        if (at < bytes || length > CAPACITY || at + length > bytes + CAPACITY)
            abort();
        for (size_t i = 0; i < length; i++)
            sink = at[i];
        uint64_t before = r.head;
        gp_ring_consume(&r);
        if (r.head <= before || r.tail_seen - r.head > CAPACITY)
            abort();
    }
    if (rc != -EAGAIN && rc != -EPROTO)
        abort();
}

static void ring_write_all(struct gp_ring_shared *shared, unsigned char *bytes, uint64_t start)
{
    struct gp_ring_writer w;
    gp_ring_writer_init(&w, shared, bytes, CAPACITY);
    w.tail = w.head_seen = start;
    for (size_t length = 16; length < CAPACITY / 2; length += 97) {
        void *at;
        int rc = gp_ring_reserve(&w, length, &at);
        if (rc != 0) {
            if (rc != -EAGAIN && rc != -EPROTO)
                abort();
            return;
        }
        unsigned char *to = at;
        if (to < bytes || to + gp_align8(length) > bytes + CAPACITY)
            abort();
        memset(to, 1, gp_align8(length));
        gp_ring_publish(&w);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in;
    size_t taken = input_take(&in, data, size);
    struct gp_ring_shared *shared = aligned_alloc(GP_RING_LINE, sizeof *shared);
    unsigned char *bytes = calloc(1, CAPACITY);
    if (shared && bytes) {
        size_t left = size - taken;
        memset(shared, 0, sizeof *shared);
        if (left)
            memcpy(bytes, data + taken, left < CAPACITY ? left : CAPACITY);
        shared->tail = in.tail;
        shared->head = in.head;
        uint64_t start = (uint64_t)in.start & ~(uint64_t)7;
        ring_read_all(shared, bytes, start);
        shared->head = in.head;
        ring_write_all(shared, bytes, start);
    }
    free(shared);
    free(bytes);
    return 0;
}
