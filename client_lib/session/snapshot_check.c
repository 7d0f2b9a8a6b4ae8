/*
 * The client computes with what the snapshot says: it divides by a warp's size, takes
 * addresses in a window for the device's, and shows names to programs that print them. A
 * worker that lies must not get further than this.
 */
#include "snapshot_check.h"

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#define WINDOW_FLOOR (UINT64_C(1) << 32)
#define WINDOW_ALIGNMENT (UINT64_C(1) << 21)
#define PRIORITY_MOST 1000

/* What is reckoned with, and what a GPU can have of it. */
static const struct {
    int attribute;
    int32_t least, most;
} ranges[] = {
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1, 1 << 20},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 1, 1 << 20},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1, 1 << 20},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 1, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 1, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 1, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 1, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 0, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 1, 1000},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0, 1000},
};

/* It ends, and has nothing that a terminal would obey. */
static bool text_right(const char *text, size_t room)
{
    for (size_t i = 0; i < room; i++) {
        if (text[i] == '\0')
            return true;
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return false;
    }
    return false;
}

static bool window_right(const struct gp_device_info *d)
{
    if (d->window_begin == 0 && d->window_end == 0)
        return true; /* its memory is where the driver puts it */
    return d->window_begin >= WINDOW_FLOOR && d->window_end <= GP_WINDOW_END &&
           d->window_begin < d->window_end && d->window_begin % WINDOW_ALIGNMENT == 0 &&
           d->window_end % WINDOW_ALIGNMENT == 0;
}

static bool windows_meet(const struct gp_device_info *a, const struct gp_device_info *b)
{
    return a->window_begin < b->window_end && b->window_begin < a->window_end;
}

static const char *device_wrong(const struct gp_device_info *d)
{
    if (!text_right(d->name, sizeof d->name) ||
        !text_right(d->pci_bus_id, sizeof d->pci_bus_id))
        return "a device's name or PCI address is no text";
    if (!window_right(d) || d->total_bytes > GP_WINDOW_END)
        return "a device's addresses cannot be";
    if (d->topology_count > GP_TOPOLOGY_MAX)
        return "a device has more multiprocessors than there can be";
    if (d->greatest_priority > d->least_priority || d->greatest_priority < -PRIORITY_MOST ||
        d->least_priority > PRIORITY_MOST)
        return "a device's priorities cannot be";
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        int32_t value = d->attributes[ranges[i].attribute];
        if (value < ranges[i].least || value > ranges[i].most)
            return "a device's attributes cannot be";
    }
    return NULL;
}

const char *gpc_snapshot_wrong(const struct gp_snapshot *s, uint32_t bytes)
{
    if (bytes < sizeof *s || s->size != bytes || s->device_count > GP_DEVICES_MAX ||
        bytes != sizeof *s + s->device_count * sizeof s->devices[0])
        return "its size does not fit its devices";
    for (uint32_t i = 0; i < s->device_count; i++) {
        const char *wrong = device_wrong(&s->devices[i]);
        if (wrong)
            return wrong;
        for (uint32_t before = 0; before < i; before++)
            if (windows_meet(&s->devices[i], &s->devices[before]))
                return "two devices have the same addresses";
    }
    return NULL;
}
