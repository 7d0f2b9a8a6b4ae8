#include "allocator.h"

#include <stdlib.h>
#include <string.h>

#include "session.h"
#include "size_class.h"
#include "snapshot.h"

#define GRANULE GPW_GRANULE

/* A run of granules, mapped. */
struct block {
    CUdeviceptr at;
    uint64_t size; /* mapped bytes */
    CUmemGenericAllocationHandle pages;
    uint32_t shift; /* of a single granule: log2 of the piece, else 0 */
    uint32_t used;  /* pieces in use */
    size_t *asked;  /* per piece: bytes asked for, 0 free (one entry if there are none) */
    uint32_t hint;  /* where to look for a free piece first */
    bool foreign;   /* another process's */
    uint64_t kept;  /* for the client, behind this message; 0: it is not */
    struct gpw_shareable *shareable;
};

struct gpw_allocator {
    const struct gpw_driver *driver;
    CUdevice device;
    CUmemAllocationProp prop;
    CUmemAccessDesc access[GP_DEVICES_MAX]; /* the device's own first, then its peers' */
    uint32_t access_count;
    uint64_t begin, end;
    struct block *blocks; /* by address */
    uint32_t count, room;
    uint64_t bytes;
    struct gpw_allocator_limit limit;
    const uint64_t *now; /* the message that is dealt with */
};

