/* Captures in one thread beside calls of another: who is forbidden what, and whom it harms. */
#include "driver.h"

#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#define BYTES 4096
#define ROUNDS 200
#define BIG ((size_t)1 << 20)
#define COPIES 80

/* --- a thread that captures all the time ------------------------------------------------ */

static CUstreamCaptureMode capture_mode;
static int capture_stop, capture_count;

static void *capture_all_the_time(void *unused)
{
    CUstream stream;
    CUdeviceptr values;

    CU(cuCtxSetCurrent(driver_context));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&values, BYTES));
    while (!__atomic_load_n(&capture_stop, __ATOMIC_ACQUIRE)) {
        CUgraph graph = NULL;
        CUgraphExec exec;
        size_t nodes = 0;

        CU(cuStreamBeginCapture(stream, capture_mode));
        CU(cuMemsetD8Async(values, 1, BYTES, stream));
        usleep(1000);
        CU(cuMemsetD8Async(values, 2, BYTES, stream));
        CU(cuStreamEndCapture(stream, &graph));
        CU(cuGraphGetNodes(graph, NULL, &nodes));
        EXPECT(nodes == 2, "the graph has %zu nodes", nodes);
        CU(cuGraphInstantiate(&exec, graph, 0));
        CU(cuGraphExecDestroy(exec));
        CU(cuGraphDestroy(graph));
        __atomic_add_fetch(&capture_count, 1, __ATOMIC_RELEASE);
    }
    CU(cuMemFree(values));
    CU(cuStreamDestroy(stream));
    return unused;
}

static pthread_t captures_begin(CUstreamCaptureMode mode)
{
    pthread_t thread;

    capture_mode = mode;
    __atomic_store_n(&capture_stop, 0, __ATOMIC_RELEASE);
    REQUIRE(pthread_create(&thread, NULL, capture_all_the_time, NULL) == 0, "no thread");
    return thread;
}

static void captures_end(pthread_t thread)
{
    int seen = __atomic_load_n(&capture_count, __ATOMIC_ACQUIRE);

    while (__atomic_load_n(&capture_count, __ATOMIC_ACQUIRE) < seen + 2)
        usleep(1000); /* one at least lay beside what was done last */
    __atomic_store_n(&capture_stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
}

/* Memory of a free in stream order was known for as long as any thread captured. */
static void ranges_are_right(CUstream stream)
{
    unsigned random = 1;

    for (int i = 0; i < 5 * ROUNDS; i++) {
        size_t bytes = 1 + check_random(&random) % 100000, size = 0;
        size_t offset = check_random(&random) % bytes;
        CUdeviceptr memory, base = 0;
        CUmemorytype type = 0;

        CU(cuMemAllocAsync(&memory, bytes, stream));
        CU(cuMemGetAddressRange(&base, &size, memory + offset));
        EXPECT(base == memory && size >= bytes, "%zu bytes at %llx: %zu at %llx", bytes, memory,
               size, base);
        CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + offset));
        EXPECT(type == CU_MEMORYTYPE_DEVICE, "the type is %d", (int)type);
        CU(cuMemFreeAsync(memory, stream));
        CU(cuStreamSynchronize(stream));
    }
}

/* Copies of every kind: what the worker needs for them harms no capture. */
static void copies_work(CUstream stream)
{
    unsigned char *pageable = check_alloc(BIG), *pinned;
    CUdeviceptr values;
    CUevent event;

    CU(cuMemAlloc(&values, BIG));
    CU(cuMemHostAlloc((void **)&pinned, BIG, 0));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < ROUNDS; i++) {
        unsigned char value = (unsigned char)(i + 1);
        size_t bytes = i % 3 == 0 ? BIG : i % 3 == 1 ? BYTES : 4;
        unsigned char *to = i % 2 ? pageable : pinned;

        memset(to, 0, bytes);
        CU(cuMemsetD8Async(values, value, bytes, stream));
        CU(cuMemcpyDtoHAsync(to, values, bytes, stream));
        if (i % 5 == 0) {
            CU(cuEventRecord(event, stream));
            CU(cuEventSynchronize(event));
        } else {
            CU(cuStreamSynchronize(stream));
        }
        EXPECT(to[0] == value && to[bytes - 1] == value, "copy %d: %d", i, to[0]);
        CU(cuMemcpyHtoDAsync(values, to, bytes, stream));
    }
    CU(cuStreamSynchronize(stream));
    CU(cuEventDestroy(event));
    CU(cuMemFreeHost(pinned));
    CU(cuMemFree(values));
    free(pageable);
}

/* Allowed while other threads capture in their own way, and for a relaxed thread always. */
static void unsafe_calls_work(void)
{
    for (int i = 0; i < ROUNDS / 4; i++) {
        CUdeviceptr values;
        CUmodule module;
        void *pinned;
        size_t free_bytes, total;

        CU(cuMemAlloc(&values, BIG));
        CU(cuMemHostAlloc(&pinned, BYTES, 0));
        if (i % 10 == 0) {
            CU(cuModuleLoadData(&module, kernels_ptx));
            CU(cuModuleUnload(module));
        }
        CU(cuMemFree(values));
        CU(cuMemGetInfo(&free_bytes, &total));
        CU(cuMemFreeHost(pinned));
    }
}

