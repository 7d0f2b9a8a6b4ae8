/* What has one answer on a server: writes of network cards, NvSci, notifications, profiles. */
#include "driver.h"

#include <dlfcn.h>
#include <sys/mman.h>

static void CUDA_CB on_notice(CUasyncNotificationInfo *info, void *data,
                              CUasyncCallbackHandle callback)
{
    (void)info;
    (void)callback;
    ++*(int *)data;
}

static void notifications(void)
{
    CUasyncCallbackHandle first = NULL, second = NULL;
    int told = 0;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuDeviceRegisterAsyncNotification(driver_device, NULL, &told, &first));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE,
             cuDeviceRegisterAsyncNotification(99, on_notice, &told, &first));
    CU(cuDeviceRegisterAsyncNotification(driver_device, on_notice, &told, &first));
    CU(cuDeviceRegisterAsyncNotification(driver_device, on_notice, &told, &second));
    EXPECT(first != second, "two registrations have one handle");
    CU(cuDeviceUnregisterAsyncNotification(driver_device, first));
    CU(cuDeviceUnregisterAsyncNotification(driver_device, second));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuDeviceUnregisterAsyncNotification(driver_device, first));
    EXPECT(told == 0, "the function was told %d times of nothing", told);
}

static void writes_of_others(void)
{
    CU(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                        (CUflushGPUDirectRDMAWritesScope)7));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuDeviceGetNvSciSyncAttributes(NULL, driver_device, 1));
}

/* Only where GPU and host have functions at the same addresses are there any. */
static void unified_functions(void)
{
    CUlibrary library;
    void *function = NULL;
    CU(cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryGetUnifiedFunction(&function, library, "no_such"));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryGetUnifiedFunction(NULL, library, "add"));
    CU(cuLibraryUnload(library));
}

/* A soft GPU by itself looks at no mappings; a card's driver does. */
static void registered_pages(void)
{
    enum { PIECE = 65536 };
    const int both = PROT_READ | PROT_WRITE;
    char *p = mmap(NULL, 3 * PIECE, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED && munmap(p + PIECE, PIECE) == 0, "no memory");
    CU(cuMemHostRegister(p + 333, PIECE - 1000, 0));
    CU(cuMemHostUnregister(p + 333));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(p, 3 * PIECE, 0));
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(p + PIECE, PIECE, 0));
    REQUIRE(mprotect(p, PIECE, PROT_READ) == 0, "no protection");
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(p, PIECE, 0));
    CU(cuMemHostRegister(p, PIECE, CU_MEMHOSTREGISTER_READ_ONLY));
    CU(cuMemHostUnregister(p));
    REQUIRE(mprotect(p, PIECE, PROT_NONE) == 0, "no protection");
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(p, PIECE, 0));
    munmap(p, 3 * PIECE);
}

/* No bytes in a stream's order are no error, as they are elsewhere; a wait for an event that is no
 * graph's has to be captured. */
static void answers_of_streams(void)
{
    CUstream stream;
    CUevent event;
    CUdeviceptr nothing = 1;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuMemAllocAsync(&nothing, 0, stream));
    EXPECT(nothing == 0, "no bytes are at %llx", (unsigned long long)nothing);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&nothing, 0));
    CU(cuEventRecord(event, stream));
    CU_GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
    CU(cuEventDestroy(event));
    CU(cuStreamDestroy(stream));
}

static void CUDA_CB call_cuda(CUstream stream, CUresult status, void *results)
{
    CUresult *of = results;
    CUdeviceptr memory;
    of[0] = status;
    of[1] = cuMemAlloc(&memory, 16 << 20);
    of[2] = cuStreamSynchronize(stream);
    of[3] = cuMemAddressReserve(&memory, 16 << 20, 0, 0, 0); /* which needs no context */
    of[4] = cuDevicePrimaryCtxReset(driver_device);
}

/* It would wait for what waits for it. */
static void calls_in_a_callback(void)
{
    CUresult of[5] = {[3] = CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED};
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamAddCallback(stream, call_cuda, of, 0));
    CU(cuStreamSynchronize(stream));
    EXPECT(of[0] == CUDA_SUCCESS, "the callback was told %s", driver_name(of[0]));
    EXPECT(of[1] == CUDA_ERROR_NOT_PERMITTED, "it allocated: %s", driver_name(of[1]));
    EXPECT(of[2] == CUDA_ERROR_NOT_PERMITTED, "it waited: %s", driver_name(of[2]));
    EXPECT(of[3] == CUDA_ERROR_NOT_PERMITTED, "it reserved: %s", driver_name(of[3]));
    EXPECT(of[4] == CUDA_ERROR_NOT_PERMITTED, "it reset the device: %s", driver_name(of[4]));
    CU(cuStreamDestroy(stream));
}

/* Gone from CUDA 13; the name is exported all the same. */
static void profile_files(void)
{
    CUresult (*initialize)(const char *, const char *, int);
    void *symbol = dlsym(RTLD_DEFAULT, "cuProfilerInitialize");
    REQUIRE(symbol, "the library lacks cuProfilerInitialize");
    memcpy(&initialize, &symbol, sizeof initialize);
    CU_GIVES(CUDA_ERROR_NOT_SUPPORTED, initialize("in", "out", 0));
}

int main(void)
{
    driver_start();
    notifications();
    writes_of_others();
    unified_functions();
    registered_pages();
    answers_of_streams();
    if (!driver_is_native()) /* a card's waits for itself, for ever */
        calls_in_a_callback();
    profile_files();
    driver_stop();
    return finish("driver_answers");
}
