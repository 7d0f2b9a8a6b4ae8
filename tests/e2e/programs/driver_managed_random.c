/*
 * Random operations on managed memory, in several threads, against a model of its bytes: host
 * touches of any size, kernels, sets, copies, attachments and hints, in any order.
 *
 *   driver_managed_random [operations of each thread] [seed]
 */
#include <pthread.h>
#include <stdint.h>

#include "driver.h"

#define THREADS 4
#define BLOCKS 3

static CUfunction increment;

struct memory {
    unsigned char *at, *model;
    size_t bytes; /* whole ints */
};

struct worker {
    pthread_t thread;
    struct memory memory[BLOCKS];
    unsigned char *plain;
    CUstream stream;
    uint64_t random;
    long operations;
};

static uint64_t draw(struct worker *w, uint64_t below)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (w->random >> 33) % below;
}

/* Short ones often, long ones now and then. */
static size_t draw_part(struct worker *w, const struct memory *m, size_t *from)
{
    size_t most = (size_t)1 << draw(w, 21), n = draw(w, most < m->bytes ? most : m->bytes) + 1;
    *from = draw(w, m->bytes - n + 1);
    return n;
}

static void same(struct worker *w, const struct memory *m, size_t from, size_t n, const char *what)
{
    (void)w;
    for (size_t i = from; i < from + n; i++)
        REQUIRE(m->at[i] == m->model[i], "%s: byte %zu of %zu is %u, expected %u", what, i,
                m->bytes, m->at[i], m->model[i]);
}

static void host_write(struct worker *w, struct memory *m)
{
    size_t from, n = draw_part(w, m, &from);
    unsigned char value = (unsigned char)draw(w, 256);
    memset(m->at + from, value, n);
    memset(m->model + from, value, n);
}

static void host_read(struct worker *w, struct memory *m)
{
    size_t from, n = draw_part(w, m, &from);
    same(w, m, from, n, "a read");
}

static void host_scatter(struct worker *w, struct memory *m)
{
    for (int i = 0; i < 20; i++) {
        size_t at = draw(w, m->bytes);
        REQUIRE(m->at[at] == m->model[at], "byte %zu is %u, expected %u", at, m->at[at],
                m->model[at]);
        m->model[at]++;
        m->at[at]++;
    }
}

static void kernel(struct worker *w, struct memory *m)
{
    int first = (int)draw(w, m->bytes / 4), n = (int)draw(w, m->bytes / 4 - (size_t)first) + 1;
    if (n > 30000)
        n = 30000;
    int *values = (int *)m->at + first, *model = (int *)m->model + first;
    void *parameters[] = {&values, &n};
    CU(cuLaunchKernel(increment, (unsigned)(n + 255) / 256, 1, 1, 256, 1, 1, 0, w->stream,
                      parameters, NULL));
    for (int i = 0; i < n; i++)
        model[i] = (int)((unsigned)model[i] + 1);
    CU(cuStreamSynchronize(w->stream));
}

static void set(struct worker *w, struct memory *m)
{
    size_t from, n = draw_part(w, m, &from);
    CU(cuMemsetD8Async((CUdeviceptr)(uintptr_t)(m->at + from), 0x5a, n, w->stream));
    CU(cuStreamSynchronize(w->stream));
    memset(m->model + from, 0x5a, n);
}

static void copy_out(struct worker *w, struct memory *m)
{
    size_t from, n = draw_part(w, m, &from);
    CU(cuMemcpyDtoHAsync(w->plain, (CUdeviceptr)(uintptr_t)(m->at + from), n, w->stream));
    CU(cuStreamSynchronize(w->stream));
    REQUIRE(memcmp(w->plain, m->model + from, n) == 0, "a copy out of %zu bytes", n);
}

static void copy_in(struct worker *w, struct memory *m)
{
    size_t from, n = draw_part(w, m, &from);
    memset(w->plain, (int)draw(w, 256), n);
    CU(cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)(m->at + from), w->plain, n, w->stream));
    CU(cuStreamSynchronize(w->stream));
    memcpy(m->model + from, w->plain, n);
}

