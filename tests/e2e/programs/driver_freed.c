/* What a program has freed is free: whoever asks when it knows that the free is over sees it. */
#include "driver.h"

#define BYTES ((size_t)8 << 20)
#define ROUNDS 60

static CUmemoryPool pool_of(CUmemAllocationHandleType handles)
{
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = handles,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_device}};
    CU(cuMemPoolCreate(&pool, &props));
    return pool;
}

static cuuint64_t used(CUmemoryPool pool)
{
    cuuint64_t bytes = 0;
    CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
    return bytes;
}

/* By a thread to which no capture forbids it. A pool's memory was in use until the capture had ended:
 * of two questions in a row the second said less. A local driver has it in use for longer. */
static void beside_a_capture(unsigned flags)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUmemoryPool pool = pool_of(CU_MEM_HANDLE_TYPE_NONE);
    CUstream stream;
    CUdeviceptr values;
    CUgraph graph;

    CU(cuStreamCreate(&stream, flags));
    CU(cuMemAllocFromPoolAsync(&values, BYTES, pool, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemFree(values));
    EXPECT(driver_is_native() || used(pool) == 0, "%llu bytes are still in use",
           (unsigned long long)used(pool));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuGraphDestroy(graph));
    CU(cuStreamDestroy(stream));
    CU(cuMemPoolDestroy(pool));
}

static size_t left(void)
{
    size_t bytes, total;
    CU(cuMemGetInfo(&bytes, &total));
    return bytes;
}

/* Of the first memory of its kind a local driver keeps what it has mapped. */
static bool its_first(int round)
{
    return driver_is_native() && round == 0;
}

/* What the capture has held up is given back by the time that anybody asks behind its end. */
static void behind_a_capture(void)
{
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < ROUNDS; i++) {
        size_t before = left();
        CUdeviceptr values;
        CUgraph graph;
        CU(cuMemAlloc(&values, BYTES));
        CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        CU(cuMemFree(values));
        CU(cuStreamEndCapture(stream, &graph));
        size_t now = left();
        EXPECT(its_first(i) || now >= before, "round %d: %zu bytes were free, and %zu are", i,
               before, now);
        CU(cuGraphDestroy(graph));
    }
    CU(cuStreamDestroy(stream));
}

static void poll(CUevent event)
{
    CUresult r;
    while ((r = cuEventQuery(event)) == CUDA_ERROR_NOT_READY)
        ;
    CU(r);
}

/* Memory that may be other processes' as well the worker frees itself, and the GPU tells the program
 * first that the stream has come by. */
static void in_order(void)
{
    CUmemoryPool pool = pool_of(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUstream stream;
    CUdeviceptr values;
    CUevent event;

    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < ROUNDS; i++) {
        size_t before = left();
        CU(cuMemAllocFromPoolAsync(&values, BYTES, pool, stream));
        CU(cuMemsetD8Async(values, 1, (size_t)i << 14, stream));
        CU(cuMemFreeAsync(values, stream));
        CU(cuEventRecord(event, stream));
        poll(event);
        if (driver_is_native()) /* which keeps it until somebody synchronizes */
            CU(cuMemPoolTrimTo(pool, 0));
        size_t now = left();
        EXPECT(its_first(i) || now >= before, "round %d: %zu bytes were free, and %zu are", i,
               before, now);
    }
    CU(cuEventDestroy(event));
    CU(cuStreamDestroy(stream));
    CU(cuMemPoolDestroy(pool));
}

/* A driver gives back what a wait of its own has seen free. Over shared memory a program's waits are
 * ended by the GPU, and the driver was told of none. */
enum wait { STREAM, CONTEXT, EVENT, BYTES_BACK, WAITS };
static const char *const wait_names[WAITS] = {"stream", "context", "event", "copy"};

static void wait_so(enum wait how, CUstream stream, CUevent event, CUdeviceptr word)
{
    unsigned got;
    switch (how) {
    case STREAM:
        CU(cuStreamSynchronize(stream));
        break;
    case CONTEXT:
        CU(cuCtxSynchronize());
        break;
    case EVENT:
        CU(cuEventRecord(event, stream));
        CU(cuEventSynchronize(event));
        break;
    default:
        CU(cuMemcpyDtoHAsync(&got, word, sizeof got, stream));
        CU(cuStreamSynchronize(stream));
    }
}

static void trimmed(unsigned flags)
{
    cuuint64_t keep = UINT64_MAX, reserved;
    CUmemoryPool pool = pool_of(CU_MEM_HANDLE_TYPE_NONE);
    CUstream stream;
    CUdeviceptr values, word;
    CUevent event;

    CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    CU(cuStreamCreate(&stream, flags));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuMemAlloc(&word, 4));
    for (int i = 0; i < ROUNDS * WAITS; i++) {
        enum wait how = (enum wait)(i / ROUNDS);
        CU(cuMemAllocFromPoolAsync(&values, BYTES, pool, stream));
        CU(cuMemsetD8Async(values, 1, (size_t)(i % ROUNDS) << 12, stream));
        CU(cuMemFreeAsync(values, stream));
        wait_so(how, stream, event, word);
        CU(cuMemPoolTrimTo(pool, 0));
        CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
        EXPECT(reserved == 0, "round %d: behind a wait for the %s and a trim, %llu bytes are kept",
               i, wait_names[how], (unsigned long long)reserved);
    }
    CU(cuMemFree(word));
    CU(cuEventDestroy(event));
    CU(cuStreamDestroy(stream));
    CU(cuMemPoolDestroy(pool));
}

int main(void)
{
    driver_start();
    beside_a_capture(CU_STREAM_DEFAULT);
    beside_a_capture(CU_STREAM_NON_BLOCKING);
    behind_a_capture();
    in_order();
    trimmed(CU_STREAM_DEFAULT);
    trimmed(CU_STREAM_NON_BLOCKING);
    driver_stop();
    return finish("driver_freed");
}
