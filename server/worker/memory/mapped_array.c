#include "mapped_array.h"

#include <stdlib.h>

#include "handles.h"
#include "later.h"
#include "memory_internal.h"

/* A box of tiles, the run of a mip tail, or all of an array: [at, end) on each axis. */
struct gpw_mapped_part {
    struct gpw_mapped_part *next;
    uint64_t resource; /* the client's id */
    uint32_t level, layer, subresource;
    uint64_t at[3], end[3];
    struct physical *physical; /* kept */
    bool pending;              /* the driver has not been asked yet */
};

/* What a call lets go of when its stream has passed it. */
struct passing {
    struct gpw_mapped_part *parts;
};

static struct gpw_mapped_part *part_new(struct gpw_session *s, const struct gpw_mapped_part *like)
{
    if (!gpw_budget_take(s, GPW_USE_OBJECTS, sizeof *like))
        return NULL;
    struct gpw_mapped_part *p = malloc(sizeof *p);
    if (!p) {
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *p);
        return NULL;
    }
    *p = *like;
    gpw_physical_keep(p->physical);
    return p;
}

static void parts_drop(struct gpw_session *s, void *parts)
{
    for (struct gpw_mapped_part *p = parts, *next; p; p = next) {
        next = p->next;
        gpw_physical_drop(s, p->physical);
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *p);
        free(p);
    }
}

/* Move the part that `at` leads to. */
static void part_move(struct gpw_mapped_part **at, struct gpw_mapped_part **to)
{
    struct gpw_mapped_part *p = *at;
    *at = p->next;
    p->next = *to;
    *to = p;
}

/* --- boxes ------------------------------------------------------------------------------------ */

/* False: it ends beyond all numbers, which no array does. */
static bool box_of(const struct gp_array_map *e, bool whole, struct gpw_mapped_part *box)
{
    const bool tail = e->subresource == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    *box = (struct gpw_mapped_part){.resource = e->resource, .end = {1, 1, 1}};
    if (whole)
        return true;
    box->level = e->level;
    box->layer = e->layer;
    box->subresource = e->subresource;
    for (int i = 0; i < (tail ? 1 : 3); i++) {
        box->at[i] = e->at[i];
        if (__builtin_add_overflow(e->at[i], e->extent[i], &box->end[i]))
            return false;
    }
    return true;
}

static bool touch(const struct gpw_mapped_part *a, const struct gpw_mapped_part *b)
{
    if (a->resource != b->resource || a->level != b->level || a->layer != b->layer ||
        a->subresource != b->subresource)
        return false;
    for (int i = 0; i < 3; i++)
        if (a->at[i] >= b->end[i] || b->at[i] >= a->end[i])
            return false;
    return true;
}

/* What is left of a part without a box that touches it; false: there is no room to keep that. */
static bool left_over(struct gpw_session *s, const struct gpw_mapped_part *part,
                      const struct gpw_mapped_part *box, struct gpw_mapped_part **out)
{
    struct gpw_mapped_part rest = *part;
    *out = NULL;
    for (int i = 0; i < 6; i++) {
        int axis = i / 2;
        struct gpw_mapped_part piece = rest;
        if (i % 2 == 0)
            rest.at[axis] = piece.end[axis] = box->at[axis] > rest.at[axis] ? box->at[axis]
                                                                            : rest.at[axis];
        else
            rest.end[axis] = piece.at[axis] = box->end[axis] < rest.end[axis] ? box->end[axis]
                                                                              : rest.end[axis];
        if (piece.at[axis] == piece.end[axis])
            continue;
        struct gpw_mapped_part *made = part_new(s, &piece);
        if (!made) {
            parts_drop(s, *out);
            return false;
        }
        made->next = *out;
        *out = made;
    }
    return true;
}

