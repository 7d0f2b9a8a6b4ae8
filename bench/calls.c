/*
 * What calls of the driver take that a worker makes beside those that a program asks for, and how soon
 * each way of waiting sees that work is over: one line of JSON, name to microseconds.
 *
 *   calls [SECONDS_EACH]
 *
 * It means something natively alone. Of the ways to wait, `synchronize` is the driver's own, `written`
 * looks for a number that the GPU is told to write behind the work (64 bits, or 32), `queried` asks the
 * stream again and again, and `event` an event that is recorded behind it.
 */
#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

enum { CALLS = 200, MOST_BATCHES = 2000 };

static const char nothing_ptx[] = ".version 7.0\n"
                                  ".target sm_70\n"
                                  ".address_size 64\n"
                                  ".visible .entry nothing()\n"
                                  "{\n"
                                  "    ret;\n"
                                  "}\n";

static double seconds_each = 0.05;
static bool first_figure = true;
static CUcontext context;
static CUmodule module;
static CUfunction nothing;
static CUstream stream, streams[2]; /* the one at hand; one of our own and the legacy one */
static CUevent event;
static CUdeviceptr device, words_there;
static uint64_t *words; /* pinned: what is written, what is copied, and what a stream waits for */
static uint64_t number;
static int ordinary;

enum { WRITTEN = 0, COPIED = 8, AWAITED = 16 };

static void figure(const char *name, const char *more, void (*call)(void), int count)
{
    static double times[MOST_BATCHES];
    int n = 0;
    double end = now() + seconds_each;
    call();
    do {
        double begin = now();
        for (int i = 0; i < count; i++)
            call();
        times[n++] = (now() - begin) / count;
    } while (n < MOST_BATCHES && (n < 3 || now() < end));
    qsort(times, (size_t)n, sizeof *times, by_value);
    printf("%s\"%s%s_us\": %.4g", first_figure ? "" : ", ", name, more, 1e6 * times[n / 2]);
    first_figure = false;
}

/* --- calls ------------------------------------------------------------------------------------ */

static void get_current(void)
{
    CUcontext c;
    CU(cuCtxGetCurrent(&c));
}

static void set_current(void)
{
    CU(cuCtxSetCurrent(context));
}

static void get_device(void)
{
    CUdevice d;
    CU(cuCtxGetDevice(&d));
}

static void stream_context(void)
{
    CUcontext c;
    CU(cuStreamGetCtx(stream, &c));
}

static void stream_capturing(void)
{
    CUstreamCaptureStatus status;
    CU(cuStreamIsCapturing(stream, &status));
}

static void stream_query(void)
{
    (void)cuStreamQuery(stream);
}

static void event_query(void)
{
    (void)cuEventQuery(event);
}

static void event_record(void)
{
    CU(cuEventRecord(event, stream));
}

static void pointer_of_device(void)
{
    CU(cuPointerGetAttribute(&ordinary, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));
}

static void pointer_of_nobody(void)
{
    (void)cuPointerGetAttribute(&ordinary, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                (CUdeviceptr)(uintptr_t)&ordinary);
}

static void memory_info(void)
{
    size_t available, total;
    CU(cuMemGetInfo(&available, &total));
}

static void function_attribute(void)
{
    CU(cuFuncGetAttribute(&ordinary, CU_FUNC_ATTRIBUTE_NUM_REGS, nothing));
}

static void get_function(void)
{
    CUfunction f;
    CU(cuModuleGetFunction(&f, module, "nothing"));
}

static void load_module(void)
{
    CUmodule m;
    CU(cuModuleLoadData(&m, nothing_ptx));
    CU(cuModuleUnload(m));
}

static void write_number(void)
{
    CU(cuStreamWriteValue64(stream, words_there + WRITTEN * sizeof *words, ++number, 0));
}

