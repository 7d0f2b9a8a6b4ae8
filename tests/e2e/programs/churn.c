/*
 * Memory that is allocated and freed again and again.
 *
 *   churn pairs N BYTES   N pairs of cuMemAlloc and cuMemFree
 *   churn beside N        the same of 1 MiB, with work of three streams that is not waited for
 *   churn threads N       N threads allocate, set, compare and free; every byte is modelled
 *   churn across N        the same over two devices, where any context frees, and streams go
 *
 * What is freed while the GPU still writes to it must not be anybody else's before that is over.
 */
#include "driver.h"

#include <pthread.h>

#define MIB ((size_t)1 << 20)
#define SLOTS 12
#define STREAMS 3
#define STEPS 400
#define THREADS_MOST 32

static CUdeviceptr allocated(size_t bytes)
{
    CUdeviceptr at;
    size_t size = 0;
    CUdeviceptr begin = 0;
    CU(cuMemAlloc(&at, bytes));
    CU(cuMemGetAddressRange(&begin, &size, at + bytes - 1));
    REQUIRE(begin == at && size == bytes, "a range of %zu, not %zu", size, bytes);
    return at;
}

/* What was freed is known to be free when the context has been waited for. */
static void warm(size_t bytes)
{
    CU(cuMemFree(allocated(bytes)));
    CU(cuCtxSynchronize());
}

static void pairs(long count, size_t bytes)
{
    warm(bytes);
    for (long i = 0; i < count; i++) {
        CUdeviceptr at = allocated(bytes);
        CU(cuMemFree(at));
        CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at));
    }
}

static void beside(long count)
{
    unsigned char *host = check_alloc(MIB);
    CUstream streams[STREAMS] = {NULL}; /* the others wait for nobody */
    for (unsigned i = 1; i < STREAMS; i++)
        CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    warm(MIB);
    for (long i = 0; i < count; i++) {
        unsigned char value = (unsigned char)(i + 1);
        CUstream own = streams[i % STREAMS], other = streams[i / STREAMS % STREAMS];
        CUdeviceptr at = allocated(MIB);
        CU(cuMemsetD8Async(at, value, MIB, own));
        CU(cuMemcpyDtoHAsync(host, at, MIB, own));
        CU(cuStreamSynchronize(own));
        for (size_t k = 0; k < MIB; k++)
            REQUIRE(host[k] == value, "byte %zu is %d, not %d", k, host[k], value);
        CU(cuMemsetD8Async(at, 0xee, MIB, other));
        CU(cuMemFree(at));
        if (i % 5 == 0)
            CU(cuCtxSynchronize());
    }
    for (unsigned i = 1; i < STREAMS; i++)
        CU(cuStreamDestroy(streams[i]));
    free(host);
}

/* --- threads --------------------------------------------------------------------------------- */

struct slot {
    CUdeviceptr at;
    size_t bytes;
    unsigned char value;
};

static unsigned next(unsigned *random)
{
    *random = *random * 1664525u + 1013904223u;
    return *random >> 8;
}

static void slot_fill(struct slot *slot, unsigned *random, CUstream stream)
{
    static const size_t sizes[] = {1, 512, 4000, 65536, 300000, 1 << 19, 1 << 20, 1 << 21, 3 << 20};
    slot->bytes = sizes[next(random) % (sizeof sizes / sizeof *sizes)];
    slot->value = (unsigned char)next(random);
    slot->at = allocated(slot->bytes);
    CU(cuMemsetD8Async(slot->at, slot->value, slot->bytes, stream));
}

static void slot_compare(const struct slot *slot, unsigned char *host, CUstream stream)
{
    CU(cuMemcpyDtoHAsync(host, slot->at, slot->bytes, stream));
    CU(cuStreamSynchronize(stream));
    for (size_t i = 0; i < slot->bytes; i++)
        REQUIRE(host[i] == slot->value, "byte %zu of %zu is %d, not %d", i, slot->bytes, host[i],
                slot->value);
}

/* The last set is still on its way when the memory is freed. */
static void slot_free(struct slot *slot, unsigned *random, CUstream stream)
{
    if (next(random) % 2)
        CU(cuMemsetD8Async(slot->at, 0xee, slot->bytes, stream));
    CU(cuMemFree(slot->at));
    *slot = (struct slot){0};
}

