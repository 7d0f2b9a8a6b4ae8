/*
 * What the thread of a worker does by itself while a stream of its client's captures, made by
 * a program of one thread: in relaxed mode it harms no capture that the thread has begun.
 * After each call the stream is asked, so that one which does is named.
 */
#include "driver.h"

#include <stdbool.h>

#define BYTES ((size_t)1 << 20)
#define BIG ((size_t)64 << 20)

static CUstream capturing, other;
static CUdeviceptr memory;

static bool still_captures(const char *call)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CU(cuStreamIsCapturing(capturing, &status));
    EXPECT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "%s ended a capture (status %d)", call,
           (int)status);
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* Begin again where a call has ended it, so that the next one is seen as well. */
static void capture_again(void)
{
    CUgraph graph = NULL;
    cuStreamEndCapture(capturing, &graph);
    CU(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuMemsetD8Async(memory, 1, BYTES, capturing));
}

/* The call, made as the worker's own; then one that is the capture's, made as its thread's. */
#define OWN(call)                                                                                  \
    do {                                                                                           \
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;                                 \
        CU(cuThreadExchangeStreamCaptureMode(&mode));                                              \
        CU(call);                                                                                  \
        CU(cuThreadExchangeStreamCaptureMode(&mode));                                              \
        if (!still_captures(#call))                                                                \
            capture_again();                                                                       \
        CU(cuMemsetD8Async(memory, 2, BYTES, capturing));                                          \
        if (!still_captures("a captured memset behind " #call))                                    \
            capture_again();                                                                       \
    } while (0)

static void keep_busy(void)
{
    static CUdeviceptr big;
    if (!big)
        CU(cuMemAlloc(&big, BIG));
    for (int i = 0; i < 4; i++)
        CU(cuMemsetD8Async(big, (unsigned char)i, BIG, other));
}

static void plain_memory(void)
{
    CUdeviceptr values;
    void *pinned;
    size_t free_bytes, total;
    CUmemorytype type;

    OWN(cuMemAlloc(&values, BYTES));
    keep_busy();
    OWN(cuMemFree(values)); /* while the GPU works */
    OWN(cuMemGetInfo(&free_bytes, &total));
    OWN(cuMemHostAlloc(&pinned, BYTES, CU_MEMHOSTALLOC_PORTABLE));
    OWN(cuMemFreeHost(pinned));
    REQUIRE((pinned = aligned_alloc(4096, BYTES)), "no memory");
    OWN(cuMemHostRegister(pinned, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
    keep_busy();
    OWN(cuMemHostUnregister(pinned));
    free(pinned);
    OWN(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
}

/* As the worker's allocator does. */
static void mapped_memory(void)
{
    CUmemAllocationProp p = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_device}};
    CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle pages;
    CUdeviceptr address;
    size_t unit = 0;

    CU(cuMemGetAllocationGranularity(&unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OWN(cuMemAddressReserve(&address, unit, 0, 0, 0));
    OWN(cuMemCreate(&pages, unit, &p, 0));
    OWN(cuMemMap(address, unit, 0, pages, 0));
    OWN(cuMemSetAccess(address, unit, &access, 1));
    keep_busy();
    OWN(cuMemUnmap(address, unit));
    OWN(cuMemRelease(pages));
    OWN(cuMemAddressFree(address, unit));
}

static void ordered_memory(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    CUmemoryPool pool;
    CUdeviceptr values;
    CUstream stream;
    cuuint64_t bytes;

    OWN(cuMemPoolCreate(&pool, &props));
    OWN(cuMemAllocFromPoolAsync(&values, BIG, pool, other));
    keep_busy();
    OWN(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
    OWN(cuMemFreeAsync(values, other));
    OWN(cuMemAllocFromPoolAsync(&values, BYTES, pool, other));
    OWN(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OWN(cuMemFreeAsync(values, stream));
    OWN(cuStreamDestroy(stream));
    OWN(cuMemPoolTrimTo(pool, 0));
    OWN(cuStreamSynchronize(other));
    OWN(cuMemPoolDestroy(pool));
}

static void events_and_streams(void)
{
    CUevent event;
    CUresult r;

    OWN(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    keep_busy();
    OWN(cuEventRecord(event, other));
    OWN((r = cuEventQuery(event)) == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r);
    OWN((r = cuStreamQuery(other)) == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r);
    OWN(cuEventSynchronize(event));
    OWN((r = cuStreamQuery(CU_STREAM_LEGACY)) == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r);
    OWN(cuEventRecord(event, CU_STREAM_LEGACY));
    OWN(cuEventSynchronize(event));
    OWN(cuEventDestroy(event));
}

/* One that runs, behind work that keeps it waiting; what the driver puts off until it is over
 * comes with some later call. */
static void graph_in_flight(void)
{
    CUgraph graph;
    CUgraphExec exec;

    for (int i = 0; i < 20; i++) {
        OWN(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
        OWN(cuMemsetD8Async(memory, 3, BYTES, other));
        OWN(cuStreamEndCapture(other, &graph));
        OWN(cuGraphInstantiate(&exec, graph, 0));
        keep_busy();
        OWN(cuGraphLaunch(exec, other));
        OWN(cuGraphExecDestroy(exec));
        OWN(cuGraphDestroy(graph));
        if (i % 2)
            OWN(cuStreamSynchronize(other));
    }
}

static void modules(void)
{
    CUmodule module;
    CUfunction function;
    int bytes;

    OWN(cuModuleLoadData(&module, kernels_ptx));
    OWN(cuModuleGetFunction(&function, module, "increment"));
    OWN(cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
    keep_busy();
    OWN(cuModuleUnload(module));
}

int main(void)
{
    CUgraph graph = NULL;

    driver_start();
    CU(cuMemAlloc(&memory, BYTES));
    CU(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    keep_busy();
    CU(cuStreamSynchronize(other));
    CU(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    plain_memory();
    mapped_memory();
    ordered_memory();
    events_and_streams();
    graph_in_flight();
    modules();
    CU(cuStreamEndCapture(capturing, &graph));
    CU(cuGraphDestroy(graph));
    CU(cuStreamSynchronize(other));
    CU(cuStreamDestroy(capturing));
    CU(cuStreamDestroy(other));
    CU(cuMemFree(memory));
    driver_stop();
    return finish("driver_relaxed");
}
