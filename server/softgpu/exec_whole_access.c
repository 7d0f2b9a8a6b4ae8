/*
 * Loads and stores of whole warps: one check for all lanes, then a loop without any. Lanes that
 * reach into more than one allocation, or outside, or at addresses that are not aligned, are the
 * ordinary handlers' business, and so are accesses that order others, or that others may race
 * with: those must not be torn.
 */
#include "exec_whole.h"

#include <string.h>

/* false: some address is no multiple of `align`. */
static bool read_addresses(struct sg_warp *w, const struct sg_insn *in, const struct sg_operand *x,
                           uint32_t mask, uint32_t align, struct sg_reach *r)
{
    uint64_t room[SG_LANES];
    const uint64_t *base = sg_whole_operand(w, x, room);
    uint64_t keep = x->kind == SG_O_REGISTER && x->width == 4 ? UINT32_MAX : UINT64_MAX;
    uint64_t offset = (uint64_t)in->offset;
    uint64_t first = (base[__builtin_ctz(mask)] + offset) & keep;
    uint64_t low = first, high = first, bits = first;
    uint64_t *address = r->address;
    for (unsigned l = 0; l < SG_LANES; l++) {
        uint64_t a = mask >> l & 1 ? (base[l] + offset) & keep : first;
        address[l] = a;
        low = a < low ? a : low;
        high = a > high ? a : high;
        bits |= a;
    }
    r->low = low;
    r->high = high;
    return (bits & (align - 1)) == 0;
}

/* [low, end) of a window that begins at `from`, `bytes` of it from `first` on. */
static inline bool inside(uint64_t low, uint64_t end, uint64_t first, uint64_t bytes)
{
    return low >= first && end - first <= bytes;
}

static bool find_global(struct sg_warp *w, struct sg_reach *r, uint32_t size)
{
    const struct sg_run *run = w->block->run;
    for (unsigned i = 0; i < SG_EXTENTS; i++) {
        const struct sg_extent *e = &run->extents[i];
        if (r->low < e->begin || r->high >= e->end || size > e->end - r->high)
            continue;
        r->host = (const unsigned char *)((uintptr_t)e->host - e->begin);
        return true;
    }
    return false;
}

static bool find(struct sg_warp *w, unsigned space, struct sg_reach *r, uint32_t size)
{
    uint64_t window = r->low & ~SG_OFFSET_MASK, own = 0;
    if (window != (r->high & ~SG_OFFSET_MASK))
        return false;
    uint64_t low = r->low & SG_OFFSET_MASK, end = (r->high & SG_OFFSET_MASK) + size;
    const struct sg_run *run = w->block->run;
    uint64_t of_space = space == SG_S_SHARED  ? SG_WINDOW_SHARED
                        : space == SG_S_LOCAL ? SG_WINDOW_LOCAL
                        : space == SG_S_PARAM ? SG_WINDOW_PARAM
                                              : window;
    const unsigned char *host;
    r->stride = 0;
    r->shared = of_space == SG_WINDOW_SHARED;
    if (window && window != of_space)
        return false;
    switch (of_space) {
    case 0:
        return find_global(w, r, size);
    case SG_WINDOW_SHARED:
        if (!inside(low, end, 0, run->shared_bytes))
            return false;
        host = w->block->shared;
        break;
    case SG_WINDOW_PARAM:
        if (!inside(low, end, 0, run->function->info.parameter_bytes))
            return false;
        host = run->parameters;
        break;
    case SG_WINDOW_LOCAL:
        own = w->frame->base;
        if (!inside(low, end, own, w->frame->stride))
            return false;
        host = w->frame->local;
        r->stride = w->frame->stride;
        break;
    default:
        return false;
    }
    r->host = (const unsigned char *)((uintptr_t)host - own - window);
    return true;
}

bool sg_whole_reach(struct sg_warp *w, const struct sg_insn *in, const struct sg_operand *x,
                    uint32_t mask, uint32_t size, struct sg_reach *r)
{
    return read_addresses(w, in, x, mask, size, r) && find(w, sg_space_of(in, x), r, size);
}

/* The lanes' elements lie one behind the other. */
static bool is_dense(const struct sg_reach *r, uint32_t mask, uint32_t size)
{
    if (mask != SG_ALL_LANES || r->stride || r->high - r->low != (uint64_t)size * (SG_LANES - 1))
        return false;
    uint64_t differs = 0;
    for (unsigned l = 0; l < SG_LANES; l++)
        differs |= r->address[l] ^ (r->low + (uint64_t)l * size);
    return differs == 0;
}

/* How the lanes lie to each other. */
enum shape { ONE, DENSE, SPREAD };

static enum shape shape_of(const struct sg_reach *r, uint32_t mask, uint32_t size)
{
    if (r->low == r->high && !r->stride)
        return ONE;
    return is_dense(r, mask, size) ? DENSE : SPREAD;
}

