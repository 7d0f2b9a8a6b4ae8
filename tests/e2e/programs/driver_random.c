/*
 * Random operations from many threads: memory of every kind, mapped by hand among it, pools that
 * are trimmed and changed, copies of every kind, of rows and slices, to another device and back
 * where there is one, memsets, kernels, events, graphs that are captured, launched and updated.
 * Every byte is modelled, and compared.
 *
 *   driver_random SEED THREADS OPERATIONS SECONDS
 *
 * ends after so many operations in all or so many seconds (0: no such end), whichever
 * comes first. A thread does the same things for the same seed and number of operations.
 */
#include "random_graph.h"

#include <unistd.h>

/* --- all of it ------------------------------------------------------------------------------- */

static void operate(struct worker *w)
{
    static const struct {
        unsigned parts;
        void (*does)(struct worker *);
    } all[] = {
        {10, set_memory},     {6, set_rows},      {12, launch},
        {9, copy_on_device},  {10, copy_box},     {3, copy_to_other_device},
        {26, copy_with_host}, {5, change_memory}, {4, ask_about},
        {2, use_pool},        {6, change_stream}, {2, call_host},
        {2, run_graph},       {1, update_graph},  {6, wait_all},
        {4, check_device},
    };
    unsigned parts = 0, i = 0;
    for (unsigned k = 0; k < sizeof all / sizeof all[0]; k++)
        parts += all[k].parts;
    for (unsigned what = pick(w, parts); what >= all[i].parts; i++)
        what -= all[i].parts;
    all[i].does(w);
}

/* In the legacy stream, and waited for: no stream of this thread knows the other device. */
static void far_alloc(struct worker *w)
{
    struct buffer *b = &w->far;
    if (!other_context)
        return;
    b->bytes = 1 + pick(w, 1u << 17);
    b->model = check_alloc(b->bytes);
    memset(b->model, 7, b->bytes);
    CU(cuCtxSetCurrent(other_context));
    CU(cuMemAlloc(&b->device, b->bytes));
    CU(cuMemsetD8(b->device, 7, b->bytes));
    CU(cuStreamSynchronize(CU_STREAM_LEGACY));
    CU(cuCtxSetCurrent(driver_context));
}

static void far_free(struct worker *w)
{
    if (w->far.device)
        CU(cuMemFree(w->far.device));
    free(w->far.model);
}

static void begin(struct worker *w)
{
    far_alloc(w);
    CU(cuCtxSetCurrent(driver_context));
    ask_own_pool();
    pool_make(w);
    CU(cuEventCreate(&w->event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < 2; i++)
        CU(cuStreamCreate(&w->streams[i], CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < DEVICE_BUFFERS; i++)
        device_alloc(w, &w->device[i]);
    for (unsigned i = 0; i < HOST_BUFFERS; i++)
        host_alloc(w, &w->host[i]);
}

static void end(struct worker *w)
{
    wait_all(w);
    for (unsigned i = 0; i < DEVICE_BUFFERS; i++)
        device_free(w, &w->device[i]);
    wait_all(w);
    far_free(w);
    for (unsigned i = 0; i < HOST_BUFFERS; i++)
        host_free(&w->host[i]);
    for (unsigned i = 0; i < 2; i++)
        CU(cuStreamDestroy(w->streams[i]));
    CU(cuEventDestroy(w->event));
    CU(cuMemPoolDestroy(w->pool));
}

static void *run(void *arg)
{
    struct worker *w = arg;
    begin(w);
    while ((!operations_each || w->operations < operations_each) &&
           (!ends || w->operations % 64 || time(NULL) < ends)) {
        operate(w);
        w->operations++;
    }
    end(w);
    return NULL;
}

static void other_start(void)
{
    CUdevice other;
    int count = 0;
    CU(cuDeviceGetCount(&count));
    if (count < 2)
        return;
    CU(cuDeviceGet(&other, (driver_device + 1) % count));
    CU(cuDevicePrimaryCtxRetain(&other_context, other));
}

static void other_stop(void)
{
    CUdevice other;
    if (!other_context)
        return;
    CU(cuCtxSetCurrent(other_context));
    CU(cuCtxGetDevice(&other));
    CU(cuCtxSetCurrent(driver_context));
    CU(cuDevicePrimaryCtxRelease(other));
}

int main(int count, char **arguments)
{
    static struct worker workers[64];
    CUmodule module;
    uint64_t operations = 0, updates[2] = {0};

    REQUIRE(count == 5, "usage: driver_random SEED THREADS OPERATIONS SECONDS");
    unsigned seed = (unsigned)atoi(arguments[1]), threads = (unsigned)atoi(arguments[2]);
    REQUIRE(threads >= 1 && threads <= 64, "1 to 64 threads");
    operations_each = (strtoull(arguments[3], NULL, 10) + threads - 1) / threads;
    if (atoi(arguments[4]))
        ends = time(NULL) + atoi(arguments[4]);
    REQUIRE(operations_each || ends, "it would never end");
    driver_start();
    other_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    for (unsigned i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].random = seed * 7919u + i * 104729u;
        REQUIRE(pthread_create(&workers[i].thread, NULL, run, &workers[i]) == 0, "no thread");
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        operations += workers[i].operations;
        updates[0] += workers[i].updates[0];
        updates[1] += workers[i].updates[1];
    }
    CU(cuModuleUnload(module));
    other_stop();
    driver_stop();
    printf("%llu graphs updated, %llu refused\n", (unsigned long long)updates[0],
           (unsigned long long)updates[1]);
    printf("%llu operations in %u threads, seed %u\n", (unsigned long long)operations, threads,
           seed);
    return finish("driver_random");
}
