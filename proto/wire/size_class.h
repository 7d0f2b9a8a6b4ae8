/*
 * How the worker's allocator divides memory: what is small shares a granule with others of its
 * class, the next power of two; what needs more than half of a granule has one of its own. The
 * client knows it, too: it hands out again what it has freed (client_lib/memory/spare.h).
 */
#ifndef GP_SIZE_CLASS_H
#define GP_SIZE_CLASS_H

#include <stddef.h>
#include <stdint.h>

#define GP_GRANULE_SHIFT 21 /* 2 MiB: the driver's pages */
#define GP_GRANULE (UINT64_C(1) << GP_GRANULE_SHIFT)
#define GP_CLASS_LEAST 9 /* 512 bytes */
#define GP_CLASS_MOST 19 /* 512 KiB */
#define GP_CLASSES (GP_CLASS_MOST - GP_CLASS_LEAST + 2)

/* log2 of the piece that so many bytes get; 0: more than a granule. */
static inline uint32_t gp_class_shift(uint64_t bytes)
{
    uint32_t shift = GP_CLASS_LEAST;
    if (bytes > UINT64_C(1) << GP_CLASS_MOST)
        return bytes <= GP_GRANULE ? GP_GRANULE_SHIFT : 0;
    while ((UINT64_C(1) << shift) < bytes)
        shift++;
    return shift;
}

#endif
