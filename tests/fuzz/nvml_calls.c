#include "nvml_calls.h"

#include <stdlib.h>
#include <string.h>

#define ROOMS 8u

static void *rooms[ROOMS];
static unsigned room_count;

nvmlDevice_t nvml_call_device(struct draw *d)
{
    nvmlDevice_t device = NULL;
    uint8_t which = draw_byte(d);
    if (which < 192)
        nvmlDeviceGetHandleByIndex_v2(which % 65u, &device);
    else
        device = (nvmlDevice_t)(uintptr_t)draw_number(d, sizeof device);
    return device;
}

nvmlEventSet_t nvml_call_set(struct draw *d)
{
    nvmlEventSet_t set = NULL;
    if (draw_byte(d) < 192)
        nvmlEventSetCreate(&set);
    else
        set = (nvmlEventSet_t)(uintptr_t)draw_number(d, sizeof set);
    return set;
}

void *nvml_call_room(struct draw *d, size_t bytes)
{
    uint8_t how = draw_byte(d);
    if (how == 255 || room_count == ROOMS)
        return NULL;
    uint8_t *room = malloc(bytes);
    if (!room)
        return NULL;
    rooms[room_count++] = room;
    for (size_t i = 0; i < bytes; i++)
        room[i] = how & 1 ? draw_byte(d) : 0;
    uint32_t version = (uint32_t)bytes | (1u + (how >> 1) % 3u) << 24;
    if (how < 192 && bytes >= sizeof version)
        memcpy(room, &version, sizeof version);
    return room;
}

unsigned nvml_call_length(struct draw *d)
{
    return draw_byte(d) % NVML_CALL_LENGTH_MOST;
}

const char *nvml_call_name(struct draw *d)
{
    static const char *const names[] = {"GPU-0", "GPU-1", "00000000:00:00.0", "0:1:0", "",
                                        "::",    "GPU-"};
    uint8_t which = draw_byte(d);
    char *room = which < 192 ? NULL : nvml_call_room(d, 1u + which % 40u);
    if (!room)
        return names[which % (sizeof names / sizeof names[0])];
    room[which % 40u] = '\0';
    return room;
}

void nvml_call_text(nvmlReturn_t r, const char *text, unsigned length)
{
    if (r == NVML_SUCCESS && !memchr(text, '\0', length))
        abort();
}

void nvml_call_end(void)
{
    while (room_count > 0)
        free(rooms[--room_count]);
}
