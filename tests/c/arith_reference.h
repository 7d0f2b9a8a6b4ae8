/*
 * What floating-point instructions should give: computed in a wider type, exactly, with the
 * neighbours of the result found among the format's own patterns by search. It shares no
 * rounding with what it checks.
 */
#ifndef ARITH_REFERENCE_H
#define ARITH_REFERENCE_H

#include "arith_check.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
__extension__ typedef __float128 quad;
#else
typedef long double quad; /* 113 bits on the other machines this builds for */
#endif

struct layout {
    unsigned type, fraction, field, bits;
    uint64_t nan;
};
static const struct layout f16 = {SG_T_F16, 10, 5, 16, 0x7fff};
static const struct layout bf16 = {SG_T_BF16, 7, 8, 16, 0x7fff};
static const struct layout tf32 = {SG_T_TF32, 10, 8, 19, 0};
static const struct layout f32 = {SG_T_F32, 23, 8, 32, 0x7fffffff};
static const struct layout f64 = {SG_T_F64, 52, 11, 64, 0xfff8000000000000};

static inline quad scaled(quad v, int e)
{
    for (; e >= 32; e -= 32)
        v *= 0x1p32;
    for (; e <= -32; e += 32)
        v *= 0x1p-32;
    for (; e > 0; e--)
        v *= 2;
    for (; e < 0; e++)
        v /= 2;
    return v;
}

/* A pattern without sign; the one of infinity is where the next number would be. */
static inline quad value(const struct layout *f, uint64_t pattern)
{
    uint64_t m = pattern & ((UINT64_C(1) << f->fraction) - 1);
    int field = (int)(pattern >> f->fraction);
    int bias = (1 << (f->field - 1)) - 1;
    if (field)
        m |= UINT64_C(1) << f->fraction;
    return scaled((quad)m, (field ? field : 1) - bias - (int)f->fraction);
}

static inline uint64_t infinity(const struct layout *f)
{
    return ((UINT64_C(1) << f->field) - 1) << f->fraction;
}

static inline uint64_t sign_of(const struct layout *f)
{
    return UINT64_C(1) << (f->bits - 1);
}

static inline quad signed_value(const struct layout *f, uint64_t v)
{
    return v & sign_of(f) ? -value(f, v & (sign_of(f) - 1)) : value(f, v & (sign_of(f) - 1));
}

/* v, not zero, rounded to the format. */
static inline uint64_t rounded(const struct layout *f, quad v, unsigned mode)
{
    bool negative = v < 0;
    quad a = negative ? -v : v;
    uint64_t low = 0, high = infinity(f) + 1;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (value(f, middle) <= a)
            low = middle;
        else
            high = middle;
    }
    bool up = false;
    if (low >= infinity(f)) {
        low = infinity(f) - 1;
        up = mode == SG_R_NEAREST || mode == SG_R_AWAY || mode == (negative ? SG_R_DOWN : SG_R_UP);
    } else if (value(f, low) != a) {
        quad below = a - value(f, low);
        quad above = value(f, low + 1) - a;
        up = mode == SG_R_NEAREST ? below > above || (below == above && (low & 1))
             : mode == SG_R_AWAY  ? below >= above
                                  : mode == (negative ? SG_R_DOWN : SG_R_UP);
    }
    return (negative ? sign_of(f) : 0) | (low + up);
}

static inline uint64_t single(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static inline uint64_t twice(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* Patterns of each width whose exponents are near enough for the wider type to
 * hold sums and products whole, made by a fixed generator, and the corners. */
static inline uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed ^ *seed >> 29;
}

static inline uint64_t near_one(const struct layout *f, uint64_t *seed, unsigned spread)
{
    uint64_t r = next_random(seed);
    uint64_t bias = (UINT64_C(1) << (f->field - 1)) - 1;
    uint64_t fraction = r & ((UINT64_C(1) << f->fraction) - 1);
    if (r >> 60 == 0) /* long runs of zeros and ones are where roundings tie */
        fraction &= ~UINT64_C(7) << (r >> 55 & 7);
    uint64_t field = bias + next_random(seed) % (2 * spread + 1) - spread;
    return (next_random(seed) >> 63 ? sign_of(f) : 0) | field << f->fraction | fraction;
}

static const uint8_t modes[] = {SG_R_NEAREST, SG_R_ZERO, SG_R_DOWN, SG_R_UP};

#endif
