// Every function of the runtime that may be the first CUDA call of a process, each in a
// process of its own. One line for each: its name and the result.
//   first_runtime_calls [NAME]
#include "first.h"

__device__ int symbol = 5;
__constant__ int constant[4] = {1, 2, 3, 4};

__global__ void kernel(int *where)
{
    if (where)
        *where = symbol;
}

static const dim3 one_block(1), one_thread(1);
static cudaDeviceProp properties;
static cudaPointerAttributes pointer;
static cudaFuncAttributes attributes;
static cudaStream_t stream;
static cudaEvent_t event;
static cudaGraph_t graph;
static cudaMemPool_t pool;
static cudaFunction_t function;
static cudaKernel_t handle;
static cudaDriverEntryPointQueryResult query;
static cudaStreamCaptureStatus status;
static cudaStreamCaptureMode mode;
static cudaFuncCache cache;
static void *memory;
static char name[64];
static int value, other, host[4];
static unsigned flags;
static size_t size, extra;

static cudaError_t synchronized(cudaError_t r)
{
    return r == cudaSuccess ? cudaDeviceSynchronize() : r;
}

static cudaError_t launch_chevrons()
{
    kernel<<<1, 1>>>(nullptr);
    return synchronized(cudaGetLastError());
}

static cudaError_t launch_plain()
{
    int *where = nullptr;
    void *arguments[] = {&where};
    return synchronized(
        cudaLaunchKernel((const void *)kernel, one_block, one_thread, arguments, 0, nullptr));
}

static cudaError_t launch_with_attributes()
{
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = one_block;
    return synchronized(cudaLaunchKernelEx(&config, kernel, (int *)nullptr));
}

// A failure on the GPU comes out of the first call that waits for it.
static cudaError_t launch_that_fails()
{
    kernel<<<1, 1>>>((int *)64);
    return cudaDeviceSynchronize();
}

static void on_host(void *data)
{
    *(int *)data = 42;
}

static cudaError_t host_function()
{
    cudaError_t r = synchronized(cudaLaunchHostFunc(nullptr, on_host, &value));
    EXPECT(r != cudaSuccess || value == 42, "the host function left %d", value);
    return r;
}

static cudaError_t to_symbol()
{
    int seven = 7, found = 0;
    cudaError_t r = cudaMemcpyToSymbol(symbol, &seven, sizeof seven);
    if (r == cudaSuccess)
        r = cudaMemcpyFromSymbol(&found, symbol, sizeof found);
    EXPECT(r != cudaSuccess || found == 7, "the symbol is %d", found);
    return r;
}

static cudaError_t from_symbol()
{
    cudaError_t r = cudaMemcpyFromSymbol(host, constant, sizeof host);
    EXPECT(r != cudaSuccess || host[3] == 4, "the constant is %d", host[3]);
    return r;
}

static cudaError_t by_bus_id()
{
    CUDA(cudaDeviceGetPCIBusId(name, sizeof name, 0));
    return cudaDeviceGetByPCIBusId(&value, name);
}

static cudaError_t create_pool()
{
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    return cudaMemPoolCreate(&pool, &props);
}