/* Element `at` bytes behind each lane's address, as T, to d; what `keep` has not is cut off. */
#define LOAD(T)                                                                                    \
    static void load_##T(const struct sg_reach *r, enum shape shape, size_t at, uint64_t keep,     \
                         uint64_t *d)                                                              \
    {                                                                                              \
        const unsigned char *p = sg_whole_host(r, 0) + at;                                         \
        T v;                                                                                       \
        if (shape == ONE) {                                                                        \
            memcpy(&v, p, sizeof(v));                                                              \
            uint64_t value = (uint64_t)v & keep;                                                   \
            for (unsigned l = 0; l < SG_LANES; l++)                                                \
                d[l] = value;                                                                      \
        } else if (shape == DENSE) {                                                               \
            const T *elements = (const T *)(const void *)p;                                        \
            SG_LANEWISE                                                                            \
            for (unsigned l = 0; l < SG_LANES; l++)                                                \
                d[l] = (uint64_t)elements[l] & keep;                                               \
        } else {                                                                                   \
            for (unsigned l = 0; l < SG_LANES; l++) {                                              \
                memcpy(&v, sg_whole_host(r, l) + at, sizeof(v));                                   \
                d[l] = (uint64_t)v & keep;                                                         \
            }                                                                                      \
        }                                                                                          \
    }
LOAD(uint8_t)
LOAD(int8_t)
LOAD(uint16_t)
LOAD(int16_t)
LOAD(uint32_t)
LOAD(int32_t)
LOAD(uint64_t)

static void load_one(const struct sg_insn *in, const struct sg_reach *r, enum shape shape,
                     size_t at, uint64_t keep, uint64_t *d)
{
    switch (in->type) {
    case SG_T_S8:
        load_int8_t(r, shape, at, keep, d);
        return;
    case SG_T_S16:
        load_int16_t(r, shape, at, keep, d);
        return;
    case SG_T_S32:
        load_int32_t(r, shape, at, keep, d);
        return;
    default:
        break;
    }
    switch (sg_type_size(in->type)) {
    case 1:
        load_uint8_t(r, shape, at, UINT64_MAX, d);
        return;
    case 2:
        load_uint16_t(r, shape, at, UINT64_MAX, d);
        return;
    case 4:
        load_uint32_t(r, shape, at, UINT64_MAX, d);
        return;
    default:
        load_uint64_t(r, shape, at, UINT64_MAX, d);
        return;
    }
}

static SG_HANDLER(whole_load)
{
    const struct sg_operand *a = &in->x[in->vector];
    uint32_t size = sg_type_size(in->type), total = size * in->vector;
    struct sg_reach r;
    if (!sg_whole_reach(w, in, a, mask, total, &r))
        return sg_do_load(w, in, mask);
    enum shape shape = shape_of(&r, mask, total);
    if (shape == DENSE && in->vector > 1)
        shape = SPREAD;
    for (unsigned i = 0; i < in->vector; i++) {
        const struct sg_operand *x = &in->x[i];
        if (x->kind != SG_O_REGISTER)
            continue;
        uint64_t keep = x->width >= 8 ? UINT64_MAX : ((uint64_t)1 << (8 * x->width)) - 1;
        uint64_t *d = sg_register(w, x), room[SG_LANES];
        load_one(in, &r, shape, (size_t)i * size, keep, mask == SG_ALL_LANES ? d : room);
        if (mask != SG_ALL_LANES)
            sg_whole_write(d, room, mask);
    }
    return SG_NEXT;
}

/* As LOAD; of lanes that write to one place the last one is seen. */
#define STORE(T)                                                                                   \
    static void store_##T(const struct sg_reach *r, enum shape shape, size_t at, uint32_t mask,    \
                          const uint64_t *values)                                                  \
    {                                                                                              \
        if (shape == DENSE) {                                                                      \
            T *elements = (T *)(void *)(sg_whole_host(r, 0) + at);                                 \
            SG_LANEWISE                                                                            \
            for (unsigned l = 0; l < SG_LANES; l++)                                                \
                elements[l] = (T)values[l];                                                        \
            return;                                                                                \
        }                                                                                          \
        SG_FOR_LANES(l, mask)                                                                      \
        {                                                                                          \
            T v = (T)values[l];                                                                    \
            memcpy(sg_whole_host(r, l) + at, &v, sizeof(v));                                       \
        }                                                                                          \
    }
STORE(uint8_t)
STORE(uint16_t)
STORE(uint32_t)
STORE(uint64_t)

static SG_HANDLER(whole_store)
{
    uint32_t size = sg_type_size(in->type), total = size * in->vector;
    struct sg_reach r;
    if (!sg_whole_reach(w, in, &in->x[0], mask, total, &r))
        return sg_do_store(w, in, mask);
    enum shape shape = in->vector == 1 && is_dense(&r, mask, size) ? DENSE : SPREAD;
    for (unsigned i = 0; i < in->vector; i++) {
        uint64_t room[SG_LANES];
        const uint64_t *values = sg_whole_operand(w, &in->x[i + 1], room);
        size_t at = (size_t)i * size;
        if (size == 1)
            store_uint8_t(&r, shape, at, mask, values);
        else if (size == 2)
            store_uint16_t(&r, shape, at, mask, values);
        else if (size == 4)
            store_uint32_t(&r, shape, at, mask, values);
        else
            store_uint64_t(&r, shape, at, mask, values);
    }
    return SG_NEXT;
}

#ifdef __SANITIZE_THREAD__
#define TEARS_NOTHING true
#elif defined(__has_feature)
#define TEARS_NOTHING __has_feature(thread_sanitizer)
#else
#define TEARS_NOTHING false
#endif

sg_execute sg_whole_access(const struct sg_insn *in)
{
    /* A program may race as PTX allows: ThreadSanitizer is shown single accesses that are atomic. */
    if (TEARS_NOTHING || in->polls || in->orders || sg_type_size(in->type) > 8)
        return NULL;
    return in->op == SG_P_ST ? whole_store : whole_load;
}
