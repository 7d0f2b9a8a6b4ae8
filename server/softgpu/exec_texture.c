/*
 * tex and tld4, by the formulas of CUDA's programming guide ("Texture Fetching"). Weights of
 * linear filtering have eight bits of fraction, as there; what a card does with them beyond that
 * is not documented, and here in double, rounded once.
 */
#include "exec_float.h"
#include "exec_image.h"

#include <math.h>

struct sample {
    struct sg_warp *w;
    const struct sg_insn *in;
    unsigned lane;
    const struct sg_image *image;
    double at[3];  /* coordinates without the layer */
    int64_t slice; /* of the layer and face */
};

#define FRACTION 256.0

static double clamped(double v, double least, double most)
{
    return v > least ? (v < most ? v : most) : least; /* NaN is the least */
}

static float coordinate(struct sg_warp *w, const struct sg_insn *in, unsigned i, unsigned lane)
{
    return sg_as_float(sg_operand_lane(w, &in->x[i], lane));
}

/* --- which texel --------------------------------------------------------------------------- */

static unsigned axes(const struct sample *s)
{
    return s->in->fetch->dimensions;
}

static uint32_t size_along(const struct sg_image_level *level, unsigned axis)
{
    return axis == 0 ? level->width : axis == 1 ? level->height : level->depth;
}

/* Coordinates that are no fractions of the size know no wrapping: "the mode is clamp". */
static unsigned edge_of(const struct sample *s, unsigned axis)
{
    unsigned edge = s->image->edge[axis];
    bool unit = s->image->normalized && !s->in->fetch->whole;
    if (s->image->cube)
        return SG_EDGE_CLAMP;
    return !unit && (edge == SG_EDGE_WRAP || edge == SG_EDGE_MIRROR) ? SG_EDGE_CLAMP : edge;
}

/* Into the image; false: it is the border. */
static bool fold(unsigned edge, int64_t n, int64_t *i)
{
    int64_t period = edge == SG_EDGE_MIRROR ? 2 * n : n;
    if (*i >= 0 && *i < n)
        return true;
    switch (edge) {
    case SG_EDGE_WRAP:
    case SG_EDGE_MIRROR:
        *i = (*i % period + period) % period;
        if (*i >= n)
            *i = period - 1 - *i;
        return true;
    case SG_EDGE_CLAMP:
        *i = *i < 0 ? 0 : n - 1;
        return true;
    default:
        return false;
    }
}

static bool texel_at(const struct sample *s, const struct sg_image_level *level, const int64_t *at,
                     struct sg_texel *out)
{
    int64_t i[3] = {0, 0, 0};
    for (unsigned axis = 0; axis < axes(s); axis++) {
        i[axis] = at[axis];
        unsigned edge = s->image->line ? SG_EDGE_BORDER : edge_of(s, axis);
        if (!fold(edge, size_along(level, axis), &i[axis])) {
            sg_texel_border(s->image, out);
            return true;
        }
    }
    const struct sg_texel_place place = {i[0], i[1], axes(s) == 3 ? i[2] : s->slice};
    return sg_texel_read(s->w, s->in, s->lane, s->image, level, &place, out);
}

/* Coordinates in texels, bounded so that they are whole numbers of 64 bits. */
static double in_texels(const struct sample *s, const struct sg_image_level *level, unsigned axis)
{
    bool unit = s->image->normalized && !s->in->fetch->whole;
    double v = s->at[axis] * (unit ? (double)size_along(level, axis) : 1.0);
    return clamped(v, -1e15, 1e15);
}

/* --- one level ----------------------------------------------------------------------------- */

static bool nearest(const struct sample *s, const struct sg_image_level *level,
                    struct sg_texel *out)
{
    int64_t at[3];
    for (unsigned axis = 0; axis < axes(s); axis++)
        at[axis] = (int64_t)floor(in_texels(s, level, axis));
    if (!texel_at(s, level, at, out))
        return false;
    if (s->image->channel == SG_CH_FLOAT && s->image->channel_bytes == 4)
        out->integer = true; /* as it lies there, a NaN too */
    return true;
}

