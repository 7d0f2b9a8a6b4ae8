/*
 * Random operations from many threads: memory of every kind, mapped by hand among it, copies of
 * every kind, to another device and back where there is one, memsets, kernels, events, captures
 * and graph launches. Every byte is modelled, and compared.
 *
 *   driver_random SEED THREADS OPERATIONS SECONDS
 *
 * ends after so many operations in all or so many seconds (0: no such end), whichever
 * comes first. A thread does the same things for the same seed and number of operations.
 */
#include "random_work.h"

#include <unistd.h>

/* --- graphs -------------------------------------------------------------------------------- */

static void captured_work(struct worker *w)
{
    switch (pick(w, 4)) {
    case 0:
        set_memory(w);
        break;
    case 1:
        copy_on_device(w);
        break;
    case 2:
        copy_with_host(w);
        break;
    default:
        launch(w);
    }
}

static void run_graph(struct worker *w)
{
    CUgraph graph;
    CUgraphExec exec;
    unsigned nodes = 1 + pick(w, GRAPH_NODES), launches = 1 + pick(w, 3);
    CUstreamCaptureMode mode = pick(w, 2) ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                          : CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_rwlock_rdlock(&captures);
    w->action_count = 0;
    w->capturing = true;
    CU(cuStreamBeginCapture(stream_of(w), mode));
    for (unsigned i = 0; i < nodes; i++)
        captured_work(w);
    CU(cuStreamEndCapture(stream_of(w), &graph));
    w->capturing = false;
    pthread_rwlock_unlock(&captures);
    CU(cuGraphInstantiate(&exec, graph, 0));
    for (unsigned i = 0; i < launches; i++) {
        CU(cuGraphLaunch(exec, stream_of(w)));
        for (unsigned k = 0; k < w->action_count; k++)
            act(&w->actions[k]);
    }
    if (pick(w, 2))
        wait_all(w);
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* --- all of it ------------------------------------------------------------------------------- */

static void operate(struct worker *w)
{
    unsigned what = pick(w, 100);
    if (what < 12)
        set_memory(w);
    else if (what < 24)
        launch(w);
    else if (what < 33)
        copy_on_device(w);
    else if (what < 36)
        copy_to_other_device(w);
    else if (what < 70)
        copy_with_host(w);
    else if (what < 75)
        change_memory(w);
    else if (what < 80)
        ask_about(w);
    else if (what < 87)
        change_stream(w);
    else if (what < 89)
        call_host(w);
    else if (what < 91)
        run_graph(w);
    else if (what < 96)
        wait_all(w);
    else
        check_device(w);
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
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    far_alloc(w);
    CU(cuCtxSetCurrent(driver_context));
    CU(cuMemPoolCreate(&w->pool, &props));
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
    uint64_t operations = 0;

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
    }
    CU(cuModuleUnload(module));
    other_stop();
    driver_stop();
    printf("%llu operations in %u threads, seed %u\n", (unsigned long long)operations, threads,
           seed);
    return finish("driver_random");
}
