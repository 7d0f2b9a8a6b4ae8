/*
 * How many bytes of an allocation a pitched copy or set touches, as the driver counts
 * them. Client, worker and soft GPU all ask here, so that none of them checks less than
 * another one does. Every number may be hostile: what overflows is refused.
 */
#ifndef GP_SPAN_H
#define GP_SPAN_H

#include <stdbool.h>
#include <stdint.h>

/* One end of a copy: where in it the box begins, and its steps. */
struct gp_span_end {
    uint64_t x, y, z;     /* bytes, rows, slices */
    uint64_t pitch, rows; /* of a row, of a slice; 0: packed */
};

/* What is copied. */
struct gp_span_box {
    uint64_t width, height, depth;
};

struct gp_span {
    uint64_t pitch, rows; /* never 0: packed ones filled in */
    uint64_t slice;       /* bytes from one slice to the next; 0 where there is one only */
    uint64_t offset;      /* of the first byte */
    uint64_t bytes;       /* from the first to behind the last */
};

/* False: the driver would say CUDA_ERROR_INVALID_VALUE. The box must not be empty. */
bool gp_span_make(const struct gp_span_end *end, const struct gp_span_box *box,
                  struct gp_span *span);

/* More than there is anywhere: what a sum that overflows is taken for. */
#define GP_SPAN_NONE UINT64_MAX

uint64_t gp_span_line(uint64_t count, uint64_t element);
/* Rows of `count` elements each. A pitch that is too small for them is none, and 0 counts
 * as packed. */
uint64_t gp_span_rows(uint64_t pitch, uint64_t count, uint64_t element, uint64_t height);

/* Added to an address without memory, in a set that is captured: no process has memory from here
 * on, so the driver captures the set, and refuses to instantiate it, whatever is allocated later. */
#define GP_NOWHERE (UINT64_C(1) << 57)

#endif
