/* driver_random.c: memory of every kind, and waiting for what is done with it. */
#ifndef RANDOM_MEMORY_H
#define RANDOM_MEMORY_H

#include "random_model.h"

/* --- waiting -------------------------------------------------------------------------- */

static void wait_context(struct worker *w)
{
    if (pthread_rwlock_trywrlock(&captures) != 0) {
        CU(cuStreamSynchronize(stream_of(w)));
        return;
    }
    CU(cuCtxSynchronize());
    pthread_rwlock_unlock(&captures);
}

static void poll_event(struct worker *w)
{
    CUresult r;
    CU(cuEventRecord(w->event, stream_of(w)));
    while ((r = cuEventQuery(w->event)) == CUDA_ERROR_NOT_READY)
        ;
    CU(r);
}

static void poll_stream(struct worker *w)
{
    CUresult r;
    while ((r = cuStreamQuery(stream_of(w))) == CUDA_ERROR_NOT_READY)
        ;
    CU(r);
}

static void wait_all(struct worker *w)
{
    switch (pick(w, 8)) {
    case 0:
        wait_context(w);
        break;
    case 1:
    case 2:
        CU(cuEventRecord(w->event, stream_of(w)));
        CU(cuEventSynchronize(w->event));
        break;
    case 3:
        poll_event(w);
        break;
    case 4:
        poll_stream(w);
        break;
    default:
        CU(cuStreamSynchronize(stream_of(w)));
    }
    for (unsigned i = 0; i < HOST_BUFFERS; i++) {
        struct buffer *b = &w->host[i];
        if (b->busy)
            compare(w, "host memory", b->host, b);
        b->busy = false;
    }
    unsigned called = __atomic_load_n(&w->called, __ATOMIC_ACQUIRE);
    REQUIRE(called == w->calls_wanted, "thread %u: %u host functions of %u ran", w->number, called,
            w->calls_wanted);
}

/* What follows on the other stream comes behind what was submitted here. */
static void change_stream(struct worker *w)
{
    CU(cuEventRecord(w->event, stream_of(w)));
    w->at = !w->at;
    CU(cuStreamWaitEvent(stream_of(w), w->event, 0));
}

/* --- memory ----------------------------------------------------------------------------- */

/* Memory, addresses and access, each by its own call. */
static void map(struct buffer *b)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle memory;
    size_t granule = 0;
    CU(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    b->mapped = (b->bytes + granule - 1) / granule * granule;
    CU(cuMemAddressReserve(&b->device, b->mapped, 0, 0, 0));
    CU(cuMemCreate(&memory, b->mapped, &prop, 0));
    CU(cuMemMap(b->device, b->mapped, 0, memory, 0));
    CU(cuMemRelease(memory)); /* it stays as long as it is mapped */
    CU(cuMemSetAccess(b->device, b->mapped, &access, 1));
}

static void unmap(const struct buffer *b)
{
    CU(cuMemUnmap(b->device, b->mapped));
    CU(cuMemAddressFree(b->device, b->mapped));
}

static void device_free(struct worker *w, struct buffer *b)
{
    if (!b->device)
        return;
    if (b->kind >= ORDERED && pick(w, 4)) {
        CU(cuMemFreeAsync(b->device, stream_of(w)));
    } else {
        wait_all(w);
        if (b->kind == MAPPED)
            unmap(b);
        else
            CU(cuMemFree(b->device));
    }
    free(b->model);
    *b = (struct buffer){.device = 0};
}

static void device_alloc(struct worker *w, struct buffer *b)
{
    *b = (struct buffer){.kind = (int)pick(w, DEVICE_KINDS), .bytes = pick_size(w)};
    switch (b->kind) {
    case PLAIN:
        CU(cuMemAlloc(&b->device, b->bytes));
        break;
    case PITCHED: {
        size_t width = 1 + pick(w, 2000), height = 1 + pick(w, 20);
        CU(cuMemAllocPitch(&b->device, &b->pitch, width, height, 4));
        b->bytes = b->pitch * height;
        break;
    }
    case MAPPED:
        map(b);
        break;
    case ORDERED:
        CU(cuMemAllocAsync(&b->device, b->bytes, stream_of(w)));
        break;
    default:
        b->pool = w->pool;
        CU(cuMemAllocFromPoolAsync(&b->device, b->bytes, w->pool, stream_of(w)));
    }
    b->model = check_alloc(b->bytes);
    uint8_t value = (uint8_t)pick(w, 256);
    memset(b->model, value, b->bytes);
    CU(cuMemsetD8Async(b->device, value, b->bytes, stream_of(w)));
}

static void host_free(struct buffer *b)
{
    if (!b->host)
        return;
    if (b->kind == PINNED) {
        CU(cuMemFreeHost(b->host));
    } else {
        if (b->kind == REGISTERED)
            CU(cuMemHostUnregister(b->host));
        free(b->host);
    }
    free(b->model);
    *b = (struct buffer){.host = NULL};
}

