#include "transport/batch.h"

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

int gp_batch_entry_read(const unsigned char *at, size_t left, size_t *size)
{
    struct gp_batch_entry entry;
    *size = 0;
    if (left < sizeof entry)
        return -EAGAIN;
    memcpy(&entry, at, sizeof entry);
    if (entry.kind != GP_BATCH_MESSAGE || entry.size < GP_MESSAGE_MIN ||
        entry.size > GP_MESSAGE_MAX)
        return -EPROTO;
    *size = entry.size;
    return gp_batch_room(entry.size) > left ? -EAGAIN : 0;
}

int gp_batch_next(struct gp_batch_reader *r, const void **message, size_t *size)
{
    size_t left = r->size - r->at, length;
    if (left == 0)
        return r->size == 0 ? -EPROTO : -EAGAIN;
    if (gp_batch_entry_read(r->bytes + r->at, left, &length) != 0)
        return -EPROTO; /* also one that is cut */
    *message = r->bytes + r->at + sizeof(struct gp_batch_entry);
    *size = length;
    r->at += gp_batch_room(length);
    return 0;
}
