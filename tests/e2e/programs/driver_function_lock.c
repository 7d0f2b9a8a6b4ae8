/* A program that holds a lock which its host function wants, and makes memory meanwhile: no driver
 * waits for the function in that. */
#include <pthread.h>

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

int main(void)
{
    driver_start();
    beside_the_function(allocate);
    beside_the_function(map);
    driver_stop();
    return finish("driver_function_lock");
}
