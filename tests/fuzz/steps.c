#include "steps.h"

#include <string.h>

#define STEP_BYTES 255u
#define MAKERS 3 /* in front of one step, each of what the next one names */

struct step {
    size_t at, bytes; /* with its length byte */
};

bool steps_next(const uint8_t **data, size_t *size, const uint8_t **step, size_t *bytes)
{
    if (*size < 1)
        return false;
    size_t wanted = (*data)[0];
    *bytes = wanted < *size - 1 ? wanted : *size - 1;
    *step = *data + 1;
    *data += 1 + *bytes;
    *size -= 1 + *bytes;
    return true;
}

static unsigned list(const uint8_t *data, size_t size, struct step steps[STEPS_MOST])
{
    const uint8_t *begin = data, *step;
    size_t bytes;
    unsigned count = 0;
    while (count < STEPS_MOST && steps_next(&data, &size, &step, &bytes)) {
        steps[count].at = (size_t)(step - 1 - begin);
        steps[count++].bytes = 1 + bytes;
    }
    return count;
}

static uint32_t chance(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Replace `gone` bytes at `at` by others. */
static size_t replace(uint8_t *data, size_t size, size_t most, size_t at, size_t gone,
                      const uint8_t *fresh, size_t bytes)
{
    if (size - gone + bytes > most)
        return size;
    memmove(data + at + bytes, data + at + gone, size - at - gone);
    if (bytes)
        memcpy(data + at, fresh, bytes);
    return size - gone + bytes;
}

/* Mostly what works, so mostly zeros and small numbers. */
static size_t make(uint32_t *state, uint8_t fresh[1 + STEP_BYTES])
{
    size_t bytes = steps_begin(chance(state), fresh + 1), more = chance(state) % 12;
    for (size_t i = 0; i < more; i++) {
        uint32_t r = chance(state);
        fresh[1 + bytes++] = (uint8_t)(r % 4 == 0 ? r >> 8 : r % 4 == 1 ? r >> 8 & 7 : 0);
    }
    fresh[0] = (uint8_t)bytes;
    return 1 + bytes;
}

static const struct steps_kinds *kinds_of(const uint8_t *step)
{
    const uint8_t *number = step + 1 + steps_form.op_at;
    uint16_t op = (uint16_t)(number[0] | number[1] << 8);
    for (unsigned i = 0; i < steps_form.kinds->count; i++)
        if (steps_form.kinds->of[i].op == op)
            return &steps_form.kinds->of[i];
    return NULL;
}

/* One that makes something of a kind that is named; NULL: none does. */
static const struct steps_kinds *maker(uint64_t named, uint32_t *state)
{
    const struct steps_table *all = steps_form.kinds;
    uint32_t first = chance(state) % all->count, kind = chance(state) % 64;
    while (named && !(named >> kind & 1))
        kind = (kind + 1) % 64;
    for (unsigned i = 0; i < all->count; i++) {
        const struct steps_kinds *k = &all->of[(first + i) % all->count];
        if (named && k->made >> kind & 1)
            return k;
    }
    return NULL;
}

static size_t insert(uint8_t *data, size_t size, size_t most, size_t at, uint32_t *state)
{
    uint8_t fresh[1 + STEP_BYTES];
    size = replace(data, size, most, at, 0, fresh, make(state, fresh));
    const struct steps_kinds *k = steps_form.kinds ? kinds_of(fresh) : NULL;
    for (unsigned depth = 0; k && depth < MAKERS && chance(state) % 4; depth++) {
        k = maker(k->named, state);
        if (!k)
            break;
        memset(fresh, 0, sizeof fresh);
        fresh[0] = (uint8_t)steps_form.bytes;
        fresh[1 + steps_form.op_at] = (uint8_t)k->op;
        fresh[2 + steps_form.op_at] = (uint8_t)(k->op >> 8);
        size = replace(data, size, most, at, 0, fresh, 1 + steps_form.bytes);
    }
    return size;
}

/* The same step, with other bytes in it. */
static size_t change(uint8_t *data, size_t size, size_t most, struct step s, uint32_t *state)
{
    uint8_t fresh[1 + STEP_BYTES];
    size_t bytes = s.bytes - 1;
    memcpy(fresh + 1, data + s.at + 1, bytes);
    if (bytes > 4 && chance(state) % 2)
        fresh[4 + chance(state) % (bytes - 3)] = (uint8_t)chance(state);
    else
        bytes = LLVMFuzzerMutate(fresh + 1, bytes, STEP_BYTES);
    fresh[0] = (uint8_t)bytes;
    return replace(data, size, most, s.at, s.bytes, fresh, 1 + bytes);
}

static size_t copy(uint8_t *data, size_t size, size_t most, struct step s, size_t to)
{
    uint8_t fresh[1 + STEP_BYTES];
    memcpy(fresh, data + s.at, s.bytes);
    fresh[0] = (uint8_t)(s.bytes - 1);
    return replace(data, size, most, to, 0, fresh, s.bytes);
}

static size_t once(uint8_t *data, size_t size, size_t most, uint32_t *state)
{
    struct step steps[STEPS_MOST];
    unsigned count = list(data, size, steps);
    size_t end = count ? steps[count - 1].at + steps[count - 1].bytes : 0;
    struct step s = count ? steps[chance(state) % count] : (struct step){0, 0};
    if (!count)
        return insert(data, 0, most, 0, state);
    switch (chance(state) % 8) {
    case 0:
    case 1:
        return count < STEPS_MOST ? insert(data, end, most, s.at, state) : end;
    case 2:
        return count < STEPS_MOST ? insert(data, end, most, end, state) : end;
    case 3:
        return replace(data, end, most, s.at, s.bytes, NULL, 0);
    case 4:
        return count < STEPS_MOST ? copy(data, end, most, s, steps[chance(state) % count].at) : end;
    default:
        return change(data, end, most, s, state);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    uint32_t state = seed;
    unsigned times = 1 + chance(&state) % 4;
    while (times--)
        size = once(data, size, most, &state);
    return size;
}

size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *two,
                                 size_t two_size, uint8_t *out, size_t most, unsigned seed)
{
    struct step a[STEPS_MOST], b[STEPS_MOST];
    uint32_t state = seed;
    unsigned na = list(one, one_size, a), nb = list(two, two_size, b);
    size_t head = na ? a[chance(&state) % na].at : 0, from = nb ? b[chance(&state) % nb].at : 0;
    size_t tail = nb ? b[nb - 1].at + b[nb - 1].bytes - from : 0;
    if (head > most)
        head = 0;
    if (tail > most - head)
        tail = most - head;
    memcpy(out, one, head);
    memcpy(out + head, two + from, tail);
    return head + tail;
}
