/*
 * SHA-256 (FIPS 180-4), of which images' names are made (image_name.h). Whole in this
 * header, so that neither side needs a library for it.
 */
#ifndef GP_SHA256_H
#define GP_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct gp_sha256 {
    uint32_t state[8];
    uint64_t bytes; /* taken so far */
    unsigned char block[64];
};

static inline void gp_sha256_start(struct gp_sha256 *h)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(h->state, first, sizeof first);
    h->bytes = 0;
}

static inline uint32_t gp_sha256_turn(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static const uint32_t gp_sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* Words 16…63 of the schedule, from the 16 of the block. */
static inline void gp_sha256_schedule(uint32_t w[64], const unsigned char *p)
{
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (gp_sha256_turn(a, 7) ^ gp_sha256_turn(a, 18) ^ a >> 3) +
               (gp_sha256_turn(b, 17) ^ gp_sha256_turn(b, 19) ^ b >> 10);
    }
}

static inline void gp_sha256_blocks_plain(uint32_t state[8], const unsigned char *p, size_t count)
{
    for (; count > 0; count--, p += 64) {
        uint32_t w[64];
        gp_sha256_schedule(w, p);
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int i = 0; i < 64; i++) {
            uint32_t t1 = h + gp_sha256_k[i] + w[i] + ((e & f) ^ (~e & g)) +
                          (gp_sha256_turn(e, 6) ^ gp_sha256_turn(e, 11) ^ gp_sha256_turn(e, 25));
            uint32_t t2 = (gp_sha256_turn(a, 2) ^ gp_sha256_turn(a, 13) ^ gp_sha256_turn(a, 22)) +
                          ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1;
            d = c, c = b, b = a, a = t1 + t2;
        }
        const uint32_t add[8] = {a, b, c, d, e, f, g, h};
        for (int i = 0; i < 8; i++)
            state[i] += add[i];
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

#define GP_SHA256_TARGET __attribute__((target("sha,sse4.1,ssse3")))

/* One message in the processor's registers: its state as two vectors {a b e f} and {c d g h}, highest
 * lane first, and the last 16 words of its schedule. */
struct gp_sha256_lane {
    __m128i abef, cdgh, w[4];
};

GP_SHA256_TARGET static inline struct gp_sha256_lane gp_sha256_lane_load(const uint32_t state[8])
{
    struct gp_sha256_lane l;
    memset(&l, 0, sizeof l);
    l.abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    l.cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    return l;
}

GP_SHA256_TARGET static inline void gp_sha256_lane_store(const struct gp_sha256_lane *l,
                                                         uint32_t state[8])
{
    uint32_t x[4], y[4];
    _mm_storeu_si128((__m128i *)(void *)x, l->abef);
    _mm_storeu_si128((__m128i *)(void *)y, l->cdgh);
    const uint32_t now[8] = {x[3], x[2], y[3], y[2], x[1], x[0], y[1], y[0]};
    memcpy(state, now, sizeof now);
}

/* Rounds 4 i to 4 i + 3 of the block at `p`. */
GP_SHA256_TARGET static inline __attribute__((always_inline)) void
gp_sha256_lane_step(struct gp_sha256_lane *l, const unsigned char *p, int i)
{
    __m128i m;
    if (i < 4) {
        m = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)),
                             _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
    } else {
        __m128i last = l->w[(i + 3) & 3];
        m = _mm_sha256msg1_epu32(l->w[i & 3], l->w[(i + 1) & 3]);
        m = _mm_add_epi32(m, _mm_alignr_epi8(last, l->w[(i + 2) & 3], 4));
        m = _mm_sha256msg2_epu32(m, last);
    }
    l->w[i & 3] = m;
    m = _mm_add_epi32(m, _mm_loadu_si128((const __m128i *)(const void *)(gp_sha256_k + 4 * i)));
    l->cdgh = _mm_sha256rnds2_epu32(l->cdgh, l->abef, m);
    l->abef = _mm_sha256rnds2_epu32(l->abef, l->cdgh, _mm_shuffle_epi32(m, 0x0E));
}

GP_SHA256_TARGET static inline void gp_sha256_blocks_native(uint32_t state[8],
                                                            const unsigned char *p, size_t count)
{
    struct gp_sha256_lane l = gp_sha256_lane_load(state);
    for (; count > 0; count--, p += 64) {
        const __m128i abef = l.abef, cdgh = l.cdgh;
/* else w is indexed in memory, which takes a third more time */
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            gp_sha256_lane_step(&l, p, i);
        l.abef = _mm_add_epi32(l.abef, abef);
        l.cdgh = _mm_add_epi32(l.cdgh, cdgh);
    }
    gp_sha256_lane_store(&l, state);
}

