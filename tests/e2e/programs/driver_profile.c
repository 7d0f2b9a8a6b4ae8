/*
 * What frameworks ask of the driver and no other program here does. With the other
 * driver programs it makes up the list of test_call_profile.py.
 */
#include "driver.h"

/* The names without a version, which cuda.h hides behind those with one. */
#undef cuDevicePrimaryCtxRelease
#undef cuDeviceGetUuid
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);

static int device_attribute(CUdevice_attribute attribute)
{
    int value = 0;
    CU(cuDeviceGetAttribute(&value, attribute, driver_device));
    return value;
}

static void context(void)
{
    unsigned version = 0;
    CUdevice device = -1;
    CUuuid one, two;
    size_t before = 0, after = 0;

    CU(cuCtxGetApiVersion(driver_context, &version));
    EXPECT(version >= 3010, "the context is of version %u", version);
    CU(cuCtxGetDevice(&device));
    EXPECT(device == driver_device, "the current device is %d", device);
    device = -1;
    CU(cuCtxGetDevice_v2(&device, driver_context));
    EXPECT(device == driver_device, "the context is on device %d", device);
    CU(cuCtxSynchronize_v2(driver_context));

    memset(&one, 0, sizeof one);
    memset(&two, 1, sizeof two);
    CU(cuDeviceGetUuid(&one, driver_device));
    CU(cuDeviceGetUuid_v2(&two, driver_device));
    EXPECT(memcmp(&one, &two, sizeof one) == 0, "one device has two UUIDs");
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetUuid(&one, 4096));

    CU(cuCtxGetLimit(&before, CU_LIMIT_STACK_SIZE));
    CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, before + 1024));
    CU(cuCtxGetLimit(&after, CU_LIMIT_STACK_SIZE));
    EXPECT(before > 0 && after >= before + 1024, "the stack went from %zu to %zu", before, after);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxGetLimit(NULL, CU_LIMIT_STACK_SIZE));
}

/* The old name takes and gives back the same count as the new one. */
static void primary_context(void)
{
    CUcontext again = NULL;
    unsigned flags;
    int active = 0;

    CU(cuDevicePrimaryCtxRetain(&again, driver_device));
    EXPECT(again == driver_context, "the primary context is another one");
    CU(cuDevicePrimaryCtxRelease(driver_device));
    CU(cuDevicePrimaryCtxGetState(driver_device, &flags, &active));
    EXPECT(active == 1, "the primary context is gone while it is retained");
}

static void modes(void)
{
    CUmoduleLoadingMode loading = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    CU(cuModuleGetLoadingMode(&loading));
    EXPECT(loading == CU_MODULE_EAGER_LOADING || loading == CU_MODULE_LAZY_LOADING,
           "the loading mode is %d", (int)loading);
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == CU_STREAM_CAPTURE_MODE_GLOBAL, "the capture mode was %d", (int)mode);
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == CU_STREAM_CAPTURE_MODE_RELAXED, "the capture mode became %d", (int)mode);
}

static void memory(void)
{
    enum { BYTES = 1 << 24 };
    size_t free_before = 0, free_after = 0, total = 0;
    CUdeviceptr from, to;
    unsigned words[4];
    CUmemoryPool pool = NULL, standard = NULL;

    CU(cuMemGetInfo(&free_before, &total));
    EXPECT(free_before > BYTES && free_before <= total, "%zu of %zu are free", free_before, total);
    CU(cuMemAlloc(&from, BYTES));
    CU(cuMemAlloc(&to, 64));
    CU(cuMemGetInfo(&free_after, &total));
    EXPECT(free_after <= free_before && free_after < total, "then %zu of %zu", free_after, total);

    CU(cuMemsetD32(from, 0xfeedbeef, 16));
    CU(cuMemsetD32(to, 1, 16));
    CU(cuMemcpyDtoDAsync(to + 4, from, 8, NULL));
    CU(cuMemcpyDtoH(words, to, sizeof words));
    EXPECT(words[0] == 1 && words[1] == 0xfeedbeef && words[2] == 0xfeedbeef && words[3] == 1,
           "the copy left %#x %#x %#x %#x", words[0], words[1], words[2], words[3]);
    CU(cuMemFree(to));
    CU(cuMemFree(from));

    CU(cuDeviceGetMemPool(&pool, driver_device));
    CU(cuDeviceGetDefaultMemPool(&standard, driver_device));
    EXPECT(pool != NULL && pool == standard, "the current pool is not the default one");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetMemPool(NULL, driver_device));
}

static void pointers(void)
{
    CUpointer_attribute ask[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    };
    CUdeviceptr device, pointer = 0, start = 0;
    size_t size = 0;
    unsigned type = 0;
    int ordinal = -1;
    void *data[] = {&type, &pointer, &ordinal, &start, &size};

    CU(cuMemAlloc(&device, 4096));
    CU(cuPointerGetAttributes(5, ask, data, device + 16));
    EXPECT(type == CU_MEMORYTYPE_DEVICE, "the memory has type %u", type);
    EXPECT(pointer == device + 16, "the pointer is %#llx, not %#llx", pointer, device + 16);
    EXPECT(ordinal == driver_device, "it is on device %d", ordinal);
    EXPECT(start == device && size == 4096, "its range is %#llx, %zu bytes", start, size);
    /* Of memory that CUDA does not know all is null, and that is no error. */
    CU(cuPointerGetAttributes(2, ask, data, (CUdeviceptr)(size_t)&size));
    EXPECT(type == 0 && pointer == 0, "a variable has type %u, address %#llx", type, pointer);
    CU(cuMemFree(device));
}

