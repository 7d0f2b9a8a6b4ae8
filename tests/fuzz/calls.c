#include "calls.h"

#include <stdlib.h>
#include <string.h>

void calls_open(struct calls *c)
{
    c->host = calloc(1, CALL_HOST_BYTES);
    for (unsigned i = 0; i < CALL_SLOTS; i++)
        if (!c->host || !(c->slots[i] = calloc(1, CALL_SLOT_BYTES)))
            abort();
}

static uint64_t any(struct calls *c, enum gp_handle_kind kind, unsigned back)
{
    unsigned count = c->handle_count[kind], there = count < DRAW_KEPT ? count : DRAW_KEPT;
    return there ? c->handles[kind][(count - 1 - back % there) % DRAW_KEPT] : 0;
}

void *call_handle(struct calls *c, enum gp_handle_kind kind)
{
    uint8_t how = draw_byte(&c->draw);
    uint64_t found = any(c, kind, how & 15);
    switch (how >> 4) {
    case 12:
        found = how & 3; /* none, and the default streams */
        break;
    case 13:
        found = any(c, (how & 15) % GP_HANDLE_KINDS, how);
        break;
    case 14:
        found += 16;
        break;
    default:
        break;
    }
    return (void *)(uintptr_t)found;
}

void *call_handles(struct calls *c, enum gp_handle_kind kind)
{
    void **slot = call_slot(c);
    for (unsigned i = 0; slot && i < CALL_COUNT_MOST; i++)
        slot[i] = i < 4 ? call_handle(c, kind) : NULL;
    return slot;
}

CUdeviceptr call_address(struct calls *c)
{
    return draw_address(&c->draw);
}

uint64_t call_number(struct calls *c, size_t size)
{
    return size == sizeof(size_t) && draw_byte(&c->draw) < 128 ? draw_bytes_count(&c->draw)
                                                               : draw_number(&c->draw, size);
}

uint64_t call_count(struct calls *c)
{
    return draw_number(&c->draw, 8) % CALL_COUNT_MOST;
}

void *call_slot(struct calls *c)
{
    uint64_t *slot = c->slots[c->slot++ % CALL_SLOTS];
    if (draw_byte(&c->draw) == 255)
        return NULL;
    memset(slot, 0, CALL_SLOT_BYTES);
    for (unsigned i = 0; i < 4; i++)
        slot[i] = call_count(c);
    return slot;
}

void *call_host(struct calls *c)
{
    uint8_t how = draw_byte(&c->draw);
    return how == 255 ? NULL : c->host + (how & 63) * 16;
}

char *call_text(struct calls *c)
{
    return (char *)(uintptr_t)draw_names[draw_byte(&c->draw) % draw_name_count];
}

void call_learn(struct calls *c, enum gp_handle_kind kind, uint64_t handle)
{
    if (handle)
        c->handles[kind][c->handle_count[kind]++ % DRAW_KEPT] = handle;
}

void call_learn_address(struct calls *c, uint64_t address)
{
    if (address)
        draw_learn_address(&c->draw, address);
}
