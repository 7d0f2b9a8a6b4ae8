/*
 * Device memory cut from a reserved address window. Above 512 KiB an allocation
 * has pages of its own (2 MiB granules); smaller ones share a granule with others
 * of their size class, 512 bytes apart at least. Of each class, whole granules among them, one
 * granule that is free stays mapped until the memory is needed: the driver takes longer to map
 * pages than to do anything else here.
 */
#ifndef GPW_ALLOCATOR_H
#define GPW_ALLOCATOR_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpw_driver.h"
#include "size_class.h"

struct gpw_allocator;
struct gpw_shareable; /* ipc/shareable.h: pages that other processes have, too */

/* Pages are whole ones of so many bytes. */
#define GPW_GRANULE GP_GRANULE

/* For one device; the window is [begin, end), reserved already. NULL: no memory. */
struct gpw_allocator *gpw_allocator_new(const struct gpw_driver *driver, CUdevice device,
                                        uint64_t begin, uint64_t end);
/* Ask before pages are taken, with their bytes, and tell when they are given back; of those that
 * have become shareable, these, and where they were. */
struct gpw_allocator_limit {
    bool (*take)(void *arg, uint64_t bytes);
    void (*give)(void *arg, uint64_t bytes);
    void (*let_go)(void *arg, struct gpw_shareable *one, CUdeviceptr at);
    void *arg;
};
void gpw_allocator_set_limit(struct gpw_allocator *a, const struct gpw_allocator_limit *limit);
/* Let a peer of the device read and write all that is allocated, now and later. The driver's
 * error if it cannot; what it has by then it keeps. */
CUresult gpw_allocator_share(struct gpw_allocator *a, CUdevice peer);
/* Whether a device can: its own, or such a peer. */
bool gpw_allocator_reaches(const struct gpw_allocator *a, CUdevice device);
void gpw_allocator_delete(struct gpw_allocator *a);
/* OUT_OF_MEMORY when the device (or the window) has no more. */
CUresult gpw_allocator_take(struct gpw_allocator *a, size_t bytes, CUdeviceptr *out);
/* `address` must be one that take gave and that is not freed. */
void gpw_allocator_give(struct gpw_allocator *a, CUdeviceptr address);
/* The bytes asked for at this base address, 0 if it is no live allocation. */
size_t gpw_allocator_size(const struct gpw_allocator *a, CUdeviceptr base);
/* Whether the range lies inside one live allocation. */
bool gpw_allocator_holds(const struct gpw_allocator *a, CUdeviceptr address, uint64_t bytes);
/* The pages of a live allocation, for others to have. */
struct gpw_pages {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    uint64_t offset, size;            /* of the allocation in them */
    struct gpw_shareable **shareable; /* what they are as such; to be set, once */
};
bool gpw_allocator_pages(struct gpw_allocator *a, CUdeviceptr address, struct gpw_pages *out);
/* Map pages of another process, which nothing is taken from. They are no allocation: only
 * unmap ends them, and lets go of them. */
CUresult gpw_allocator_map(struct gpw_allocator *a, CUmemGenericAllocationHandle handle,
                           uint64_t bytes, struct gpw_shareable *one, CUdeviceptr *at);
void gpw_allocator_unmap(struct gpw_allocator *a, CUdeviceptr at);
/* Bytes mapped of its own. */
uint64_t gpw_allocator_bytes(const struct gpw_allocator *a);
/* Give back the granules that are kept though nothing lives in them; false: there were none. */
bool gpw_allocator_trim(struct gpw_allocator *a);

/*
 * Memory that the client hands out by itself. Of each class it may have one granule, in which every
 * piece that is free is the client's to choose, until a message that may need free memory: then it
 * chooses no more, and the granule is as any. So whether a granule is left alone is a question of
 * the order of messages.
 */
/* The message that is dealt with is *now; 0: none is. */
void gpw_allocator_follow(struct gpw_allocator *a, const uint64_t *now);
/* The granule of this live allocation, which the message `behind` frees, is the client's, and another
 * of its class no more. False: that one is so behind a later message, or it is in no such granule. */
bool gpw_allocator_keep(struct gpw_allocator *a, CUdeviceptr address, uint64_t behind);
/* Give back what is more than one free granule of a class, but for the client's; where the GPU may be
 * waited for. */
void gpw_allocator_settle(struct gpw_allocator *a);
/* The client has chosen this piece of its granule for so many bytes; false: it could not. */
bool gpw_allocator_choose(struct gpw_allocator *a, CUdeviceptr address, size_t bytes);
/* Give back everything. */
void gpw_allocator_clear(struct gpw_allocator *a);

#endif
