/*
 * What a peer sends over tcp once it is let in, cut anywhere: what comes out must be what a
 * reader that has all of it at once finds. The first byte says how it is cut, and whether much
 * has come before.
 */
#include <errno.h>
#include <sanitizer/asan_interface.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/tcp_frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NOTE 1
/* Where what comes begins, behind much else: the room ends soon. */
#define LATE (FRAMES_ROOM - 512)

static int reference_note(const uint32_t head[2])
{
    uint32_t least = head[1] == STRIPE_NOTE_LANES ? 2 : 1u << 18;
    uint32_t most = head[1] == STRIPE_NOTE_LANES ? 8 : GP_MESSAGE_MAX;
    return head[0] >= least && head[0] <= most ? NOTE : -EPROTO;
}

/* The next message or note of all that there is, as the format says. */
static int reference_next(const uint8_t *bytes, size_t size, size_t *at, size_t *length)
{
    uint32_t head[2];
    if (size - *at < sizeof head)
        return -EAGAIN;
    memcpy(head, bytes + *at, sizeof head);
    if (head[1] == STRIPE_NOTE_LANES || head[1] == STRIPE_NOTE_MESSAGE)
        return reference_note(head);
    if (head[1] != GP_BATCH_MESSAGE || head[0] < 16 || head[0] > GP_MESSAGE_MAX)
        return -EPROTO;
    *length = head[0];
    return size - *at - sizeof head < ((size_t)head[0] + 7) / 8 * 8 ? -EAGAIN : 0;
}

/* 0 a message, NOTE, or why there is none. */
static int either_next(struct tcp_frames *f, const void **message, size_t *length)
{
    struct stripe_note note;
    int rc = tcp_frames_note(f, &note);
    return rc == 0 ? NOTE : rc == -EPROTO ? rc : tcp_frames_next(f, message, length);
}

/* Take all that can be taken; whether the stream goes on. */
static int messages_check(struct tcp_frames *f, const uint8_t *data, size_t given, size_t *at)
{
    const void *message;
    size_t length, expected = 0;
    int rc;
    while ((rc = either_next(f, &message, &length)) >= 0) {
        if (rc != reference_next(data, given, at, &expected))
            abort();
        if (rc == NOTE) {
            *at += sizeof(struct stripe_note);
            continue;
        }
        if (expected != length || (uintptr_t)message % 8 != 0 ||
            memcmp(message, data + *at + 8, length) != 0)
            abort();
        *at += gp_batch_room(length);
        tcp_frames_release(f);
    }
    if (rc != reference_next(data, given, at, &expected))
        abort();
    return rc;
}

/* The room of all inputs. What was never filled is poisoned, so that nobody reads it. */
static unsigned char *room_of_all(void)
{
    static unsigned char *bytes;
    if (!bytes) {
        bytes = malloc(FRAMES_ROOM);
        if (!bytes)
            abort();
        ASAN_POISON_MEMORY_REGION(bytes, FRAMES_ROOM);
    }
    return bytes;
}

/* The next bytes come; how many. Those that are left may have been moved to the beginning. */
static size_t fill(struct tcp_frames *f, const uint8_t *from, size_t most)
{
    size_t room;
    ASAN_UNPOISON_MEMORY_REGION(f->bytes, f->end - f->at);
    unsigned char *to = tcp_frames_space(f, &room);
    if (room == 0 || to + room > f->bytes + FRAMES_ROOM)
        abort();
    size_t n = most < room ? most : room;
    ASAN_UNPOISON_MEMORY_REGION(to, n);
    memcpy(to, from, n);
    tcp_frames_filled(f, n);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t step = (size_t)(data[0] & 0x7f) * 6 + 1, begin = data[0] & 0x80 ? LATE : 0;
    size_t given = 0, at = 0;
    struct tcp_frames f = {.bytes = room_of_all(), .at = begin, .end = begin};
    data++;
    size--;
    while (given < size) {
        given += fill(&f, data + given, size - given < step ? size - given : step);
        if (messages_check(&f, data, given, &at) == -EPROTO)
            break;
    }
    ASAN_POISON_MEMORY_REGION(f.bytes, size + 8);
    ASAN_POISON_MEMORY_REGION(f.bytes + LATE, FRAMES_ROOM - LATE);
    return 0;
}
