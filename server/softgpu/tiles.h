/*
 * Where the bytes of an array without memory of its own are: in pages that are mapped one by one
 * (sparse.c). What is not mapped reads as zeros, and is not written.
 */
#ifndef SG_TILES_H
#define SG_TILES_H

#include <stddef.h>
#include <stdint.h>

struct sg_physical;

/* NULL where nothing is mapped. */
struct sg_page {
    unsigned char *at;
    struct sg_physical *physical; /* referenced */
};

/* One level of an array. Its pages are tiles, rows of them, layers of rows; or its bytes lie row
 * behind row in pages that it shares with other levels. */
struct sg_tiles {
    const struct sg_page *pages;      /* the first that it may have bytes in */
    uint32_t row, height, depth;      /* of a tile; row: in bytes, 0 if there are none */
    uint32_t across, down;            /* tiles in a row, and rows of them */
    uint64_t start, pitch, slice, of; /* else: its first byte, its rows and slices, a page */
};

/* NULL: nothing is mapped there. The place lies in the level. `*run`: how many bytes behind each
 * other are wanted, and are there. */
static inline unsigned char *sg_tiles_at(const struct sg_tiles *t, uint64_t x, uint64_t y,
                                         uint64_t z, size_t *run)
{
    uint64_t page, byte, left;
    if (t->row) {
        page = (z / t->depth * t->down + y / t->height) * t->across + x / t->row;
        byte = (z % t->depth * t->height + y % t->height) * t->row + x % t->row;
        left = t->row - x % t->row;
    } else {
        byte = t->start + z * t->slice + y * t->pitch + x;
        page = byte / t->of;
        byte %= t->of;
        left = t->of - byte;
    }
    if (*run > left)
        *run = left;
    unsigned char *at = t->pages[page].at;
    return at ? at + byte : NULL;
}

#endif