/* The lower neighbour along an axis, and the weight of the upper one. */
static int64_t below(const struct sample *s, const struct sg_image_level *level, unsigned axis,
                     double *weight)
{
    double v = floor((in_texels(s, level, axis) - 0.5) * FRACTION + 0.5) / FRACTION;
    double i = floor(v);
    *weight = v - i;
    return (int64_t)i;
}

static void add_weighted(struct sg_texel *sum, const struct sg_texel *t, double weight)
{
    for (unsigned i = 0; i < 4; i++)
        sum->number[i] += weight == 0 ? 0 : weight * t->number[i];
}

static bool filtered(const struct sample *s, const struct sg_image_level *level,
                     struct sg_texel *out)
{
    double weight[3];
    int64_t first[3], at[3];
    *out = (struct sg_texel){.integer = false};
    for (unsigned axis = 0; axis < axes(s); axis++)
        first[axis] = below(s, level, axis, &weight[axis]);
    for (unsigned corner = 0; corner < 1u << axes(s); corner++) {
        double share = 1;
        struct sg_texel t;
        for (unsigned axis = 0; axis < axes(s); axis++) {
            unsigned upper = corner >> axis & 1;
            at[axis] = first[axis] + upper;
            share *= upper ? weight[axis] : 1 - weight[axis];
        }
        if (!texel_at(s, level, at, &t))
            return false;
        add_weighted(out, &t, share);
    }
    return true;
}

static bool of_level(const struct sample *s, uint32_t number, struct sg_texel *out)
{
    const struct sg_image_level *level = &s->image->level[number];
    bool linear = s->image->linear && !s->in->fetch->whole && !sg_image_integer(s->image);
    return linear ? filtered(s, level, out) : nearest(s, level, out);
}

/* --- which level --------------------------------------------------------------------------- */

/* The longer of the two steps, in texels of the first level, doubles from level to level. */
static double level_of_steps(const struct sample *s)
{
    double most = 0;
    for (unsigned d = 0; d < 2; d++) {
        double sum = 0;
        for (unsigned axis = 0; axis < axes(s); axis++) {
            unsigned operand = (d ? SG_TX_DY : SG_TX_DX) + axis;
            double step = (double)coordinate(s->w, s->in, operand, s->lane);
            if (s->image->normalized)
                step *= (double)size_along(&s->image->level[0], axis);
            sum += step * step;
        }
        most = sum > most ? sum : most;
    }
    return most > 0 ? log2(most) / 2 : -1e9;
}

static double wanted_level(const struct sample *s)
{
    const struct sg_image *image = s->image;
    const struct sg_fetch *f = s->in->fetch;
    double level = 0;
    if (image->levels == 1)
        return 0;
    if (f->how == SG_F_LEVEL && f->whole)
        return clamped((double)(int32_t)sg_operand_lane(s->w, &s->in->x[SG_TX_LEVEL], s->lane), 0,
                       image->levels - 1);
    if (f->how == SG_F_LEVEL)
        level = (double)coordinate(s->w, s->in, SG_TX_LEVEL, s->lane);
    else if (f->how == SG_F_GRADIENT)
        level = level_of_steps(s);
    level = clamped(level + (double)image->bias, (double)image->least, (double)image->most);
    return clamped(level, 0, image->levels - 1);
}

static bool sampled(const struct sample *s, struct sg_texel *out)
{
    double level = wanted_level(s);
    if (!s->image->mip_linear || sg_image_integer(s->image))
        return of_level(s, (uint32_t)clamped(floor(level + 0.5), 0, s->image->levels - 1), out);
    double fixed = floor(level * FRACTION + 0.5) / FRACTION, lower = floor(fixed);
    struct sg_texel one, two;
    if (fixed == lower)
        return of_level(s, (uint32_t)lower, out);
    if (!of_level(s, (uint32_t)lower, &one) || !of_level(s, (uint32_t)lower + 1, &two))
        return false;
    *out = (struct sg_texel){.integer = false};
    add_weighted(out, &one, 1 - (fixed - lower));
    add_weighted(out, &two, fixed - lower);
    return true;
}

