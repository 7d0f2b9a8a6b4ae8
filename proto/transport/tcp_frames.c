#include "transport/tcp_frames.h"

#include <errno.h>
#include <string.h>

/* A message longer than this is read to its end and no further, so that what follows it
 * need not be moved. */
#define LONG_BYTES ((size_t)64 << 10)

static void taken(struct tcp_frames *f, size_t size)
{
    f->at += size;
    if (f->at == f->end)
        f->at = f->end = 0;
}

int tcp_frames_note(struct tcp_frames *f, struct stripe_note *note)
{
    int rc = stripe_note_read(f->bytes + f->at, f->end - f->at, note);
    if (rc == 0)
        taken(f, sizeof *note);
    return rc;
}

int tcp_frames_next(struct tcp_frames *f, const void **message, size_t *size)
{
    size_t length;
    int rc = gp_batch_entry_read(f->bytes + f->at, f->end - f->at, &length);
    if (rc)
        return rc;
    f->held = gp_batch_room(length);
    *message = f->bytes + f->at + sizeof(struct gp_batch_entry);
    *size = length;
    return 0;
}

void tcp_frames_release(struct tcp_frames *f)
{
    taken(f, f->held);
    f->held = 0;
}

void *tcp_frames_space(struct tcp_frames *f, size_t *room)
{
    size_t left = f->end - f->at, length;
    (void)gp_batch_entry_read(f->bytes + f->at, left, &length);
    size_t whole = length ? gp_batch_room(length) : sizeof(struct gp_batch_entry);
    if (f->at + whole > FRAMES_ROOM || f->end == FRAMES_ROOM) {
        memmove(f->bytes, f->bytes + f->at, left);
        f->at = 0;
        f->end = left;
    }
    *room = FRAMES_ROOM - f->end;
    if (whole > LONG_BYTES && whole > left)
        *room = whole - left;
    return f->bytes + f->end;
}

void tcp_frames_filled(struct tcp_frames *f, size_t size)
{
    f->end += size;
}
