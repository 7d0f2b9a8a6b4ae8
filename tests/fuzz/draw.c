#include "draw.h"

#include <string.h>

const char *const draw_names[] = {"add",   "nothing", "spin",   "shared", "value",
                                  "table", "say",     "child",  "parent", "speak",
                                  "image", "drawn",   "sample", "update", "missing"};
const unsigned draw_name_count = sizeof draw_names / sizeof draw_names[0];

void draw_start(struct draw *d, const uint8_t *data, size_t size)
{
    d->at = data;
    d->end = size ? data + size : data;
}

bool draw_over(const struct draw *d)
{
    return d->at >= d->end;
}

uint8_t draw_byte(struct draw *d)
{
    return d->at < d->end ? *d->at++ : 0;
}

uint32_t draw_below(struct draw *d, uint32_t limit)
{
    return draw_byte(d) % limit;
}

static uint64_t draw_raw(struct draw *d, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)draw_byte(d) << 8 * i;
    return value;
}

uint64_t draw_number(struct draw *d, size_t size)
{
    static const uint64_t edges[] = {
        32,
        64,
        100,
        128,
        255,
        256,
        257,
        511,
        512,
        1024,
        1025,
        4095,
        4096,
        65535,
        65536,
        1u << 20,
        (1 << 20) + 1,
        2u << 20,
        4u << 20,
        INT32_MAX,
        1u << 31,
        UINT32_MAX,
        1ull << 32,
        1ull << 40,
        1ull << 47,
        1ull << 62,
        INT64_MAX,
        1ull << 63,
        UINT64_MAX,
        UINT64_MAX - 7,
        UINT64_MAX - 4095,
        UINT32_MAX - 7,
    };
    uint8_t how = draw_byte(d);
    if (how < 32)
        return how;
    if (how < 64)
        return edges[how - 32];
    if (how < 96)
        return draw_raw(d, 2);
    if (how < 112)
        return draw_raw(d, 4);
    if (how < 120)
        return draw_raw(d, size);
    return how & 7;
}

uint64_t draw_bytes_count(struct draw *d)
{
    static const uint32_t likely[] = {4096, 64, 16, 1 << 16, 1, 2 << 20, 0, 100};
    uint8_t how = draw_byte(d);
    return how < 8 ? likely[how] : how < 96 ? how : draw_number(d, 8);
}

static void keep(uint64_t *list, unsigned *count, uint64_t value)
{
    for (unsigned i = 0; i < *count && i < DRAW_KEPT; i++)
        if (list[i] == value)
            return;
    list[(*count)++ % DRAW_KEPT] = value;
}

static uint64_t kept(const uint64_t *list, unsigned count, unsigned back)
{
    unsigned there = count < DRAW_KEPT ? count : DRAW_KEPT;
    return there ? list[(count - 1 - back % there) % DRAW_KEPT] : 0;
}

void draw_learn_handle(struct draw *d, uint64_t id)
{
    unsigned kind = gp_handle_kind(id);
    if (kind < GP_HANDLE_KINDS)
        keep(d->handles[kind], &d->handle_count[kind], id);
}

void draw_learn_address(struct draw *d, uint64_t address)
{
    keep(d->addresses, &d->address_count, address);
}

uint64_t draw_new(struct draw *d, enum gp_handle_kind kind)
{
    if (draw_byte(d) > 247)
        return draw_handle(d, kind);
    uint64_t id = gp_handle_make(kind, 64 + d->next_index[kind]++, 0);
    d->fresh = id;
    return id;
}

