/* Arithmetic on arrays of each data type. Each step rounds, as it does on a GPU; those of two bytes
 * and of one go through double, where one operation on them is exact. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec_float.h"
#include "ptx_op.h"
#include "softnccl.h"

/* type, elements, what wraps around where they would overflow, what divides */
#define SN_NATIVE(X)                                                                               \
    X(ncclInt8, int8_t, unsigned, int64_t)                                                         \
    X(ncclUint8, uint8_t, unsigned, uint64_t)                                                      \
    X(ncclInt32, int32_t, uint32_t, int64_t)                                                       \
    X(ncclUint32, uint32_t, uint32_t, uint64_t)                                                    \
    X(ncclInt64, int64_t, uint64_t, int64_t)                                                       \
    X(ncclUint64, uint64_t, uint64_t, uint64_t)                                                    \
    X(ncclFloat32, float, float, float)                                                            \
    X(ncclFloat64, double, double, double)

static const struct sg_format *format_of(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat16:
        return &sg_f16;
    case ncclBfloat16:
        return &sg_bf16;
    case ncclFloat8e4m3:
        return &sg_e4m3;
    default:
        return &sg_e5m2;
    }
}

size_t sn_type_size(ncclDataType_t type)
{
    static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

/* Addresses may be any. */
#define SN_ELEMENT(T) typedef T element __attribute__((aligned(1), may_alias))

#define SN_REDUCE(type, T, wrap, quotient)                                                         \
    static void reduce_##type(ncclRedOp_t op, void *to, const void *from, uint64_t count)          \
    {                                                                                              \
        SN_ELEMENT(T);                                                                             \
        element *a = to;                                                                           \
        const element *b = from;                                                                   \
        for (uint64_t i = 0; i < count; i++)                                                       \
            switch (op) {                                                                          \
            case ncclProd:                                                                         \
                a[i] = (T)((wrap)a[i] * (wrap)b[i]);                                               \
                break;                                                                             \
            case ncclMax:                                                                          \
                a[i] = a[i] < b[i] ? b[i] : a[i];                                                  \
                break;                                                                             \
            case ncclMin:                                                                          \
                a[i] = b[i] < a[i] ? b[i] : a[i];                                                  \
                break;                                                                             \
            default:                                                                               \
                a[i] = (T)((wrap)a[i] + (wrap)b[i]);                                               \
            }                                                                                      \
    }                                                                                              \
    static void scale_##type(void *out, const void *in, const void *factor, uint64_t count)        \
    {                                                                                              \
        SN_ELEMENT(T);                                                                             \
        element *a = out;                                                                          \
        const element *b = in, *by = factor;                                                       \
        for (uint64_t i = 0; i < count; i++)                                                       \
            a[i] = (T)((wrap)b[i] * (wrap) * by);                                                  \
    }                                                                                              \
    static void divide_##type(void *data, uint32_t by, uint64_t count)                             \
    {                                                                                              \
        SN_ELEMENT(T);                                                                             \
        element *a = data;                                                                         \
        for (uint64_t i = 0; i < count; i++)                                                       \
            a[i] = (T)((quotient)a[i] / (quotient)by);                                             \
    }
SN_NATIVE(SN_REDUCE)

/* ---- floats that C does not have ---- */
static double load(const struct sg_format *f, const void *data, uint64_t i)
{
    uint16_t bits = 0;
    memcpy(&bits, (const char *)data + i * (f->bits / 8), f->bits / 8);
    return sg_float_to_double(f, bits);
}

/* Those of one byte become their greatest number where they overflow, as CUDA's conversion does. */
static void store(const struct sg_format *f, void *data, uint64_t i, double value)
{
    uint16_t bits = (uint16_t)sg_float_from_double(f, value, SG_R_NEAREST);
    if (f->bits == 8 && isfinite(value) && (bits & (f->sign - 1)) == f->infinity)
        bits = (uint16_t)((bits & f->sign) | f->most);
    memcpy((char *)data + i * (f->bits / 8), &bits, f->bits / 8);
}

static double combine(ncclRedOp_t op, double a, double b)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return a < b ? b : a;
    case ncclMin:
        return b < a ? b : a;
    default:
        return a + b;
    }
}

void sn_type_reduce(ncclDataType_t type, ncclRedOp_t op, void *to, const void *from, uint64_t count)
{
    switch (type) {
#define SN_CASE(name, T, wrap, quotient)                                                           \
    case name:                                                                                     \
        reduce_##name(op, to, from, count);                                                        \
        return;
        SN_NATIVE(SN_CASE)
#undef SN_CASE
    default:
        for (uint64_t i = 0; i < count; i++)
            store(format_of(type), to, i,
                  combine(op, load(format_of(type), to, i), load(format_of(type), from, i)));
    }
}

void sn_type_scale(ncclDataType_t type, void *out, const void *in, const void *factor,
                   uint64_t count)
{
    switch (type) {
#define SN_CASE(name, T, wrap, quotient)                                                           \
    case name:                                                                                     \
        scale_##name(out, in, factor, count);                                                      \
        return;
        SN_NATIVE(SN_CASE)
#undef SN_CASE
    default:
        for (uint64_t i = 0; i < count; i++)
            store(format_of(type), out, i,
                  load(format_of(type), in, i) * load(format_of(type), factor, 0));
    }
}

void sn_type_divide(ncclDataType_t type, void *data, uint32_t by, uint64_t count)
{
    switch (type) {
#define SN_CASE(name, T, wrap, quotient)                                                           \
    case name:                                                                                     \
        divide_##name(data, by, count);                                                            \
        return;
        SN_NATIVE(SN_CASE)
#undef SN_CASE
    default:
        for (uint64_t i = 0; i < count; i++)
            store(format_of(type), data, i, load(format_of(type), data, i) / by);
    }
}