/* Of four neighbours one channel each: counter-clockwise, from the lower left on. */
static bool gathered(const struct sample *s, struct sg_texel *out)
{
    static const int64_t corner[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
    const struct sg_image_level *level = &s->image->level[0];
    unsigned channel = s->in->fetch->component;
    double weight;
    int64_t x = below(s, level, 0, &weight), y = below(s, level, 1, &weight);
    for (unsigned i = 0; i < 4; i++) {
        const int64_t at[3] = {x + corner[i][0], y + corner[i][1], 0};
        struct sg_texel t;
        if (!texel_at(s, level, at, &t))
            return false;
        out->integer = t.integer;
        out->bits[i] = t.bits[channel];
        out->number[i] = t.number[channel];
    }
    return true;
}

/* --- one lane ------------------------------------------------------------------------------ */

/* The face that the longest coordinate names, and where on it the others are, from 0 to 1. */
static unsigned face_of(double at[3])
{
    double x = at[0], y = at[1], z = at[2], m, s, t;
    unsigned face;
    if (fabs(x) >= fabs(y) && fabs(x) >= fabs(z)) {
        face = x < 0, m = fabs(x), s = x < 0 ? z : -z, t = -y;
    } else if (fabs(y) >= fabs(z)) {
        face = 2 + (y < 0), m = fabs(y), s = x, t = y < 0 ? -z : z;
    } else {
        face = 4 + (z < 0), m = fabs(z), s = z < 0 ? -x : x, t = -y;
    }
    at[0] = m > 0 ? (s / m + 1) / 2 : 0.5;
    at[1] = m > 0 ? (t / m + 1) / 2 : 0.5;
    return face;
}

static bool fits(const struct sg_image *image, const struct sg_fetch *f)
{
    return image->layered == f->layered && image->cube == f->cube && (f->whole || !image->line);
}

static void place(struct sample *s)
{
    const struct sg_fetch *f = s->in->fetch;
    unsigned first = SG_TX_AT + f->layered;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t v = i < sg_fetch_coordinates(f)
                         ? sg_operand_lane(s->w, &s->in->x[first + i], s->lane)
                         : 0;
        s->at[i] = f->whole ? (double)(int32_t)v : (double)sg_as_float(v);
    }
    if (f->layered) {
        uint32_t layer = (uint32_t)sg_operand_lane(s->w, &s->in->x[SG_TX_AT], s->lane);
        uint32_t layers = s->image->level[0].depth / (f->cube ? 6 : 1);
        s->slice = layer < layers ? layer : layers - 1;
    }
    if (f->cube)
        s->slice = s->slice * 6 + face_of(s->at);
}

SG_HANDLER(sg_do_texture)
{
    SG_FOR_LANES(l, mask)
    {
        struct sample s = {.w = w, .in = in, .lane = l};
        struct sg_texel t;
        s.image = sg_image_find(w, in, l, false);
        if (!s.image)
            return SG_FAULT;
        if (!fits(s.image, in->fetch))
            return sg_fault(w, in, l, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                            "the texture is of another geometry");
        place(&s);
        bool done = in->fetch->how == SG_F_GATHER ? gathered(&s, &t) : sampled(&s, &t);
        if (!done)
            return SG_FAULT;
        for (unsigned i = 0; i < 4; i++)
            sg_write(w->frame, &in->x[SG_TX_DATA + i], l, sg_texel_word(&t, i));
        sg_write(w->frame, &in->x[SG_TX_RESIDENT], l, 1);
    }
    return SG_NEXT;
}

/* txq knows textures and suq surfaces; an object is only one of them. */
SG_HANDLER(sg_do_query)
{
    SG_FOR_LANES(l, mask)
    {
        const struct sg_image *image = sg_image_find(w, in, l, in->fetch->surface);
        if (!image)
            return SG_FAULT;
        const struct sg_image_level *level = &image->level[0];
        uint32_t slices = level->depth / (image->cube ? 6 : 1);
        const uint32_t values[] = {
            [SG_U_WIDTH] = level->width,
            [SG_U_HEIGHT] = level->height,
            [SG_U_DEPTH] = image->layered || image->cube ? 0 : level->depth,
            [SG_U_LAYERS] = image->layered ? slices : 0,
            [SG_U_LEVELS] = image->levels,
        };
        sg_write(w->frame, &in->x[SG_TX_DATA], l, values[in->mode]);
    }
    return SG_NEXT;
}
