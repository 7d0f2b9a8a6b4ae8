/*
 * Floating-point formats as bit patterns: rounding into any of them, in any
 * mode, and what PTX says of NaN, subnormals and saturation.
 */
#ifndef SG_EXEC_FLOAT_H
#define SG_EXEC_FLOAT_H

#include "ptx_internal.h"

#include <stdint.h>
#include <string.h>

struct sg_format {
    int precision; /* with the hidden bit */
    int emin;      /* exponent of the least normal number */
    unsigned bits; /* width of the pattern */
    uint64_t sign, infinity, nan;
    uint64_t most; /* the pattern of the greatest finite number */
};

extern const struct sg_format sg_f16, sg_bf16, sg_tf32, sg_f32, sg_f64, sg_e4m3, sg_e5m2;

/* The format of one number of the type (of a half for the pairs); NULL if none. */
const struct sg_format *sg_format_of(unsigned type);

/* (-1)^negative * (m + less than 1 if `sticky`) * 2^e, rounded; `mode` enum
 * sg_rounding. `sticky` needs m of at least 62 bits or small against 2^-e. */
uint64_t sg_float_round(const struct sg_format *f, bool negative, uint64_t m, int e, bool sticky,
                        unsigned mode);
uint64_t sg_float_from_double(const struct sg_format *f, double v, unsigned mode);
/* Exact, but for f64 it is the identity and for others NaN stays some NaN. */
double sg_float_to_double(const struct sg_format *f, uint64_t v);

/* a * b + c of numbers with at most 24 bits each, to odd: rounding the result
 * once more to at most 51 bits gives what a single rounding would. */
double sg_odd_fma(double a, double b, double c);

static inline bool sg_is_nan(const struct sg_format *f, uint64_t v)
{
    return (v & (f->sign - 1)) > f->infinity;
}
/* What makes a NaN of f64 a quiet one. */
static const uint64_t sg_quiet64 = UINT64_C(1) << 51;
/* Subnormal numbers become zeros of their sign. */
static inline uint64_t sg_flush(const struct sg_format *f, uint64_t v)
{
    uint64_t magnitude = v & (f->sign - 1);
    return magnitude >> (f->precision - 1) ? v : v & f->sign;
}
/* Into [+0, 1]; NaN to +0. */
uint64_t sg_saturate(const struct sg_format *f, uint64_t v);
/* Negative numbers and -0 to +0, NaN to the canonical one. */
uint64_t sg_relu(const struct sg_format *f, uint64_t v);
/* PTX's min and max; mode as in ptx_op.h. */
uint64_t sg_float_extreme(const struct sg_format *f, uint64_t a, uint64_t b, bool min,
                          unsigned mode);
/* enum sg_compare on numbers. */
bool sg_float_compare(const struct sg_format *f, uint64_t a, uint64_t b, unsigned compare);
bool sg_integer_compare(uint64_t a, uint64_t b, bool is_signed, unsigned compare);

static inline float sg_as_float(uint64_t v)
{
    uint32_t bits = (uint32_t)v;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint64_t sg_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return f == f ? bits : 0x7fffffff;
}
static inline double sg_as_double(uint64_t v)
{
    double f;
    memcpy(&f, &v, sizeof f);
    return f;
}
static inline uint64_t sg_of_double(double f)
{
    uint64_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* <fenv.h>'s name of a mode, FE_TONEAREST for what it has none for. */
int sg_fenv_mode(unsigned mode);

#endif
