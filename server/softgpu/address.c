/*
 * Which addresses are alive: one sorted array of extents behind a
 * read-write lock of its own, because kernels on every stream ask.
 */
#include "softgpu.h"

/* Who takes an extent away goes before those who ask, or copies that hold the map one behind the
 * other would keep it out for ever; so nobody who holds it may ask again. */
static pthread_rwlock_t map_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static struct sg_extent *extents;
static size_t count, room;

/* Index of the first extent that ends after `address`. */
static size_t first_after(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (extents[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool grow(void)
{
    if (count < room)
        return true;
    size_t wanted = room ? room * 2 : 64;
    struct sg_extent *bigger = realloc(extents, wanted * sizeof(*bigger));
    if (!bigger)
        return false;
    extents = bigger;
    room = wanted;
    return true;
}

CUresult sg_address_add(const struct sg_extent *extent)
{
    CUresult result = CUDA_SUCCESS;
    pthread_rwlock_wrlock(&map_lock);
    size_t i = first_after(extent->begin);
    if (i < count && extents[i].begin < extent->end) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (!grow()) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        memmove(extents + i + 1, extents + i, (count - i) * sizeof(*extents));
        extents[i] = *extent;
        count++;
    }
    pthread_rwlock_unlock(&map_lock);
    return result;
}

bool sg_address_remove(uint64_t begin, struct sg_extent *out)
{
    pthread_rwlock_wrlock(&map_lock);
    size_t i = first_after(begin);
    bool found = i < count && extents[i].begin == begin;
    if (found) {
        if (out)
            *out = extents[i];
        count--;
        memmove(extents + i, extents + i + 1, (count - i) * sizeof(*extents));
    }
    pthread_rwlock_unlock(&map_lock);
    return found;
}

bool sg_address_find(uint64_t address, struct sg_extent *out)
{
    pthread_rwlock_rdlock(&map_lock);
    size_t i = first_after(address);
    bool found = i < count && extents[i].begin <= address;
    if (found && out)
        *out = extents[i];
    pthread_rwlock_unlock(&map_lock);
    return found;
}

bool sg_address_update(const struct sg_extent *extent)
{
    pthread_rwlock_wrlock(&map_lock);
    size_t i = first_after(extent->begin);
    bool found = i < count && extents[i].begin == extent->begin;
    if (found)
        extents[i] = *extent;
    pthread_rwlock_unlock(&map_lock);
    return found;
}

/* A mapping without access rights exists but may not be touched. */
static bool usable(const struct sg_extent *extent, uint32_t devices)
{
    return extent->space != SG_SPACE_MAPPED || (extent->access & devices) != 0;
}

/* The lock is held. */
static bool is_absent(uint64_t address)
{
    size_t i = first_after(address);
    return i < count && extents[i].begin <= address && extents[i].absent;
}

/* The lock is held. */
static bool covers(uint64_t address, uint64_t size, uint32_t devices)
{
    if (size == 0 || address + size < address)
        return size == 0;
    uint64_t at = address, end = address + size;
    for (size_t i = first_after(address); at < end && i < count; i++) {
        /* Only mappings run on into each other; an allocation ends where it ends. */
        bool first = at == address;
        if (extents[i].begin > at || !usable(&extents[i], devices) ||
            (!first && extents[i].space != SG_SPACE_MAPPED))
            break;
        at = extents[i].end;
        if (extents[i].space != SG_SPACE_MAPPED)
            break;
    }
    return at >= end;
}

static bool covers_now(uint64_t address, uint64_t size, uint32_t devices)
{
    pthread_rwlock_rdlock(&map_lock);
    bool covered = covers(address, size, devices);
    pthread_rwlock_unlock(&map_lock);
    return covered;
}

bool sg_address_covers(uint64_t address, uint64_t size)
{
    return covers_now(address, size, UINT32_MAX);
}

bool sg_address_open(uint64_t address, uint64_t size, const struct sg_device *device)
{
    return covers_now(address, size, 1u << device->ordinal);
}

bool sg_address_hold(const void *one, uint64_t one_size, const void *two, uint64_t two_size)
{
    pthread_rwlock_rdlock(&map_lock);
    if (covers((uint64_t)(uintptr_t)one, one_size, UINT32_MAX) &&
        covers((uint64_t)(uintptr_t)two, two_size, UINT32_MAX) &&
        !(one_size && is_absent((uint64_t)(uintptr_t)one)) &&
        !(two_size && is_absent((uint64_t)(uintptr_t)two)))
        return true;
    pthread_rwlock_unlock(&map_lock);
    return false;
}

void sg_address_let_go(void)
{
    pthread_rwlock_unlock(&map_lock);
}

bool sg_address_touching(uint64_t begin, uint64_t end, struct sg_extent *out)
{
    pthread_rwlock_rdlock(&map_lock);
    size_t i = first_after(begin);
    bool found = i < count && extents[i].begin < end;
    if (found && out)
        *out = extents[i];
    pthread_rwlock_unlock(&map_lock);
    return found;
}

bool sg_address_of_context(CUcontext context, struct sg_extent *out)
{
    bool found = false;
    pthread_rwlock_rdlock(&map_lock);
    for (size_t i = 0; i < count && !found; i++) {
        found = extents[i].context == context && extents[i].space != SG_SPACE_MAPPED &&
                extents[i].space != SG_SPACE_POOL;
        if (found)
            *out = extents[i];
    }
    pthread_rwlock_unlock(&map_lock);
    return found;
}

/* For kernels: see sg_memory in ptx.h. */
static void *resolve(void *context, uint64_t address, uint64_t size, uint64_t *extent_begin,
                     uint64_t *extent_end)
{
    (void)context;
    struct sg_extent extent;
    if (!sg_address_find(address, &extent) || size > extent.end - address ||
        !usable(&extent, UINT32_MAX) || extent.absent)
        return NULL;
    *extent_begin = extent.begin;
    *extent_end = extent.end;
    return (void *)(uintptr_t)address;
}

const struct sg_memory *sg_address_memory(void)
{
    static const struct sg_memory memory = {resolve, NULL};
    return &memory;
}