static void host_fill(struct worker *w, struct buffer *b)
{
    unsigned value = pick(w, 256), step = 1 + pick(w, 7);
    for (size_t i = 0; i < b->bytes; i++)
        b->host[i] = b->model[i] = (uint8_t)(value + i * step);
}

static void host_alloc(struct worker *w, struct buffer *b)
{
    *b = (struct buffer){.kind = (int)pick(w, HOST_KINDS), .bytes = pick_size(w)};
    if (b->kind == PINNED) {
        CU(cuMemHostAlloc((void **)&b->host, b->bytes, 0));
    } else {
        /* whole pages of its own: what is registered must not meet what others register */
        REQUIRE((b->host = aligned_alloc(4096, (b->bytes + 4095) / 4096 * 4096)), "no memory");
        if (b->kind == REGISTERED)
            CU(cuMemHostRegister(b->host, b->bytes, 0));
    }
    b->model = check_alloc(b->bytes);
    host_fill(w, b);
}

/* Another one in the place of an old one. */
static void change_memory(struct worker *w)
{
    if (pick(w, 3)) {
        struct buffer *b = &w->device[pick(w, DEVICE_BUFFERS)];
        device_free(w, b);
        device_alloc(w, b);
    } else {
        struct buffer *b = &w->host[pick(w, HOST_BUFFERS)];
        wait_all(w);
        host_free(b);
        host_alloc(w, b);
    }
}

static void ask_about(struct worker *w)
{
    const struct buffer *b = &w->device[pick(w, DEVICE_BUFFERS)];
    size_t offset = pick(w, (unsigned)b->bytes), size = 0, free_bytes, total;
    CUdeviceptr base = 0;
    CUmemorytype type = 0;

    CU(cuMemGetAddressRange(&base, &size, b->device + offset));
    REQUIRE(base == b->device && size >= b->bytes, "thread %u: %zu bytes at %llx: %zu at %llx",
            w->number, b->bytes, b->device, size, base);
    CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, b->device + offset));
    REQUIRE(type == CU_MEMORYTYPE_DEVICE, "its type is %d", (int)type);
    if (pick(w, 20) == 0)
        CU(cuMemGetInfo(&free_bytes, &total));
}

/* --- pools -------------------------------------------------------------------------------- */

/* What is allocated from it is in use, and what is in use is reserved. */
static void ask_pool(struct worker *w)
{
    cuuint64_t used = 0, reserved = 0, own = 0;
    wait_all(w);
    for (unsigned i = 0; i < DEVICE_BUFFERS; i++)
        if (w->device[i].device && w->device[i].pool == w->pool)
            own += w->device[i].bytes;
    CU(cuMemPoolGetAttribute(w->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CU(cuMemPoolGetAttribute(w->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    REQUIRE(own <= used && used <= reserved,
            "thread %u: %llu bytes from a pool of which %llu are in use and %llu reserved",
            w->number, (unsigned long long)own, (unsigned long long)used,
            (unsigned long long)reserved);
}

/* The device's own, for which all threads ask first at about the same time. */
static void ask_own_pool(void)
{
    static CUmemoryPool one;
    CUmemoryPool own, none = NULL;
    cuuint64_t keep;
    CU(cuDeviceGetDefaultMemPool(&own, driver_device));
    CU(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    if (!__atomic_compare_exchange_n(&one, &none, own, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        REQUIRE(own == none, "a device has two pools of its own: %p, %p", (void *)own,
                (void *)none);
}

static void pool_make(struct worker *w)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    CU(cuMemPoolCreate(&w->pool, &props));
}

/* Of memory that outlives its pool, which CUDA promises, local drivers die later. */
static void pool_empty(struct worker *w)
{
    for (unsigned i = 0; i < DEVICE_BUFFERS; i++) {
        struct buffer *b = &w->device[i];
        while (b->pool == w->pool) {
            device_free(w, b);
            device_alloc(w, b);
        }
    }
    wait_all(w);
}

static void pool_change(struct worker *w)
{
    if (driver_is_native())
        pool_empty(w);
    CU(cuMemPoolDestroy(w->pool));
    for (unsigned i = 0; i < DEVICE_BUFFERS; i++)
        w->device[i].pool = NULL;
    pool_make(w);
}

static void use_pool(struct worker *w)
{
    cuuint64_t keep = pick(w, 2) ? pick(w, BIGGEST) : 0;
    switch (pick(w, 8)) {
    case 0:
        pool_change(w);
        break;
    case 1:
    case 2:
        CU(cuMemPoolSetAttribute(w->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
        break;
    case 3:
    case 4:
        ask_pool(w);
        break;
    default:
        CU(cuMemPoolTrimTo(w->pool, keep));
    }
}

#endif