static void copy_within(struct worker *w, struct memory *m)
{
    const struct memory *other = &w->memory[draw(w, BLOCKS)];
    size_t from, n = draw_part(w, m, &from);
    if (other == m || n > other->bytes)
        return;
    CU(cuMemcpyAsync((CUdeviceptr)(uintptr_t)(m->at + from), (CUdeviceptr)(uintptr_t)other->at, n,
                     w->stream));
    CU(cuStreamSynchronize(w->stream));
    memcpy(m->model + from, other->model, n);
}

static void attach(struct worker *w, struct memory *m)
{
    unsigned flags = draw(w, 2) ? CU_MEM_ATTACH_GLOBAL : CU_MEM_ATTACH_SINGLE;
    CU(cuStreamAttachMemAsync(w->stream, (CUdeviceptr)(uintptr_t)m->at, 0, flags));
    CU(cuStreamSynchronize(w->stream));
}

static void hint(struct worker *w, struct memory *m)
{
    CUdevice to = draw(w, 2) ? CU_DEVICE_CPU : driver_device;
    CUmemLocation location = {.type = to == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
                                                          : CU_MEM_LOCATION_TYPE_DEVICE,
                              .id = to == CU_DEVICE_CPU ? 0 : to};
    CU(cuMemPrefetchAsync((CUdeviceptr)(uintptr_t)m->at, m->bytes, location, 0, w->stream));
    CU(cuStreamSynchronize(w->stream));
}

static void allocate(struct memory *m, size_t bytes)
{
    CUdeviceptr at;
    CU(cuMemAllocManaged(&at, bytes, CU_MEM_ATTACH_GLOBAL));
    *m = (struct memory){(unsigned char *)(uintptr_t)at, calloc(1, bytes), bytes};
    REQUIRE(m->model, "no memory");
    memset(m->at, 0, bytes); /* new memory may have anything in it */
}

static void give(struct memory *m)
{
    CU(cuMemFree((CUdeviceptr)(uintptr_t)m->at));
    free(m->model);
}

static void again(struct worker *w, struct memory *m)
{
    size_t bytes = m->bytes;
    if (draw(w, 8))
        return;
    same(w, m, 0, bytes, "before it is freed");
    give(m);
    allocate(m, bytes);
}

static void *work(void *arg)
{
    static void (*const all[])(struct worker *, struct memory *) = {
        host_write, host_read, host_scatter, host_scatter, kernel, kernel, kernel,
        set,        copy_out,  copy_in,      copy_within,  attach, hint,   again};
    struct worker *w = arg;
    CU(cuCtxSetCurrent(driver_context));
    CU(cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
    for (long i = 0; i < w->operations; i++)
        all[draw(w, sizeof all / sizeof all[0])](w, &w->memory[draw(w, BLOCKS)]);
    for (int i = 0; i < BLOCKS; i++)
        same(w, &w->memory[i], 0, w->memory[i].bytes, "at the end");
    CU(cuStreamDestroy(w->stream));
    return NULL;
}

int main(int argc, char **argv)
{
    static const size_t sizes[BLOCKS] = {(size_t)4 << 20, 200000, 4096};
    static struct worker workers[THREADS];
    CUmodule module;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    for (int t = 0; t < THREADS; t++) {
        struct worker *w = &workers[t];
        w->operations = argc > 1 ? atol(argv[1]) : 300;
        w->random = (uint64_t)(argc > 2 ? atol(argv[2]) : 1) * 1000003u + (uint64_t)t;
        w->plain = malloc(sizes[0]);
        for (int i = 0; i < BLOCKS; i++)
            allocate(&w->memory[i], sizes[i]);
        REQUIRE(w->plain && pthread_create(&w->thread, NULL, work, w) == 0, "no thread");
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(workers[t].thread, NULL);
        for (int i = 0; i < BLOCKS; i++)
            give(&workers[t].memory[i]);
        free(workers[t].plain);
    }
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_managed_random");
}