static void beside_captures(CUstreamCaptureMode theirs, CUstreamCaptureMode own)
{
    CUstream stream;
    CUstreamCaptureMode mode = own;
    pthread_t thread = captures_begin(theirs);

    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ranges_are_right(stream);
    copies_work(stream);
    unsafe_calls_work();
    CU(cuStreamDestroy(stream));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == own, "the mode was %d", (int)mode);
    captures_end(thread);
}

/* --- what is forbidden ------------------------------------------------------------------- */

/* By another thread than the one that began the capture. */
struct from_elsewhere {
    CUstream stream;
    bool ends; /* the capture, else it allocates */
    CUresult result;
};

static void *meddle(void *arg)
{
    struct from_elsewhere *e = arg;
    CUdeviceptr values;
    CUgraph graph;

    CU(cuCtxSetCurrent(driver_context));
    e->result = e->ends ? cuStreamEndCapture(e->stream, &graph) : cuMemAlloc(&values, BYTES);
    if (!e->ends && e->result == CUDA_SUCCESS)
        CU(cuMemFree(values));
    return NULL;
}

static CUresult from_elsewhere(CUstream stream, bool ends)
{
    struct from_elsewhere e = {.stream = stream, .ends = ends};
    pthread_t thread;

    REQUIRE(pthread_create(&thread, NULL, meddle, &e) == 0, "no thread");
    pthread_join(thread, NULL);
    return e.result;
}

static void what_is_forbidden(void)
{
    CUstream stream;
    CUgraph graph = NULL;
    CUdeviceptr values;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

    /* A capture in global mode forbids all threads what may disturb it. */
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, from_elsewhere(stream, false));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));

    /* One of a thread's own forbids that thread alone. */
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(from_elsewhere(stream, false));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&values, BYTES));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));

    /* And a thread that says it knows what it does may do it. */
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuMemAlloc(&values, BYTES));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
    CU(cuMemFree(values));

    /* The wrong thread ends it, and gets nothing. */
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, from_elsewhere(stream, true));
    CU_GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU_GIVES(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, from_elsewhere(stream, true));
    CU(from_elsewhere(stream, false));
    CU_GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));

    /* A relaxed one may be ended by any thread. */
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(from_elsewhere(stream, true));
    CU_GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
    CU(cuStreamDestroy(stream));
}

/* --- nothing hangs ------------------------------------------------------------------------- */

/* Memory that was freed while a blocking stream captured is not free before the capture
 * has ended: whoever asked how much is free waited for that for ever. */
static void info_beside_a_capture(void)
{
    CUstream stream;
    CUgraph graph;
    CUdeviceptr values;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    size_t free_bytes, total;

    CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    CU(cuMemAlloc(&values, BIG));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemFree(values));
    CU(cuMemGetInfo(&free_bytes, &total));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuGraphDestroy(graph));
    CU(cuStreamDestroy(stream));
}

static int gate_open;

/* Until what follows has been submitted, or long enough where each call is waited for. */
static void CUDA_CB stand(void *unused)
{
    (void)unused;
    for (int i = 0; i < 500 && !__atomic_load_n(&gate_open, __ATOMIC_ACQUIRE); i++)
        usleep(1000);
}

/* More copies to pinned memory than the worker has room for, behind a stream that stands. */
static void many_copies_behind_one(void)
{
    unsigned char *pinned;
    CUdeviceptr values;
    CUstream stream;

    CU(cuMemHostAlloc((void **)&pinned, COPIES * BIG, 0));
    CU(cuMemAlloc(&values, BIG));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    memset(pinned, 0, COPIES * BIG);
    CU(cuLaunchHostFunc(stream, stand, NULL));
    for (unsigned i = 0; i < COPIES; i++) {
        CU(cuMemsetD8Async(values, (unsigned char)(i + 1), BIG, stream));
        CU(cuMemcpyDtoHAsync(pinned + i * BIG, values, BIG, stream));
    }
    __atomic_store_n(&gate_open, 1, __ATOMIC_RELEASE);
    CU(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < COPIES; i++)
        EXPECT(pinned[i * BIG] == i + 1 && pinned[(i + 1) * BIG - 1] == i + 1, "copy %u: %d", i,
               pinned[i * BIG]);
    CU(cuStreamDestroy(stream));
    CU(cuMemFree(values));
    CU(cuMemFreeHost(pinned));
}

static void CUDA_CB stand_for_a_while(void *unused)
{
    (void)unused;
    usleep(50000);
}

