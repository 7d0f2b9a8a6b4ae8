#include "transport/tcp_stripe.h"

#include <errno.h>
#include <string.h>

#define HEAD_MAGIC 0x6c616e65u
/* Pieces begin where a line of the processors' caches does. */
#define LINE 64

static bool size_ok(size_t size)
{
    return size >= STRIPE_LEAST && size <= GP_MESSAGE_MAX;
}

int stripe_note_read(const unsigned char *at, size_t left, struct stripe_note *out)
{
    struct stripe_note note;
    if (left < sizeof note)
        return -EAGAIN;
    memcpy(&note, at, sizeof note);
    if (note.kind != STRIPE_NOTE_LANES && note.kind != STRIPE_NOTE_MESSAGE)
        return -EAGAIN;
    bool ok = note.kind == STRIPE_NOTE_MESSAGE ? size_ok(note.value)
                                               : note.value >= 2 && note.value <= STRIPE_LANES_MAX;
    if (!ok)
        return -EPROTO;
    *out = note;
    return 0;
}

struct stripe_head stripe_head_make(unsigned lane, size_t size, uint64_t number)
{
    return (struct stripe_head){HEAD_MAGIC, lane, (uint32_t)size, (uint32_t)number};
}

int stripe_head_check(const struct stripe_head *h, unsigned lane, uint64_t number, size_t *size)
{
    if (h->magic != HEAD_MAGIC || h->lane != lane || h->number != (uint32_t)number ||
        !size_ok(h->size))
        return -EPROTO;
    *size = h->size;
    return 0;
}

struct stripe_piece stripe_piece_of(size_t message, unsigned lane, unsigned lanes)
{
    size_t each = (message / lanes + LINE - 1) / LINE * LINE, begin = each * lane;
    size_t end = lane + 1 == lanes ? message : begin + each;
    return (struct stripe_piece){begin, end - begin};
}

void stripe_message_head(const struct iovec *iov, int count, unsigned char *out)
{
    size_t at = 0;
    for (int i = 0; i < count && at < GP_MESSAGE_HEAD; i++) {
        size_t left = GP_MESSAGE_HEAD - at, n = iov[i].iov_len < left ? iov[i].iov_len : left;
        if (n > 0) /* an empty piece may be nowhere */
            memcpy(out + at, iov[i].iov_base, n);
        at += n;
    }
}

int stripe_gather(const struct iovec *iov, int count, struct stripe_piece piece, struct iovec *out)
{
    size_t at = 0, end = piece.begin + piece.size;
    int used = 0;
    for (int i = 0; i < count && at < end; i++) {
        size_t next = at + iov[i].iov_len;
        size_t from = at > piece.begin ? at : piece.begin, to = next < end ? next : end;
        if (from < to)
            out[used++] = (struct iovec){(char *)iov[i].iov_base + (from - at), to - from};
        at = next;
    }
    return used;
}
