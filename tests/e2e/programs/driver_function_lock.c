/* A program that holds a lock which its host function wants, and makes memory meanwhile: no driver
 * waits for the function in that. `room`: but where a graph has left what is wanted, the function is
 * waited for. */
#include <pthread.h>
#include <time.h>

#include "driver.h"

#define BYTES ((size_t)64 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int called;

static void CUDA_CB want_the_lock(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    called++;
    pthread_mutex_unlock(&lock);
}

static void allocate(void)
{
    CUdeviceptr small, large;
    CU(cuMemAlloc(&small, 4096));
    CU(cuMemAlloc(&large, BYTES));
    CU(cuMemsetD8Async(small, 1, 4096, NULL));
}

static void map(void)
{
    const CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_device}};
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle pages;
    CUdeviceptr at;
    CU(cuMemAddressReserve(&at, BYTES, 0, 0, 0));
    CU(cuMemCreate(&pages, BYTES, &prop, 0));
    CU(cuMemMap(at, BYTES, 0, pages, 0));
    CU(cuMemSetAccess(at, BYTES, &access, 1));
    CU(cuMemUnmap(at, BYTES));
    CU(cuMemRelease(pages));
    CU(cuMemAddressFree(at, BYTES));
}

static void beside_the_function(void (*make)(void))
{
    CUstream stream;
    int before = called;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_mutex_lock(&lock);
    CU(cuLaunchHostFunc(stream, want_the_lock, NULL));
    CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    make();
    EXPECT(called == before, "the function has run without the lock");
    pthread_mutex_unlock(&lock);
    CU(cuStreamSynchronize(stream));
    EXPECT(called == before + 1, "the function was called %d times", called - before);
    CU(cuStreamDestroy(stream));
}

static void CUDA_CB take_a_while(void *arg)
{
    const struct timespec while_ = {.tv_nsec = 300000000};
    (void)arg;
    nanosleep(&while_, NULL);
}

static void room_of_a_graph(void)
{
    uint64_t kept = 0;
    size_t free_bytes, total;
    CUdeviceptr at;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemGetInfo(&free_bytes, &total));
    size_t most = free_bytes / 8 * 5;
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuMemAllocAsync(&at, most, stream));
    CU(cuMemsetD8Async(at, 1, 4096, stream));
    CU(cuMemFreeAsync(at, stream));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuDeviceGetGraphMemAttribute(driver_device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &kept));
    EXPECT(kept >= most, "the graph left %llu bytes", (unsigned long long)kept);
    CU(cuLaunchHostFunc(stream, take_a_while, NULL));
    CU(cuMemAlloc(&at, most));
    CU(cuStreamSynchronize(stream));
    CU(cuMemFree(at));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    CU(cuStreamDestroy(stream));
}

int main(int argc, char **argv)
{
    driver_start();
    beside_the_function(allocate);
    beside_the_function(map);
    if (argc > 1 && strcmp(argv[1], "room") == 0)
        room_of_a_graph();
    driver_stop();
    return finish("driver_function_lock");
}
