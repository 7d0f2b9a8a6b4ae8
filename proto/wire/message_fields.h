/* Fields of a message whose place its operation's facts name (gp_ops.h). */
#ifndef GP_MESSAGE_FIELDS_H
#define GP_MESSAGE_FIELDS_H

#include <string.h>

#include "gp_ops.h"
#include "wire.h"

/* The integer of 4 or 8 bytes at `at`; 0 where the message has no such field. */
static inline uint64_t gp_message_field(const struct gp_header *h, uint16_t at, uint16_t size)
{
    uint64_t wide = 0;
    uint32_t narrow = 0;
    if (at == 0 || h->size < (uint32_t)at + size)
        return 0;
    if (size == sizeof narrow) {
        memcpy(&narrow, (const char *)h + at, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, (const char *)h + at, sizeof wide);
    return wide;
}

/* The id of a handle, or an address. */
static inline uint64_t gp_message_id(const struct gp_header *h, uint16_t at)
{
    return gp_message_field(h, at, sizeof(uint64_t));
}

#endif
