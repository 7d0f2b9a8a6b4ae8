#include "image_name.h"

#include <stdlib.h>
#include <string.h>

#include "sha256.h"

/* What is left of a part from some byte on; of no part: nothing. */
struct place {
    const struct gp_image_part *part, *end;
    uint64_t at; /* in the part */
};

static struct place place_of(const struct gp_image_naming *n, uint64_t at)
{
    struct place p = {.part = n->parts, .end = n->parts + n->part_count, .at = at};
    while (p.part < p.end && p.at >= p.part->size)
        p.at -= p.part++->size;
    return p;
}

static uint64_t leaf_count(const struct gp_image_naming *n)
{
    return n->total / GP_IMAGE_LEAF + (n->total % GP_IMAGE_LEAF != 0);
}

static void hash_leaf(const struct gp_image_naming *n, uint64_t leaf, unsigned char *hash)
{
    uint64_t begin = leaf * GP_IMAGE_LEAF, left = n->total - begin;
    struct place p = place_of(n, begin);
    struct gp_sha256 h;
    gp_sha256_start(&h);
    if (left > GP_IMAGE_LEAF)
        left = GP_IMAGE_LEAF;
    for (; left > 0 && p.part < p.end; p.part++, p.at = 0) {
        uint64_t take = p.part->size - p.at < left ? p.part->size - p.at : left;
        gp_sha256_add(&h, (const unsigned char *)p.part->data + p.at, (size_t)take);
        left -= take;
    }
    gp_sha256_finish(&h, hash);
}

/* Two whole leaves in one part, else false. */
static bool hash_two(const struct gp_image_naming *n, uint64_t leaf,
                     unsigned char hashes[2][GP_IMAGE_NAME_BYTES])
{
    struct place p = place_of(n, leaf * GP_IMAGE_LEAF);
    struct gp_sha256 one, other;
    if (p.part == p.end || p.part->size - p.at < 2 * (uint64_t)GP_IMAGE_LEAF)
        return false;
    const unsigned char *from = (const unsigned char *)p.part->data + p.at;
    gp_sha256_start(&one);
    gp_sha256_start(&other);
    gp_sha256_add_two(&one, from, &other, from + GP_IMAGE_LEAF, GP_IMAGE_LEAF / 64);
    gp_sha256_finish(&one, hashes[0]);
    gp_sha256_finish(&other, hashes[1]);
    return true;
}

/* The leaf and the one behind it, where there is one; how many. */
static unsigned hash_some(const struct gp_image_naming *n, uint64_t leaf,
                          unsigned char hashes[2][GP_IMAGE_NAME_BYTES])
{
    unsigned some = leaf_count(n) - leaf < 2 ? 1 : 2;
    if (some == 2 && hash_two(n, leaf, hashes))
        return 2;
    for (unsigned i = 0; i < some; i++)
        hash_leaf(n, leaf + i, hashes[i]);
    return some;
}

static const unsigned char what[16] = "gpupool image 1";

static void start(struct gp_sha256 *h, uint64_t total)
{
    unsigned char length[8];
    for (unsigned i = 0; i < sizeof length; i++)
        length[i] = (unsigned char)(total >> (8 * i));
    gp_sha256_start(h);
    gp_sha256_add(h, what, sizeof what);
    gp_sha256_add(h, length, sizeof length);
}

void gp_image_name(const struct gp_image_part *parts, uint32_t part_count, uint64_t total,
                   unsigned char name[GP_IMAGE_NAME_BYTES])
{
    const struct gp_image_naming n = {.parts = parts, .part_count = part_count, .total = total};
    unsigned char hashes[2][GP_IMAGE_NAME_BYTES];
    struct gp_sha256 h;
    start(&h, total);
    for (uint64_t leaf = 0, count = leaf_count(&n); leaf < count; leaf += 2)
        gp_sha256_add(&h, hashes, hash_some(&n, leaf, hashes) * sizeof hashes[0]);
    gp_sha256_finish(&h, name);
}

void gp_image_name_of(const void *data, uint64_t size, unsigned char name[GP_IMAGE_NAME_BYTES])
{
    const struct gp_image_part part = {.data = data, .size = size};
    gp_image_name(&part, 1, size, name);
}

bool gp_image_naming_begin(struct gp_image_naming *n, const struct gp_image_part *parts,
                           uint32_t part_count, uint64_t total)
{
    *n = (struct gp_image_naming){.parts = parts, .part_count = part_count, .total = total};
    n->leaves = malloc((size_t)(leaf_count(n) + 1) * sizeof n->leaves[0]);
    return n->leaves != NULL;
}

void gp_image_naming_work(struct gp_image_naming *n)
{
    uint64_t leaf, count = leaf_count(n);
    while ((leaf = __atomic_fetch_add(&n->next, 2, __ATOMIC_RELAXED)) < count)
        hash_some(n, leaf, &n->leaves[leaf]);
}

void gp_image_naming_end(struct gp_image_naming *n, unsigned char name[GP_IMAGE_NAME_BYTES])
{
    struct gp_sha256 h;
    start(&h, n->total);
    gp_sha256_add(&h, n->leaves, (size_t)leaf_count(n) * sizeof n->leaves[0]);
    gp_sha256_finish(&h, name);
    free(n->leaves);
    n->leaves = NULL;
}

void gp_image_name_before(const struct gp_image_part *parts, uint32_t part_count,
                          unsigned char name[GP_IMAGE_NAME_BYTES])
{
    struct gp_sha256 h;
    gp_sha256_start(&h);
    for (uint32_t i = 0; i < part_count; i++)
        gp_sha256_add(&h, parts[i].data, parts[i].size);
    gp_sha256_finish(&h, name);
}

bool gp_image_is_named(const void *data, uint64_t size,
                       const unsigned char name[GP_IMAGE_NAME_BYTES])
{
    const struct gp_image_part whole = {.data = data, .size = size};
    unsigned char real[GP_IMAGE_NAME_BYTES];
    gp_image_name(&whole, 1, size, real);
    if (memcmp(real, name, sizeof real) == 0)
        return true;
    if (size >= sizeof what && memcmp(data, what, sizeof what) == 0)
        return false;
    gp_image_name_before(&whole, 1, real);
    return memcmp(real, name, sizeof real) == 0;
}
