#include "transport/ring.h"

#include <errno.h>
#include <string.h>

#include "wire/wire.h"

#define ENTRY sizeof(struct gp_ring_entry)
/* What a processor fetches of memory at once, and how much of what comes next the reader asks it for. */
#define CACHE_LINE 64u
#define FETCH_AHEAD 256u

void gp_ring_writer_init(struct gp_ring_writer *w, struct gp_ring_shared *shared, void *data,
                         size_t capacity)
{
    *w = (struct gp_ring_writer){.shared = shared, .data = data, .capacity = capacity};
}

void gp_ring_reader_init(struct gp_ring_reader *r, struct gp_ring_shared *shared, const void *data,
                         size_t capacity)
{
    *r = (struct gp_ring_reader){.shared = shared, .data = data, .capacity = capacity};
}

/* Entries are written and read as one 8-byte word, so that a peer that changes
 * one under our eyes cannot make us check one value and use another. */
static void entry_store(unsigned char *at, uint32_t size, uint32_t kind)
{
    uint64_t word = (uint64_t)kind << 32 | size;
    /* Relaxed: gp_ring_publish's store of tail orders it before the reader's
     * load of tail in gp_ring_peek. */
    atomic_store_explicit((_Atomic uint64_t *)(void *)at, word, memory_order_relaxed);
}

static struct gp_ring_entry entry_load(const unsigned char *at)
{
    const _Atomic uint64_t *word = (const _Atomic uint64_t *)(const void *)at;
    uint64_t value = atomic_load_explicit(word, memory_order_relaxed);
    return (struct gp_ring_entry){.size = (uint32_t)value, .kind = (uint32_t)(value >> 32)};
}

static int writer_look(struct gp_ring_writer *w)
{
    /* Acquire part: pairs with the store of head in gp_ring_consume, so that what the
     * reader has let go of, it has finished reading. Sequentially consistent because a
     * writer that will sleep has just said so, and the reader that it must see, or be
     * seen by, looks for it only now and then: nothing later would wake it. */
    uint64_t head = atomic_load_explicit(&w->shared->head, memory_order_seq_cst);
    /* Past our tail, or behind where it has been: neither can be true. */
    if (w->tail - head > w->tail - w->head_seen)
        return -EPROTO;
    w->head_seen = head;
    return 0;
}

int gp_ring_reserve(struct gp_ring_writer *w, size_t size, void **at)
{
    uint64_t need = ENTRY + gp_align8(size);
    uint64_t place = w->tail & (w->capacity - 1);
    uint64_t skip = place + need > w->capacity ? w->capacity - place : 0;
    if (w->capacity - (w->tail - w->head_seen) < skip + need) {
        int rc = writer_look(w);
        if (rc)
            return rc;
        if (w->capacity - (w->tail - w->head_seen) < skip + need)
            return -EAGAIN;
    }
    if (skip) {
        entry_store(w->data + place, 0, GP_RING_WRAP);
        place = 0;
    }
    entry_store(w->data + place, (uint32_t)size, GP_RING_MESSAGE);
    w->next_tail = w->tail + skip + need;
    *at = w->data + place + ENTRY;
    return 0;
}

void gp_ring_publish(struct gp_ring_writer *w)
{
    w->tail = w->next_tail;
    /* Release part: pairs with the acquire of tail in reader_look, so that the
     * message is there when its position is. Sequentially consistent because
     * the caller looks at reader_sleeps next: either it sees the sleeper, or the
     * sleeper, who sets that word before it looks at tail, sees the message. */
    atomic_store_explicit(&w->shared->tail, w->tail, memory_order_seq_cst);
}

static int reader_look(struct gp_ring_reader *r)
{
    /* Pairs with the store of tail in gp_ring_publish; see there. */
    uint64_t tail = atomic_load_explicit(&r->shared->tail, memory_order_seq_cst);
    if (tail - r->head > r->capacity || (tail & 7) != 0)
        return -EPROTO;
    r->tail_seen = tail;
    return tail == r->head ? -EAGAIN : 0;
}

/*
 * What was written last lies in the cache of the writer's core. It takes long to come from there, so it
 * comes while the message at hand is handled. No line that the writer has not left yet: it would have
 * to fetch that back.
 */
static void fetch_ahead(const struct gp_ring_reader *r)
{
    uint64_t line = (r->next_head + CACHE_LINE - 1) & ~(uint64_t)(CACHE_LINE - 1);
    uint64_t end = r->next_head + FETCH_AHEAD < r->tail_seen ? r->next_head + FETCH_AHEAD
                                                             : r->tail_seen;
    for (; line + CACHE_LINE <= end; line += CACHE_LINE)
        __builtin_prefetch(r->data + (line & (r->capacity - 1)));
}

int gp_ring_peek(struct gp_ring_reader *r, const void **message, size_t *size)
{
    if (r->tail_seen == r->head) {
        int rc = reader_look(r);
        if (rc)
            return rc;
    }
    uint64_t head = r->head;
    uint64_t place = head & (r->capacity - 1);
    struct gp_ring_entry entry = entry_load(r->data + place);
    if (entry.kind == GP_RING_WRAP) {
        uint64_t skip = r->capacity - place;
        /* A wrap is published together with the message behind it. */
        if (place == 0 || r->tail_seen - head <= skip)
            return -EPROTO;
        head += skip;
        place = 0;
        entry = entry_load(r->data);
    }
    if (entry.kind != GP_RING_MESSAGE || entry.size < sizeof(struct gp_header) ||
        entry.size > GP_MESSAGE_MAX)
        return -EPROTO;
    uint64_t need = ENTRY + gp_align8(entry.size);
    if (need > r->tail_seen - head || need > r->capacity - place)
        return -EPROTO;
    r->next_head = head + need;
    *message = r->data + place + ENTRY;
    *size = entry.size;
    fetch_ahead(r);
    return 0;
}

bool gp_ring_consume(struct gp_ring_reader *r)
{
    uint64_t half = r->capacity / 2, before = r->tail_seen - r->head;
    r->head = r->next_head;
    uint64_t left = r->tail_seen - r->head;
    bool looks = left == 0 || (left <= half && before > half);
    /* Release: pairs with the acquire of head in writer_look. Sequentially consistent
     * where the caller looks at writer_sleeps next, as in gp_ring_publish; that waits
     * until all that was written before is there, which may be what the GPU was told. */
    if (looks)
        atomic_store_explicit(&r->shared->head, r->head, memory_order_seq_cst);
    else
        atomic_store_explicit(&r->shared->head, r->head, memory_order_release);
    return looks;
}
