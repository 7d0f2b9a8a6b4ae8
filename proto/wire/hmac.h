/* HMAC-SHA-256 (RFC 2104) with keys of at most 64 bytes, and a comparison of what it gives. */
#ifndef GP_HMAC_H
#define GP_HMAC_H

#include <stdbool.h>

#include "wire/sha256.h"

/* Of the concatenation of two texts. */
static inline void gp_hmac(const void *key, size_t key_size, const void *a, size_t a_size,
                           const void *b, size_t b_size, unsigned char mac[32])
{
    unsigned char inner[64], outer[64], hash[32];
    struct gp_sha256 h;
    memset(inner, 0x36, sizeof inner);
    memset(outer, 0x5c, sizeof outer);
    for (size_t i = 0; i < key_size && i < sizeof inner; i++) {
        inner[i] ^= ((const unsigned char *)key)[i];
        outer[i] ^= ((const unsigned char *)key)[i];
    }
    gp_sha256_start(&h);
    gp_sha256_add(&h, inner, sizeof inner);
    gp_sha256_add(&h, a, a_size);
    gp_sha256_add(&h, b, b_size);
    gp_sha256_finish(&h, hash);
    gp_sha256_start(&h);
    gp_sha256_add(&h, outer, sizeof outer);
    gp_sha256_add(&h, hash, sizeof hash);
    gp_sha256_finish(&h, mac);
}

/* Equal without telling by its time how much of it is. */
static inline bool gp_bytes_same(const void *a, const void *b, size_t size)
{
    unsigned difference = 0;
    for (size_t i = 0; i < size; i++)
        difference |= ((const unsigned char *)a)[i] ^ ((const unsigned char *)b)[i];
    return difference == 0;
}

#endif