/* Of a stream that waits for a word, which is written then. */
static void hold(bool busy)
{
    __atomic_store_n((uint32_t *)&words[AWAITED], !busy, __ATOMIC_RELEASE);
    if (busy)
        CU(cuStreamWaitValue32(stream, words_there + AWAITED * sizeof *words, 1,
                               CU_STREAM_WAIT_VALUE_GEQ));
    if (busy)
        CU(cuEventRecord(event, stream));
    else
        CU(cuStreamSynchronize(stream));
}

/* --- work, and who waits for it --------------------------------------------------------------- */

static bool copies;

static void submit(void)
{
    if (copies)
        CU(cuMemcpyDtoHAsync(&words[COPIED], device, 4, stream));
    else
        CU(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static void synchronize(void)
{
    submit();
    CU(cuStreamSynchronize(stream));
}

static void written(void)
{
    submit();
    write_number();
    while (__atomic_load_n(&words[WRITTEN], __ATOMIC_ACQUIRE) != number)
        ;
}

static void written_32(void)
{
    submit();
    CU(cuStreamWriteValue32(stream, words_there + WRITTEN * sizeof *words, (uint32_t)++number, 0));
    while (__atomic_load_n((uint32_t *)&words[WRITTEN], __ATOMIC_ACQUIRE) != (uint32_t)number)
        ;
}

static void queried(void)
{
    submit();
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        ;
}

static void by_event(void)
{
    submit();
    CU(cuEventRecord(event, stream));
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY)
        ;
}

static void ways(const char *name)
{
    static const struct {
        const char *name;
        void (*wait)(void);
    } all[] = {{"synchronize", synchronize},
               {"written", written},
               {"written_32", written_32},
               {"queried", queried},
               {"event", by_event}};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        figure(name, all[i].name, all[i].wait, 20);
}

static void of_stream(const char *which)
{
    figure("stream_query", which, stream_query, CALLS);
    figure("stream_capturing", which, stream_capturing, CALLS);
    figure("event_record", which, event_record, 20);
    CU(cuStreamSynchronize(stream));
    figure("event_query", which, event_query, CALLS);
    figure("write_number", which, write_number, 20);
    CU(cuStreamSynchronize(stream));
    hold(true);
    figure("busy_stream_query", which, stream_query, CALLS);
    figure("busy_event_query", which, event_query, CALLS);
    hold(false);
}

static void calls(void)
{
    figure("ctx_get_current", "", get_current, CALLS);
    figure("ctx_set_current", "", set_current, CALLS);
    figure("ctx_get_device", "", get_device, CALLS);
    figure("stream_get_ctx", "", stream_context, CALLS);
    figure("pointer_of_device", "", pointer_of_device, CALLS);
    figure("pointer_of_nobody", "", pointer_of_nobody, CALLS);
    figure("mem_get_info", "", memory_info, 20);
    figure("func_get_attribute", "", function_attribute, CALLS);
    figure("module_get_function", "", get_function, CALLS);
    figure("module_load_unload", "", load_module, 1);
}

int main(int argc, char **argv)
{
    CUdevice gpu;
    if (argc > 1)
        seconds_each = atof(argv[1]);
    if (argc > 2 || seconds_each <= 0 || seconds_each > 5) {
        fprintf(stderr, "usage: calls [SECONDS_EACH (0..5)]\n");
        return 2;
    }
    CU(cuInit(0));
    CU(cuDeviceGet(&gpu, 0));
    CU(cuDevicePrimaryCtxRetain(&context, gpu));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&module, nothing_ptx));
    CU(cuModuleGetFunction(&nothing, module, "nothing"));
    CU(cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuMemAlloc(&device, 4096));
    CU(cuMemHostAlloc((void **)&words, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostGetDevicePointer(&words_there, words, 0));
    printf("{");
    for (int legacy = 0; legacy < 2; legacy++) {
        stream = streams[legacy];
        if (!legacy)
            calls();
        of_stream(legacy ? "_legacy" : "");
        copies = false;
        ways(legacy ? "launch_legacy_" : "launch_");
        copies = true;
        ways(legacy ? "read_legacy_" : "read_");
    }
    printf("}\n");
    return 0;
}
