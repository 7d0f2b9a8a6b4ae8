/*
 * Device printf. The caller packs the arguments as a C struct would hold them:
 * 4 bytes for int and shorter, 8 for long, pointers and double, each aligned.
 */
#include "exec_grid.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_MAX ((size_t)1 << 20) /* as CUDA's printf buffer */
#define FIELD_MAX 4096             /* width and precision */

struct text {
    char *data;
    size_t n, capacity;
};

struct reader {
    struct sg_warp *w;
    unsigned lane;
    uint64_t format, arguments;
};

static void text_add(struct text *t, const char *s, size_t n)
{
    if (n > TEXT_MAX - t->n)
        n = TEXT_MAX - t->n;
    if (t->n + n > t->capacity) {
        size_t capacity = (t->n + n) * 2 + 256;
        char *data = realloc(t->data, capacity);
        if (!data)
            return;
        t->data = data;
        t->capacity = capacity;
    }
    if (n)
        memcpy(t->data + t->n, s, n);
    t->n += n;
}

/* 0 at the end, or where memory ends. */
static char char_at(struct reader *r, uint64_t address)
{
    const char *p = sg_look(r->w, r->lane, SG_S_GENERIC, address, 1);
    return p ? *p : 0;
}

static uint64_t argument(struct reader *r, uint32_t size)
{
    r->arguments = (r->arguments + size - 1) & ~(uint64_t)(size - 1);
    uint64_t value = 0;
    const void *p = sg_look(r->w, r->lane, SG_S_GENERIC, r->arguments, size);
    if (p)
        memcpy(&value, p, size);
    r->arguments += size;
    return value;
}

struct spec {
    char flags[8];
    int width, precision; /* -1: none */
    bool is_long;
    char conversion;
};

static int number(struct reader *r, int *count)
{
    int v = 0;
    if (char_at(r, r->format) == '*') {
        r->format++;
        ++*count;
        v = (int)(uint32_t)argument(r, 4);
        return v > FIELD_MAX ? FIELD_MAX : v < -FIELD_MAX ? -FIELD_MAX : v;
    }
    for (char c = char_at(r, r->format); c >= '0' && c <= '9'; c = char_at(r, ++r->format))
        v = v * 10 + (c - '0') > FIELD_MAX ? FIELD_MAX : v * 10 + (c - '0');
    return v;
}

static void read_spec(struct reader *r, struct spec *s, int *count)
{
    size_t flags = 0;
    memset(s, 0, sizeof(*s));
    char c = char_at(r, r->format);
    while (c && strchr("-+ #0", c)) {
        if (!strchr(s->flags, c) && flags + 2 < sizeof(s->flags))
            s->flags[flags++] = c;
        c = char_at(r, ++r->format);
    }
    s->width = number(r, count);
    if (s->width < 0) {
        s->width = -s->width;
        if (!strchr(s->flags, '-'))
            s->flags[flags++] = '-';
    }
    s->precision = -1;
    if (char_at(r, r->format) == '.') {
        r->format++;
        s->precision = number(r, count);
    }
    for (c = char_at(r, r->format); c && strchr("hlLqjzt", c); c = char_at(r, ++r->format))
        s->is_long |= strchr("lqjzt", c) != NULL;
    s->conversion = c;
    if (c)
        r->format++;
}

/* "%<flags>*.*<length><conversion>" of the C library. */
static void host_format(char *out, size_t size, const struct spec *s, const char *length)
{
    snprintf(out, size, "%%%s*.*%s%c", s->flags, length, s->conversion);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"

static void add_number(struct reader *r, const struct spec *s, struct text *t)
{
    char format[32], field[2 * FIELD_MAX + 512];
    int n;
    if (strchr("fFeEgGaA", s->conversion)) {
        uint64_t bits = argument(r, 8);
        double v;
        memcpy(&v, &bits, sizeof(v));
        host_format(format, sizeof(format), s, "");
        n = snprintf(field, sizeof(field), format, s->width, s->precision, v);
    } else {
        uint64_t v = argument(r, s->is_long ? 8 : 4);
        if (!s->is_long && strchr("di", s->conversion))
            v = (uint64_t)(int64_t)(int32_t)(uint32_t)v;
        host_format(format, sizeof(format), s, "ll");
        n = snprintf(field, sizeof(field), format, s->width, s->precision, (long long)v);
    }
    if (n > 0)
        text_add(t, field, (size_t)n < sizeof(field) ? (size_t)n : sizeof(field) - 1);
}

#pragma GCC diagnostic pop

static void add_padded(const struct spec *s, struct text *t, const char *data, size_t n)
{
    size_t pad = s->width > 0 && (size_t)s->width > n ? (size_t)s->width - n : 0;
    bool left = strchr(s->flags, '-') != NULL;
    if (left)
        text_add(t, data, n);
    while (pad--)
        text_add(t, " ", 1);
    if (!left)
        text_add(t, data, n);
}

static void add_string(struct reader *r, const struct spec *s, struct text *t)
{
    uint64_t address = argument(r, 8);
    if (address == 0) {
        add_padded(s, t, "(null)", 6);
        return;
    }
    struct text string = {NULL, 0, 0};
    size_t most = s->precision >= 0 ? (size_t)s->precision : TEXT_MAX;
    for (char c; string.n < most && (c = char_at(r, address)) != 0; address++) {
        size_t before = string.n;
        text_add(&string, &c, 1);
        if (string.n == before)
            break;
    }
    add_padded(s, t, string.data ? string.data : "", string.n);
    free(string.data);
}

static void add_field(struct reader *r, struct text *t, int *count)
{
    uint64_t start = r->format - 1;
    struct spec s;
    read_spec(r, &s, count);
    if (s.conversion == '%') {
        text_add(t, "%", 1);
        return;
    }
    if (!s.conversion || !strchr("diouxXcspfFeEgGaA", s.conversion)) {
        for (uint64_t a = start; a < r->format; a++) { /* not a conversion: as it stands */
            char c = char_at(r, a);
            text_add(t, &c, 1);
        }
        return;
    }
    ++*count;
    if (s.conversion == 's') {
        add_string(r, &s, t);
    } else if (s.conversion == 'c') {
        char c = (char)argument(r, 4);
        add_padded(&s, t, &c, 1);
    } else if (s.conversion == 'p') {
        char field[32];
        int n = snprintf(field, sizeof(field), "0x%llx", (unsigned long long)argument(r, 8));
        add_padded(&s, t, field, (size_t)n);
    } else {
        add_number(r, &s, t);
    }
}

int sg_print(struct sg_warp *w, unsigned lane, uint64_t format, uint64_t arguments)
{
    struct reader r = {w, lane, format, arguments};
    struct text t = {NULL, 0, 0};
    int count = 0;
    if (!format)
        return -1;
    for (char c; (c = char_at(&r, r.format)) != 0 && t.n < TEXT_MAX;) {
        r.format++;
        if (c == '%')
            add_field(&r, &t, &count);
        else
            text_add(&t, &c, 1);
    }
    sg_grid_print(w->block->run, w->block->cluster->number, t.data, t.n);
    free(t.data);
    return count;
}