static CUmemAccessDesc access_of(CUdevice device)
{
    return (CUmemAccessDesc){{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                             CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

static bool has(const struct gpw_driver *driver, CUdevice device, CUdevice_attribute what)
{
    int value = 0;
    return driver->cuDeviceGetAttribute(&value, what, device) == CUDA_SUCCESS && value == 1;
}

/* As cuMemAlloc's memory is: other processes can be given it, and network cards reach it. */
static CUmemAllocationProp prop_of(const struct gpw_driver *driver, CUdevice device)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    if (has(driver, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable = has(
        driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    return prop;
}

struct gpw_allocator *gpw_allocator_new(const struct gpw_driver *driver, CUdevice device,
                                        uint64_t begin, uint64_t end)
{
    struct gpw_allocator *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    *a = (struct gpw_allocator){.driver = driver, .device = device, .begin = begin, .end = end};
    a->prop = prop_of(driver, device);
    a->access[a->access_count++] = access_of(device);
    return a;
}

bool gpw_allocator_reaches(const struct gpw_allocator *a, CUdevice device)
{
    for (uint32_t i = 0; i < a->access_count; i++)
        if (a->access[i].location.id == device)
            return true;
    return false;
}

CUresult gpw_allocator_share(struct gpw_allocator *a, CUdevice peer)
{
    if (gpw_allocator_reaches(a, peer))
        return CUDA_SUCCESS;
    if (a->access_count == GP_DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    const CUmemAccessDesc access = access_of(peer);
    for (uint32_t i = 0; i < a->count; i++) {
        CUresult r = a->driver->cuMemSetAccess(a->blocks[i].at, a->blocks[i].size, &access, 1);
        if (r != CUDA_SUCCESS)
            return r;
    }
    a->access[a->access_count++] = access;
    return CUDA_SUCCESS;
}

void gpw_allocator_set_limit(struct gpw_allocator *a, const struct gpw_allocator_limit *limit)
{
    a->limit = *limit;
}

void gpw_allocator_delete(struct gpw_allocator *a)
{
    if (!a)
        return;
    gpw_allocator_clear(a);
    free(a->blocks);
    free(a);
}

uint64_t gpw_allocator_bytes(const struct gpw_allocator *a)
{
    return __atomic_load_n(&a->bytes, __ATOMIC_RELAXED);
}

/* Index of the first block that ends behind `address`. */
static uint32_t block_after(const struct gpw_allocator *a, CUdeviceptr address)
{
    uint32_t low = 0, high = a->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (a->blocks[middle].at + a->blocks[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct block *block_of(const struct gpw_allocator *a, CUdeviceptr address)
{
    uint32_t i = block_after(a, address);
    return i < a->count && a->blocks[i].at <= address ? &a->blocks[i] : NULL;
}

static uint32_t pieces_of(const struct block *b)
{
    return b->shift ? (uint32_t)(b->size >> b->shift) : 1;
}

/* The piece that an address lies in. */
static uint32_t piece_at(const struct block *b, CUdeviceptr address)
{
    return b->shift ? (uint32_t)((address - b->at) >> b->shift) : 0;
}

/* --- pages ------------------------------------------------------------------- */

/* What the driver refuses though the device says that it can is not asked for again. */
static CUresult pages_create(struct gpw_allocator *a, uint64_t size,
                             CUmemGenericAllocationHandle *pages)
{
    CUresult r = a->driver->cuMemCreate(pages, size, &a->prop, 0);
    bool plain = !a->prop.requestedHandleTypes && !a->prop.allocFlags.gpuDirectRDMACapable;
    if (r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY || plain)
        return r;
    CUmemAllocationProp prop = {.type = a->prop.type, .location = a->prop.location};
    if (a->driver->cuMemCreate(pages, size, &prop, 0) != CUDA_SUCCESS)
        return r;
    gpw_log("warn",
            "device %d: the driver makes no memory that can be exported (CUDA error %d): other "
            "processes cannot be given what is allocated from here on",
            (int)a->device, (int)r);
    a->prop = prop;
    return CUDA_SUCCESS;
}

static CUresult pages_place(struct gpw_allocator *a, CUdeviceptr at, uint64_t size,
                            CUmemGenericAllocationHandle pages)
{
    const struct gpw_driver *d = a->driver;
    CUresult r = d->cuMemMap(at, size, 0, pages, 0);
    if (r == CUDA_SUCCESS && (r = d->cuMemSetAccess(at, size, a->access, a->access_count)))
        d->cuMemUnmap(at, size);
    return r;
}

static CUresult pages_of_driver(struct gpw_allocator *a, CUdeviceptr at, uint64_t size,
                                CUmemGenericAllocationHandle *pages)
{
    CUresult r = pages_create(a, size, pages);
    if (r == CUDA_SUCCESS && (r = pages_place(a, at, size, *pages)))
        a->driver->cuMemRelease(*pages);
    return r;
}

static CUresult pages_map(struct gpw_allocator *a, CUdeviceptr at, uint64_t size,
                          CUmemGenericAllocationHandle *pages)
{
    if (a->limit.take && !a->limit.take(a->limit.arg, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = pages_of_driver(a, at, size, pages);
    if (r != CUDA_SUCCESS && a->limit.give)
        a->limit.give(a->limit.arg, size);
    return r;
}

static void pages_unmap(struct gpw_allocator *a, const struct block *b)
{
    a->driver->cuMemUnmap(b->at, b->size);
    a->driver->cuMemRelease(b->pages);
    if (b->shareable && a->limit.let_go)
        a->limit.let_go(a->limit.arg, b->shareable, b->at);
    else if (a->limit.give)
        a->limit.give(a->limit.arg, b->size);
}

/* The lowest gap of the window that holds `size`; 0 when there is none. */
static CUdeviceptr gap_find(const struct gpw_allocator *a, uint64_t size, uint32_t *index)
{
    CUdeviceptr at = a->begin;
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->blocks[i].at - at >= size) {
            *index = i;
            return at;
        }
        at = a->blocks[i].at + a->blocks[i].size;
    }
    *index = a->count;
    return a->end - at >= size ? at : 0;
}

static bool blocks_grow(struct gpw_allocator *a)
{
    if (a->count < a->room)
        return true;
    uint32_t room = a->room ? 2 * a->room : 64;
    struct block *more = realloc(a->blocks, room * sizeof *more);
    if (!more)
        return false;
    a->blocks = more;
    a->room = room;
    return true;
}

/* Its pages, if it is no foreign one: those are there, and mapped here like any. */
static CUresult block_fill(struct gpw_allocator *a, struct block *b)
{
    return b->foreign ? pages_place(a, b->at, b->size, b->pages)
                      : pages_map(a, b->at, b->size, &b->pages);
}

/* `b` says what it is to be, but for its place. */
static struct block *block_new(struct gpw_allocator *a, struct block b, CUresult *r)
{
    uint32_t index;
    *r = CUDA_ERROR_OUT_OF_MEMORY;
    b.at = gap_find(a, b.size, &index);
    if (!b.at || !blocks_grow(a))
        return NULL;
    b.asked = calloc(pieces_of(&b), sizeof *b.asked);
    if (!b.asked)
        return NULL;
    if ((*r = block_fill(a, &b)) != CUDA_SUCCESS) {
        free(b.asked);
        return NULL;
    }
    memmove(a->blocks + index + 1, a->blocks + index, (a->count - index) * sizeof *a->blocks);
    a->blocks[index] = b;
    a->count++;
    if (!b.foreign)
        __atomic_fetch_add(&a->bytes, b.size, __ATOMIC_RELAXED);
    return &a->blocks[index];
}

static void block_delete(struct gpw_allocator *a, struct block *b)
{
    struct block gone = *b;
    uint32_t index = (uint32_t)(b - a->blocks);
    memmove(b, b + 1, (a->count - index - 1) * sizeof *b);
    a->count--;
    pages_unmap(a, &gone);
    if (!gone.foreign)
        __atomic_fetch_sub(&a->bytes, gone.size, __ATOMIC_RELAXED);
    free(gone.asked);
}

void gpw_allocator_clear(struct gpw_allocator *a)
{
    while (a->count)
        block_delete(a, &a->blocks[a->count - 1]);
}

/* --- allocations --------------------------------------------------------------- */

static CUdeviceptr piece_take(struct block *b, size_t bytes)
{
    uint32_t pieces = pieces_of(b);
    for (uint32_t n = 0; n < pieces; n++) {
        uint32_t i = (b->hint + n) % pieces;
        if (b->asked[i] == 0) {
            b->asked[i] = bytes;
            b->used++;
            b->hint = (i + 1) % pieces;
            return b->at + ((CUdeviceptr)i << b->shift);
        }
    }
    return 0;
}

/* What the client was left behind a later message than the one that is dealt with it may hand
 * out: a call that was put off must not come in between. */
static bool is_ours(const struct gpw_allocator *a, const struct block *b)
{
    return b->kept == 0 || !a->now || b->kept <= *a->now;
}

bool gpw_allocator_trim(struct gpw_allocator *a)
{
    bool any = false;
    for (uint32_t i = a->count; i-- > 0;)
        if (a->blocks[i].used == 0 && is_ours(a, &a->blocks[i])) {
            block_delete(a, &a->blocks[i]);
            any = true;
        }
    return any;
}

CUresult gpw_allocator_take(struct gpw_allocator *a, size_t bytes, CUdeviceptr *out)
{
    CUresult r;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > a->end - a->begin)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t shift = gp_class_shift(bytes);
    for (uint32_t i = 0; shift && i < a->count; i++) {
        struct block *b = &a->blocks[i];
        if (b->shift == shift && b->used < pieces_of(b) && is_ours(a, b)) {
            *out = piece_take(b, bytes);
            return CUDA_SUCCESS;
        }
    }
    uint64_t size = shift ? GRANULE : (bytes + GRANULE - 1) / GRANULE * GRANULE;
    const struct block like = {.size = size, .shift = shift};
    struct block *b = block_new(a, like, &r);
    if (!b && r == CUDA_ERROR_OUT_OF_MEMORY && gpw_allocator_trim(a))
        b = block_new(a, like, &r);
    if (!b)
        return r;
    if (shift) {
        *out = piece_take(b, bytes);
    } else {
        b->asked[0] = bytes;
        b->used = 1;
        *out = b->at;
    }
    return CUDA_SUCCESS;
}

size_t gpw_allocator_size(const struct gpw_allocator *a, CUdeviceptr base)
{
    const struct block *b = block_of(a, base);
    if (!b || b->foreign)
        return 0;
    uint32_t i = piece_at(b, base);
    return base == b->at + ((CUdeviceptr)i << b->shift) || (!b->shift && base == b->at)
               ? b->asked[i]
               : 0;
}

bool gpw_allocator_holds(const struct gpw_allocator *a, CUdeviceptr address, uint64_t bytes)
{
    const struct block *b = block_of(a, address);
    if (!b)
        return false;
    uint32_t i = piece_at(b, address);
    uint64_t into = b->shift ? address - b->at - ((CUdeviceptr)i << b->shift) : address - b->at;
    return b->asked[i] != 0 && into <= b->asked[i] && bytes <= b->asked[i] - into;
}

/* Whether another granule of this class has room, so that this one may go. */
static bool spare_exists(const struct gpw_allocator *a, const struct block *b)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (&a->blocks[i] != b && a->blocks[i].shift == b->shift &&
            a->blocks[i].used < pieces_of(&a->blocks[i]))
            return true;
    return false;
}

/* Nothing lives in it, and it is not left for the next: what others may still have is nobody's
 * next, but for what the client was told that it may have. */
static bool is_surplus(const struct gpw_allocator *a, const struct block *b)
{
    bool leave = b->kept || (b->shift && !b->shareable && !spare_exists(a, b));
    return b->used == 0 && !leave;
}

void gpw_allocator_give(struct gpw_allocator *a, CUdeviceptr address)
{
    if (gpw_allocator_size(a, address) == 0)
        return;
    struct block *b = block_of(a, address);
    b->asked[piece_at(b, address)] = 0;
    b->used--;
    if (is_surplus(a, b))
        block_delete(a, b);
}

/* --- memory that the client hands out by itself ------------------------------------------ */

void gpw_allocator_follow(struct gpw_allocator *a, const uint64_t *now)
{
    a->now = now;
}

bool gpw_allocator_keep(struct gpw_allocator *a, CUdeviceptr address, uint64_t behind)
{
    struct block *b = block_of(a, address);
    if (!b || !b->shift || behind == 0)
        return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->blocks[i].shift == b->shift && a->blocks[i].kept > behind)
            return &a->blocks[i] == b;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->blocks[i].shift == b->shift)
            a->blocks[i].kept = 0;
    b->kept = behind;
    return true;
}

void gpw_allocator_settle(struct gpw_allocator *a)
{
    for (uint32_t i = a->count; i-- > 0;)
        if (is_surplus(a, &a->blocks[i]))
            block_delete(a, &a->blocks[i]);
}

bool gpw_allocator_choose(struct gpw_allocator *a, CUdeviceptr address, size_t bytes)
{
    struct block *b = block_of(a, address);
    if (!b || !b->kept || bytes == 0 || gp_class_shift(bytes) != b->shift)
        return false;
    uint32_t i = piece_at(b, address);
    if (b->asked[i] != 0 || address != b->at + ((CUdeviceptr)i << b->shift))
        return false;
    b->asked[i] = bytes;
    b->used++;
    return true;
}

/* --- pages that several processes have ------------------------------------------- */

bool gpw_allocator_pages(struct gpw_allocator *a, CUdeviceptr address, struct gpw_pages *out)
{
    struct block *b = block_of(a, address);
    if (!b || b->foreign || !gpw_allocator_holds(a, address, 1))
        return false;
    uint32_t i = piece_at(b, address);
    *out = (struct gpw_pages){.handle = b->pages,
                              .bytes = b->size,
                              .offset = b->shift ? (uint64_t)i << b->shift : 0,
                              .size = b->asked[i],
                              .shareable = &b->shareable};
    return true;
}

CUresult gpw_allocator_map(struct gpw_allocator *a, CUmemGenericAllocationHandle handle,
                           uint64_t bytes, struct gpw_shareable *one, CUdeviceptr *at)
{
    CUresult r;
    struct block *b = block_new(
        a, (struct block){.size = bytes, .pages = handle, .foreign = true, .shareable = one}, &r);
    if (!b)
        return r;
    b->asked[0] = bytes;
    b->used = 1;
    *at = b->at;
    return CUDA_SUCCESS;
}

void gpw_allocator_unmap(struct gpw_allocator *a, CUdeviceptr at)
{
    struct block *b = block_of(a, at);
    if (b && b->foreign && b->at == at)
        block_delete(a, b);
}