uint64_t draw_handle(struct draw *d, enum gp_handle_kind kind)
{
    uint8_t how = draw_byte(d);
    uint64_t own = kept(d->handles[kind], d->handle_count[kind], how & 15);
    switch (how >> 4) {
    case 10:
        return how & 1 ? 0 : GP_STREAM_LEGACY;
    case 11:
        return draw_handle(d, (how & 15) % GP_HANDLE_KINDS); /* of another kind */
    case 12:
        return own ^ (uint64_t)1 << GP_HANDLE_GENERATION_SHIFT;
    case 13:
        return own + ((uint64_t)1 << GP_HANDLE_INDEX_SHIFT);
    case 14:
        return own ^ (how & 1 ? GP_HANDLE_WORKER_NAMED : UINT64_C(1) << GP_HANDLE_SESSION_SHIFT);
    case 15:
        return how & 1 ? own | 3 : draw_raw(d, 8);
    default:
        return own;
    }
}

uint64_t draw_address(struct draw *d)
{
    uint8_t how = draw_byte(d);
    uint64_t own = kept(d->addresses, d->address_count, how & 15);
    switch (how >> 4) {
    case 8:
        return how & 1 ? 0 : d->forbidden;
    case 9:
    case 10:
        return own + draw_number(d, 8);
    case 11:
        return own - 1 - (how & 7);
    case 12:
        return draw_raw(d, 8);
    default:
        return own;
    }
}

void draw_words(struct draw *d, void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t word = (uint32_t)draw_number(d, 4);
        memcpy((char *)to + i, &word, bytes - i < 4 ? bytes - i : 4);
    }
}

uint32_t draw_append(struct gp_header *h, uint32_t *at, const void *bytes, uint32_t size)
{
    *at = (uint32_t)gp_align8(*at);
    memcpy((char *)h + *at, bytes, size);
    *at += size;
    return size;
}

uint32_t draw_tail(struct draw *d, struct gp_header *h, uint32_t *at, uint64_t count, size_t size)
{
    uint8_t bytes[DRAW_TAIL_MAX];
    if (count > sizeof bytes / size)
        count = 0; /* does not fit what the message says of it */
    uint32_t wanted = (uint32_t)(count * size);
    for (uint32_t i = 0; i < wanted; i += 4) {
        uint32_t word = draw_over(d) ? i : (uint32_t)draw_number(d, 4);
        memcpy(bytes + i, &word, wanted - i < 4 ? wanted - i : 4);
    }
    return draw_append(h, at, bytes, wanted);
}

void draw_value(struct draw *d, void *to, size_t bytes)
{
    uint64_t value;
    if (bytes != sizeof value) {
        draw_words(d, to, bytes);
        return;
    }
    value = draw_bytes_count(d);
    memcpy(to, &value, sizeof value);
}

uint64_t draw_place(struct draw *d)
{
    uint8_t how = draw_byte(d);
    if (how >= 128)
        return draw_address(d);
    d->place += UINT64_C(4) << 20;
    draw_learn_address(d, d->place);
    return d->place;
}

uint32_t draw_room(struct draw *d, struct gp_header *h, uint32_t *at, uint64_t room, size_t size,
                   bool exact)
{
    uint8_t how = draw_byte(d);
    uint64_t count = exact ? room : room < 2 ? room : 2, most;
    if (how >= 240)
        count = draw_number(d, 4);
    else if (how)
        count = (exact ? room : 0) + how % 8 - (exact ? 4 : 0);
    *at = (uint32_t)gp_align8(*at);
    most = (GP_MESSAGE_MAX - 64 - *at) / size;
    if (count > most)
        count = count > most * 2 ? 0 : most;
    uint32_t bytes = (uint32_t)(count * size);
    draw_words(d, (char *)h + *at, bytes < 64 ? bytes : 64);
    *at += bytes;
    return bytes;
}

uint32_t draw_text(struct draw *d, struct gp_header *h, uint32_t *at)
{
    char text[300];
    uint8_t how = draw_byte(d);
    if (how < 250) {
        const char *name = draw_names[how % draw_name_count];
        return draw_append(h, at, name, (uint32_t)strlen(name) + 1);
    }
    memset(text, how, sizeof text);
    text[sizeof text - 1] = 0;
    return draw_append(h, at, text, how == 255 ? 1 : sizeof text);
}
