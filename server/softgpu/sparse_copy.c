/* Copies of arrays whose memory is mapped later: run by run, as their pages lie. */
#include "array.h"

static bool live(const struct sg_copy_tiles *end, const struct gp_span_box *box)
{
    const struct gp_span_end at = {.x = end->x, .y = end->y, .z = end->z};
    return !end->array || (sg_handle_lives(end->array, SG_ARRAY) && end->array->backing &&
                           gp_array_holds(&end->array->extent, &at, box));
}

/* Its context may end, and the array with it, before a graph that copies it; the next one at its
 * address may be smaller. */
bool sg_copy_tiles_live(const struct sg_copy *copy)
{
    SG_LOCKED;
    const struct gp_span_box box = {copy->width, copy->height, copy->depth};
    return live(&copy->src_tiles, &box) && live(&copy->dst_tiles, &box);
}

/* Of one end: the byte `x` of a row of the box, and how many lie behind it. */
static char *run_at(const struct sg_copy_tiles *end, char *memory, size_t x, size_t y, size_t z,
                    size_t *run)
{
    if (!end->array)
        return memory + x;
    return (char *)sg_tiles_at(&end->array->tiles, end->x + x, end->y + y, end->z + z, run);
}

static void copy_row(const struct sg_copy *copy, size_t y, size_t z)
{
    const char *base = copy->staged ? copy->staged : copy->src;
    char *to = copy->dst_tiles.array ? NULL : copy->dst + z * copy->dst_slice + y * copy->dst_pitch;
    char *from = copy->src_tiles.array
                     ? NULL
                     : (char *)(uintptr_t)base + z * copy->src_slice + y * copy->src_pitch;
    for (size_t x = 0, run; x < copy->width; x += run) {
        run = copy->width - x;
        const char *source = run_at(&copy->src_tiles, from, x, y, z, &run);
        char *target = run_at(&copy->dst_tiles, to, x, y, z, &run);
        if (target && source)
            memmove(target, source, run);
        else if (target)
            memset(target, 0, run);
    }
}

void sg_copy_run_tiles(const struct sg_copy *copy)
{
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            copy_row(copy, y, z);
}
