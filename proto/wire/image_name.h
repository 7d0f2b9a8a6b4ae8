/*
 * The name of an image, by which it is asked for, sent and kept: SHA-256 over
 *   "gpupool image 1" and a NUL, the image's length in bytes (u64), and the SHA-256 of each of its
 *   leaves in their order: GP_IMAGE_LEAF bytes each, the last one as many as are left.
 * Two images of one name are a collision of SHA-256 itself: what the length and the leaves' hashes
 * are hashed to says both, and the length says how long each leaf is.
 *
 * Leaves can be hashed side by side: by several threads, and two at a time by each of them, which
 * takes hardly longer than one (sha256.h).
 */
#ifndef GP_IMAGE_NAME_H
#define GP_IMAGE_NAME_H

#include <stdbool.h>
#include <stdint.h>

#define GP_IMAGE_NAME_BYTES 32
#define GP_IMAGE_LEAF (256u << 10)

/* The bytes of an image are those of its parts, one behind the other. */
struct gp_image_part {
    const void *data;
    uint64_t size;
};

struct gp_image_naming {
    const struct gp_image_part *parts;
    uint32_t part_count;
    uint64_t total;
    uint64_t next; /* the first leaf that nobody has begun; atomic */
    unsigned char (*leaves)[GP_IMAGE_NAME_BYTES];
};

/* The parts are `total` bytes (GP_IMAGE_BYTES_MAX at most), and stay as they are. Needs no memory
 * but the stack's. */
void gp_image_name(const struct gp_image_part *parts, uint32_t part_count, uint64_t total,
                   unsigned char name[GP_IMAGE_NAME_BYTES]);
void gp_image_name_of(const void *data, uint64_t size, unsigned char name[GP_IMAGE_NAME_BYTES]);
/* As releases before the first with gp_topology named it: SHA-256 over the image alone. */
void gp_image_name_before(const struct gp_image_part *parts, uint32_t part_count,
                          unsigned char name[GP_IMAGE_NAME_BYTES]);
/* Whether an image is named so, now or before. What begins as that of which names are made has none
 * of before, which could be another image's; nor is it an image. */
bool gp_image_is_named(const void *data, uint64_t size,
                       const unsigned char name[GP_IMAGE_NAME_BYTES]);

/* gp_image_name by several threads. False: there is no memory for the leaves' hashes. */
bool gp_image_naming_begin(struct gp_image_naming *n, const struct gp_image_part *parts,
                           uint32_t part_count, uint64_t total);
/* Hash what nobody has begun until nothing is left: for any number of threads. */
void gp_image_naming_work(struct gp_image_naming *n);
/* Behind gp_image_naming_work of every thread, of one at least. */
void gp_image_naming_end(struct gp_image_naming *n, unsigned char name[GP_IMAGE_NAME_BYTES]);

#endif