/* Two messages at once: each round waits for the one before, so one alone leaves the unit idle for
 * half of the time. */
GP_SHA256_TARGET static inline void gp_sha256_two_native(uint32_t one[8], const unsigned char *p,
                                                         uint32_t other[8], const unsigned char *q,
                                                         size_t count)
{
    struct gp_sha256_lane l = gp_sha256_lane_load(one), m = gp_sha256_lane_load(other);
    for (; count > 0; count--, p += 64, q += 64) {
        const __m128i abef = l.abef, cdgh = l.cdgh, abef_m = m.abef, cdgh_m = m.cdgh;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            gp_sha256_lane_step(&l, p, i);
            gp_sha256_lane_step(&m, q, i);
        }
        l.abef = _mm_add_epi32(l.abef, abef);
        l.cdgh = _mm_add_epi32(l.cdgh, cdgh);
        m.abef = _mm_add_epi32(m.abef, abef_m);
        m.cdgh = _mm_add_epi32(m.cdgh, cdgh_m);
    }
    gp_sha256_lane_store(&l, one);
    gp_sha256_lane_store(&m, other);
}

#include <cpuid.h>
static inline int gp_sha256_native(void)
{
    static int known; /* 0 not asked yet, 1 no, 2 yes */
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (now == 0) {
        unsigned a, b, c, d, b7 = 0;
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
            b7 = b;
        unsigned c1 = __get_cpuid(1, &a, &b, &c, &d) ? c : 0;
        /* SHA; SSE4.1 and SSSE3 */
        now = (b7 & 1u << 29) && (c1 & 1u << 19) && (c1 & 1u << 9) ? 2 : 1;
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return now == 2;
}
#endif

static inline void gp_sha256_blocks(uint32_t state[8], const unsigned char *p, size_t count)
{
#if defined(__x86_64__)
    if (gp_sha256_native()) {
        gp_sha256_blocks_native(state, p, count);
        return;
    }
#endif
    gp_sha256_blocks_plain(state, p, count);
}

/* Of two messages of which the same number of bytes was taken, a multiple of 64: `count` blocks. */
static inline void gp_sha256_add_two(struct gp_sha256 *one, const unsigned char *p,
                                     struct gp_sha256 *other, const unsigned char *q, size_t count)
{
    one->bytes += 64 * (uint64_t)count;
    other->bytes += 64 * (uint64_t)count;
#if defined(__x86_64__)
    if (gp_sha256_native()) {
        gp_sha256_two_native(one->state, p, other->state, q, count);
        return;
    }
#endif
    gp_sha256_blocks_plain(one->state, p, count);
    gp_sha256_blocks_plain(other->state, q, count);
}

static inline void gp_sha256_add(struct gp_sha256 *h, const void *data, size_t size)
{
    const unsigned char *p = data;
    size_t held = (size_t)(h->bytes % sizeof h->block);
    if (size == 0)
        return;
    h->bytes += size;
    if (held) {
        size_t take = sizeof h->block - held < size ? sizeof h->block - held : size;
        memcpy(h->block + held, p, take);
        p += take;
        size -= take;
        if (held + take < sizeof h->block)
            return;
        gp_sha256_blocks(h->state, h->block, 1);
    }
    gp_sha256_blocks(h->state, p, size / sizeof h->block);
    memcpy(h->block, p + size / 64 * 64, size % 64);
}

static inline void gp_sha256_finish(struct gp_sha256 *h, unsigned char hash[32])
{
    static const unsigned char padding[64] = {0x80};
    unsigned char bits[8];
    uint64_t n = h->bytes * 8;
    for (int i = 0; i < 8; i++)
        bits[i] = (unsigned char)(n >> (56 - 8 * i));
    size_t held = (size_t)(h->bytes % 64);
    gp_sha256_add(h, padding, held < 56 ? 56 - held : 120 - held);
    gp_sha256_add(h, bits, sizeof bits);
    for (int i = 0; i < 32; i++)
        hash[i] = (unsigned char)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

static inline void gp_sha256(const void *data, size_t size, unsigned char hash[32])
{
    struct gp_sha256 h;
    gp_sha256_start(&h);
    gp_sha256_add(&h, data, size);
    gp_sha256_finish(&h, hash);
}

#endif