/* What no room is left to cut stays, and counts, as a whole. */
static void cut_out(struct gpw_session *s, const struct gpw_mapped_part *box,
                    struct gpw_mapped_part **gone)
{
    struct gpw_mapped_part *pieces, *all = NULL;
    for (struct gpw_mapped_part **at = &s->memory->mapped_parts; *at;) {
        struct gpw_mapped_part *p = *at;
        if (p->pending || p == box || !touch(p, box) || !left_over(s, p, box, &pieces)) {
            at = &p->next;
            continue;
        }
        part_move(at, gone);
        while (pieces)
            part_move(&pieces, &all);
    }
    while (all)
        part_move(&all, &s->memory->mapped_parts);
}

/* --- changes ------------------------------------------------------------------------------------ */

static void passed(struct gpw_session *s, void *arg, CUresult result)
{
    struct passing *p = arg;
    (void)result;
    s->memory->ordered_frees--;
    parts_drop(s, p->parts);
    free(p);
}

/* The youngest first; what is mapped counts before the driver is asked. */
static CUresult parts_begin(struct gpw_session *s, const struct gpw_array_change *c)
{
    struct gpw_mapped_part box;
    for (uint32_t i = 0; i < c->count; i++) {
        if (!box_of(&c->entries[i], c->whole[i], &box))
            return CUDA_ERROR_INVALID_VALUE;
        box.physical = c->physicals[i];
        box.pending = true;
        struct gpw_mapped_part *made = box.physical ? part_new(s, &box) : NULL;
        if (!made && box.physical)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (made)
            part_move(&made, &s->memory->mapped_parts);
    }
    return CUDA_SUCCESS;
}

static void parts_undo(struct gpw_session *s)
{
    struct gpw_mapped_part *gone = NULL;
    for (struct gpw_mapped_part **at = &s->memory->mapped_parts; *at;)
        if ((*at)->pending)
            part_move(at, &gone);
        else
            at = &(*at)->next;
    parts_drop(s, gone);
}

/* The one that was made first: the last of those that are pending. */
static struct gpw_mapped_part *oldest_pending(struct gpw_session *s)
{
    struct gpw_mapped_part *found = NULL;
    for (struct gpw_mapped_part *p = s->memory->mapped_parts; p; p = p->next)
        found = p->pending ? p : found;
    return found;
}

/* In the order of the list: an entry takes from those before it. */
static void parts_settle(struct gpw_session *s, const struct gpw_array_change *c,
                         struct gpw_mapped_part **gone)
{
    struct gpw_mapped_part box;
    for (uint32_t i = 0; i < c->count; i++) {
        struct gpw_mapped_part *made = c->physicals[i] ? oldest_pending(s) : NULL;
        box_of(&c->entries[i], c->whole[i], &box);
        if (made)
            made->pending = false;
        cut_out(s, made ? made : &box, gone);
    }
}

CUresult gpw_mapped_arrays_change(struct gpw_session *s, const struct gpw_array_change *c)
{
    struct gpw_after *after;
    struct passing *p = calloc(1, sizeof *p);
    CUresult r = p ? parts_begin(s, c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS)
        r = gpw_after_prepare(s, c->stream, passed, p, &after);
    if (r == CUDA_SUCCESS) {
        r = s->driver->cuMemMapArrayAsync(c->infos, c->count, c->stream);
        if (r == CUDA_SUCCESS)
            parts_settle(s, c, &p->parts);
        s->memory->ordered_frees++;
        r = gpw_after_submitted(s, after, c->stream, r);
        s->memory->ordered_frees -= r != CUDA_SUCCESS;
    }
    if (r != CUDA_SUCCESS) {
        parts_undo(s);
        free(p);
    }
    return r;
}

void gpw_mapped_arrays_forget(struct gpw_session *s)
{
    struct gpw_mapped_part *gone = NULL;
    for (struct gpw_mapped_part **at = &s->memory->mapped_parts; *at;)
        if (gpw_handle_birth(s, (*at)->resource) == 0)
            part_move(at, &gone);
        else
            at = &(*at)->next;
    if (gone) /* behind what ends them */
        gpw_when_none_blocked(s, parts_drop, gone);
}
