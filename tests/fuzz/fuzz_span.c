/* Hostile boxes: what is found sound is at least as long as its rows are, and ends. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "span.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Where the last row of the box ends, counted with more bits than the answer has. */
static unsigned __int128 last_row(const struct gp_span_end *end, const struct gp_span_box *box,
                                  const struct gp_span *span)
{
    unsigned __int128 slice = (unsigned __int128)span->pitch * span->rows;
    unsigned __int128 slices = (unsigned __int128)end->z + box->depth - 1;
    unsigned __int128 rows = (unsigned __int128)end->y + box->height - 1;
    return (slices ? slices * slice : 0) + rows * span->pitch + end->x + box->width;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t n[8];
    struct gp_span span;
    if (size != sizeof n)
        return 0;
    memcpy(n, data, sizeof n);
    const struct gp_span_end end = {n[0], n[1], n[2], n[3], n[4]};
    const struct gp_span_box box = {n[5], n[6], n[7]};
    if (!gp_span_make(&end, &box, &span))
        return 0;
    if (span.offset + span.bytes < span.offset || span.bytes < box.width ||
        span.pitch < end.x + box.width || last_row(&end, &box, &span) != span.offset + span.bytes)
        abort();
    return 0;
}