/* Memory of the host that a kernel writes to. Over a network it is refused. */
static void mapped_memory(CUfunction increment)
{
    const char *transport = getenv("GPUPOOL_TRANSPORT");
    int *host = NULL, n = 64;
    CUdeviceptr device = 0;

    CU(cuMemHostAlloc((void **)&host, 64 * sizeof *host, CU_MEMHOSTALLOC_DEVICEMAP));
    for (int i = 0; i < 64; i++)
        host[i] = i;
    CUresult result = cuMemHostGetDevicePointer(&device, host, 0);
    if (result == CUDA_ERROR_NOT_SUPPORTED && transport && strcmp(transport, "shm") != 0) {
        CU(cuMemFreeHost(host));
        return;
    }
    REQUIRE(result == CUDA_SUCCESS, "cuMemHostGetDevicePointer: %s", driver_name(result));
    void *parameters[] = {&device, &n};
    CU(cuLaunchKernel(increment, 1, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL));
    CU(cuCtxSynchronize());
    for (int i = 0; i < 64; i++)
        EXPECT(host[i] == i + 1, "value %d is %d, expected %d", i, host[i], i + 1);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&device, host, 1));
    CU(cuMemFreeHost(host));
}

static void event(void)
{
    CUevent event;

    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecordWithFlags(event, NULL, CU_EVENT_RECORD_DEFAULT));
    CU(cuEventSynchronize(event));
    CU(cuEventQuery(event));
    CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecordWithFlags(NULL, NULL, 0));
    CU(cuEventDestroy(event));
}

static void kernel_settings(CUfunction function)
{
    CUlibrary library;
    CUkernel kernel;
    int value = 0;

    CU(cuFuncSetCacheConfig(function, CU_FUNC_CACHE_PREFER_L1));

    CU(cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    CU(cuLibraryGetKernel(&kernel, library, "shared_sum"));
    CU(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 2048, kernel,
                            driver_device));
    CU(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel,
                            driver_device));
    EXPECT(value == 2048, "the dynamic shared memory is %d", value);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NUM_REGS, 1, kernel, driver_device));
    CU(cuLibraryUnload(library));
}

static void clusters(CUfunction function)
{
    CUlaunchAttribute attribute = {
        .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        .value.clusterDim = {2, 1, 1},
    };
    CUlaunchConfig config = {
        .gridDimX = 8,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = 64,
        .blockDimY = 1,
        .blockDimZ = 1,
        .attrs = &attribute,
        .numAttrs = 1,
    };
    int count = -1;

    if (device_attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)) {
        CU(cuOccupancyMaxActiveClusters(&count, function, &config));
        EXPECT(count >= 1, "%d clusters fit", count);
    } else {
        EXPECT(cuOccupancyMaxActiveClusters(&count, function, &config) != CUDA_SUCCESS ||
                   count == 0,
               "%d clusters fit where there are none", count);
    }
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveClusters(NULL, function, &config));
}

static CUresult encode(CUtensorMap *map, CUdeviceptr address, unsigned rows)
{
    static const cuuint64_t size[] = {64, 32}, stride[] = {64 * sizeof(float)};
    static const cuuint32_t step[] = {1, 1};
    cuuint32_t box[] = {16, rows};

    return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)(size_t)address,
                                  size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* A map is opaque; that it is one of its arguments shows in what changes with them. GPUs before
 * 9.0 say that they have none. */
static void tensor_map(void)
{
    CUtensorMap map[3];
    CUdeviceptr device;

    memset(map, 0xa5, sizeof map);
    CU(cuMemAlloc(&device, 64 * 32 * sizeof(float)));
    CUresult result = encode(&map[0], device, 8);
    if (result == CUDA_ERROR_NOT_SUPPORTED &&
        !device_attribute(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED)) {
        CU(cuMemFree(device));
        return;
    }
    REQUIRE(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: %s", driver_name(result));
    CU(encode(&map[1], device, 8));
    CU(encode(&map[2], device, 4));
    EXPECT(memcmp(&map[0], &map[1], sizeof map[0]) == 0, "equal tensors have two maps");
    EXPECT(memcmp(&map[0], &map[2], sizeof map[0]) != 0, "another box has the same map");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, encode(&map[0], device + 4, 8));
    CU(cuMemFree(device));
}

/* test_trace.py looks how much of the name is in the trace. */
static void long_name(CUmodule module)
{
    char name[101];
    CUfunction function;

    memset(name, 'n', 100);
    name[100] = '\0';
    CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, name));
}

int main(void)
{
    CUmodule module;

    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    context();
    primary_context();
    modes();
    memory();
    pointers();
    mapped_memory(driver_function(module, "increment"));
    event();
    kernel_settings(driver_function(module, "add"));
    clusters(driver_function(module, "add"));
    tensor_map();
    long_name(module);
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_profile");
}
