/*
 * What single driver calls cost: one line of JSON, name to figure.
 *
 *   micro [SECONDS_EACH [LARGEST_MIB]]
 *
 * Names end in their unit: _us (microseconds for one call) or _gb_s (10^9 bytes a
 * second). A figure is the median of batches, as many as fit into SECONDS_EACH.
 * bench/run.py runs it natively and through each transport in turn, several times,
 * because machines are noisy: only ratios within one run mean something.
 */
#include <cuda.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"

enum { MOST_BATCHES = 400 };

static const char nothing_ptx[] = ".version 7.0\n"
                                  ".target sm_70\n"
                                  ".address_size 64\n"
                                  ".visible .entry nothing(.param .u64 nothing_param_0)\n"
                                  "{\n"
                                  "    ret;\n"
                                  "}\n";

static CUfunction nothing;
static CUstream stream;
static CUdeviceptr device;
static unsigned char *plain, *pinned;
static size_t largest = (size_t)256 << 20;
static double seconds_each = 0.3;
static bool first_figure = true;

/* What one batch does: `count` times the call that is measured. */
struct work {
    void (*batch)(const struct work *, int count);
    size_t size;
    void *host;
};

/* Seconds for one call: the median over batches of `count`. */
static double measure(const struct work *work, int count)
{
    static double times[MOST_BATCHES];
    int n = 0;
    double end;

    work->batch(work, count); /* once for caches and first-time work */
    CU(cuCtxSynchronize());
    end = now() + seconds_each;
    do {
        double begin = now();
        work->batch(work, count);
        times[n++] = (now() - begin) / count;
        CU(cuCtxSynchronize());
    } while (n < MOST_BATCHES && (n < 3 || now() < end));
    qsort(times, (size_t)n, sizeof *times, by_value);
    return times[n / 2];
}

static void figure(const char *name, double value)
{
    printf("%s\"%s\": %.6g", first_figure ? "" : ", ", name, value);
    first_figure = false;
}

static void submit(const struct work *work, int count)
{
    void *parameters[] = {&device};
    (void)work;
    for (int i = 0; i < count; i++)
        CU(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void launch_and_wait(const struct work *work, int count)
{
    for (int i = 0; i < count; i++) {
        submit(work, 1);
        CU(cuStreamSynchronize(stream));
    }
}

/* As the runtime waits for its device. */
static void launch_and_wait_for_all(const struct work *work, int count)
{
    for (int i = 0; i < count; i++) {
        submit(work, 1);
        CU(cuCtxSynchronize());
    }
}

static void launch_and_wait_for_event(const struct work *work, int count)
{
    static CUevent event;
    if (!event)
        CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < count; i++) {
        submit(work, 1);
        CU(cuEventRecord(event, stream));
        CU(cuEventSynchronize(event));
    }
}

/* A value that is read by way of pinned memory, as PyTorch's item() does. */
static void read_value(const struct work *work, int count)
{
    for (int i = 0; i < count; i++) {
        CU(cuMemcpyDtoHAsync(work->host, device, work->size, stream));
        CU(cuStreamSynchronize(stream));
    }
}

static void wait_idle(const struct work *work, int count)
{
    (void)work;
    for (int i = 0; i < count; i++)
        CU(cuStreamSynchronize(stream));
}

static void record_and_query(const struct work *work, int count)
{
    static CUevent event;
    (void)work;
    if (!event)
        CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < count; i++) {
        CU(cuEventRecord(event, stream));
        while (cuEventQuery(event) == CUDA_ERROR_NOT_READY)
            ;
    }
}

static void take_and_give(const struct work *work, int count)
{
    for (int i = 0; i < count; i++) {
        CUdeviceptr p;
        CU(cuMemAlloc(&p, work->size));
        CU(cuMemFree(p));
    }
}