/* Each of them waits for the GPU, which waits for a host function of this process. */
static void frees_behind_a_host_function(void)
{
    CUdeviceptr plain, ordered;
    CUmodule module;
    CUstream stream;
    void *pinned;

    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 4; i++) {
        CU(cuMemAlloc(&plain, BIG));
        CU(cuMemAllocAsync(&ordered, BIG, stream));
        CU(cuMemHostAlloc(&pinned, BIG, 0));
        CU(cuModuleLoadData(&module, kernels_ptx));
        CU(cuStreamSynchronize(stream));
        CU(cuLaunchHostFunc(stream, stand_for_a_while, NULL));
        if (i == 0)
            CU(cuMemFree(ordered));
        if (i == 1)
            CU(cuMemFree(plain));
        if (i == 2)
            CU(cuMemFreeHost(pinned));
        CU(cuModuleUnload(module));
        CU(cuStreamSynchronize(stream));
        if (i != 0)
            CU(cuMemFree(ordered));
        if (i != 1)
            CU(cuMemFree(plain));
        if (i != 2)
            CU(cuMemFreeHost(pinned));
    }
    CU(cuStreamDestroy(stream));
}

/* What such a graph fetches and brings travels while others capture. */
static void graphs_with_host_memory(void)
{
    unsigned char *in, *out;
    CUdeviceptr values;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    pthread_t thread = captures_begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);

    CU(cuMemHostAlloc((void **)&in, BYTES, 0));
    CU(cuMemHostAlloc((void **)&out, BYTES, 0));
    CU(cuMemAlloc(&values, BYTES));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuMemcpyHtoDAsync(values, in, BYTES, stream));
    CU(cuMemcpyDtoHAsync(out, values, BYTES, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 50; i++) {
        memset(in, i + 1, BYTES);
        memset(out, 0, BYTES);
        CU(cuGraphLaunch(exec, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(memcmp(in, out, BYTES) == 0, "launch %d: %d", i, out[0]);
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    CU(cuStreamDestroy(stream));
    CU(cuMemFree(values));
    CU(cuMemFreeHost(in));
    CU(cuMemFreeHost(out));
    captures_end(thread);
}

/* What a graph reads of the host has been brought there by the copy before its launch. */
static void graph_behind_a_copy(void)
{
    unsigned char *between = aligned_alloc(4096, BYTES), found[BYTES];
    CUdeviceptr from, to;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;

    REQUIRE(between != NULL, "no memory");
    CU(cuMemHostRegister(between, BYTES, 0));
    CU(cuMemAlloc(&from, BYTES));
    CU(cuMemAlloc(&to, BYTES));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuMemcpyHtoDAsync(to, between, BYTES, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < ROUNDS; i++) {
        CU(cuMemsetD8Async(from, (unsigned char)(i + 1), BYTES, stream));
        CU(cuMemcpyDtoHAsync(between, from, BYTES, stream));
        CU(cuGraphLaunch(exec, stream));
        CU(cuMemcpyDtoHAsync(found, to, BYTES, stream));
        CU(cuStreamSynchronize(stream));
        EXPECT(found[0] == (unsigned char)(i + 1) && found[BYTES - 1] == found[0], "launch %d: %d",
               i, found[0]);
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    CU(cuStreamDestroy(stream));
    CU(cuMemFree(from));
    CU(cuMemFree(to));
    CU(cuMemHostUnregister(between));
    free(between);
}

/* Libraries capture kernels with made-up addresses to look at their nodes: a set is taken as it is,
 * read back, and refused when the graph is instantiated. */
static void sets_that_lead_nowhere(CUdeviceptr memory)
{
    const struct {
        CUdeviceptr at;
        size_t bytes;
    } sets[] = {{0x123a0, 48}, {0, 64}, {memory, (size_t)1 << 40}};
    CUstream stream;

    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        CUgraph graph;
        CUgraphExec exec;
        CUgraphNode nodes[2];
        CUDA_MEMSET_NODE_PARAMS told = {0};
        size_t count = 2;

        CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(sets[i].at, 0, sets[i].bytes, stream));
        CU(cuMemsetD32Async(sets[i].at + 1, 0, 0, stream)); /* nothing is anywhere */
        CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        CU(cuMemsetD8Async(memory, 1, BYTES, stream));
        CU(cuMemsetD8Async(sets[i].at, 2, sets[i].bytes, stream));
        CU(cuMemsetD8Async(sets[i].at, 2, 0, stream));
        CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(sets[i].at + 1, 2, 4, stream));
        CU(cuStreamEndCapture(stream, &graph));
        CU(cuGraphGetNodes(graph, nodes, &count));
        EXPECT(count == 2, "the graph has %zu nodes", count);
        for (size_t n = 0; n < count && told.value != 2; n++)
            CU(cuGraphMemsetNodeGetParams(nodes[n], &told));
        EXPECT(told.dst == sets[i].at && told.width == sets[i].bytes, "%zu bytes at %llx",
               told.width, told.dst);
        CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 0));
        CU(cuGraphDestroy(graph));
    }
    CU(cuMemsetD8Async(memory, 3, BYTES, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuStreamDestroy(stream));
}

int main(void)
{
    CUdeviceptr memory;

    driver_start();
    CU(cuMemAlloc(&memory, BYTES));
    beside_captures(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
    beside_captures(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    beside_captures(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL);
    what_is_forbidden();
    info_beside_a_capture();
    many_copies_behind_one();
    frees_behind_a_host_function();
    graphs_with_host_memory();
    graph_behind_a_copy();
    sets_that_lead_nowhere(memory);
    CU(cuMemFree(memory));
    driver_stop();
    return finish("driver_captures");
}
