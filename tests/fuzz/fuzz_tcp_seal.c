/*
 * Records of TLS from who has the keys, and from who has not, cut anywhere and read into memory of
 * any size: what comes out is the data that was sealed, in order, until the first thing that
 * nobody may write; and no byte is written behind the memory that was given.
 *
 * The first byte says the suite and how the stream is cut, the second how much is read at once.
 * Then come records, each a byte that says what it is, one of its length, and what it is made of.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/tcp_seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define WIRE ((size_t)40 << 10)
#define BEHIND 16 /* bytes behind the memory that is read to */
#define FILLING 0xa5

/* What one record of the input is. */
enum what { SEALED, REKEY, RAW, LONG, WHATS };

static const unsigned char secret[SEAL_SECRET_BYTES] = {9};
static unsigned char wire[WIRE], sent[WIRE], to[WIRE + BEHIND], long_bytes[SEAL_CONTENT_MOST + 1];
static unsigned char rest[SEAL_REST_BYTES];

/* What a reader of it all would find. */
struct story {
    struct seal from;
    size_t wire, sent;
    unsigned idle;
    bool lost;  /* the reader has gone on to a key that the writer has not */
    bool ended; /* something is in it that nobody may write */
    bool open;  /* what comes next may be anything's end: it may wait, and may not */
};

static void story_idle(struct story *s)
{
    s->ended |= ++s->idle > SEAL_IDLE_MOST;
}

static bool is_update(const uint8_t *content, size_t size)
{
    static const uint8_t update[] = {24, 0, 0, 1, 0};
    return size == sizeof update && memcmp(content, update, size) == 0;
}

/* Content, its type, and zeros behind that. */
static void story_inner(struct story *s, const uint8_t *inner, size_t size)
{
    while (size > 0 && inner[size - 1] == 0)
        size--;
    uint8_t type = size > 0 ? inner[--size] : 0;
    if (s->lost || s->ended)
        s->ended = true;
    else if (type == SEAL_DATA && size > 0) {
        memcpy(sent + s->sent, inner, size);
        s->sent += size;
        s->idle = 0;
    } else if (type == SEAL_DATA) {
        story_idle(s);
    } else if (type == SEAL_HANDSHAKE && is_update(inner, size)) {
        story_idle(s);
        s->lost = true;
    } else {
        s->ended = true;
    }
}

/* Any inner plaintext can be said as content and a last byte. */
static void sealed_put(struct story *s, const uint8_t *inner, size_t size)
{
    ssize_t n = seal_record(&s->from, inner[size - 1], inner, size - 1, wire + s->wire);
    if (n != (ssize_t)(size - 1 + SEAL_BESIDE))
        abort();
    s->wire += (size_t)n;
    if (!s->open)
        story_inner(s, inner, size);
}

static void rekey_put(struct story *s)
{
    ssize_t n = seal_rekey(&s->from, wire + s->wire);
    if (n <= 0)
        abort();
    s->wire += (size_t)n;
    if (!s->open)
        s->ended |= s->lost;
    if (!s->open && !s->ended)
        story_idle(s);
}

static void long_put(struct story *s, size_t less)
{
    memset(long_bytes, less % 251, sizeof long_bytes);
    long_bytes[sizeof long_bytes - 1 - less / 2] = SEAL_DATA;
    if (less % 2 == 0) /* else zeros stand behind it */
        sealed_put(s, long_bytes, sizeof long_bytes - less / 2);
    else {
        memset(long_bytes + sizeof long_bytes - less / 2, 0, less / 2);
        sealed_put(s, long_bytes, sizeof long_bytes);
    }
}

static void story_make(struct story *s, const uint8_t *data, size_t size)
{
    while (size >= 2 && s->wire + SEAL_RECORD_MOST + 1 < WIRE) {
        enum what what = data[0] % WHATS;
        size_t less = data[1], n = less < size - 2 ? less : size - 2;
        data += 2;
        size -= 2;
        if (what == SEALED && n > 0)
            sealed_put(s, data, n);
        if (what == REKEY)
            rekey_put(s);
        if (what == RAW && n > 0) {
            memcpy(wire + s->wire, data, n);
            s->wire += n;
            s->open = true;
        }
        if (what == LONG)
            long_put(s, less);
        if (what == REKEY || what == LONG)
            continue;
        data += n;
        size -= n;
    }
}

static void room_check(size_t room)
{
    for (size_t i = 0; i < BEHIND; i++)
        if (to[room + i] != FILLING)
            abort();
}

/* All that can be read of what has come, and why there is no more. */
static int bytes_check(struct seal *s, const struct story *all, size_t *at, size_t end, size_t room,
                       size_t *come)
{
    for (;;) {
        size_t used;
        memset(to + room, FILLING, BEHIND);
        ssize_t n = seal_read(s, wire + *at, end - *at, &used, to, room);
        room_check(room);
        if (used > end - *at || n == 0 || n > (ssize_t)room)
            abort();
        *at += used;
        if (n < 0)
            return (int)n;
        if ((size_t)n > all->sent - *come || memcmp(to, sent + *come, (size_t)n) != 0)
            abort();
        *come += (size_t)n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const char *cipher = data[0] & 1 ? "ChaCha20-Poly1305" : "AES-128-GCM";
    size_t step = (size_t)(data[0] >> 1) * 300 + 1, room = (size_t)data[1] * 150 + 1;
    size_t at = 0, end = 0, come = 0;
    struct story all = {.wire = 0};
    struct seal s;
    int rc = -EAGAIN;
    if (seal_begin(&all.from, NULL, cipher, secret, NULL) != 0 ||
        seal_begin(&s, NULL, cipher, secret, rest) != 0)
        abort();
    story_make(&all, data + 2, size - 2);
    while (rc == -EAGAIN && end < all.wire) {
        end = all.wire - end < step ? all.wire : end + step;
        rc = bytes_check(&s, &all, &at, end, room, &come);
    }
    if (rc == -EAGAIN ? all.ended || come != all.sent : !(all.ended || all.open))
        abort();
    seal_end(&all.from);
    seal_end(&s);
    return 0;
}
