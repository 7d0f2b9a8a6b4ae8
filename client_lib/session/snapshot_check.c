/*
 * The client computes with what the snapshot says: it divides by a warp's size, takes
 * addresses in a window for the device's, and shows names to programs that print them. A
 * worker that lies must not get further than this.
 */
#include "snapshot_check.h"

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

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
    if (!text_right(d->name, sizeof d->name) || !text_right(d->pci_bus_id, sizeof d->pci_bus_id))
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

static const char *devices_wrong(const struct gp_snapshot *s)
{
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

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The sizes of the head and of a device, as this writer has them, and what they add up to. */
static bool sizes_right(const struct gp_snapshot *s, uint32_t bytes)
{
    return s->size == bytes && s->device_count <= GP_DEVICES_MAX &&
           s->head_bytes >= GP_SNAPSHOT_HEAD_LEAST && s->head_bytes <= bytes &&
           s->device_bytes >= GP_SNAPSHOT_DEVICE_LEAST && s->device_bytes <= bytes &&
           s->head_bytes % 8 == 0 && s->device_bytes % 8 == 0 &&
           bytes == s->head_bytes + (uint64_t)s->device_count * s->device_bytes;
}

/* What is refused here, whatever the GPU's host has: a program that asks first goes another way. */
static void say_refused(struct gp_snapshot *s)
{
    static const CUdevice_attribute refused[] = {
        CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
        CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH,
        CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    };
    for (uint32_t i = 0; i < s->device_count; i++) {
        int32_t *has = s->devices[i].attributes;
        for (size_t k = 0; k < sizeof refused / sizeof *refused; k++)
            if (has[refused[k]] != GP_ATTRIBUTE_NONE)
                has[refused[k]] = 0;
        if (has[CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] != GP_ATTRIBUTE_NONE)
            has[CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] &=
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
}

const char *gpc_snapshot_read(const void *from, uint32_t bytes, struct gp_snapshot *to)
{
    struct gp_snapshot head;
    memset(&head, 0, sizeof head);
    memcpy(&head, from, least(bytes, sizeof head));
    if (bytes < GP_SNAPSHOT_HEAD_LEAST || bytes > GP_SNAPSHOT_MAX || !sizes_right(&head, bytes))
        return "its size does not fit its devices";
    memset(to, 0, sizeof *to + head.device_count * sizeof to->devices[0]);
    memcpy(to, from, least(head.head_bytes, sizeof *to));
    for (uint32_t i = 0; i < head.device_count; i++)
        memcpy(&to->devices[i], (const char *)from + head.head_bytes + i * head.device_bytes,
               least(head.device_bytes, sizeof to->devices[0]));
    to->head_bytes = sizeof *to;
    to->device_bytes = sizeof to->devices[0];
    to->size = to->head_bytes + to->device_count * to->device_bytes;
    say_refused(to);
    return devices_wrong(to);
}
