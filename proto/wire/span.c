#include "span.h"

static bool times(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static bool plus(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* The steps, with packed ones filled in. */
static bool steps(const struct gp_span_end *end, const struct gp_span_box *box,
                  struct gp_span *span)
{
    uint64_t row, rows;
    if (!plus(end->x, box->width, &row) || !plus(end->y, box->height, &rows))
        return false;
    span->pitch = end->pitch ? end->pitch : row;
    span->rows = end->rows ? end->rows : rows;
    span->slice = 0;
    if (span->pitch < row || span->rows < rows)
        return false;
    /* a single slice has no next one, however large its rows are said to be */
    return (box->depth == 1 && end->z == 0) || times(span->pitch, span->rows, &span->slice);
}

static bool offset(const struct gp_span_end *end, struct gp_span *span)
{
    uint64_t slices, rows;
    return times(span->slice, end->z, &slices) && times(span->pitch, end->y, &rows) &&
           plus(slices, rows, &span->offset) && plus(span->offset, end->x, &span->offset);
}

static bool length(const struct gp_span_box *box, struct gp_span *span)
{
    uint64_t slices, rows;
    return times(span->slice, box->depth - 1, &slices) &&
           times(span->pitch, box->height - 1, &rows) && plus(slices, rows, &span->bytes) &&
           plus(span->bytes, box->width, &span->bytes);
}

bool gp_span_make(const struct gp_span_end *end, const struct gp_span_box *box,
                  struct gp_span *span)
{
    uint64_t last;
    return box->width && box->height && box->depth && steps(end, box, span) && offset(end, span) &&
           length(box, span) && plus(span->offset, span->bytes, &last);
}

uint64_t gp_span_line(uint64_t count, uint64_t element)
{
    uint64_t bytes;
    return times(count, element, &bytes) ? bytes : GP_SPAN_NONE;
}

uint64_t gp_span_rows(uint64_t pitch, uint64_t count, uint64_t element, uint64_t height)
{
    struct gp_span span;
    uint64_t width = gp_span_line(count, element);
    const struct gp_span_end end = {.pitch = height > 1 ? pitch : 0};
    const struct gp_span_box box = {width, height, 1};
    if (width == 0 || height == 0)
        return 0;
    return gp_span_make(&end, &box, &span) ? span.bytes : GP_SPAN_NONE;
}