static void *run(void *arg)
{
    unsigned random = 7919u * (unsigned)(size_t)arg + 1;
    unsigned char *host = check_alloc(3 * MIB);
    struct slot slots[SLOTS] = {{0}};
    CUstream stream;
    size_t rest, all;

    CU(cuCtxSetCurrent(driver_context));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < STEPS; i++) {
        struct slot *slot = &slots[next(&random) % SLOTS];
        if (!slot->at)
            slot_fill(slot, &random, stream);
        else if (next(&random) % 3 == 0)
            slot_compare(slot, host, stream);
        else
            slot_free(slot, &random, stream);
        if (next(&random) % 64 == 0)
            CU(cuMemGetInfo(&rest, &all));
        if (next(&random) % 32 == 0)
            CU(cuCtxSynchronize());
    }
    for (unsigned i = 0; i < SLOTS; i++)
        if (slots[i].at) {
            slot_compare(&slots[i], host, stream);
            slot_free(&slots[i], &random, stream);
        }
    CU(cuStreamDestroy(stream));
    free(host);
    return NULL;
}

/* --- over devices ---------------------------------------------------------------------------- */

#define DEVICES 2

static CUcontext contexts[DEVICES];

static CUstream stream_new(unsigned device)
{
    CUstream stream;
    CU(cuCtxSetCurrent(contexts[device]));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Its work may be under way; nobody else knows that stream. */
static void stream_replace(CUstream *stream, unsigned device)
{
    CU(cuStreamDestroy(*stream));
    *stream = stream_new(device);
    CU(cuCtxSynchronize());
}

static void *run_across(void *arg)
{
    unsigned random = 6151u * (unsigned)(size_t)arg + 5;
    unsigned char *host = check_alloc(3 * MIB);
    struct slot slots[SLOTS] = {{0}}; /* of the two devices in turn */
    CUstream streams[DEVICES];

    for (unsigned d = 0; d < DEVICES; d++)
        streams[d] = stream_new(d);
    for (unsigned i = 0; i < STEPS; i++) {
        unsigned which = next(&random) % SLOTS, device = which % DEVICES;
        struct slot *slot = &slots[which];
        CU(cuCtxSetCurrent(contexts[device]));
        if (slot->at && next(&random) % 4) {
            slot_compare(slot, host, streams[device]);
            if (next(&random) % 2)
                CU(cuMemsetD8Async(slot->at, 0xee, slot->bytes, streams[device]));
            CU(cuCtxSetCurrent(contexts[next(&random) % DEVICES]));
            CU(cuMemFree(slot->at));
            *slot = (struct slot){0};
        } else if (!slot->at) {
            slot_fill(slot, &random, streams[device]);
        }
        if (next(&random) % 16 == 0)
            stream_replace(&streams[device], device);
    }
    free(host);
    return NULL;
}

static void start_across(void)
{
    for (int d = 0; d < DEVICES; d++) {
        CUdevice device;
        CU(cuDeviceGet(&device, d));
        CU(cuDevicePrimaryCtxRetain(&contexts[d], device));
    }
}

static void run_threads(size_t count, void *(*run)(void *))
{
    pthread_t threads[THREADS_MOST];

    REQUIRE(count <= THREADS_MOST, "at most %d threads", THREADS_MOST);
    for (size_t i = 0; i < count; i++)
        REQUIRE(pthread_create(&threads[i], NULL, run, (void *)i) == 0, "no thread");
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    REQUIRE(argc >= 3, "usage: churn pairs N BYTES | beside N | threads N | across N");
    driver_start();
    if (strcmp(argv[1], "pairs") == 0)
        pairs(atol(argv[2]), argc > 3 ? (size_t)atol(argv[3]) : MIB);
    else if (strcmp(argv[1], "beside") == 0)
        beside(atol(argv[2]));
    else if (strcmp(argv[1], "across") == 0)
        start_across(), run_threads((size_t)atol(argv[2]), run_across);
    else
        run_threads((size_t)atol(argv[2]), run);
    driver_stop();
    return finish("churn");
}