static void take_and_give_async(const struct work *work, int count)
{
    for (int i = 0; i < count; i++) {
        CUdeviceptr p;
        CU(cuMemAllocAsync(&p, work->size, stream));
        CU(cuMemFreeAsync(p, stream));
    }
}

/* A size that was not there before, up to 42 MiB. */
static void take_and_give_new(const struct work *work, int count)
{
    static size_t next;
    for (int i = 0; i < count; i++) {
        CUdeviceptr p;
        CU(cuMemAlloc(&p, work->size + (next++ % 40 << 20)));
        CU(cuMemFree(p));
    }
}

static void load_and_unload(const struct work *work, int count)
{
    (void)work;
    for (int i = 0; i < count; i++) {
        CUmodule module;
        CUfunction function;
        CU(cuModuleLoadData(&module, nothing_ptx));
        CU(cuModuleGetFunction(&function, module, "nothing"));
        CU(cuModuleUnload(module));
    }
}

/* As who measures a kernel. */
static void time_a_launch(const struct work *work, int count)
{
    static CUevent before, behind;
    float ms;
    if (!before) {
        CU(cuEventCreate(&before, CU_EVENT_DEFAULT));
        CU(cuEventCreate(&behind, CU_EVENT_DEFAULT));
    }
    for (int i = 0; i < count; i++) {
        CU(cuEventRecord(before, stream));
        submit(work, 1);
        CU(cuEventRecord(behind, stream));
        CU(cuEventSynchronize(behind));
        CU(cuEventElapsedTime(&ms, before, behind));
    }
}

static void launch_and_query(const struct work *work, int count)
{
    static CUevent event;
    if (!event)
        CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < count; i++) {
        submit(work, 1);
        CU(cuEventRecord(event, stream));
        while (cuEventQuery(event) == CUDA_ERROR_NOT_READY)
            ;
    }
}

