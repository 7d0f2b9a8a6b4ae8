/*
 * Memory that another side writes meanwhile, as it was at one moment: the host's pages that a
 * client looks through for what is new, and the GPU's that a worker does.
 */
#ifndef GP_LOOK_H
#define GP_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GP_LOOK_STEP 32u /* bytes: a block is a whole number of these */
#define GP_LOOK_MOST 16u /* blocks */
/* What gp_mapped_look says beside the blocks that have changed: they are not of one moment. */
#define GP_LOOK_MOVES (UINT64_C(1) << 63)

struct gp_look {
    uint32_t count;
    const void *at[GP_LOOK_MOST];
    uint32_t sizes[GP_LOOK_MOST];
};

/* All of it, one block behind the other. What was written first is there if what was written later
 * is. False: it was written all the time, and what is in `data` is of several moments; within a
 * block, what lies behind is older. One pair of words may be written all the time. */
bool gp_look_take(const struct gp_look *l, char *data);

/*
 * A number that says whether two sides have the same bytes. It is quick, and no secret: who makes
 * two pages with the same one keeps only itself from what it wrote. Every step can be undone, so
 * one word that differs always gives another number.
 */
static inline uint64_t gp_look_mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return h << 29 | h >> 35;
}

static inline uint64_t gp_look_digest(const void *data, size_t bytes)
{
    const char *from = data;
    uint64_t lane[GP_LOOK_STEP / 8] = {1, 2, 3, 4}, word[GP_LOOK_STEP / 8], h = bytes;
    for (size_t at = 0; at + GP_LOOK_STEP <= bytes; at += GP_LOOK_STEP) {
        memcpy(word, from + at, sizeof word);
        for (unsigned i = 0; i < GP_LOOK_STEP / 8; i++)
            lane[i] = gp_look_mix(lane[i], word[i]);
    }
    for (unsigned i = 0; i < GP_LOOK_STEP / 8; i++)
        h = gp_look_mix(h, lane[i]);
    return h;
}

#endif
