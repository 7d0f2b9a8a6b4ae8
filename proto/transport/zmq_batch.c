#include "transport/zmq_batch.h"

#include <errno.h>
#include <string.h>

#include "transport/support.h"

_Static_assert(GP_MESSAGE_MAX % 8 == 0, "the longest message needs no padding");

void gp_batch_put(void *at, const struct iovec *iov, int count, size_t size)
{
    struct gp_batch_entry entry = {.size = (uint32_t)size, .kind = GP_BATCH_MESSAGE};
    memcpy(at, &entry, sizeof entry);
    gp_gather_copy((unsigned char *)at + sizeof entry, iov, count);
}

int gp_batch_next(struct gp_batch_reader *r, const void **message, size_t *size)
{
    struct gp_batch_entry entry;
    size_t left = r->size - r->at;
    if (left == 0)
        return r->size == 0 ? -EPROTO : -EAGAIN;
    if (left < sizeof entry)
        return -EPROTO;
    memcpy(&entry, r->bytes + r->at, sizeof entry);
    if (entry.kind != GP_BATCH_MESSAGE || entry.size < GP_MESSAGE_MIN ||
        entry.size > GP_MESSAGE_MAX || gp_batch_room(entry.size) > left)
        return -EPROTO;
    *message = r->bytes + r->at + sizeof entry;
    *size = entry.size;
    r->at += gp_batch_room(entry.size);
    return 0;
}