/* As above, behind a kernel in the legacy stream, where PyTorch's are. */
static void launch_and_read_value(const struct work *work, int count)
{
    void *parameters[] = {&device};
    for (int i = 0; i < count; i++) {
        CU(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
        CU(cuMemcpyDtoHAsync(work->host, device, work->size, NULL));
        CU(cuStreamSynchronize(NULL));
    }
}

static void ask_device(const struct work *work, int count)
{
    CUdevice which;
    (void)work;
    for (int i = 0; i < count; i++)
        CU(cuCtxGetDevice(&which));
}

static void up(const struct work *work, int count)
{
    for (int i = 0; i < count; i++)
        CU(cuMemcpyHtoD(device, work->host, work->size));
}

static void down(const struct work *work, int count)
{
    for (int i = 0; i < count; i++)
        CU(cuMemcpyDtoH(work->host, device, work->size));
}

static void up_async(const struct work *work, int count)
{
    for (int i = 0; i < count; i++)
        CU(cuMemcpyHtoDAsync(device, work->host, work->size, stream));
    CU(cuStreamSynchronize(stream));
}

static void down_async(const struct work *work, int count)
{
    for (int i = 0; i < count; i++)
        CU(cuMemcpyDtoHAsync(work->host, device, work->size, stream));
    CU(cuStreamSynchronize(stream));
}

static void calls(void)
{
    struct work none = {submit, 0, NULL};
    figure("launch_submit_us", 1e6 * measure(&none, 200));
    none.batch = launch_and_wait;
    figure("launch_and_sync_us", 1e6 * measure(&none, 20));
    none.batch = launch_and_wait_for_all;
    figure("launch_and_ctx_sync_us", 1e6 * measure(&none, 20));
    none.batch = launch_and_wait_for_event;
    figure("launch_and_event_sync_us", 1e6 * measure(&none, 20));
    none.batch = wait_idle;
    figure("sync_idle_us", 1e6 * measure(&none, 50));
    none.batch = record_and_query;
    figure("event_record_query_us", 1e6 * measure(&none, 20));
    none.batch = launch_and_query;
    figure("launch_event_query_us", 1e6 * measure(&none, 20));
    none.batch = time_a_launch;
    figure("launch_timed_us", 1e6 * measure(&none, 20));
    none.batch = load_and_unload;
    figure("module_load_unload_us", 1e6 * measure(&none, 2));
    none.batch = ask_device;
    figure("get_device_us", 1e6 * measure(&none, 1000));
    struct work memory = {take_and_give, 1 << 20, NULL};
    figure("alloc_free_1m_us", 1e6 * measure(&memory, 20));
    memory.size = 64 << 20;
    figure("alloc_free_64m_us", 1e6 * measure(&memory, 5));
    memory = (struct work){take_and_give_new, 3 << 20, NULL};
    figure("alloc_free_new_sizes_us", 1e6 * measure(&memory, 20));
    memory = (struct work){take_and_give_async, 1 << 20, NULL};
    figure("alloc_free_async_1m_us", 1e6 * measure(&memory, 20));
    struct work four = {up, 4, plain};
    figure("htod_4b_us", 1e6 * measure(&four, 20));
    four.batch = down;
    figure("dtoh_4b_us", 1e6 * measure(&four, 20));
    four.batch = read_value;
    four.host = pinned;
    figure("dtoh_4b_pinned_sync_us", 1e6 * measure(&four, 20));
    four.batch = launch_and_read_value;
    figure("launch_dtoh_4b_legacy_us", 1e6 * measure(&four, 20));
}

static void rates(void)
{
    static const struct {
        const char *label;
        size_t size;
    } sizes[] = {
        {"4k", 4096}, {"64k", 1 << 16}, {"1m", 1 << 20}, {"16m", 1 << 24}, {"256m", 1 << 28}};
    static const struct {
        const char *label;
        void (*batch)(const struct work *, int);
        bool is_pinned;
    } kinds[] = {{"htod_pageable", up, false},
                 {"dtoh_pageable", down, false},
                 {"htod_pinned", up_async, true},
                 {"dtoh_pinned", down_async, true}};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes && sizes[s].size <= largest; s++) {
            struct work copy = {kinds[k].batch, sizes[s].size, kinds[k].is_pinned ? pinned : plain};
            char name[64];
            int count = sizes[s].size >= 1 << 24 ? 1 : 10;
            snprintf(name, sizeof name, "%s_%s_gb_s", kinds[k].label, sizes[s].label);
            figure(name, (double)sizes[s].size / measure(&copy, count) * 1e-9);
        }
}

int main(int argc, char **argv)
{
    CUdevice gpu;
    CUcontext context;
    CUmodule module;

    if (argc > 1)
        seconds_each = atof(argv[1]);
    if (argc > 2)
        largest = (size_t)strtoul(argv[2], NULL, 10) << 20;
    if (seconds_each <= 0 || seconds_each > 60 || largest < 1 << 20 || largest > (size_t)4 << 30) {
        fprintf(stderr, "usage: micro [SECONDS_EACH (0..60) [LARGEST_MIB (1..4096)]]\n");
        return 2;
    }
    CU(cuInit(0));
    CU(cuDeviceGet(&gpu, 0));
    CU(cuDevicePrimaryCtxRetain(&context, gpu));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&module, nothing_ptx));
    CU(cuModuleGetFunction(&nothing, module, "nothing"));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&device, largest));
    CU(cuMemAllocHost((void **)&pinned, largest));
    plain = malloc(largest);
    if (!plain) {
        fprintf(stderr, "micro: this machine has no %zu bytes of memory\n", largest);
        return 1;
    }
    memset(plain, 1, largest);
    memset(pinned, 1, largest);
    printf("{");
    calls();
    rates();
    printf("}\n");
    free(plain);
    CU(cuMemFreeHost(pinned));
    CU(cuMemFree(device));
    CU(cuStreamDestroy(stream));
    CU(cuModuleUnload(module));
    CU(cuDevicePrimaryCtxRelease(gpu));
    return 0;
}
