/*
 * Every generated decoder over hostile bytes. The first two bytes choose the
 * operation (any of them, by number modulo the table), the rest is the message
 * behind the header, whose size is made right: what is left to get wrong is
 * everything inside.
 */
#include <stdlib.h>
#include <string.h>

#include "gp_decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > GP_MESSAGE_MAX)
        return 0;
    size_t bytes = gp_align8(sizeof(struct gp_header) + size - 2);
    struct gp_header *h = calloc(1, bytes); /* exact, so that ASan sees one byte too far */
    if (!h)
        return 0;
    memcpy(h + 1, data + 2, size - 2);
    h->op = (uint16_t)((data[0] | data[1] << 8) % GP_OP_COUNT);
    h->size = (uint32_t)bytes;
    gp_decode_any(h);
    h->size = (uint32_t)(bytes / 2) & ~7u; /* and cut short */
    if (h->size >= sizeof *h)
        gp_decode_any(h);
    free(h);
    return 0;
}