#define OK cudaSuccess
#define CASES(X)                                                                               \
    X(launch, OK, launch_chevrons())                                                           \
    X(cudaLaunchKernel, OK, launch_plain())                                                    \
    X(cudaLaunchKernelEx, OK, launch_with_attributes())                                        \
    X(launch_that_fails, cudaErrorIllegalAddress, launch_that_fails())                         \
    X(cudaLaunchHostFunc, OK, host_function())                                                 \
    X(cudaGetLastError, OK, cudaGetLastError())                                                \
    X(cudaPeekAtLastError, OK, cudaPeekAtLastError())                                          \
    X(cudaDriverGetVersion, OK, cudaDriverGetVersion(&value))                                  \
    X(cudaRuntimeGetVersion, OK, cudaRuntimeGetVersion(&value))                                \
    X(cudaGetDriverEntryPoint, OK,                                                             \
      cudaGetDriverEntryPointByVersion("cuCtxSynchronize", &memory, 12000, 0, &query))         \
    X(cudaGetDeviceCount, OK, cudaGetDeviceCount(&value))                                      \
    X(cudaGetDevice, OK, cudaGetDevice(&value))                                                \
    X(cudaSetDevice, OK, cudaSetDevice(0))                                                     \
    X(cudaSetDevice_missing, cudaErrorInvalidDevice, cudaSetDevice(4711))                      \
    X(cudaInitDevice, OK, cudaInitDevice(0, 0, 0))                                             \
    X(cudaGetDeviceProperties, OK, cudaGetDeviceProperties(&properties, 0))                    \
    X(cudaDeviceGetAttribute, OK, cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0))      \
    X(cudaDeviceGetPCIBusId, OK, by_bus_id())                                                  \
    X(cudaDeviceCanAccessPeer, OK, cudaDeviceCanAccessPeer(&value, 0, 0))                      \
    X(cudaDeviceGetLimit, OK, cudaDeviceGetLimit(&size, cudaLimitStackSize))                   \
    X(cudaDeviceSetLimit, OK, cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 1 << 20))            \
    X(cudaDeviceGetCacheConfig, OK, cudaDeviceGetCacheConfig(&cache))                          \
    X(cudaDeviceSetCacheConfig, OK, cudaDeviceSetCacheConfig(cudaFuncCachePreferL1))           \
    X(cudaDeviceGetStreamPriorityRange, OK, cudaDeviceGetStreamPriorityRange(&value, &other))  \
    X(cudaDeviceGetDefaultMemPool, OK, cudaDeviceGetDefaultMemPool(&pool, 0))                  \
    X(cudaDeviceGetMemPool, OK, cudaDeviceGetMemPool(&pool, 0))                                \
    X(cudaDeviceSynchronize, OK, cudaDeviceSynchronize())                                      \
    X(cudaDeviceReset, OK, cudaDeviceReset())                                                  \
    X(cudaGetDeviceFlags, OK, cudaGetDeviceFlags(&flags))                                      \
    X(cudaSetDeviceFlags, OK, cudaSetDeviceFlags(cudaDeviceScheduleYield))                     \
    X(cudaMalloc, OK, cudaMalloc(&memory, 4096))                                               \
    X(cudaMallocPitch, OK, cudaMallocPitch(&memory, &size, 64, 4))                             \
    X(cudaFree, OK, cudaFree(nullptr))                                                         \
    X(cudaMallocHost, OK, cudaMallocHost(&memory, 4096))                                       \
    X(cudaHostAlloc, OK, cudaHostAlloc(&memory, 4096, cudaHostAllocPortable))                  \
    X(cudaHostRegister, OK, cudaHostRegister(host, sizeof host, 0))                            \
    X(cudaMallocAsync, OK, cudaMallocAsync(&memory, 4096, nullptr))                            \
    X(cudaMemGetInfo, OK, cudaMemGetInfo(&size, &extra))                                       \
    X(cudaMemcpy, OK, cudaMemcpy(host, host + 2, 8, cudaMemcpyHostToHost))                     \
    X(cudaMemcpyToSymbol, OK, to_symbol())                                                     \
    X(cudaMemcpyFromSymbol, OK, from_symbol())                                                 \
    X(cudaGetSymbolAddress, OK, cudaGetSymbolAddress(&memory, symbol))                         \
    X(cudaGetSymbolSize, OK, cudaGetSymbolSize(&size, symbol))                                 \
    X(cudaPointerGetAttributes, OK, cudaPointerGetAttributes(&pointer, host))                  \
    X(cudaMemPoolCreate, OK, create_pool())                                                    \
    X(cudaStreamCreate, OK, cudaStreamCreate(&stream))                                         \
    X(cudaStreamCreateWithPriority, OK, cudaStreamCreateWithPriority(&stream, 1, 0))           \
    X(cudaStreamQuery, OK, cudaStreamQuery(nullptr))                                           \
    X(cudaStreamSynchronize, OK, cudaStreamSynchronize(nullptr))                               \
    X(cudaStreamIsCapturing, OK, cudaStreamIsCapturing(nullptr, &status))                      \
    X(cudaEventCreate, OK, cudaEventCreate(&event))                                            \
    X(cudaEventCreateWithFlags, OK, cudaEventCreateWithFlags(&event, cudaEventDisableTiming))  \
    X(cudaGraphCreate, OK, cudaGraphCreate(&graph, 0))                                         \
    X(cudaThreadExchangeStreamCaptureMode, OK, cudaThreadExchangeStreamCaptureMode(&mode))     \
    X(cudaFuncGetAttributes, OK, cudaFuncGetAttributes(&attributes, kernel))                   \
    X(cudaFuncSetAttribute, OK,                                                                \
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024))         \
    X(cudaFuncSetCacheConfig, OK, cudaFuncSetCacheConfig(kernel, cudaFuncCachePreferL1))       \
    X(cudaGetFuncBySymbol, OK, cudaGetFuncBySymbol(&function, (const void *)kernel))           \
    X(cudaGetKernel, OK, cudaGetKernel(&handle, (const void *)kernel))                         \
    X(cudaOccupancyMaxActiveBlocksPerMultiprocessor, OK,                                       \
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&value, kernel, 128, 0))                   \
    X(cudaOccupancyMaxPotentialBlockSize, OK,                                                  \
      cudaOccupancyMaxPotentialBlockSize(&value, &other, kernel))                              \
    X(cudaOccupancyAvailableDynamicSMemPerBlock, OK,                                           \
      cudaOccupancyAvailableDynamicSMemPerBlock(&size, kernel, 1, 128))

CASES(FIRST_RUN)
static const struct first_call cases[] = {CASES(FIRST_ROW)};

static const char *name_of(int result)
{
    return cudaGetErrorName((cudaError_t)result);
}

int main(int argc, char **argv)
{
    return first_main(argc, argv, "first_runtime_calls", cases, sizeof cases / sizeof cases[0],
                      nullptr, name_of);
}
