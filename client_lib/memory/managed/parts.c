/*
 * The variables of modules in a record's pages. The driver puts several of them on a page and copies
 * each by itself: what lies between them is nobody's, and a copy that touches it is refused. So
 * blocks travel in the parts that are variables'.
 */
#include <stdlib.h>
#include <string.h>

#include "managed_internal.h"

struct gpc_parts {
    size_t count, room;
    struct gpc_span at[]; /* in the order of their addresses */
};

/* Index of the first one that ends behind the address. */
static size_t behind(const struct gpc_parts *p, uint64_t address)
{
    size_t i = 0;
    while (i < p->count && p->at[i].end <= address)
        i++;
    return i;
}

bool gpc_parts_next(const struct gpc_managed *m, uint64_t from, uint64_t to, struct gpc_span *next)
{
    struct gpc_span all = {m->begin, m->begin + m->bytes};
    if (m->parts) {
        size_t i = behind(m->parts, from);
        if (i == m->parts->count)
            return false;
        all = m->parts->at[i];
    }
    next->begin = from > all.begin ? from : all.begin;
    next->end = to < all.end ? to : all.end;
    return next->begin < next->end;
}

bool gpc_parts_have(const struct gpc_managed *m, uint64_t address)
{
    struct gpc_span found;
    return gpc_parts_next(m, address, address + 1, &found);
}

static struct gpc_parts *grown(struct gpc_parts *old)
{
    size_t room = old ? 2 * old->room : 8;
    struct gpc_parts *p = realloc(old, sizeof *p + room * sizeof p->at[0]);
    if (p && !old)
        p->count = 0;
    if (p)
        p->room = room;
    return p;
}

CUresult gpc_parts_add(struct gpc_managed *m, struct gpc_span part)
{
    struct gpc_span met;
    if (m->parts && gpc_parts_next(m, part.begin, part.end, &met))
        return CUDA_ERROR_UNKNOWN; /* a worker that has two variables in one place */
    if (!m->parts || m->parts->count == m->parts->room) {
        struct gpc_parts *more = grown(m->parts);
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        m->parts = more;
    }
    struct gpc_parts *p = m->parts;
    size_t i = behind(p, part.begin);
    memmove(p->at + i + 1, p->at + i, (p->count - i) * sizeof p->at[0]);
    p->at[i] = part;
    p->count++;
    return CUDA_SUCCESS;
}

bool gpc_parts_remove(struct gpc_managed *m, struct gpc_span span)
{
    struct gpc_parts *p = m->parts;
    size_t i = p ? behind(p, span.begin) : 0;
    while (p && i < p->count && p->at[i].begin < span.end) {
        memmove(p->at + i, p->at + i + 1, (p->count - i - 1) * sizeof p->at[0]);
        p->count--;
    }
    return p && p->count > 0;
}

size_t gpc_parts_count(const struct gpc_managed *m)
{
    return m->parts ? m->parts->count : 0;
}

struct gpc_span gpc_parts_at(const struct gpc_managed *m, size_t i)
{
    return m->parts->at[i];
}
